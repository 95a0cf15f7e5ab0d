// SPDX-License-Identifier: MIT OR Apache-2.0
//! Non-blocking jobs of the vendor driver: queues, fences, overdue jobs, resets.

use crate::support;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ork_drm::Errno;
use ork_drm::dma_buf::{self, SyncFenceInfo, SyncFileInfo, SyncMerge};
use ork_emu::{Coherency, EmuOptions, FindingKind, JobEnd, KernelFile, SyncFile, TimePolicy};
use ork_rknpu::uapi::{RknpuSubmit, action, job, mem};
use support::*;
use zerocopy::IntoBytes;

const NONBLOCK: u32 = job::PC | job::NONBLOCK;

/// A board whose core 0 does its job when the gate lets it.
fn gated() -> (ork_emu::Board, Arc<Log>, Arc<Barrier>) {
    let gate = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&gate);
    let (board, log) = board_with(&EmuOptions::default(), move |core, bus, job| {
        if core == 0 {
            inside.wait();
        }
        adding(core, bus, job)
    });
    (board, log, gate)
}

/// A board on whose core 0 nothing ends.
fn stuck(options: &EmuOptions) -> ork_emu::Board {
    let hang = |core, bus: &dyn ork_emu::Bus, job: &ork_emu::PcJob| match core {
        0 => outcome(0, 0, JobEnd::Hang(some_diagnosis())),
        _ => adding(core, bus, job),
    };
    board_with(options, hang).0
}

/// A task array that points at a non-cacheable buffer.
fn work(npu: &Npu) -> (Tasks, ork_drm::Mapping) {
    let mut tasks = tasks(npu, 1, 0x300);
    let buffer = create(npu, 4096, 0);
    point_task_at(&mut tasks, buffer.dma_addr);
    let mapping = map(npu, &buffer, 4096);
    (tasks, mapping)
}

#[test]
fn a_nonblocking_submit_returns_before_its_job_ends() {
    let (board, _, gate) = gated();
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    let report = submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    assert_eq!((report.task_counter, report.hw_elapse_ns, report.fence_fd), (0, 0, -1));
    assert_eq!((peek(&data, 0), peek(&data, 64), board.live().jobs), (0, 0, 1));
    gate.wait();
    // Results appear without any call into the driver.
    eventually("the result", || peek(&data, 64) == 1);
    assert_eq!(peek(&data, 0), 1, "the highest line comes last");
    eventually("the end of the job", || board.live().jobs == 0);
    // The status is written back after a blocking wait only.
    assert_eq!(get(&tasks.mapping, 21), 0);
    drop((tasks, data, npu));
    all_gone(&board);
}

#[test]
fn jobs_of_a_core_run_in_order_and_a_blocking_one_waits_for_those_before_it() {
    let (board, log, gate) = gated();
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    for _ in 0..3 {
        submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    }
    std::thread::scope(|scope| {
        let last = scope.spawn(|| submit(&npu, &request(&tasks, 1, 1)));
        for _ in 0..4 {
            gate.wait();
        }
        last.join().unwrap().unwrap();
    });
    assert_eq!((log.runs.lock().unwrap().len(), peek(&data, 64)), (4, 4));
}

#[test]
fn another_core_is_not_held_up() {
    let (board, _, gate) = gated();
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    submit(&npu, &request(&tasks, 2, 1)).unwrap();
    // The automatic choice avoids the busy core.
    submit(&npu, &request(&tasks, 0, 1)).unwrap();
    assert_eq!(peek(&data, 64), 2);
    gate.wait();
    eventually("the result", || peek(&data, 64) == 3);
}

