// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests of this crate that can share a process, in one program: linking one each took minutes.

mod asynchronous;
mod checklist;
mod core_calls;
mod faults;
mod fuzz;
mod harness;
mod jobs;
mod memory;
mod recorded_programs;
mod rocket;
mod shared_memory;
mod sharing;
mod support;
mod versions;
