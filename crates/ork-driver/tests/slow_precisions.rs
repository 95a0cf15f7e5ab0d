// SPDX-License-Identifier: MIT OR Apache-2.0
//! The slow tier of every precision: `cargo test --release -p ork-driver --features slow --test slow_precisions`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "all/support/mod.rs"]
mod support;

use ork_plan::Product;
use support::edges::{self, Tier};
use support::precisions;

fn random_products(product: Product) {
    let cases = edges::draw(product, Tier::Slow);
    assert_eq!(cases.len(), 20_000);
    precisions::sweep(product, &cases);
}

support::precisions::for_each!(random_products);
