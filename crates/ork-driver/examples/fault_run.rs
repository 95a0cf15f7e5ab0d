// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fault run: `cargo run --release -p ork-driver --example fault_run -- [PRODUCTS] [SEED] [rknpu|rocket] [auto|polled|fenced]`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example talks")]

use std::process::ExitCode;
use std::time::Instant;

use ork_device::{DriverKind, SubmitMode};
use ork_driver::{FaultRun, fault_run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |index: usize, default: u64| arguments.get(index).and_then(|n| n.parse().ok()).unwrap_or(default);
    let word = |index: usize| arguments.get(index).map(String::as_str).unwrap_or_default();
    let run = FaultRun {
        products: number(0, 1_000_000),
        seed: number(1, 0),
        kernel: if word(2) == "rocket" { DriverKind::Rocket } else { DriverKind::Rknpu },
        submit: match word(3) {
            "polled" => SubmitMode::Polled,
            "fenced" => SubmitMode::Fenced,
            _ => SubmitMode::Auto,
        },
        ..FaultRun::default()
    };
    let start = Instant::now();
    let mut shown = 0;
    let result = fault_run(&run, &mut |tally| {
        if tally.products / 100_000 > shown {
            shown = tally.products / 100_000;
            eprintln!("{} products, {:.0} s", tally.products, start.elapsed().as_secs_f64());
        }
        true
    });
    match result {
        Ok(tally) => {
            print!("{tally}");
            println!("host time {:.1} s", start.elapsed().as_secs_f64());
            if tally.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
