// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long runs of mutated recorded programs, noise and mutated text against the simulator and the assembler.
//!
//! `cargo run --release -p ork-sim --example fuzz_programs -- --seconds 600 --seed 1 [--target programs|noise|text]
//! [--once] [--memory-mib 2048] [--stall-seconds 60]`
//!
//! Every execution has a seed of its own, counted up from `--seed`, and can be repeated with `--once`. A watchdog ends the
//! run, with the seed, if an execution stalls or the process grows beyond its memory cap. Panics are counted and
//! named; the exit code is 1 then.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::exit,
    clippy::expect_used,
    missing_debug_implementations,
    unreachable_pub,
    reason = "a tool of its own, and support that it shares with tests"
)]

#[path = "../tests/all/common/fuzz.rs"]
mod fuzz;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fuzz::{Corpus, Ended, Target, execute};

/// Failures after which a run gives up.
const FAILURES_MAX: usize = 20;

struct Arguments {
    seconds: u64,
    seed: u64,
    targets: Vec<Target>,
    once: bool,
    memory_mib: u64,
    stall_seconds: u64,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments {
        seconds: 60,
        seed: 0,
        targets: Target::ALL.to_vec(),
        once: false,
        memory_mib: 2048,
        stall_seconds: 60,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--once" {
            found.once = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{word} {value}: {error}"));
        match word.as_str() {
            "--seconds" => found.seconds = number()?,
            "--seed" => found.seed = number()?,
            "--memory-mib" => found.memory_mib = number()?,
            "--stall-seconds" => found.stall_seconds = number()?,
            "--target" => {
                let target = Target::from_name(&value);
                found.targets = vec![target.ok_or_else(|| format!("no target {value}"))?];
            }
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    Ok(found)
}

/// The execution that runs now, for the watchdog.
struct Now {
    seed: AtomicU64,
    /// Milliseconds since the start of the process.
    since: AtomicU64,
}

/// Resident memory of this process in MiB; 0 where the system does not say.
fn resident_mib() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()));
    pages.unwrap_or(0) * 4096 / (1 << 20)
}

fn watch(now: &'static Now, start: Instant, target: Target, memory_mib: u64, stall: Duration) {
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_millis(200));
            let seed = now.seed.load(Ordering::Relaxed);
            let since = Duration::from_millis(now.since.load(Ordering::Relaxed));
            let (age, resident) = (start.elapsed().saturating_sub(since), resident_mib());
            if age > stall || resident > memory_mib {
                eprintln!(
                    "watchdog: --target {target} --seed {seed} --once runs for {age:?} in {resident} MiB"
                );
                std::process::exit(3);
            }
        }
    });
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    let corpus = match Corpus::read(&folder, 1) {
        Ok(corpus) => corpus,
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            return ExitCode::from(2);
        }
    };
    let mut failures = Vec::new();
    for target in &arguments.targets {
        failures.extend(fuzz(&corpus, *target, &arguments));
    }
    for (target, seed) in &failures {
        println!("failed: --target {target} --seed {seed} --once");
    }
    ExitCode::from(u8::from(!failures.is_empty()))
}

fn fuzz(corpus: &Corpus, target: Target, arguments: &Arguments) -> Vec<(Target, u64)> {
    let start = Instant::now();
    let now: &'static Now =
        Box::leak(Box::new(Now { seed: AtomicU64::new(arguments.seed), since: AtomicU64::new(0) }));
    watch(now, start, target, arguments.memory_mib, Duration::from_secs(arguments.stall_seconds));
    let share = Duration::from_secs(arguments.seconds) / arguments.targets.len() as u32;
    let mut tally: BTreeMap<Ended, u64> = BTreeMap::new();
    let (mut failures, mut longest) = (Vec::new(), (Duration::ZERO, 0));
    let mut seed = arguments.seed;
    loop {
        let begin = start.elapsed();
        now.seed.store(seed, Ordering::Relaxed);
        now.since.store(begin.as_millis() as u64, Ordering::Relaxed);
        match catch_unwind(AssertUnwindSafe(|| execute(corpus, target, seed))) {
            Ok(ended) => *tally.entry(ended).or_default() += 1,
            Err(_) => {
                eprintln!("--target {target} --seed {seed} --once");
                failures.push((target, seed));
            }
        }
        longest = longest.max((start.elapsed() - begin, seed));
        if arguments.once || start.elapsed() >= share || failures.len() >= FAILURES_MAX {
            break;
        }
        seed = seed.wrapping_add(1);
    }
    // The next target has a watchdog of its own; this one must not bark at a finished run.
    now.since.store(u64::MAX, Ordering::Relaxed);
    let executions: u64 = tally.values().sum();
    println!(
        "{target}: {executions} executions in {:.0} s, {} failed, longest {:.2} s (seed {}), {} MiB resident",
        start.elapsed().as_secs_f64(),
        failures.len(),
        longest.0.as_secs_f64(),
        longest.1,
        resident_mib()
    );
    for (ended, count) in &tally {
        println!("  {count:>9} {ended:?}");
    }
    failures
}
