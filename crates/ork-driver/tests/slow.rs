// SPDX-License-Identifier: MIT OR Apache-2.0
//! The slow tier: `cargo test --release -p ork-driver --features slow --test slow`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "all/support/mod.rs"]
mod support;

use ork_testkit::{Budget, cases};

#[test]
fn ten_thousand_random_products_are_exact() {
    let cases = cases::draw(1, &Budget::SLOW);
    assert_eq!(cases.len(), 10_000);
    support::sweep(&cases);
}
