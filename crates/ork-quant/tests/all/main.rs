// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests of this crate that can share a process, in one program: linking one each took minutes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod basis;
mod gptq;
mod groups;
mod rule;
mod statistics;
mod stored;
mod stored_product;
mod twins;
mod vectors;