#[test]
fn a_fence_is_signalled_when_the_job_ends() {
    let (board, _, gate) = gated();
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    let flags = NONBLOCK | job::FENCE_OUT;
    let fence = submit(&npu, &RknpuSubmit { flags, ..request(&tasks, 1, 1) }).unwrap().fence_fd;
    assert!(fence >= 0 && !polls(fence));
    assert_eq!(info(&board, fence).0, 0);
    let second = submit(&npu, &RknpuSubmit { flags, ..request(&tasks, 2, 1) }).unwrap().fence_fd;
    eventually("the second fence", || polls(second));

    // A merged one waits for both.
    let KernelFile::SyncFile(file) = board.fds().resolve(second).unwrap() else { panic!("a fence") };
    let mut merge = SyncMerge { fd2: fence, ..Default::default() };
    // SAFETY: the struct holds no address.
    unsafe { KernelFile::SyncFile(file.clone()).ioctl(&board, dma_buf::FENCE_MERGE, merge.as_mut_bytes()) }
        .unwrap();
    assert!(!polls(merge.fence));

    gate.wait();
    eventually("the fence", || polls(fence));
    eventually("the merged fence", || polls(merge.fence));
    assert_eq!(peek(&data, 64), 2);
    let (status, entry) = info(&board, fence);
    assert_eq!((status, entry.status, &entry.driver_name[..6]), (1, 1, &b"rknpu\0"[..]));
    assert_ne!(entry.timestamp_ns, 0);
    // A duplicate is the same fence.
    // SAFETY: a plain call on an open descriptor.
    let duplicate = unsafe { libc::dup(fence) };
    assert!(matches!(board.fds().resolve(duplicate), Ok(KernelFile::SyncFile(_))));
    // SAFETY: closes what was just made.
    unsafe { libc::close(duplicate) };

    drop(file);
    for fd in [fence, second, merge.fence] {
        board.close_fd(fd).unwrap();
    }
    assert_eq!(board.close_fd(fence), Err(Errno::EBADF));
    drop((tasks, data, npu));
    all_gone(&board);
}

fn info(board: &ork_emu::Board, fd: i32) -> (i32, SyncFenceInfo) {
    let mut entry = SyncFenceInfo::default();
    let mut argument = SyncFileInfo {
        num_fences: 1,
        sync_fence_info: entry.as_mut_bytes().as_mut_ptr().expose_provenance() as u64,
        ..Default::default()
    };
    let file = board.fds().resolve(fd).unwrap();
    // SAFETY: there is room for one entry.
    unsafe { file.ioctl(board, dma_buf::FENCE_INFO, argument.as_mut_bytes()) }.unwrap();
    assert_eq!(argument.num_fences, 1);
    (argument.status, entry)
}

#[test]
fn a_blocking_submit_waits_for_a_foreign_fence_and_not_for_its_own_kind() {
    let (board, log) = board_with(&EmuOptions::default(), adding);
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    let foreign = SyncFile::foreign(&board).unwrap();
    let fd = board.fds().install(KernelFile::SyncFile(foreign.clone()), true).unwrap();
    let wait = RknpuSubmit { flags: job::PC | job::FENCE_IN, fence_fd: fd, ..request(&tasks, 1, 1) };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| submit(&npu, &wait));
        std::thread::sleep(Duration::from_millis(30));
        assert!(log.runs.lock().unwrap().is_empty());
        foreign.signal();
        assert_eq!(waiting.join().unwrap().unwrap().fence_fd, -1);
    });
    // Never signalled: the milliseconds are taken for ticks, then EINVAL.
    let never = SyncFile::foreign(&board).unwrap();
    let never_fd = board.fds().install(KernelFile::SyncFile(never), true).unwrap();
    let start = Instant::now();
    let late = submit(&npu, &RknpuSubmit { fence_fd: never_fd, timeout: 10, ..wait }).unwrap_err();
    assert_eq!(late.errno(), Errno::EINVAL);
    assert!(start.elapsed() >= Duration::from_millis(40));
    // Something else than a fence.
    assert_eq!(submit(&npu, &RknpuSubmit { fence_fd: 0, ..wait }).unwrap_err().errno(), Errno::EINVAL);
    board.close_fd(fd).unwrap();
    board.close_fd(never_fd).unwrap();
    drop((foreign, tasks, data, npu));
    all_gone(&board);
}

