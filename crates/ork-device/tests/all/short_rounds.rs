// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds that one thread runs on several cores: the same results, faults and counters as with a thread for each.

use crate::support;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ork_device::{
    Board, BoardClock, Clock, Completed, Device, DeviceOptions, DomainId, DriverKind, Elapsed, EmuOptions,
    EventKind, FaultPlan, RecoveryMode, Spread, SubmitError, SubmitMode, Threads, When,
};
use support::*;

const ZERO: DomainId = DomainId(0);

/// Threads, and how often they were asked for.
#[derive(Debug, Default)]
struct Counted(AtomicUsize);

impl Spread for Counted {
    fn spread(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(1, Relaxed);
        Threads.spread(count, work);
    }
}

fn run(bench: &mut Bench, device: &Device, spread: &Counted) -> Result<Vec<Completed>, SubmitError> {
    bench.spoil();
    device.run_short(bench.round(), spread)
}

fn bench(device: &Device, cores: u8) -> Bench {
    let mut bench = Bench::new(device, ZERO, cores, 2, 31);
    bench.seed = None;
    bench
}

#[test]
fn one_thread_runs_all_cores() {
    for kernel in &KERNELS[..3] {
        for cores in 1..=3 {
            for seeded in [false, true] {
                let (device, board) = device_on(*kernel, FaultPlan::default(), |_| {});
                let spread = Counted::default();
                let mut bench = bench(&device, cores);
                if seeded {
                    bench.seed = Bench::new(&device, ZERO, 1, 1, 1).seed;
                }
                for _ in 0..5 {
                    let before = device.counters();
                    let completed = run(&mut bench, &device, &spread).unwrap();
                    bench.assert_right();
                    let ran: Vec<u8> = completed.iter().map(Completed::core).collect();
                    assert_eq!(ran, (0..cores).collect::<Vec<u8>>());
                    let after = device.counters();
                    if !seeded {
                        assert_eq!(after.bytes_invalidated - before.bytes_invalidated, bench.output.len());
                    }
                }
                // One chain is a call that waits, in any case.
                assert_eq!(spread.0.load(Relaxed), if cores == 1 { 5 } else { 0 }, "{kernel:?}");
                assert_eq!(device.event_counts().recoveries(), 0);
                assert_eq!(board.take_findings(), []);
            }
        }
    }
}

#[test]
fn kernels_without_fences_are_asked_once() {
    let board = Board::new(&EmuOptions { fences: false, ..EmuOptions::default() });
    let device = Device::on_board(&board, &DeviceOptions::default()).unwrap();
    let (mut bench, spread) = (bench(&device, 3), Counted::default());
    for round in 1..=3 {
        let before = device.counters().jobs_given;
        run(&mut bench, &device, &spread).unwrap();
        bench.assert_right();
        assert_eq!(device.counters().jobs_given - before, if round == 1 { 4 } else { 3 });
        assert_eq!(spread.0.load(Relaxed), round);
        assert!(device.lacks_fences());
    }
    // A seed needs no fence.
    bench.seed = Bench::new(&device, ZERO, 1, 1, 1).seed;
    for _ in 0..5 {
        run(&mut bench, &device, &spread).unwrap();
        bench.assert_right();
    }
    assert_eq!(spread.0.load(Relaxed), 3);
    assert_eq!(device.event_counts().recoveries(), 0);
    assert_eq!(events(&device, [EventKind::Refused]), [1], "the job that had a fence");
}

/// A clock that does something the first time somebody looks at it.
struct Interrupting {
    clock: BoardClock,
    first: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Interrupting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clock.fmt(f)
    }
}

impl Clock for Interrupting {
    fn now(&self) -> Duration {
        let first = self.first.lock().unwrap().take();
        if let Some(first) = first {
            first();
        }
        self.clock.now()
    }

    fn pause(&self, time: Duration) {
        self.clock.pause(time);
    }
}

