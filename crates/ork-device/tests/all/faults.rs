// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each fault, on each kernel and in each way to wait: with recovery the values are right, the events are counted and
//! the time is bounded; without it the fault is an error.

use crate::support;
use std::time::{Duration, Instant};

use ork_device::{
    Board, Device, DeviceOptions, DomainId, DriverKind, EmuOptions, EventKind, Fault, FaultPlan, FindingKind,
    Purpose, RecoveryMode, Seed, SubmitError, SubmitMode, TimePolicy, When,
};
use support::*;

const ZERO: DomainId = DomainId(0);
type KernelVersion = (DriverKind, [u32; 3]);

/// Every kernel with every way to wait that it has.
fn ways() -> Vec<(KernelVersion, SubmitMode)> {
    let mut ways = vec![(KERNELS[3], SubmitMode::Auto)];
    for kernel in &KERNELS[..3] {
        ways.extend(
            [SubmitMode::Blocking, SubmitMode::Polled, SubmitMode::Fenced].map(|submit| (*kernel, submit)),
        );
    }
    ways
}

/// The output of a job may be there a little before the board has done with it. Nobody holds a fence by then.
fn eventually_idle(board: &Board) {
    let patience = Instant::now() + Duration::from_secs(10);
    while board.live().jobs != 0 || board.live().fences != 0 {
        assert!(Instant::now() < patience, "{:?}", board.live());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs some rounds with a fault; all of them are right, and none takes longer than it may.
fn survives(device: &Device, cores: u8, rounds: usize) {
    let mut bench = Bench::new(device, ZERO, cores, 3, 77);
    let bound = device.longest_round();
    for round in 0..rounds {
        bench.spoil();
        let before = device.clock().now();
        bench.run(device).unwrap_or_else(|error| panic!("round {round}: {error}: {}", device.event_counts()));
        let took = device.clock().now() - before;
        assert!(took <= bound, "round {round} took {took:?} of {bound:?}");
        bench.assert_right();
    }
}

#[test]
fn a_dropped_or_hung_job_is_noticed_and_run_again() {
    for (kernel, submit) in ways() {
        for faults in [
            FaultPlan { dropped: When::Nth(2), ..FaultPlan::default() },
            FaultPlan { hang: When::Nth(3), ..FaultPlan::default() },
        ] {
            let (device, board) = recovering(kernel, faults.clone(), submit);
            survives(&device, 1, 3);
            let [missed, timed_out, resubmitted, gave_up] = events(
                &device,
                [EventKind::Missed, EventKind::TimedOut, EventKind::Resubmitted, EventKind::GaveUp],
            );
            assert_eq!((resubmitted, gave_up), (1, 0), "{kernel:?} {submit:?}: {}", device.event_counts());
            match (kernel.0, submit) {
                (DriverKind::Rknpu, SubmitMode::Blocking) => assert_eq!((missed, timed_out), (0, 1)),
                (DriverKind::Rknpu, _) => {
                    assert_eq!((missed, timed_out), (1, 0));
                    assert_eq!(events(&device, [EventKind::Reaped, EventKind::Reread]), [1, 1]);
                }
                // The kernel says that it ended.
                (DriverKind::Rocket, _) => assert_eq!((missed, timed_out), (0, 0)),
            }
            drop(device);
            eventually_idle(&board);

            let (device, _) = device_on(kernel, faults, |options| options.submit = submit);
            let mut bench = Bench::new(&device, ZERO, 1, 3, 1);
            let errors: Vec<_> = (0..3).filter_map(|_| bench.run(&device).err()).collect();
            let [error] = &errors[..] else { panic!("{kernel:?} {submit:?}: {errors:?}") };
            let expected = match (kernel.0, submit) {
                (DriverKind::Rknpu, SubmitMode::Blocking) => matches!(error, SubmitError::TimedOut { .. }),
                (DriverKind::Rknpu, _) => {
                    matches!(error, SubmitError::Unwritten { missing: 768, elements: 768, untouched: 3, .. })
                }
                // Each program is a start of its own: those before the fault have run.
                (DriverKind::Rocket, _) => matches!(error, SubmitError::Unwritten { elements: 768, .. }),
            };
            assert!(expected, "{kernel:?} {submit:?}: {error:?}");
            assert_eq!(device.event_counts().recoveries(), 0, "forbidden");
        }
    }
}

#[test]
fn one_core_of_three_may_drop_its_job() {
    for (kernel, submit) in ways() {
        for nth in 1..=3 {
            let faults = FaultPlan { dropped: When::Nth(nth), ..FaultPlan::default() };
            let (device, _) = recovering(kernel, faults, submit);
            survives(&device, 3, 2);
            assert_eq!(
                events(&device, [EventKind::Resubmitted, EventKind::GaveUp]),
                [1, 0],
                "{kernel:?} {submit:?}"
            );
        }
    }
}

#[test]
fn output_that_comes_after_the_interrupt_is_waited_for() {
    for (kernel, submit) in ways() {
        let faults =
            FaultPlan { late_write_back: When::Always, late_write_back_ms: 2, ..FaultPlan::default() };
        // Waiting for late lines is no recovery: they come always with some precisions.
        let (device, _) = device_on(kernel, faults, |options| {
            options.submit = submit;
            options.timeout_ms = 5000;
        });
        let mut bench = Bench::new(&device, ZERO, 1, 3, 4);
        for _ in 0..3 {
            bench.spoil();
            bench.run(&device).unwrap();
            bench.assert_right();
        }
        let [late] = events(&device, [EventKind::LateLines]);
        assert_eq!(
            late != 0,
            submit != SubmitMode::Polled,
            "{kernel:?} {submit:?}: {}",
            device.event_counts()
        );
        assert_eq!(device.event_counts().recoveries(), 0);
    }
}

#[test]
fn without_a_seed_late_output_is_taken_for_the_result() {
    // The control: what the seed is good for.
    let faults = FaultPlan { late_write_back: When::Always, late_write_back_ms: 50, ..FaultPlan::default() };
    let (device, _) = device_on(KERNELS[2], faults, |_| {});
    let mut bench = Bench::new(&device, ZERO, 1, 3, 4);
    bench.seed = None;
    bench.spoil();
    bench.run(&device).unwrap();
    assert!(bench.right().contains(&false));
}

#[test]
fn a_stale_line_is_read_again() {
    // Events of maintenance before the round: weights, features, programs, seed, task array; then the results.
    for (kernel, submit) in ways() {
        let mut reread = 0;
        for nth in 4..12 {
            let faults = FaultPlan { stale_line: When::Nth(nth), ..FaultPlan::default() };
            // A look before the end would meet the stale line in place of the one that counts, and how many there are
            // is a question of time.
            let device = device_at_once(kernel, faults, |options| options.submit = submit);
            let mut bench = Bench::new(&device, ZERO, 1, 3, 4);
            bench.run(&device).unwrap();
            bench.assert_right();
            let injected = device.board().unwrap().take_findings().len();
            reread += events(&device, [EventKind::LateLines])[0];
            assert!(injected <= 1);
            assert_eq!(device.event_counts().recoveries(), 0, "a look more is no recovery");
        }
        // A poll that meets it looks again anyway.
        assert_eq!(reread != 0, submit != SubmitMode::Polled, "{kernel:?} {submit:?}");
    }
}

#[test]
fn interrupted_calls_are_repeated_and_counted() {
    for (kernel, submit) in ways() {
        let faults = FaultPlan { seed: 3, interrupted: "one-in:2".parse().unwrap(), ..FaultPlan::default() };
        let (device, board) = device_on(kernel, faults, |options| options.submit = submit);
        let mut bench = Bench::new(&device, ZERO, 3, 3, 4);
        for _ in 0..20 {
            bench.spoil();
            bench.run(&device).unwrap();
            bench.assert_right();
        }
        let interruptions = device.counters().interruptions;
        assert!(interruptions > 0);
        if kernel.0 == DriverKind::Rknpu {
            // Findings that belong to no core are left for others.
            let kind = FindingKind::Injected { fault: Fault::Interrupted };
            let injected = board.take_findings().into_iter().filter(|finding| finding.kind == kind).count();
            assert_eq!(interruptions, injected as u64, "{submit:?}");
        }
        assert_eq!(device.event_counts().recoveries(), 0);
    }
}

#[test]
fn a_lost_interrupt_costs_time_and_no_second_run() {
    for (kernel, submit) in ways() {
        let faults = FaultPlan { lost_interrupt: When::Nth(2), ..FaultPlan::default() };
        let (device, board) = recovering(kernel, faults, submit);
        survives(&device, 1, 4);
        let [lost, resubmitted] = events(&device, [EventKind::LostInterrupt, EventKind::Resubmitted]);
        match (kernel.0, submit) {
            (DriverKind::Rknpu, SubmitMode::Blocking) => assert_eq!((lost, resubmitted), (1, 0)),
            // Whoever looks at the output needs no interrupt; with a fence the fence is lost too, and the output is
            // seen all the same.
            (DriverKind::Rknpu, _) => {
                assert_eq!((lost, resubmitted), (0, 0), "{submit:?}: {}", device.event_counts())
            }
            // The kernel gives the first program's successors up.
            (DriverKind::Rocket, _) => assert_eq!((lost, resubmitted), (0, 1), "{}", device.event_counts()),
        }
        drop(device);
        eventually_idle(&board);
    }
}

#[test]
fn a_dead_core_is_given_up_and_the_others_do_its_work() {
    for (kernel, submit) in ways().into_iter().filter(|(kernel, _)| kernel.0 == DriverKind::Rknpu) {
        for dead in 0..3 {
            let faults = FaultPlan { dead_core: Some(dead), ..FaultPlan::default() };
            let (device, _) = recovering(kernel, faults, submit);
            survives(&device, 3, 4);
            assert!(device.is_retired(dead));
            assert_eq!((0..3).filter(|core| device.is_retired(*core)).count(), 1);
            let [retired, gave_up] = events(&device, [EventKind::CoreRetired, EventKind::GaveUp]);
            assert_eq!((retired, gave_up), (1, 0), "{kernel:?} {submit:?}: {}", device.event_counts());
        }
    }
}

#[test]
fn without_another_core_a_dead_one_ends_in_an_error_and_in_time() {
    for (kernel, submit) in ways() {
        let faults = FaultPlan { dead_core: Some(0), ..FaultPlan::default() };
        let (device, _) = device_on(kernel, faults, |options| {
            options.submit = submit;
            options.recovery = ork_device::RecoveryMode::Allow;
            options.cores = 1;
        });
        let mut bench = Bench::new(&device, ZERO, 1, 3, 4);
        let before = device.clock().now();
        let error = bench.run(&device).unwrap_err();
        let took = device.clock().now() - before;
        assert!(took <= device.longest_round(), "{took:?}");
        let expected = matches!(error, SubmitError::TimedOut { .. } | SubmitError::Unwritten { .. })
            || matches!(&error, SubmitError::Refused { .. } if submit != SubmitMode::Blocking);
        assert!(expected, "{kernel:?} {submit:?}: {error:?}");
        assert_eq!(events(&device, [EventKind::GaveUp]), [1], "{}", device.event_counts());
        assert!(device.counters().timeouts + device.counters().failures > 0);
    }
}

#[test]
fn out_of_memory_at_each_allocation_is_an_error_and_leaks_nothing() {
    for kernel in KERNELS {
        let mut errors = 0;
        for nth in 1.. {
            let faults = FaultPlan { out_of_memory: When::Nth(nth), ..FaultPlan::default() };
            let board = ork_device::Board::new(&ork_device::EmuOptions {
                driver_version: if kernel.0 == DriverKind::Rknpu { kernel.1 } else { [0, 9, 8] },
                faults,
                ..Default::default()
            });
            let options = ork_device::DeviceOptions { emulated_driver: kernel.0, ..options() };
            let device = match Device::on_board(&board, &options) {
                Ok(device) => device,
                Err(error) => {
                    assert!(kernel.0 == DriverKind::Rocket && nth == 1, "{error}");
                    assert_eq!(board.live(), Default::default());
                    continue;
                }
            };
            let run = || -> Result<(), Box<dyn std::error::Error>> {
                let mut a = device.alloc(Purpose::Data, 8192)?;
                a.host_mut()[0] = 1;
                a.flush(0..1)?;
                let weight = device.alloc_weight(100_000)?;
                let scratch = device.alloc_scratch(ZERO, 4096)?;
                if kernel.0 == DriverKind::Rknpu {
                    // The task array comes with the first job; this one hangs, which is not the point.
                    let task = ork_device::Task::dpu(a.iova(), 108, 13);
                    match device.submit(&ork_device::Submission::new(0, vec![task])) {
                        Err(error @ SubmitError::TaskArray { .. }) => return Err(error.into()),
                        other => drop(other),
                    }
                }
                drop((weight, scratch));
                Ok(())
            };
            let result = run();
            let injected = board
                .take_findings()
                .iter()
                .any(|finding| matches!(finding.kind, FindingKind::Injected { fault: Fault::OutOfMemory }));
            assert!(result.is_ok() || injected, "{kernel:?}, allocation {nth}: {result:?}");
            errors += u64::from(result.is_err());
            drop(device);
            assert_eq!(board.live(), Default::default(), "{kernel:?}, allocation {nth}");
            if !injected {
                // All but the pool's, which tries a smaller object, and rocket's guard, which is tried above.
                let tried = if kernel.0 == DriverKind::Rocket { nth - 3 } else { nth - 2 };
                assert_eq!(errors, tried, "{kernel:?}");
                assert!(tried > 1, "nothing was allocated");
                break;
            }
        }
    }
}

#[test]
fn a_result_that_equals_an_in_band_seed_is_settled_by_a_second_seed() {
    for (kernel, submit) in ways() {
        let (device, _) = device_on(kernel, FaultPlan::default(), |options| options.submit = submit);
        let mut bench = Bench::new(&device, ZERO, 1, 1, 8);
        bench.run(&device).unwrap();
        bench.assert_right();
        // A row of zero features has zero results: whole atoms of them.
        bench.zero_first_row();
        bench.seed = Some(Seed::in_band_of(4, 0));
        bench.run(&device).unwrap();
        bench.assert_right();
        let [second, resubmitted] = events(&device, [EventKind::SecondSeed, EventKind::Resubmitted]);
        assert_eq!((second, resubmitted), (1, 0), "{kernel:?} {submit:?}: {}", device.event_counts());
    }
}

/// With a seed that results can have, output that is there in part may be complete: the same job runs again with a second
/// seed. If it was stuck instead, it is still on its core, and nothing behind it would begin.
#[test]
fn a_job_that_is_stuck_behind_a_part_of_its_output_is_reaped_before_a_second_seed() {
    for (kernel, submit) in ways().into_iter().filter(|(kernel, _)| kernel.0 == DriverKind::Rknpu) {
        let faults = FaultPlan { overrun: When::Nth(2), ..FaultPlan::default() };
        let (device, board) = recovering(kernel, faults, submit);
        let mut bench = Bench::new(&device, ZERO, 1, 3, 4);
        bench.seed = Some(Seed::in_band(4));
        for _ in 0..3 {
            bench.spoil();
            bench.run(&device).unwrap();
            bench.assert_right();
        }
        let [refused, gave_up] = events(&device, [EventKind::Refused, EventKind::GaveUp]);
        assert_eq!((refused, gave_up), (0, 0), "{kernel:?} {submit:?}: {}", device.event_counts());
        drop((bench, device));
        eventually_idle(&board);
    }
}

/// `uapi.md` A.10: a reset that finds another one under way returns at once; jobs of both programs are woken.
#[test]
fn two_devices_that_reset_at_once_both_recover() {
    for submit in [SubmitMode::Blocking, SubmitMode::Polled] {
        let (first, board) = recovering(KERNELS[2], FaultPlan::default(), submit);
        let options = DeviceOptions { submit, recovery: RecoveryMode::Allow, ..options() };
        let second = Device::on_board(&board, &options).unwrap();
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for (device, seed) in [(&first, 3), (&second, 4)] {
                let start = &start;
                scope.spawn(move || {
                    let mut bench = Bench::new(device, ZERO, 3, 2, seed);
                    start.wait();
                    for _ in 0..10 {
                        device.reset().unwrap();
                        bench.spoil();
                        bench.run(device).unwrap();
                        bench.assert_right();
                    }
                });
            }
        });
        for device in [&first, &second] {
            assert_eq!(events(device, [EventKind::GaveUp]), [0], "{submit:?}: {}", device.event_counts());
            // A recovery may reset besides.
            assert!(device.counters().resets >= 10);
        }
        drop((first, second));
        eventually_idle(&board);
    }
}

