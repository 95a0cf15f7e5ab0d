// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests of this crate that can share a process, in one program: linking one each took minutes.

mod bench;
mod command;
mod conformance;
mod emulate;
mod experts;
mod families;
mod pack;
mod packs;
mod ppl;
mod products;
mod real_model;
mod regcmd;
mod reload;
mod timeline;
