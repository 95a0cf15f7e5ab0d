// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a register program for the RK3588 NPU is made of.
//!
//! - [`regs`]: every register as a type, generated from `data/registers.toml` (`cargo xtask codegen`), which
//!   is the only source of names, offsets and bit ranges in the project;
//! - [`Cmd`]: the 64-bit register-command word;
//! - [`Program`] and [`ProgramBuilder`]: words in order, with the four-word trailer;
//! - [`asm`]: programs as text, and back;
//! - [`diff`]: two programs compared field by field;
//! - [`explain`]: what programs compute, in words;
//! - [`lint`]: rules that such words break, with both events;
//! - [`task`]: the operation and the memory that programs ask for;
//! - [`soc`]: the sizes of the chip that more than one crate needs.
//!
//! The crate says what can be *encoded*. What can be *completed* by the hardware is a law, and laws live in
//! `ork-plan`, which asks before a program is made; [`lint`] checks finished words, whoever made them. What the hardware *does* is mechanism, and mechanism lives in `ork-sim`.
#![forbid(unsafe_code)]

pub mod asm;
mod cmd;
pub mod diff;
pub mod explain;
pub mod lint;
mod precision;
mod program;
mod register;
pub mod regs;
pub mod soc;
pub mod task;

pub use cmd::{Block, Cmd, CmdKind};
pub use precision::Precision;
pub use program::{Link, PROGRAM_ALIGN_BYTES, Program, ProgramBuilder, TRAILER_WORDS};
pub use register::{FieldDesc, FieldOverflow, Register, RegisterDesc, find_register};

use std::fmt;

/// An address as the NPU sees it, behind its IOMMU. The window is 32 bits wide on every known chip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(pub u32);

impl Iova {
    /// The address `bytes` further on, or `None` when that leaves the 4 GiB window.
    #[must_use]
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        u64::from(self.0).checked_add(bytes).and_then(|sum| u32::try_from(sum).ok()).map(Self)
    }
}

impl fmt::Display for Iova {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