#[test]
fn a_fence_of_the_driver_itself_is_not_waited_for() {
    let (board, _, gate) = gated();
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    let flags = NONBLOCK | job::FENCE_OUT;
    let own = submit(&npu, &RknpuSubmit { flags, ..request(&tasks, 1, 1) }).unwrap().fence_fd;
    // The job behind the gate goes on, and this one is done.
    let wait = RknpuSubmit { flags: job::PC | job::FENCE_IN, fence_fd: own, ..request(&tasks, 2, 1) };
    assert_eq!(submit(&npu, &wait).unwrap().fence_fd, -1);
    assert_eq!((polls(own), peek(&data, 64)), (false, 1));
    gate.wait();
    eventually("the fence", || polls(own));
    board.close_fd(own).unwrap();
}

#[test]
fn errno_table_of_fences_and_what_a_merged_one_keeps() {
    let board = stuck(&EmuOptions::default());
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    let flags = NONBLOCK | job::FENCE_OUT;
    let stuck = submit(&npu, &RknpuSubmit { flags, ..request(&tasks, 1, 1) }).unwrap().fence_fd;
    let file = board.fds().resolve(stuck).unwrap();
    let merge = |mut argument: SyncMerge| {
        // SAFETY: the struct holds no address.
        let result = unsafe { file.ioctl(&board, dma_buf::FENCE_MERGE, argument.as_mut_bytes()) };
        result.map(|()| argument.fence)
    };
    let good = SyncMerge { fd2: stuck, ..Default::default() };
    assert_eq!(merge(SyncMerge { fd2: 0, ..good }), Err(Errno::ENOENT), "some other file");
    assert_eq!(merge(SyncMerge { fd2: -1, ..good }), Err(Errno::ENOENT));
    assert_eq!(merge(SyncMerge { flags: 1, ..good }), Err(Errno::EINVAL));
    assert_eq!(merge(SyncMerge { pad: 1, ..good }), Err(Errno::EINVAL));
    // The count alone; an array that cannot be written; flags.
    let info = |mut argument: SyncFileInfo| {
        // SAFETY: the address is not followed where the host checks it, as test hosts do.
        let result = unsafe { file.ioctl(&board, dma_buf::FENCE_INFO, argument.as_mut_bytes()) };
        result.map(|()| (argument.num_fences, argument.status))
    };
    assert_eq!(info(SyncFileInfo::default()), Ok((1, 0)));
    assert_eq!(
        info(SyncFileInfo { num_fences: 1, sync_fence_info: 8, ..Default::default() }),
        Err(Errno::EFAULT)
    );
    assert_eq!(info(SyncFileInfo { flags: 1, ..Default::default() }), Err(Errno::EINVAL));
    // A merged fence that is closed is gone, although its parent will never be signalled.
    for _ in 0..100 {
        board.close_fd(merge(good).unwrap()).unwrap();
    }
    assert_eq!(board.live().fences, 1);
    drop(file);
    board.close_fd(stuck).unwrap();
    drop((tasks, data, npu));
    all_gone(&board);
}

#[test]
fn a_kernel_without_fences_refuses_them() {
    let (board, _) = board_with(&EmuOptions { fences: false, ..Default::default() }, adding);
    let npu = open(&board);
    let (tasks, _data) = work(&npu);
    for flag in [job::FENCE_IN, job::FENCE_OUT] {
        let refused = submit(&npu, &RknpuSubmit { flags: job::PC | flag, ..request(&tasks, 1, 1) });
        assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
    }
}

