// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fault run, short: on every kernel, in every way to wait.

use ork_device::{DriverKind, EventKind, Fault, FaultPlan, SubmitMode, When};
use ork_driver::{
    DeadCores, FaultRun, FaultTally, Length, MemoryTally, fault_run, is_accounted_for, memory_run,
};

fn run(run: &FaultRun) -> FaultTally {
    let tally = fault_run(run, &mut |_| true).unwrap();
    match run.length {
        Length::Products(products) => assert_eq!(tally.products, products),
        Length::Submits(submits) => assert!((submits..submits + 1000).contains(&tally.submits)),
    }
    tally
}

fn short(kernel: DriverKind, driver_version: [u32; 3], submit: SubmitMode) -> FaultRun {
    FaultRun {
        seed: 7,
        length: Length::Products(1500),
        kernel,
        driver_version,
        submit,
        ..FaultRun::default()
    }
}

#[test]
fn without_faults_nothing_is_noticed() {
    for (kernel, submit) in [
        (DriverKind::Rknpu, SubmitMode::Blocking),
        (DriverKind::Rknpu, SubmitMode::Polled),
        (DriverKind::Rocket, SubmitMode::Auto),
    ] {
        let quiet = FaultRun {
            faults: FaultPlan::default(),
            length: Length::Products(300),
            ..short(kernel, [0, 9, 8], submit)
        };
        let tally = run(&quiet);
        assert!(tally.is_clean(), "{tally}");
        // What results have the value of the seed is asked again, faults or not.
        assert!(tally.collisions > 0 && tally.collisions < 40);
        let asked = match submit {
            // Nothing tells a job that wrote the seed from one that never ran.
            SubmitMode::Polled => tally.events.of(EventKind::Missed),
            _ => tally.events.of(EventKind::SecondSeed),
        };
        assert_eq!(asked, 3 * tally.collisions, "on three cores: {tally}");
        if submit != SubmitMode::Polled {
            assert_eq!(tally.events.recoveries(), 0, "{tally}");
        }
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
            assert!(is_accounted_for(&short(DriverKind::Rknpu, version, submit), &tally), "{tally}");
            if submit != SubmitMode::Blocking {
                assert!(tally.events.of(EventKind::Missed) > 0, "{tally}");
            }
        }
    }
    let rocket = short(DriverKind::Rocket, [0, 9, 8], SubmitMode::Auto);
    let tally = run(&rocket);
    assert!(tally.is_clean() && is_accounted_for(&rocket, &tally), "rocket: {tally}");
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
fn dead_cores_besides() {
    // Four pairs of devices: the second has core 0 dead, the fourth core 1.
    let cores = FaultRun {
        dead_cores: DeadCores::InTurn,
        reopen_after: 300,
        length: Length::Products(1200),
        ..short(DriverKind::Rknpu, [0, 9, 8], SubmitMode::Blocking)
    };
    let tally = run(&cores);
    assert!(tally.is_clean() && is_accounted_for(&cores, &tally), "{tally}");
    assert_eq!((tally.devices, tally.events.of(EventKind::CoreRetired)), (8, 4), "{tally}");
    assert!(tally.injected[&Fault::DeadCore] >= 8, "{tally}");
}

#[test]
fn the_length_may_be_said_in_submits() {
    let submits =
        FaultRun { length: Length::Submits(3000), ..short(DriverKind::Rknpu, [0, 9, 8], SubmitMode::Auto) };
    let tally = run(&submits);
    // Each product is at least one, on up to three cores.
    assert!(tally.products < tally.submits && tally.submits < 3 * tally.products, "{tally}");
}

#[test]
fn faults_that_nobody_noticed_are_no_account() {
    let blocking = short(DriverKind::Rknpu, [0, 9, 8], SubmitMode::Blocking);
    let mut tally = run(&FaultRun { length: Length::Products(600), ..blocking.clone() });
    assert!(is_accounted_for(&blocking, &tally));
    for fault in [Fault::Hang, Fault::Interrupted] {
        let before = tally.injected.clone();
        *tally.injected.entry(fault).or_insert(0) += 1;
        assert!(!is_accounted_for(&blocking, &tally));
        tally.injected = before;
    }
    tally.collisions += 1000;
    assert!(!is_accounted_for(&blocking, &tally));
}

#[test]
fn no_memory_at_any_allocation_is_an_error_and_leaks_nothing() {
    for (kernel, submit) in [
        (DriverKind::Rknpu, SubmitMode::Blocking),
        (DriverKind::Rknpu, SubmitMode::Fenced),
        (DriverKind::Rocket, SubmitMode::Auto),
    ] {
        let tally = memory_run(&short(kernel, [0, 9, 8], submit)).unwrap();
        assert!(tally.is_clean(), "{kernel:?}: {tally}");
        assert!(tally.refused >= 8 && tally.errors >= 6, "{kernel:?}: {tally}");
        assert_eq!(tally.refused, tally.not_opened + tally.errors + tally.survived, "{tally}");
    }
    assert!(!MemoryTally { leaks: 1, ..MemoryTally::default() }.is_clean());
}

#[test]
fn errors_are_counted_by_what_they_say() {
    // The control: a board on which nothing ever completes.
    let faults = FaultPlan { hang: When::Always, ..FaultPlan::default() };
    let hopeless = FaultRun {
        faults,
        length: Length::Products(3),
        ..short(DriverKind::Rknpu, [0, 9, 8], SubmitMode::Blocking)
    };
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
