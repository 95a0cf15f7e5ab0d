// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fault run: `cargo run --release -p ork-driver --example fault_run -- [SUBMITS] [SEED] [rknpu|rocket] [auto|polled|fenced] [ONE_IN]`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example talks")]

use std::process::ExitCode;
use std::time::Instant;

use ork_device::{DriverKind, SubmitMode};
use ork_driver::{DeadCores, FaultRun, Length, fault_run, is_accounted_for, memory_run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |index: usize, default: u64| arguments.get(index).and_then(|n| n.parse().ok()).unwrap_or(default);
    let word = |index: usize| arguments.get(index).map(String::as_str).unwrap_or_default();
    let kernel = if word(2) == "rocket" { DriverKind::Rocket } else { DriverKind::Rknpu };
    let run = FaultRun {
        length: Length::Submits(number(0, 1_000_000)),
        seed: number(1, 0),
        kernel,
        faults: FaultRun::every_fault(number(4, 100) as u32),
        dead_cores: match kernel {
            DriverKind::Rknpu => DeadCores::InTurn,
            DriverKind::Rocket => DeadCores::AsPlanned,
        },
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
        if tally.submits / 100_000 > shown {
            shown = tally.submits / 100_000;
            eprintln!("{} submits, {:.0} s", tally.submits, start.elapsed().as_secs_f64());
        }
        true
    });
    match result {
        Ok(tally) => {
            print!("{tally}");
            println!("host time {:.1} s", start.elapsed().as_secs_f64());
            let accounted = is_accounted_for(&run, &tally);
            println!("every fault in the counters: {accounted}");
            let memory = memory_run(&run);
            match &memory {
                Ok(memory) => println!("{memory}"),
                Err(error) => println!("{error}"),
            }
            let clean = tally.is_clean() && accounted && memory.is_ok_and(|memory| memory.is_clean());
            if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
