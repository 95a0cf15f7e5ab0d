// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that is killed at any moment does not harm the next one.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "all/support/mod.rs"]
mod support;

/// Not a test of its own: what the killed process runs.
#[test]
fn child() {
    support::kill::child();
}

#[test]
fn after_a_kill_at_any_of_twenty_points_the_next_program_computes_and_knows() {
    support::kill::kill_at(20, 5);
}
