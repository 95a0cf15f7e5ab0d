// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests of this crate that can share a process, in one program: linking one each took minutes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bench;
mod command;
mod conformance;
mod emulate;
mod folder;
mod pack;
mod ppl;
mod products;
mod real_model;
mod regcmd;
mod timeline;