#[test]
fn behind_a_stuck_job_nothing_is_committed_until_it_is_reaped() {
    let board = stuck(&EmuOptions::default());
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    let lost = RknpuSubmit { flags: NONBLOCK | job::FENCE_OUT, ..request(&tasks, 1, 1) };
    let fence = submit(&npu, &lost).unwrap().fence_fd;
    // Three rounds of its time limit, then EINVAL.
    let before = board.clock_ns();
    let queued = submit(&npu, &RknpuSubmit { timeout: 1000, ..request(&tasks, 1, 1) }).unwrap_err();
    assert_eq!((queued.errno(), board.clock_ns() - before), (Errno::EINVAL, 3_000_000_000));
    // ACT_RESET does not touch the queues.
    npu.action(action::ACT_RESET, 0).unwrap();
    assert_eq!(submit(&npu, &request(&tasks, 1, 1)).unwrap_err().errno(), Errno::EINVAL);
    // With an automatic choice nothing is looked at, and the job goes elsewhere.
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 0, 1) }).unwrap();
    eventually("the result", || peek(&data, 64) == 1);
    assert_eq!(board.live().jobs, 1);
    // A non-blocking submit on the core throws the stuck job away, and hangs in its place.
    let _ = board.take_findings();
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    let reaped = |finding: &ork_emu::Finding| finding.kind == FindingKind::Reaped && finding.job == 1;
    assert!(board.take_findings().iter().any(reaped));
    assert!(!polls(fence), "the fence of a job that was thrown away is never signalled");
    // What is stuck when its file is closed goes with it.
    board.close_fd(fence).unwrap();
    drop((tasks, data, npu));
    all_gone(&board);
    let closed = |finding: &ork_emu::Finding| finding.kind == FindingKind::ClosedWhileStuck;
    assert!(board.take_findings().iter().any(closed));
}

#[test]
fn what_waits_behind_a_reaped_job_never_begins() {
    // A race: the core must not take the next job while the one before it is thrown away.
    for _ in 0..50 {
        let gate = Arc::new(Barrier::new(2));
        let (inside, first) = (Arc::clone(&gate), AtomicU32::new(0));
        let (board, log) = board_with(&EmuOptions::default(), move |core, bus, job| {
            if first.fetch_add(1, SeqCst) != 0 {
                return adding(core, bus, job);
            }
            inside.wait();
            outcome(0, 0, JobEnd::Hang(some_diagnosis()))
        });
        let npu = open(&board);
        let (tasks, data) = work(&npu);
        let nonblocking = RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) };
        for _ in 0..4 {
            submit(&npu, &nonblocking).unwrap();
        }
        gate.wait();
        eventually("the hang", || !board.is_computing());
        submit(&npu, &nonblocking).unwrap();
        eventually("the end", || board.live().jobs == 0);
        assert_eq!((log.runs.lock().unwrap().len(), peek(&data, 64)), (2, 1));
    }
}

#[test]
fn a_blocking_hang_frees_its_core_for_the_next_job() {
    let board = stuck(&EmuOptions::default());
    let npu = open(&board);
    let (tasks, _data) = work(&npu);
    for _ in 0..3 {
        assert_eq!(submit(&npu, &request(&tasks, 1, 1)).unwrap_err().errno(), Errno::ETIMEDOUT);
    }
}

/// Jobs on several cores stand in the same order on all of them. Otherwise one could wait on this core behind another
/// that waits behind it on that core, as long as neither ends.
#[test]
fn hanging_jobs_on_several_cores_do_not_wait_for_each_other() {
    let hang = |_, _: &dyn ork_emu::Bus, _: &ork_emu::PcJob| outcome(0, 0, JobEnd::Hang(some_diagnosis()));
    let (board, _) = board_with(&EmuOptions::default(), hang);
    let npu = Arc::new(open(&board));
    let tasks = tasks(&npu, 1, 0x300);
    let order = request(&tasks, 7, 1);
    let ended = Arc::new(AtomicU32::new(0));
    // Not scoped: if they wait for ever, the test shall not.
    for _ in 0..4 {
        let (npu, ended) = (Arc::clone(&npu), Arc::clone(&ended));
        std::thread::spawn(move || {
            for _ in 0..500 {
                let error = submit(&npu, &order).unwrap_err();
                // Those that wait when another one times out are woken by its reset.
                assert!([Errno::ETIMEDOUT, Errno::EINVAL].contains(&error.errno()), "{error}");
                ended.fetch_add(1, SeqCst);
            }
        });
    }
    eventually("the end of all submits", || ended.load(SeqCst) == 2000);
}