#[test]
fn faults_at_random_never_give_a_wrong_result() {
    for (kernel, submit) in ways() {
        let one_in = |n: u32| format!("one-in:{n}").parse().unwrap();
        let faults = FaultPlan {
            seed: 11,
            dropped: one_in(40),
            hang: one_in(50),
            late_write_back: one_in(30),
            late_write_back_ms: 1,
            lost_interrupt: one_in(45),
            interrupted: one_in(20),
            ..FaultPlan::default()
        };
        let (device, board) = recovering(kernel, faults, submit);
        survives(&device, 3, 60);
        let counts = device.event_counts();
        assert!(counts.recoveries() > 0, "{kernel:?} {submit:?}");
        assert_eq!(counts.of(EventKind::GaveUp), 0, "{kernel:?} {submit:?}: {counts}");
        drop(device);
        // A late line may still be on its way.
        std::thread::sleep(Duration::from_millis(20));
        eventually_idle(&board);
    }
}

/// Boards on which a hang takes its time: drivers that count a job's age as they should, and as 0.9.8 does.
fn boards_in_real_time(faults: &FaultPlan) -> Vec<Board> {
    let board = |driver_version, reap_compares_microseconds| {
        Board::new(&EmuOptions {
            driver_version,
            reap_compares_microseconds,
            time: TimePolicy::Real,
            faults: faults.clone(),
            ..EmuOptions::default()
        })
    };
    vec![board([0, 9, 6], false), board([0, 9, 8], true), board([0, 9, 8], false)]
}

