// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounded runs of what `examples/fuzz_programs.rs` does for hours: mutated recorded programs, noise, mutated text.
#![allow(
    clippy::expect_used,
    missing_debug_implementations,
    unreachable_pub,
    dead_code,
    reason = "support of the example, used in part"
)]

#[path = "common/fuzz.rs"]
mod mutation;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use mutation::{Corpus, Ended, Target, execute};

/// Host time that one test may take.
const BUDGET: Duration = Duration::from_millis(2500);
/// Executions that it makes however slow the host is: enough to see each outcome that it asks for.
const EXECUTIONS_MIN: u64 = 64;
/// Executions after which it ends, however fast the host is.
const EXECUTIONS: u64 = 4000;

fn corpus(step: usize) -> Corpus {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    Corpus::read(&folder, step).expect("recorded cases")
}

fn tally(target: Target, step: usize) -> BTreeMap<Ended, u64> {
    let corpus = corpus(step);
    let start = Instant::now();
    let mut tally = BTreeMap::new();
    for seed in 0..EXECUTIONS {
        *tally.entry(execute(&corpus, target, seed)).or_default() += 1;
        if seed + 1 >= EXECUTIONS_MIN && start.elapsed() > BUDGET {
            break;
        }
    }
    tally
}

fn count(tally: &BTreeMap<Ended, u64>, of: impl Fn(&Ended) -> bool) -> u64 {
    tally.iter().filter(|(ended, _)| of(ended)).map(|(_, count)| count).sum()
}

#[test]
fn mutated_programs() {
    let tally = tally(Target::Programs, 3);
    assert!(count(&tally, |ended| *ended == Ended::Clean) > 0, "{tally:?}");
    assert!(count(&tally, |ended| matches!(ended, Ended::Hang(_))) > 0, "{tally:?}");
    assert!(count(&tally, |ended| matches!(ended, Ended::Unmodelled(_))) > 0, "{tally:?}");
    assert!(count(&tally, |ended| matches!(ended, Ended::Found(_))) > 0, "{tally:?}");
}

#[test]
fn noise() {
    let tally = tally(Target::Noise, 99);
    assert!(tally.len() > 2, "{tally:?}");
}

#[test]
fn mutated_text() {
    let tally = tally(Target::Text, 7);
    assert!(count(&tally, |ended| *ended == Ended::Accepted) > 10, "{tally:?}");
    assert!(count(&tally, |ended| *ended == Ended::Refused) > 10, "{tally:?}");
}

#[test]
fn an_execution_can_be_repeated() {
    let corpus = corpus(9);
    for target in Target::ALL {
        for seed in [3, 1 << 40, u64::MAX] {
            assert_eq!(execute(&corpus, target, seed), execute(&corpus, target, seed), "{target} {seed}");
        }
        assert_eq!(Target::from_name(&target.to_string()), Some(target));
    }
}