#[test]
fn another_round_may_learn_that_there_are_no_fences_while_one_begins() {
    let board = Board::new(&EmuOptions { fences: false, ..EmuOptions::default() });
    let clock = Arc::new(Interrupting { clock: BoardClock::new(&board), first: Mutex::default() });
    let device =
        Device::on_board_with(&board, &DeviceOptions::default(), Arc::clone(&clock) as Arc<dyn Clock>);
    let device = Arc::new(device.unwrap());
    let (mut outer, mut inner, spread) = (bench(&device, 3), bench(&device, 3), Counted::default());
    let other = Arc::clone(&device);
    *clock.first.lock().unwrap() = Some(Box::new(move || {
        assert!(!other.lacks_fences(), "nobody has asked before");
        // On a thread of its own, as rounds that meet are.
        let learn = move || {
            run(&mut inner, &other, &Counted::default()).unwrap();
            inner.assert_right();
            assert!(other.lacks_fences());
        };
        std::thread::spawn(learn).join().unwrap();
    }));
    let before = device.counters().jobs_given;
    run(&mut outer, &device, &spread).unwrap();
    outer.assert_right();
    assert!(clock.first.lock().unwrap().is_none());
    // Each asked once, with its first job, and then gave all three without.
    assert_eq!(device.counters().jobs_given - before, 8);
    assert_eq!(events(&device, [EventKind::Refused]), [2]);
    assert_eq!(device.event_counts().recoveries(), 0);
}

#[test]
fn a_refused_round_says_nothing_about_fences() {
    // Only the fourth job's domain can be live from then on.
    let faults = FaultPlan { leaked_domain: When::Nth(4), ..FaultPlan::default() };
    let board = Board::new(&EmuOptions { faults, domain_wait_ms: 1, ..EmuOptions::default() });
    let options = DeviceOptions { recovery: RecoveryMode::Forbid, ..DeviceOptions::default() };
    let device = Device::on_board(&board, &options).unwrap();
    let (mut own, spread) = (bench(&device, 3), Counted::default());
    let mut other = Bench::new(&device, DomainId(1), 3, 2, 31);
    other.seed = None;
    run(&mut other, &device, &spread).unwrap();
    run(&mut own, &device, &spread).unwrap();
    let before = device.counters().jobs_given;
    device.run_short(other.round(), &spread).unwrap_err();
    // One with a fence, and three of the same round without.
    assert_eq!((device.counters().jobs_given - before, spread.0.load(Relaxed)), (4, 1));
    assert_eq!(events(&device, [EventKind::Refused]), [1]);
    assert!(!device.lacks_fences());
    run(&mut own, &device, &spread).unwrap();
    own.assert_right();
    assert_eq!(spread.0.load(Relaxed), 1, "with fences, as before");
}

#[test]
fn what_was_waited_for_is_no_time_of_the_driver() {
    let (device, _) = device_on(KERNELS[2], FaultPlan::default(), |_| {});
    let (mut bench, spread) = (bench(&device, 3), Counted::default());
    let mut waited = [0; 3];
    for _ in 0..3 {
        for completed in run(&mut bench, &device, &spread).unwrap() {
            if let Elapsed::Waited { ns } = completed.elapsed() {
                waited[usize::from(completed.core())] += ns;
            }
        }
    }
    let cores = device.counters().cores;
    assert!(cores[0].busy_ns > 0 && cores.iter().all(|core| core.submits == 3), "{cores:?}");
    assert_eq!((cores[1].busy_ns, cores[2].busy_ns), (0, 0));
    assert_eq!(cores.map(|core| core.waited_ns), waited);
}

