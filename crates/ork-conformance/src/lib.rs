// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded NPU programs, in the format they were recorded in, and a runner that replays them on the simulator.
//!
//! A case is a pair of files: `NAME.json` describes buffers, submits and the result that counts as right,
//! `NAME.npz` holds the bytes. `tests/conformance/README.md` of the project describes the format.
//!
//! - [`Case::read`] reads and checks a case; files of any content give an error, not a panic, and bounded memory.
//! - [`Case::run`] replays it and gives a [`Report`].
//! - [`Case::start`] gives its memory and jobs before anything runs, for tests that change programs.
//! - [`case_names`] lists the cases of a folder.
#![forbid(unsafe_code)]

mod case;
mod compare;
mod error;
mod memory;
mod npy;
mod published;
mod run;
mod start;
mod variant;

pub use case::{Buffer, Case, Driver, Output, Post, Program, Tolerance, case_names};
pub use compare::{Mismatch, Report, Verdict};
pub use error::CaseError;
pub use npy::{Array, Arrays, Dtype};
pub use published::Published;
pub use start::Start;
pub use variant::{VariantError, set_variant};
