// SPDX-License-Identifier: MIT OR Apache-2.0
//! SUBMIT: which core runs what, what comes back, and how it fails.

use crate::support;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ork_drm::Errno;
use ork_emu::{EmuOptions, FindingKind, JobEnd, Live, TimePolicy};
use ork_isa::Iova;
use ork_rknpu::uapi::{RknpuSubcoreTask, RknpuSubmit, RknpuTask, action, job, mem};
use support::*;
use zerocopy::IntoBytes;

fn obedient() -> (ork_emu::Board, Arc<Log>) {
    board_with(&EmuOptions::default(), |_, _, job| done(job))
}

/// Cores and first programs of all runs so far, by core.
fn runs(log: &Log) -> Vec<(u8, u32, u16)> {
    let mut runs: Vec<_> =
        log.runs.lock().unwrap().drain(..).map(|(core, job)| (core, job.base.0, job.tasks)).collect();
    runs.sort_unstable();
    runs
}

#[test]
fn a_job_gets_the_documented_register_values() {
    let (board, log) = obedient();
    let npu = open(&board);
    let tasks = tasks(&npu, 3, 0x300);
    let report = submit(&npu, &request(&tasks, 2, 3)).unwrap();
    assert_eq!((report.task_counter, report.hw_elapse_ns, report.fence_fd), (3, 2500, -1));
    let (core, job) = log.runs.lock().unwrap()[0];
    assert_eq!((core, job.base, job.amount, job.tasks), (1, Iova(0x1000), 55, 3));
    assert_eq!((job.dma_base, job.int_mask, job.int_clear), (Iova(0), 0x300, 0x300));
    // Of CNA and CORE, with the core in the upper bits.
    assert_eq!(job.s_pointer, Some(0x1000_000E));
    // The status comes back in the last task only, through the kernel's coherent mapping.
    let status: Vec<u8> = (0..3).map(|index| get(&tasks.mapping, index * 40 + 21)).collect();
    assert_eq!(status, [0, 0, 3]);
    assert_eq!(board.clock_ns(), 2500);
}

/// Cores that compute at the same time are counted once, and a core that waits is not.
#[test]
fn the_time_of_the_model_is_counted_once() {
    let barrier = Arc::new(Barrier::new(2));
    let (board, _log) = board_with(&EmuOptions::default(), move |_, _, job| {
        // Both cores compute at the same time, or the test hangs.
        barrier.wait();
        std::thread::sleep(Duration::from_millis(20));
        done(job)
    });
    let npu = open(&board);
    assert_eq!(board.computing_time(), Duration::ZERO);
    let tasks = tasks(&npu, 2, 0x300);
    let mut order = request(&tasks, 0, 2);
    order.core_mask = 3;
    order.subcore_task[..2].copy_from_slice(&[
        RknpuSubcoreTask { task_start: 0, task_number: 1 },
        RknpuSubcoreTask { task_start: 1, task_number: 1 },
    ]);
    let start = Instant::now();
    submit(&npu, &order).unwrap();
    let (wall, counted) = (start.elapsed(), board.computing_time());
    assert!(counted >= Duration::from_millis(20) && counted <= wall, "{counted:?} of {wall:?}");
    assert!(board.emulating_time() >= counted, "the call was in the kernel all the time");
    std::thread::sleep(Duration::from_millis(20));
    // What ended is over: at most the last instants of the cores' threads are still counted.
    let later = (board.computing_time(), board.emulating_time());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((board.computing_time(), board.emulating_time()), later);
}

