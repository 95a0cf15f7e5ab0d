// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random calls and damaged traces, for some seconds and from fixed seeds; `examples/fuzz_calls.rs` goes on for longer.

mod harness;

use std::time::Duration;

use harness::{Budget, Tally, Target, peak_bytes, run, run_with};

/// Boards, views and all: far more than any execution needs, far less than an unbounded one would take.
const PEAK_BYTES: u64 = 2 << 30;

fn short(target: Target, executions: u64) {
    let summary = run(target, 1, Budget::Executions(executions)).unwrap_or_else(|wrong| panic!("{wrong}"));
    // The calls must get somewhere.
    let Tally { calls, successes, jobs, completed } = summary.tally;
    assert!(successes > calls / 5 && jobs > 100 && completed > 10, "{summary}");
    assert!(peak_bytes() < PEAK_BYTES, "{} bytes of memory", peak_bytes());
}

#[test]
fn calls_of_the_vendor_driver() {
    short(Target::Rknpu, 200);
}

#[test]
fn calls_of_the_mainline_driver() {
    short(Target::Rocket, 300);
}

#[test]
fn damaged_traces() {
    short(Target::Trace, 400);
}

#[test]
fn hangs_panics_and_failures_are_found_and_name_their_seed() {
    const SECOND: Duration = Duration::from_secs(1);
    let go = |limit: Duration, execute: fn(u64) -> Result<Tally, String>| {
        run_with(5, Budget::Executions(10), limit, execute).unwrap_err()
    };
    let hangs = go(SECOND, |seed| {
        if seed == 8 {
            std::thread::sleep(3600 * SECOND);
        }
        Ok(Tally::default())
    });
    assert!(hangs.contains("seed 8") && hangs.contains("hangs"), "{hangs}");
    let panics = go(60 * SECOND, |seed| if seed == 7 { panic!("on purpose") } else { Ok(Tally::default()) });
    assert!(panics.contains("seed 7") && panics.contains("on purpose"), "{panics}");
    assert_eq!(go(60 * SECOND, |_| Err("wrong".to_owned())), "seed 5: wrong");
    let done = run_with(0, Budget::Executions(3), 60 * SECOND, |_| Ok(Tally::default()));
    assert_eq!(done.unwrap().executions, 3);
}
