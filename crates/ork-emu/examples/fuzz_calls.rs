// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random input for the emulated kernel, for as long as one likes:
//! `cargo run --release -p ork-emu --example fuzz_calls -- --target rknpu --seconds 600 --seed 1`. Without a target each gets
//! its turn. The exit code is 1 when a seed panics, hangs, or leaves something behind; with that seed and
//! `--executions 1` it happens again.
#![expect(clippy::print_stdout, clippy::exit, reason = "a tool for people")]

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::time::Duration;

use harness::{Budget, Target, peak_bytes, run};

const USAGE: &str =
    "fuzz_calls [--target rknpu|rocket|trace] [--seconds N] [--executions N] [--seed S]; 60 s from seed 1";

fn usage() -> ! {
    println!("{USAGE}");
    std::process::exit(2)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut targets, mut budget, mut seed) =
        (Target::ALL.to_vec(), Budget::Time(Duration::from_secs(60)), 1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().unwrap_or_else(|| usage());
        let number = || value.parse::<u64>().unwrap_or_else(|_| usage());
        match option.as_str() {
            "--target" => targets.retain(|(name, _)| *name == value),
            "--seconds" => budget = Budget::Time(Duration::from_secs(number())),
            "--executions" => budget = Budget::Executions(number()),
            "--seed" => seed = number(),
            _ => usage(),
        }
    }
    if targets.is_empty() {
        usage();
    }
    for (name, target) in targets {
        match run(target, seed, budget) {
            Ok(summary) => println!("{name}: {summary}, peak {} MiB", peak_bytes() >> 20),
            Err(wrong) => {
                println!("{name}: {wrong}");
                std::process::exit(1);
            }
        }
    }
}