#[test]
fn only_what_the_kernel_reads_of_the_tasks_counts() {
    let (board, log) = obedient();
    let npu = open(&board);
    let mut tasks = tasks(&npu, 4, 0xFFFF_FFFF);
    let mut task = |index: usize, int_mask, regcfg_amount, regcmd_addr| {
        let task = RknpuTask {
            // Not looked at: the stream itself carries these.
            flags: 0xAAAA,
            op_idx: 0xBBBB,
            enable_mask: 0xCCCC,
            int_clear: 0xDDDD,
            regcfg_offset: 0xEEEE,
            int_mask,
            regcfg_amount,
            regcmd_addr,
            ..Default::default()
        };
        put(&mut tasks.mapping, index * 40, task.as_bytes());
    };
    // The address is cut to 32 bits; the tasks between the first and the last one must exist, no more.
    task(1, 0xC00, 13, 0x1_2345_6780);
    task(3, 0x300, 99, 0x9999_9990);
    let range = RknpuSubcoreTask { task_start: 1, task_number: 3 };
    let order = RknpuSubmit {
        task_base_addr: 0x7_0000_1000,
        priority: -5,
        task_start: 77,
        subcore_task: [range; 5],
        ..request(&tasks, 1, 3)
    };
    submit(&npu, &order).unwrap();
    let (_, job) = log.runs.lock().unwrap()[0];
    assert_eq!((job.base, job.amount, job.tasks, job.dma_base), (Iova(0x2345_6780), 8, 3, Iova(0x1000)));
    // The first task's mask is cleared, the last one's is waited for.
    assert_eq!((job.int_clear, job.int_mask), (0xC00, 0x300));
}

#[test]
fn refusals_take_their_time() {
    let (board, _) = obedient();
    let npu = open(&board);
    let tasks = tasks(&npu, 1, 0x300);
    let good = request(&tasks, 1, 1);
    let costs = |order: &RknpuSubmit| {
        let before = board.clock_ns();
        assert_eq!(submit(&npu, order).unwrap_err().errno(), Errno::EINVAL);
        (board.clock_ns() - before) / 1_000_000
    };
    assert_eq!(costs(&RknpuSubmit { task_number: 0, ..good }), 0);
    assert_eq!(costs(&RknpuSubmit { flags: 0, ..good }), 100, "the kernel pauses before it aborts");
    assert_eq!(costs(&RknpuSubmit { task_obj_addr: 0, ..good }), 6000, "the whole time limit");
    assert_eq!(costs(&RknpuSubmit { task_obj_addr: 0, flags: job::PC | job::NONBLOCK, ..good }), 0);
    assert_eq!(costs(&RknpuSubmit { core_mask: 6, timeout: 10, ..good }), 30, "three rounds");
    let before = board.clock_ns();
    npu.action(action::ACT_RESET, 0).unwrap();
    assert_eq!(board.clock_ns() - before, 100_000_000);
}

#[test]
fn ranges_and_cores() {
    let (board, log) = obedient();
    let npu = open(&board);
    let tasks = tasks(&npu, 9, 0x300);
    let entry = |task_start, task_number| RknpuSubcoreTask { task_start, task_number };
    let subcore_task = [entry(0, 1), entry(1, 2), entry(3, 1), entry(4, 2), entry(6, 3)];
    let go = |core_mask| {
        let report = submit(&npu, &RknpuSubmit { subcore_task, ..request(&tasks, core_mask, 9) }).unwrap();
        assert_eq!(report.task_counter, 9, "the counter repeats task_number");
        runs(&log)
    };
    assert_eq!(go(0b001), [(0, 0x1000, 1)]);
    assert_eq!(go(0b010), [(1, 0x2000, 2)]);
    assert_eq!(go(0b100), [(2, 0x4000, 1)]);
    assert_eq!(go(0b011), [(0, 0x1000, 1), (1, 0x2000, 2)]);
    assert_eq!(go(0b111), [(0, 0x4000, 1), (1, 0x5000, 2), (2, 0x7000, 3)]);
    assert_eq!(go(0), [(0, 0x1000, 1)], "all cores idle: the first");
}

#[test]
fn automatic_choice_takes_the_least_loaded_core() {
    let gate = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&gate);
    let (board, log) = board_with(&EmuOptions::default(), move |core, _, job| {
        if core == 0 {
            inside.wait(); // core 0 is running ...
            inside.wait(); // ... until told.
        }
        done(job)
    });
    let npu = open(&board);
    let tasks = tasks(&npu, 1, 0x300);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| submit(&npu, &request(&tasks, 0b001, 1)));
        gate.wait();
        submit(&npu, &request(&tasks, 0, 1)).unwrap();
        gate.wait();
        busy.join().unwrap().unwrap();
    });
    assert_eq!(runs(&log), [(0, 0x1000, 1), (1, 0x1000, 1)]);
}