/// A reset wakes whoever waits for a job that it cancels, also for one that comes at the same moment.
#[test]
fn jobs_that_meet_a_reset_end() {
    let (board, _) = board_with(&EmuOptions::default(), adding);
    let npu = Arc::new(open(&board));
    let (tasks, _data) = work(&npu);
    let order = request(&tasks, 7, 1);
    let ended = Arc::new(AtomicU32::new(0));
    const SUBMITS: u32 = 6000;
    for thread in 0..4 {
        let (npu, ended) = (Arc::clone(&npu), Arc::clone(&ended));
        std::thread::spawn(move || {
            while ended.load(SeqCst) < SUBMITS {
                if thread == 0 {
                    npu.action(action::ACT_RESET, 0).unwrap();
                } else {
                    // Done, woken, or cancelled.
                    let _ = submit(&npu, &order);
                    ended.fetch_add(1, SeqCst);
                }
            }
        });
    }
    eventually("the end of all submits", || ended.load(SeqCst) >= SUBMITS);
}

#[test]
fn microseconds_taken_for_milliseconds_kill_a_running_job() {
    let options = EmuOptions { reap_compares_microseconds: true, ..Default::default() };
    let gate = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&gate);
    let (board, log) = board_with(&options, move |core, bus, job| {
        inside.wait();
        adding(core, bus, job)
    });
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    let nonblocking = RknpuSubmit { flags: NONBLOCK, timeout: 6000, ..request(&tasks, 1, 1) };
    submit(&npu, &nonblocking).unwrap();
    eventually("the start", || log.runs.lock().unwrap().len() == 1);
    std::thread::sleep(Duration::from_millis(7));
    submit(&npu, &nonblocking).unwrap();
    gate.wait(); // The first one, which touches nothing any more ...
    gate.wait(); // ... and the second.
    eventually("the result", || peek(&data, 64) == 1);
    let reaped = |finding: &ork_emu::Finding| finding.kind == FindingKind::Reaped && finding.job == 1;
    assert!(board.take_findings().iter().any(reaped));
}

#[test]
fn without_that_quirk_a_running_job_is_left_alone() {
    let (board, _, gate) = gated();
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    let nonblocking = RknpuSubmit { flags: NONBLOCK, timeout: 1, ..request(&tasks, 1, 1) };
    submit(&npu, &nonblocking).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    submit(&npu, &nonblocking).unwrap();
    gate.wait();
    gate.wait();
    eventually("both results", || peek(&data, 64) == 2);
}

/// Public programs submit small jobs without waiting and look at once: on silicon these are over when the call returns.
#[test]
fn in_shared_memory_a_nonblocking_submit_lets_its_job_end() {
    let options = EmuOptions { coherency: Coherency::Shared, nonblock_wait_ms: 60_000, ..Default::default() };
    let (board, _) = board_with(&options, adding);
    let npu = open(&board);
    let (mut tasks, data) = work(&npu);
    for round in 1..100 {
        submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
        assert_eq!((peek(&data, 64), board.live().jobs), (round, 0));
    }
    // One that takes longer goes on, and nothing waits for a job with a fence.
    for (flags, nonblock_wait_ms) in [(NONBLOCK, 1), (NONBLOCK | job::FENCE_OUT, 60_000)] {
        let gate = Arc::new(Barrier::new(2));
        let inside = Arc::clone(&gate);
        let slow = EmuOptions { nonblock_wait_ms, ..options.clone() };
        let (board, _) = board_with(&slow, move |core, bus, job| {
            inside.wait();
            adding(core, bus, job)
        });
        let npu = open(&board);
        let data;
        (tasks, data) = work(&npu);
        let report = submit(&npu, &RknpuSubmit { flags, ..request(&tasks, 1, 1) }).unwrap();
        assert_eq!(peek(&data, 64), 0);
        gate.wait();
        eventually("the result", || peek(&data, 64) == 1);
        if report.fence_fd >= 0 {
            board.close_fd(report.fence_fd).unwrap();
        }
    }
}

