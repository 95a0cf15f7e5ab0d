// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests of this crate that can share a process, in one program: linking one each took minutes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod datapath;
mod draw;
mod fault_run;
mod float_products;
mod kernels;
mod law_witness;
mod modelled_time;
mod precisions;
mod precompiled;
mod queue;
mod random_products;
mod residency;
mod rules;
mod support;
mod tiles;
mod timeline;
mod witness;
