// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests of this crate that can share a process, in one program: linking one each took minutes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod arbitrary;
mod capacity;
mod captures;
mod common;
mod convolution;
mod elementwise;
mod float_output;
mod fuzz;
mod int4;
mod integers;
mod laws;
mod lut;
mod matmul;
mod operand;
mod options;
mod output;
mod pooling;
mod pooling_types;
mod reuse;
mod stage_operands;
mod timing;
mod trace;
