// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests of this crate that can share a process, in one program: linking one each took minutes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod emit;
mod forms;
mod recipe2;