#[test]
fn errno_table_of_submit() {
    let (board, log) = obedient();
    let npu = open(&board);
    let tasks = tasks(&npu, 2, 0x300);
    let plain = create(&npu, 4096, mem::DATA);
    let good = request(&tasks, 1, 2);
    let range = |task_start, task_number| [RknpuSubcoreTask { task_start, task_number }; 5];
    let bad = [
        ("no tasks", RknpuSubmit { task_number: 0, ..good }),
        ("mask beyond the chip", RknpuSubmit { core_mask: 8, ..good }),
        ("mask without a case", RknpuSubmit { core_mask: 5, ..good }),
        ("mask without a case", RknpuSubmit { core_mask: 6, ..good }),
        ("no PC flag", RknpuSubmit { flags: job::PINGPONG, ..good }),
        ("no fence to wait for", RknpuSubmit { flags: job::PC | job::FENCE_IN, ..good }),
        ("no array", RknpuSubmit { task_obj_addr: 0, ..good }),
        ("an IOVA for an array", RknpuSubmit { task_obj_addr: tasks.buffer.dma_addr, ..good }),
        ("a handle for an array", RknpuSubmit { task_obj_addr: tasks.buffer.handle.into(), ..good }),
        ("no kernel mapping", RknpuSubmit { task_obj_addr: plain.obj_addr, ..good }),
        ("empty range", RknpuSubmit { subcore_task: range(0, 0), ..good }),
        ("range beyond the array", RknpuSubmit { subcore_task: range(102, 1), ..good }),
        ("range beyond the array", RknpuSubmit { subcore_task: range(u32::MAX, u32::MAX), ..good }),
        ("unknown domain", RknpuSubmit { iommu_domain_id: 16, ..good }),
    ];
    for (why, request) in bad {
        assert_eq!(submit(&npu, &request).unwrap_err().errno(), Errno::EINVAL, "{why}");
    }
    assert_eq!(runs(&log), []);
    let unknown = |obj_addr| FindingKind::UnknownObject { obj_addr };
    let expected = [
        FindingKind::NeverDispatched { core_mask: 5 },
        FindingKind::NeverDispatched { core_mask: 6 },
        unknown(0),
        unknown(tasks.buffer.dma_addr),
        unknown(tasks.buffer.handle.into()),
        FindingKind::NoKernelMapping { obj_addr: plain.obj_addr },
        FindingKind::TaskRange { start: 0, count: 0, capacity: 102 },
        FindingKind::TaskRange { start: 102, count: 1, capacity: 102 },
        FindingKind::TaskRange { start: u32::MAX, count: u32::MAX, capacity: 102 },
    ];
    assert_eq!(kinds(&board), expected);
    // The last entry that the buffer holds is fine, although nothing was written there.
    let last = RknpuSubmit { subcore_task: range(101, 1), ..good };
    assert_eq!(submit(&npu, &last).unwrap_err().errno(), Errno::ETIMEDOUT, "its int_mask is 0");
}

#[test]
fn events_must_come_in_pairs() {
    let (board, _) = obedient();
    let npu = open(&board);
    for (int_mask, completes) in
        [(0x300, true), (0x100, false), (0x200, false), (0xC00, false), (0xF00, false)]
    {
        let tasks = tasks(&npu, 1, int_mask);
        let result = submit(&npu, &request(&tasks, 1, 1));
        let findings = board.take_findings();
        if completes {
            assert_eq!(result.unwrap().task_counter, 1);
            assert_eq!(findings, []);
        } else {
            assert_eq!(result.unwrap_err().errno(), Errno::ETIMEDOUT, "{int_mask:#x}");
            assert!(
                matches!(findings[0].kind, FindingKind::NeverCompletes { int_mask: mask, .. } if mask == int_mask)
            );
        }
    }
}