#[test]
fn in_real_time_a_hang_takes_its_time_limit_and_a_reset_ends_it_early() {
    let board = stuck(&EmuOptions { time: TimePolicy::Real, ..Default::default() });
    let npu = open(&board);
    let (tasks, _data) = work(&npu);
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| submit(&npu, &RknpuSubmit { timeout: 60_000, ..request(&tasks, 1, 1) }));
        std::thread::sleep(Duration::from_millis(30));
        npu.action(action::ACT_RESET, 0).unwrap();
        assert_eq!(hanging.join().unwrap().unwrap_err().errno(), Errno::EINVAL);
    });
}

#[test]
fn a_running_job_keeps_its_domain_live() {
    let gate = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&gate);
    let options = EmuOptions { domain_wait_ms: 10, ..Default::default() };
    let (board, _) = board_with(&options, move |core, bus, job| {
        inside.wait();
        adding(core, bus, job)
    });
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    assert_eq!(npu.action(action::SET_IOMMU_DOMAIN_ID, 3).unwrap_err().errno(), Errno::EINVAL);
    gate.wait();
    eventually("the result", || peek(&data, 64) == 1);
    eventually("the switch", || npu.action(action::SET_IOMMU_DOMAIN_ID, 3).is_ok());
}

#[test]
fn driver_0_9_6_switches_domains_under_a_running_job() {
    let gate = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&gate);
    let options = EmuOptions { driver_version: [0, 9, 6], ..Default::default() };
    let (board, _) = board_with(&options, move |core, bus, job| {
        inside.wait();
        inside.wait();
        adding(core, bus, job)
    });
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    gate.wait();
    // At once, although the job runs; its addresses now mean nothing.
    assert_eq!(npu.action(action::SET_IOMMU_DOMAIN_ID, 3), Ok(3));
    gate.wait();
    let switched = FindingKind::DomainSwitchedUnderJob { job_domain: 0, live: 3 };
    eventually("the finding", || board.take_findings().iter().any(|finding| finding.kind == switched));
    assert_eq!(peek(&data, 64), 0);
    drop((tasks, data, npu));
    all_gone(&board);
}

#[test]
fn closing_a_file_under_its_running_job_leaves_nothing() {
    let (board, _, gate) = gated();
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    drop((tasks, data, npu));
    gate.wait();
    all_gone(&board);
}

#[test]
fn a_model_that_fails_is_an_error_and_not_a_crash() {
    let (board, _) = board_with(&EmuOptions::default(), |_, _, _| panic!("on purpose"));
    let npu = open(&board);
    let (tasks, data) = work(&npu);
    assert_eq!(submit(&npu, &request(&tasks, 1, 1)).unwrap_err().errno(), Errno::EIO);
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    let failed = |finding: &ork_emu::Finding| finding.kind == FindingKind::ModelPanicked;
    eventually("the finding", || board.take_findings().iter().any(failed));
    drop((tasks, data, npu));
    all_gone(&board);
}

#[test]
fn masks_without_a_case_are_accepted_and_never_run() {
    let (board, log) = board_with(&EmuOptions::default(), adding);
    let npu = open(&board);
    let (tasks, _data) = work(&npu);
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 5, 1) }).unwrap();
    let before = board.clock_ns();
    assert_eq!(submit(&npu, &request(&tasks, 6, 1)).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!((board.clock_ns() - before, log.runs.lock().unwrap().len()), (18_000_000_000, 0));
    let _ = create(&npu, 1, mem::DATA);
}

#[test]
fn a_core_computes_until_its_job_ends_or_is_stuck() {
    let (board, _, gate) = gated();
    let npu = open(&board);
    let (tasks, _data) = work(&npu);
    assert!(!board.is_computing());
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    assert!(board.is_computing());
    gate.wait();
    eventually("the end", || !board.is_computing());
    assert_eq!(board.live().jobs, 0);

    let board = stuck(&EmuOptions::default());
    let npu = open(&board);
    let (tasks, _data) = work(&npu);
    submit(&npu, &RknpuSubmit { flags: NONBLOCK, ..request(&tasks, 1, 1) }).unwrap();
    eventually("the hang", || !board.is_computing());
    assert_ne!(board.live().jobs, 0, "stuck is not done");
}
