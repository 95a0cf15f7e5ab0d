// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a plan and device addresses to register programs.
//!
//! - [`MatmulTask`]: one program, from named fields only; every value is derived from the task or is a named
//!   [`Quirk`];
//! - [`emit`], [`emit_with`]: the programs of one core's chain, linked, in one block of bytes.
//!
//! No input or output, no clock, no global. Validation of *shapes* belongs to `ork-plan`; this crate checks what only
//! it can know: that every value fits its field, and that every address range lies inside its binding.
#![forbid(unsafe_code)]

mod emit;
mod error;
mod geometry;
mod matmul;
pub mod quirk;

pub use emit::{Binding, Bindings, ProgramSet, emit, emit_with};
pub use error::{Buffer, SynthError};
pub use matmul::{MatmulTask, OutputStage, matmul_program};
pub use quirk::Quirk;
