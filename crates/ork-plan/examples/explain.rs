// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints how a product would be computed, and why so:
//! `cargo run -p ork-plan --example explain -- fp16 200 3584 1024 [cores] [rule ...]`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints")]

use std::process::ExitCode;

use ork_isa::soc::RK3588;
use ork_plan::{PlanOptions, Product, explain_product};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse().ok());
    let product = arguments.first().map(|name| name.parse::<Product>());
    let (Some(Ok(product)), Some(m), Some(k), Some(n)) = (product, number(1), number(2), number(3)) else {
        eprintln!("usage: explain PRODUCT M K N [CORES] [RULE ...]");
        return ExitCode::from(2);
    };
    let rules = arguments.iter().skip(5).cloned().collect();
    let cores = number(4).and_then(|cores| u8::try_from(cores).ok()).unwrap_or(0);
    let options = PlanOptions { cores, rules, ..PlanOptions::default() };
    match explain_product(product, (m, k, n), &RK3588, &options) {
        Ok(explanation) => {
            print!("{explanation}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
