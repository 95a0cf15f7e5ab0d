// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fault run, short: on every kernel, in every way to wait.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ork_device::{DriverKind, EventKind, Fault, FaultPlan, SubmitMode, When};
use ork_driver::{FaultRun, FaultTally, fault_run, is_accounted_for};

fn run(run: &FaultRun) -> FaultTally {
    let tally = fault_run(run, &mut |_| true).unwrap();
    assert_eq!(tally.products, run.products);
    tally
}

fn short(kernel: DriverKind, driver_version: [u32; 3], submit: SubmitMode) -> FaultRun {
    FaultRun { seed: 7, products: 1500, kernel, driver_version, submit, ..FaultRun::default() }
}

#[test]
fn without_faults_nothing_is_noticed() {
    for (kernel, submit) in [
        (DriverKind::Rknpu, SubmitMode::Blocking),
        (DriverKind::Rknpu, SubmitMode::Polled),
        (DriverKind::Rocket, SubmitMode::Auto),
    ] {
        let quiet =
            FaultRun { faults: FaultPlan::default(), products: 300, ..short(kernel, [0, 9, 8], submit) };
        let tally = run(&quiet);
        assert!(tally.is_clean(), "{tally}");
        assert_eq!(tally.events.to_string(), "no events");
        assert_eq!((tally.injected.len(), tally.reloads, tally.interruptions), (0, 0, 0));
    }
}

#[test]
fn with_every_fault_no_result_is_wrong_and_no_wait_too_long() {
    for version in [[0, 9, 2], [0, 9, 6], [0, 9, 8]] {
        for submit in [SubmitMode::Blocking, SubmitMode::Polled, SubmitMode::Fenced] {
            let tally = run(&short(DriverKind::Rknpu, version, submit));
            assert!(tally.is_clean(), "{version:?} {submit:?}: {tally}");
            assert!(tally.injected.len() >= 6, "{tally}");
            if submit == SubmitMode::Blocking {
                assert!(is_accounted_for(&tally), "{tally}");
            } else {
                assert!(tally.events.of(EventKind::Missed) > 0, "{tally}");
            }
        }
    }
    let tally = run(&short(DriverKind::Rocket, [0, 9, 8], SubmitMode::Auto));
    assert!(tally.is_clean(), "rocket: {tally}");
    assert!(tally.events.of(EventKind::Resubmitted) > 0, "{tally}");
}

#[test]
fn the_check_finds_stale_operands_that_no_completion_can_show() {
    let stale = FaultPlan { stale_line: "one-in:20".parse().unwrap(), ..FaultPlan::default() };
    let tally = run(&FaultRun { faults: stale, ..short(DriverKind::Rknpu, [0, 9, 8], SubmitMode::Blocking) });
    assert!(tally.is_clean(), "{tally}");
    assert!(tally.events.of(EventKind::WrongProduct) > 10, "{tally}");
    assert!(tally.injected[&Fault::StaleLine] > 100);
}

#[test]
fn a_dead_core_besides() {
    let faults = FaultPlan { dead_core: Some(1), ..FaultRun::every_fault(100) };
    let tally = run(&FaultRun { faults, ..short(DriverKind::Rknpu, [0, 9, 8], SubmitMode::Blocking) });
    assert!(tally.is_clean(), "{tally}");
    assert_eq!(tally.events.of(EventKind::CoreRetired), 1, "{tally}");
}

#[test]
fn errors_are_counted_by_what_they_say() {
    // The control: a board on which nothing ever completes.
    let faults = FaultPlan { hang: When::Always, ..FaultPlan::default() };
    let hopeless =
        FaultRun { faults, products: 3, ..short(DriverKind::Rknpu, [0, 9, 8], SubmitMode::Blocking) };
    let tally = run(&hopeless);
    assert!(!tally.is_clean());
    assert_eq!(tally.errors.values().sum::<u64>(), 3, "{tally}");
    assert_eq!(tally.wrong + tally.late, 0, "{tally}");
}

#[test]
fn the_watcher_may_end_it() {
    let tally =
        fault_run(&FaultRun { faults: FaultPlan::default(), ..FaultRun::default() }, &mut |_| false).unwrap();
    assert_eq!(tally.products, 64);
}