#[test]
fn a_hang_times_out_with_the_counter_and_resets_the_cores() {
    let hangs = Arc::new(AtomicU32::new(1));
    let left = Arc::clone(&hangs);
    let (board, log) = board_with(&EmuOptions::default(), move |_, _, job| {
        if left.swap(0, SeqCst) == 1 { outcome(2, 0, JobEnd::Hang(some_diagnosis())) } else { done(job) }
    });
    let npu = open(&board);
    let tasks = tasks(&npu, 3, 0x300);
    let error = submit(&npu, &request(&tasks, 1, 3)).unwrap_err();
    let expected = ork_rknpu::RknpuError::Submit {
        core_mask: 1,
        task_number: 3,
        task_counter: 2,
        source: Errno::ETIMEDOUT,
    };
    assert_eq!(error, expected);
    assert_eq!(board.clock_ns(), 6_100_000_000, "time limit and reset pass in modelled time only");
    let finding = &board.take_findings_of(0)[0];
    assert_eq!((finding.job, &finding.kind), (1, &FindingKind::Simulator(some_diagnosis())));
    // Each core starts its next job from reset, once.
    for core in 0..3 {
        for _ in 0..2 {
            submit(&npu, &request(&tasks, 1 << core, 3)).unwrap();
        }
        assert_eq!(log.resets[core].load(SeqCst), 1);
    }
}

#[test]
fn ignorance_is_no_timeout() {
    let (board, _) =
        board_with(&EmuOptions::default(), |_, _, _| outcome(1, 0, JobEnd::Unmodelled(some_diagnosis())));
    let npu = open(&board);
    let tasks = tasks(&npu, 2, 0x300);
    let error = submit(&npu, &request(&tasks, 4, 2)).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP);
    assert_eq!(board.take_findings_of(1), []);
    assert_eq!(board.take_findings_of(2).len(), 1);
    assert_eq!(board.clock_ns(), 0);
}

#[test]
fn findings_that_stop_nothing_are_kept_too() {
    let (board, _) = board_with(&EmuOptions::default(), |_, _, job| ork_emu::JobOutcome {
        diagnoses: vec![some_diagnosis(); 2],
        ..done(job)
    });
    let npu = open(&board);
    let tasks = tasks(&npu, 1, 0x300);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    assert_eq!(board.take_findings().len(), 2);
    assert_eq!(board.take_findings(), []);
}

#[test]
fn long_ranges_run_in_slices() {
    let (board, log) = obedient();
    let npu = open(&board);
    let tasks = tasks(&npu, 4100, 0x300);
    let report = submit(&npu, &request(&tasks, 1, 4100)).unwrap();
    assert_eq!(runs(&log), [(0, 0x1000, 4095), (0, 4096 * 0x1000, 5)]);
    assert_eq!((report.task_counter, report.hw_elapse_ns), (4100, 5000));
    let status = |index: usize| get(&tasks.mapping, index * 40 + 21);
    assert_eq!((status(0), status(4094), status(4099)), (0, 0, 3), "the very last task only");
}

#[test]
fn three_cores_run_at_once() {
    // Each job waits for the two others: nobody completes unless all run at the same time.
    let meeting = Arc::new(Barrier::new(3));
    let (board, _) = board_with(&EmuOptions::default(), move |_, _, job| {
        meeting.wait();
        done(job)
    });
    let npu = open(&board);
    let tasks = tasks(&npu, 1, 0x300);
    std::thread::scope(|scope| {
        for core in 0..3 {
            let (npu, tasks) = (&npu, &tasks);
            scope.spawn(move || submit(npu, &request(tasks, 1 << core, 1)).unwrap());
        }
    });
    // One job on all cores does too.
    submit(&npu, &request(&tasks, 7, 1)).unwrap();
}

#[test]
fn one_core_runs_one_job_at_a_time() {
    let inside = AtomicU32::new(0);
    let (board, log) = board_with(&EmuOptions::default(), move |_, _, job| {
        assert_eq!(inside.fetch_add(1, SeqCst), 0);
        std::thread::sleep(Duration::from_millis(1));
        inside.fetch_sub(1, SeqCst);
        done(job)
    });
    let npu = open(&board);
    let tasks = tasks(&npu, 1, 0x300);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| submit(&npu, &request(&tasks, 2, 1)).unwrap());
        }
    });
    assert_eq!(runs(&log).len(), 8);
}

