// SPDX-License-Identifier: MIT OR Apache-2.0
//! The slow tier of `kill`: `cargo test --release -p ork-driver --features slow --test slow_kill`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "all/support/mod.rs"]
mod support;

/// Not a test of its own: what the killed process runs.
#[test]
fn child() {
    support::kill::child();
}

#[test]
fn after_a_kill_at_any_of_two_hundred_points_the_next_program_computes_and_knows() {
    support::kill::kill_at(200, 6);
}