/// Short rounds wait for their first chain last, others start it first: both take the cores in one order.
#[test]
fn rounds_of_two_threads_do_not_wait_for_each_other() {
    const WATCHDOG: Duration = Duration::from_secs(120);
    for dead_core in [None, Some(0), Some(1)] {
        let faults = FaultPlan { dead_core, ..FaultPlan::default() };
        let (device, _) = recovering(KERNELS[2], faults, SubmitMode::Auto);
        let (device, spread) = (Arc::new(device), Counted::default());
        // Two lost jobs cost the core its place; from then on two chains share another one.
        for _ in 0..2 {
            run(&mut bench(&device, 3), &device, &spread).unwrap();
        }
        assert_eq!(events(&device, [EventKind::CoreRetired]), [u64::from(dead_core.is_some())]);
        let (ended, watch) = channel();
        for short in [true, false] {
            let (device, ended) = (Arc::clone(&device), ended.clone());
            std::thread::spawn(move || {
                let mut bench = bench(&device, 3);
                for _ in 0..200 {
                    if short {
                        run(&mut bench, &device, &Counted::default()).unwrap();
                    } else {
                        bench.spoil();
                        bench.start(&device).unwrap().wait().unwrap();
                    }
                    bench.assert_right();
                }
                ended.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            watch.recv_timeout(WATCHDOG).expect("each waits for a core of the other");
        }
    }
}

#[test]
fn other_ways_to_wait_stay_as_they_are() {
    for submit in [SubmitMode::Blocking, SubmitMode::Fenced] {
        let (device, _) = device_on(KERNELS[2], FaultPlan::default(), |options| options.submit = submit);
        let (mut bench, spread) = (bench(&device, 3), Counted::default());
        run(&mut bench, &device, &spread).unwrap();
        bench.assert_right();
        assert_eq!(spread.0.load(Relaxed), usize::from(submit == SubmitMode::Blocking));
    }
    // Without a seed this kernel's word is worth nothing.
    let (device, _) = device_on(KERNELS[3], FaultPlan::default(), |_| {});
    assert_eq!(device.info().driver, DriverKind::Rocket);
    let error = run(&mut bench(&device, 2), &device, &Counted::default()).unwrap_err();
    assert!(matches!(error, SubmitError::Unsupported { .. }), "{error}");
}

#[test]
fn a_lost_job_is_an_error_or_run_again() {
    for kernel in &KERNELS[..3] {
        for nth in 1..=3 {
            let faults = FaultPlan { dropped: When::Nth(nth), ..FaultPlan::default() };
            let (device, _) = recovering(*kernel, faults.clone(), SubmitMode::Auto);
            let (mut bench, spread) = (bench(&device, 3), Counted::default());
            for round in 0..3 {
                let before = device.clock().now();
                run(&mut bench, &device, &spread).unwrap();
                assert!(device.clock().now() - before <= device.longest_round());
                assert!(bench.right().iter().all(|right| *right), "{kernel:?}, job {nth}, round {round}");
            }
            assert_eq!(events(&device, [EventKind::Resubmitted, EventKind::GaveUp]), [1, 0]);

            let (device, _) = device_on(*kernel, faults, |_| {});
            let mut bench = self::bench(&device, 3);
            let error = run(&mut bench, &device, &spread).unwrap_err();
            let expected = matches!(error, SubmitError::TimedOut { .. } | SubmitError::Unwritten { .. });
            assert!(expected, "{kernel:?}, job {nth}: {error:?}");
            assert_eq!(device.event_counts().recoveries(), 0, "forbidden");
        }
    }
}

#[test]
fn what_a_second_attempt_wrote_is_fetched() {
    // The kernel's word is the witness, and the results of the first attempt were fetched already.
    for submit in [SubmitMode::Blocking, SubmitMode::Fenced] {
        for nth in 1..=3 {
            let faults = FaultPlan { dropped: When::Nth(nth), ..FaultPlan::default() };
            let (device, _) = recovering(KERNELS[2], faults, submit);
            let mut bench = bench(&device, 3);
            bench.spoil();
            bench.run(&device).unwrap();
            assert_eq!(events(&device, [EventKind::Resubmitted]), [1]);
            assert!(bench.right().iter().all(|right| *right), "{submit:?}, job {nth}");
        }
    }
}