#[test]
fn a_lost_job_is_reaped_by_each_drivers_clock() {
    let faults = FaultPlan { hang: When::Nth(2), ..FaultPlan::default() };
    for board in boards_in_real_time(&faults) {
        let options = DeviceOptions {
            submit: SubmitMode::Polled,
            recovery: RecoveryMode::Allow,
            timeout_ms: 100,
            ..DeviceOptions::default()
        };
        let device = Device::on_board(&board, &options).unwrap();
        survives(&device, 1, 3);
        let [missed, reaped, gave_up] =
            events(&device, [EventKind::Missed, EventKind::Reaped, EventKind::GaveUp]);
        let events = device.event_counts();
        assert_eq!((missed, gave_up), (1, 0), "{}: {events}", device.describe());
        assert!((1..=2).contains(&reaped), "{}: {events}", device.describe());
        drop(device);
        eventually_idle(&board);
    }
}

#[test]
fn a_halted_chain_is_reaped_by_each_drivers_clock() {
    for board in boards_in_real_time(&FaultPlan::default()) {
        let options = DeviceOptions { timeout_ms: 100, ..DeviceOptions::default() };
        let device = Device::on_board(&board, &options).unwrap();
        let mut bench = Bench::new(&device, ZERO, 1, 200, 3);
        let ran = bench.start(&device).unwrap().halt().unwrap()[0];
        assert!(bench.right()[..ran].iter().all(|right| *right), "{}: a prefix of {ran}", device.describe());
        bench.spoil();
        bench.run(&device).unwrap();
        bench.assert_right();
        drop((bench, device));
        eventually_idle(&board);
    }
}