#[test]
fn a_reset_by_somebody_else_fails_the_running_job() {
    let gate = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&gate);
    let (board, log) = board_with(&EmuOptions::default(), move |_, _, job| {
        inside.wait();
        inside.wait();
        done(job)
    });
    let npu = open(&board);
    let tasks = tasks(&npu, 1, 0x300);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| submit(&npu, &request(&tasks, 1, 1)));
        gate.wait();
        npu.action(action::ACT_RESET, 0).unwrap();
        gate.wait();
        assert_eq!(running.join().unwrap().unwrap_err().errno(), Errno::EINVAL);
        let next = scope.spawn(|| submit(&npu, &request(&tasks, 1, 1)));
        gate.wait();
        gate.wait();
        next.join().unwrap().unwrap();
    });
    assert_eq!(log.resets[0].load(SeqCst), 1);
}

#[test]
fn real_time_is_spent_when_asked_for() {
    let options = EmuOptions { time: TimePolicy::Real, ..Default::default() };
    let (board, _) = board_with(&options, |_, _, _| outcome(0, 0, JobEnd::Hang(some_diagnosis())));
    let npu = open(&board);
    let tasks = tasks(&npu, 1, 0x300);
    let start = Instant::now();
    submit(&npu, &RknpuSubmit { timeout: 30, ..request(&tasks, 1, 1) }).unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(130));
}

#[test]
fn a_task_array_without_a_cpu_mapping_is_read_from_memory() {
    let (board, log) = obedient();
    let npu = open(&board);
    let Tasks { buffer, mapping } = tasks(&npu, 1, 0x300);
    flush(&npu, &buffer, 0, 40);
    drop(mapping);
    let tasks = Tasks { buffer, mapping: map(&npu, &create(&npu, 1, mem::DATA), 1) };
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    assert_eq!(runs(&log), [(0, 0x1000, 1)]);
    assert_eq!(get(&map(&npu, &buffer, 40), 21), 3);
}

#[test]
fn many_threads_leave_nothing_behind() {
    let (board, _) = board_with(&EmuOptions::default(), |core, bus, job| {
        // Shared buffer at the job's base: all cores read all of it and write their own line.
        let all = bus.read(job.base, 4096).unwrap();
        let next = all[usize::from(core) * 64].wrapping_add(1);
        // Held across the write, which silicon would allow: must neither block nor tear.
        bus.write(job.base.checked_add(u64::from(core) * 64).unwrap(), &[next; 64]).unwrap();
        drop(all);
        done(job)
    });
    let npu = open(&board);
    let shared = create(&npu, 4096, mem::DATA);
    let mut tasks = tasks(&npu, 1, 0x300);
    put(&mut tasks.mapping, 32, &shared.dma_addr.to_le_bytes());
    std::thread::scope(|scope| {
        for thread in 0..6_u32 {
            let (npu, tasks) = (&npu, &tasks);
            scope.spawn(move || {
                for round in 0..50 {
                    let own = create(npu, 4096 * u64::from(1 + (thread + round) % 3), mem::DATA);
                    let mut mapping = map(npu, &own, 100);
                    put(&mut mapping, 0, &[thread as u8; 100]);
                    flush(npu, &own, 0, 100);
                    submit(npu, &request(tasks, 1 << (thread % 3), 1)).unwrap();
                    invalidate(npu, &own, 0, 100);
                    assert_eq!(get(&mapping, 99), thread as u8);
                    npu.mem_destroy(own.handle).unwrap();
                }
            });
        }
    });
    let counts = map(&npu, &shared, 4096);
    assert_eq!([0, 64, 128].map(|at| get(&counts, at)), [100; 3], "no job was lost");
    drop((tasks, counts, npu));
    assert_eq!(board.live(), Live::default());
}
