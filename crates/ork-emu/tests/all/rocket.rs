// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mainline driver.

use crate::support;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ork_drm::dma_buf::{DmaHeapAllocation, HEAP_ALLOC};
use ork_drm::{Errno, Transport, export_fd, import_fd, uapi as drm, version};
use ork_emu::{
    Board, Coherency, EmuOptions, FindingKind, JobEnd, RocketOptions, TimePolicy, Vanishing, VirtualRocket,
};
use ork_rocket::uapi::{self, RocketCreateBo, RocketJob, RocketPrepBo, RocketSubmit, RocketTask};
use ork_rocket::{Bo, Job, Rocket, Task};
use support::*;
use zerocopy::IntoBytes;

type Npu = Rocket<VirtualRocket>;

fn open(board: &Board) -> Npu {
    Rocket::new(board.open_rocket())
}

fn map(npu: &Npu, bo: &Bo, len: usize) -> ork_drm::Mapping {
    npu.mmap(bo.offset, len).unwrap()
}

fn submit(npu: &Npu, jobs: &[Job]) -> Result<(), Errno> {
    // SAFETY: nothing of the buffers is borrowed.
    unsafe { npu.submit(jobs) }.map_err(|error| error.errno())
}

fn raw(npu: &Npu, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: addresses inside are null, live or checked by the kernel.
    unsafe { npu.transport().ioctl(request, argument) }
}

fn in_ns(from_now: i64) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live struct to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec + from_now
}

/// A job of one task that works on `data`, which is its output.
fn job(data: &Bo) -> Job {
    let task = Task { regcmd: data.dma_address as u32, regcmd_count: 112 };
    Job { tasks: vec![task], reads: vec![], writes: vec![data.handle] }
}

fn adders() -> (Board, Arc<Log>) {
    board_with(&EmuOptions::default(), adding)
}

#[test]
fn the_driver_names_itself() {
    let npu = open(&board());
    let version = version(npu.transport()).unwrap();
    assert_eq!((version.name.as_str(), version.number), ("rocket", (0, 0, 0)));
    assert_eq!((version.date.as_str(), version.description.as_str()), ("0", "rocket DRM"));
    // The numbers of the two drivers overlap; the file decides.
    let mut zeros = [0; 104];
    assert_eq!(raw(&npu, ork_rknpu::uapi::MEM_DESTROY, &mut zeros), Err(Errno::EINVAL));
    assert_eq!(raw(&npu, 0xC008_7200, &mut zeros), Err(Errno::ENOTTY));
    let mut unique = drm::DrmUnique { len: 9, unique: 0 };
    raw(&npu, drm::GET_UNIQUE, unique.as_mut_bytes()).unwrap();
    assert_eq!(unique.len, 0);
}

#[test]
fn addresses_start_at_zero_in_every_file() {
    let board = board();
    let (one, two) = (open(&board), open(&board));
    let bos: Vec<Bo> = [100, 0x3000, 1].map(|size| one.create_bo(size).unwrap()).into();
    assert_eq!(bos.iter().map(|bo| bo.dma_address).collect::<Vec<_>>(), [0, 0x1000, 0x4000]);
    assert_eq!(bos.iter().map(|bo| bo.handle).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(bos[0].offset, 0x1_0000_0000);
    assert_eq!(two.create_bo(100).unwrap().dma_address, 0);
    one.close_bo(2).unwrap();
    let again = one.create_bo(0x2000).unwrap();
    assert_eq!((again.handle, again.dma_address), (2, 0x1000), "the lowest that fits");
    drop((one, two));
    all_gone(&board);
}

#[test]
fn errno_tables() {
    let board = board();
    let npu = open(&board);
    assert_eq!(npu.create_bo(0).unwrap_err().errno(), Errno::EINVAL);
    for _ in 0..4 {
        npu.create_bo(1 << 30).unwrap();
    }
    assert_eq!(npu.create_bo(1).unwrap_err().errno(), Errno::ENOSPC);
    assert_eq!(npu.close_bo(77).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(npu.prep_bo(77, 0).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(npu.fini_bo(77).unwrap_err().errno(), Errno::ENOENT);
    let mut prep = RocketPrepBo { handle: 1, reserved: 1, timeout_ns: 0 };
    assert_eq!(raw(&npu, uapi::PREP_BO, prep.as_mut_bytes()), Err(Errno::EINVAL));
    let mut fini = [1_u32, 1];
    assert_eq!(raw(&npu, uapi::FINI_BO, fini.as_mut_bytes()), Err(Errno::EINVAL));
    let good = RocketSubmit { job_struct_size: 40, ..Default::default() };
    let bad = [
        (RocketSubmit { job_count: 1, job_struct_size: 39, ..good }, Err(Errno::EINVAL)),
        (RocketSubmit { job_count: 1, reserved: 1, ..good }, Err(Errno::EINVAL)),
        (RocketSubmit { job_count: 1, ..good }, Err(Errno::EFAULT)),
        (RocketSubmit { job_count: 1, jobs: 8, ..good }, Err(Errno::EFAULT)),
        (RocketSubmit { job_count: 0, job_struct_size: 0, reserved: 1, ..good }, Ok(())),
    ];
    for (mut argument, result) in bad {
        assert_eq!(raw(&npu, uapi::SUBMIT, argument.as_mut_bytes()), result, "{argument:?}");
    }
    let mut short = RocketCreateBo { size: 5, ..Default::default() };
    assert_eq!(raw(&npu, uapi::CREATE_BO, &mut short.as_mut_bytes()[..8]), Err(Errno::EFAULT));
}

/// A board whose jobs begin when somebody waits at the barrier, too.
fn gated_board() -> (Board, Arc<Barrier>) {
    let gate = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&gate);
    let (board, _) = board_with(&EmuOptions::default(), move |core, bus, job| {
        inside.wait();
        adding(core, bus, job)
    });
    (board, gate)
}

#[test]
fn a_submit_never_waits_and_prep_does() {
    let (board, gate) = gated_board();
    let npu = open(&board);
    let data = npu.create_bo(4096).unwrap();
    let mapping = map(&npu, &data, 128);
    npu.fini_bo(data.handle).unwrap();
    submit(&npu, &[job(&data)]).unwrap();
    // The CPU may be done with it at any time.
    npu.fini_bo(data.handle).unwrap();
    // 0 and times in the past look once; a duration is a time in the past.
    for deadline in [0, -5, 1_000_000, in_ns(-1)] {
        assert_eq!(npu.prep_bo(data.handle, deadline).unwrap_err().errno(), Errno::EBUSY, "{deadline}");
    }
    let start = Instant::now();
    let late = npu.prep_bo(data.handle, in_ns(20_000_000)).unwrap_err();
    assert_eq!((late.errno(), start.elapsed() >= Duration::from_millis(20)), (Errno::ETIMEDOUT, true));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| npu.prep_bo(data.handle, i64::MAX));
        std::thread::sleep(Duration::from_millis(5));
        gate.wait();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!((peek(&mapping, 0), peek(&mapping, 64)), (1, 1));
    npu.prep_bo(data.handle, 0).unwrap();
    drop((mapping, npu));
    all_gone(&board);
}

#[test]
fn only_written_buffers_are_waited_for() {
    let (board, gate) = gated_board();
    let npu = open(&board);
    let (data, input) = (npu.create_bo(4096).unwrap(), npu.create_bo(4096).unwrap());
    submit(&npu, &[Job { reads: vec![input.handle], ..job(&data) }]).unwrap();
    npu.prep_bo(input.handle, 0).unwrap();
    assert_eq!(npu.prep_bo(data.handle, 0).unwrap_err().errno(), Errno::EBUSY);
    gate.wait();
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    // What is not listed at all is usable, and waited for by nobody.
    let unlisted = Job { writes: vec![], ..job(&input) };
    submit(&npu, &[unlisted]).unwrap();
    npu.prep_bo(input.handle, 0).unwrap();
    gate.wait();
    eventually("the end of the job", || board.live().jobs == 0);
    let mapping = map(&npu, &input, 128);
    npu.prep_bo(input.handle, 0).unwrap();
    assert_eq!(peek(&mapping, 64), 1);
}

#[test]
fn caches_move_as_a_whole_by_fini_and_prep() {
    let (board, _) = adders();
    let npu = open(&board);
    let data = npu.create_bo(4096).unwrap();
    let mut mapping = map(&npu, &data, 4096);
    put(&mut mapping, 0, &[40]);
    submit(&npu, &[job(&data)]).unwrap();
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    assert_eq!((get(&mapping, 0), get(&mapping, 64)), (1, 1), "without FINI the NPU saw zero");
    assert_eq!(kinds(&board), [FindingKind::NotFlushed { iova: ork_isa::Iova(0) }]);
    put(&mut mapping, 0, &[40]);
    npu.fini_bo(data.handle).unwrap();
    submit(&npu, &[job(&data)]).unwrap();
    eventually("the end of the job", || board.live().jobs == 0);
    assert_eq!(get(&mapping, 64), 1, "without PREP the CPU sees the old byte");
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    assert_eq!((get(&mapping, 0), get(&mapping, 64)), (41, 41));
    assert_eq!(kinds(&board), []);
}

#[test]
fn prep_invalidates_also_when_its_wait_failed() {
    let gate = Arc::new(Barrier::new(2));
    let inside = Arc::clone(&gate);
    let (board, _) = board_with(&EmuOptions::default(), move |core, bus, job| {
        let done = adding(core, bus, job);
        inside.wait();
        inside.wait();
        done
    });
    let npu = open(&board);
    let data = npu.create_bo(4096).unwrap();
    let mut mapping = map(&npu, &data, 4096);
    put(&mut mapping, 1024, &[7]);
    submit(&npu, &[job(&data)]).unwrap();
    gate.wait(); // The job has written, and has not ended.
    assert_eq!(npu.prep_bo(data.handle, 0).unwrap_err().errno(), Errno::EBUSY);
    // What the CPU had not flushed is gone; the bytes behind the job's last line come with its end.
    assert_eq!((get(&mapping, 0), get(&mapping, 1024)), (1, 0));
    gate.wait();
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    assert_eq!(get(&mapping, 64), 1);
}

#[test]
fn structs_of_later_headers_are_longer() {
    let (board, log) = adders();
    let npu = open(&board);
    let data = npu.create_bo(4096).unwrap();
    // Two jobs, 56 bytes apart, with two tasks each, 24 bytes apart; what lies between is not looked at.
    let mut tasks = [0xEE_u8; 48];
    for at in [0, 24] {
        tasks[at..at + 8].copy_from_slice(RocketTask { regcmd: 0, regcmd_count: 8 }.as_bytes());
    }
    let handle = [data.handle];
    let mut jobs = [0xEE_u8; 2 * 56];
    for at in [0, 56] {
        let job = RocketJob {
            tasks: tasks.as_ptr().expose_provenance() as u64,
            task_count: 2,
            task_struct_size: 24,
            out_bo_handles: handle.as_ptr().expose_provenance() as u64,
            out_bo_handle_count: 1,
            ..Default::default()
        };
        jobs[at..at + 40].copy_from_slice(job.as_bytes());
    }
    let jobs = jobs.as_ptr().expose_provenance() as u64;
    let mut argument = RocketSubmit { jobs, job_count: 2, job_struct_size: 56, reserved: 0 };
    raw(&npu, uapi::SUBMIT, argument.as_mut_bytes()).unwrap();
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    assert_eq!((log.runs.lock().unwrap().len(), kinds(&board)), (4, vec![]));
}

/// Jobs wait for jobs before them, so they must stand behind them in their queues.
#[test]
fn jobs_of_many_threads_do_not_wait_for_each_other() {
    let (board, log) = adders();
    let (one, two) = (open(&board), open(&board));
    let data = one.create_bo(4096).unwrap();
    let fd = export_fd(one.transport(), data.handle).unwrap();
    let shared = Bo { handle: import_fd(two.transport(), fd).unwrap(), ..data };
    board.close_fd(fd).unwrap();
    std::thread::scope(|scope| {
        for (npu, bo) in [(&one, &data), (&two, &shared), (&one, &data), (&two, &shared)] {
            scope.spawn(move || {
                for _ in 0..500 {
                    submit(npu, &[job(bo)]).unwrap();
                }
            });
        }
    });
    eventually("the end of all jobs", || board.live().jobs == 0);
    assert_eq!(log.runs.lock().unwrap().len(), 2000);
}

#[test]
fn a_task_gets_the_documented_register_values() {
    let (board, log) = adders();
    let npu = open(&board);
    let data = npu.create_bo(0x10000).unwrap();
    let tasks = [(0x1000, 126), (0x2000, 5)].map(|(regcmd, regcmd_count)| Task { regcmd, regcmd_count });
    let listed = Job { tasks: tasks.into(), reads: vec![], writes: vec![data.handle] };
    submit(&npu, &[listed]).unwrap();
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    let runs = log.runs.lock().unwrap();
    let seen: Vec<_> = runs.iter().map(|(core, job)| (*core, job.base.0, job.amount, job.tasks)).collect();
    // (count + 1) / 2 - 1: the count includes the trailer, an odd one fetches a word more. Each task is its own start.
    assert_eq!(seen, [(0, 0x1000, 62, 1), (0, 0x2000, 2, 1)]);
    assert!(runs.iter().all(|(_, job)| (job.int_mask, job.int_clear) == (0x300, 0x300)));
    assert!(runs.iter().all(|(_, job)| job.s_pointer == Some(0xE)));
}

#[test]
fn jobs_of_a_file_stay_on_a_core_while_some_are_pending_and_files_spread() {
    let gate = Arc::new(Barrier::new(4));
    let inside = Arc::clone(&gate);
    let (board, log) = board_with(&EmuOptions::default(), move |core, bus, job| {
        if job.amount == 0 {
            inside.wait();
        }
        adding(core, bus, job)
    });
    let files: Vec<Npu> = (0..3).map(|_| open(&board)).collect();
    let bos: Vec<Bo> = files.iter().map(|npu| npu.create_bo(4096).unwrap()).collect();
    for (npu, bo) in files.iter().zip(&bos) {
        let mut first = job(bo);
        first.tasks[0].regcmd_count = 2;
        submit(npu, &[first, job(bo)]).unwrap();
    }
    gate.wait(); // All three files have a job on a core of its own.
    for (npu, bo) in files.iter().zip(&bos) {
        npu.prep_bo(bo.handle, i64::MAX).unwrap();
    }
    let mut cores: Vec<u8> = log.runs.lock().unwrap().iter().map(|(core, _)| *core).collect();
    cores.sort_unstable();
    assert_eq!(cores, [0, 0, 1, 1, 2, 2]);
    drop(files);
    all_gone(&board);
}

#[test]
fn bad_jobs_vanish_and_the_others_run() {
    let (board, log) = adders();
    let npu = open(&board);
    let data = npu.create_bo(4096).unwrap();
    let good = job(&data);
    let empty = Task { regcmd: 0, regcmd_count: 0 };
    let jobs = [
        Job { tasks: vec![], ..good.clone() },
        Job { tasks: vec![good.tasks[0], empty], ..good.clone() },
        Job { reads: vec![77], ..good.clone() },
        good,
    ];
    submit(&npu, &jobs).unwrap();
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    assert_eq!(log.runs.lock().unwrap().len(), 1);
    let vanished = |index, why| FindingKind::Vanished { index, why };
    let expected = [
        vanished(0, Vanishing::NoTasks),
        vanished(1, Vanishing::EmptyTask),
        vanished(2, Vanishing::UnknownHandle),
    ];
    assert_eq!(kinds(&board), expected);
    // Strides and pointers, which the wrapper does not get wrong.
    let task = RocketTask { regcmd: 0, regcmd_count: 8 };
    let tasks = (&raw const task).expose_provenance() as u64;
    let raw_job = RocketJob { tasks, task_count: 1, task_struct_size: 8, ..Default::default() };
    for (job, why) in [
        (RocketJob { task_struct_size: 7, ..raw_job }, Vanishing::Stride),
        (RocketJob { tasks: 16, ..raw_job }, Vanishing::BadPointer),
        (RocketJob { out_bo_handle_count: 1, out_bo_handles: 16, ..raw_job }, Vanishing::BadPointer),
    ] {
        let jobs = (&raw const job).expose_provenance() as u64;
        let mut argument = RocketSubmit { jobs, job_count: 1, job_struct_size: 40, reserved: 0 };
        raw(&npu, uapi::SUBMIT, argument.as_mut_bytes()).unwrap();
        assert_eq!(kinds(&board), [vanished(0, why)]);
    }
}

#[test]
fn a_hang_looks_finished_and_the_next_job_runs() {
    let hang = |core, bus: &dyn ork_emu::Bus, job: &ork_emu::PcJob| match job.amount {
        0 => outcome(0, 0, JobEnd::Hang(some_diagnosis())),
        _ => adding(core, bus, job),
    };
    let options = EmuOptions { time: TimePolicy::Real, ..Default::default() };
    let (board, log) = board_with(&options, hang);
    let npu = open(&board);
    let data = npu.create_bo(4096).unwrap();
    let mapping = map(&npu, &data, 128);
    let mut hanging = job(&data);
    hanging.tasks.insert(1, Task { regcmd: 0, regcmd_count: 2 });
    hanging.tasks.push(hanging.tasks[0]);
    let start = Instant::now();
    submit(&npu, &[hanging]).unwrap();
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(500), "the time limit of a job");
    assert_eq!(get(&mapping, 64), 1, "the first task ran, the third did not");
    assert_eq!(kinds(&board).last(), Some(&FindingKind::HiddenTimeout { tasks_done: 1 }));
    submit(&npu, &[job(&data)]).unwrap();
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    assert_eq!((get(&mapping, 64), log.resets[0].load(std::sync::atomic::Ordering::SeqCst)), (2, 1));
}

#[test]
fn only_the_output_stage_completes_unless_the_fork_is_asked_for() {
    for (pooling_completes, counter) in [(false, 500_000_000), (true, 0)] {
        let rocket = RocketOptions { pooling_completes, ..Default::default() };
        let options = EmuOptions { rocket, ..Default::default() };
        let pooling = |_, _: &dyn ork_emu::Bus, job: &ork_emu::PcJob| outcome(job.tasks, 0x400, JobEnd::Done);
        let (board, _) = board_with(&options, pooling);
        let npu = open(&board);
        let data = npu.create_bo(4096).unwrap();
        submit(&npu, &[job(&data)]).unwrap();
        npu.prep_bo(data.handle, i64::MAX).unwrap();
        let hidden = kinds(&board).contains(&FindingKind::HiddenTimeout { tasks_done: 0 });
        assert_eq!(hidden, !pooling_completes);
        assert_eq!(board.clock_ns() / 1_000_000 * 1_000_000, counter);
    }
}

#[test]
fn a_buffer_in_both_lists_means_done_and_nothing_ran() {
    let (board, log) = adders();
    let npu = open(&board);
    let data = npu.create_bo(4096).unwrap();
    submit(&npu, &[Job { reads: vec![data.handle], ..job(&data) }]).unwrap();
    npu.prep_bo(data.handle, i64::MAX).unwrap();
    assert_eq!(log.runs.lock().unwrap().len(), 0);
    assert_eq!(kinds(&board), [FindingKind::ReadAndWritten { handle: data.handle }]);
    drop(npu);
    all_gone(&board);
}

#[test]
fn a_reader_waits_for_the_writer_before_it() {
    let (board, log) = adders();
    let npu = open(&board);
    let (data, sum) = (npu.create_bo(4096).unwrap(), npu.create_bo(4096).unwrap());
    let reader = Job { reads: vec![data.handle], writes: vec![sum.handle], ..job(&sum) };
    submit(&npu, &[job(&data), reader]).unwrap();
    npu.prep_bo(sum.handle, i64::MAX).unwrap();
    let bases: Vec<u32> = log.runs.lock().unwrap().iter().map(|(_, job)| job.base.0).collect();
    assert_eq!(bases, [0, 0x1000]);
}

#[test]
fn equal_addresses_in_two_files_are_different_bytes() {
    let (board, _) = adders();
    let (one, two) = (open(&board), open(&board));
    let (a, b) = (one.create_bo(4096).unwrap(), two.create_bo(4096).unwrap());
    let (at_a, at_b) = (map(&one, &a, 128), map(&two, &b, 128));
    submit(&one, &[job(&a)]).unwrap();
    one.prep_bo(a.handle, i64::MAX).unwrap();
    two.prep_bo(b.handle, i64::MAX).unwrap();
    assert_eq!((get(&at_a, 64), get(&at_b, 64)), (1, 0));
    assert_eq!(one.mmap(b.offset, 128).unwrap_err().errno(), Errno::EACCES);
}

#[test]
fn own_exports_come_back_and_foreign_ones_do_not() {
    let board = board();
    let (one, two, vendor) = (open(&board), open(&board), support::open(&board));
    let bo = one.create_bo(4096).unwrap();
    let fd = export_fd(one.transport(), bo.handle).unwrap();
    assert_eq!(import_fd(one.transport(), fd), Ok(bo.handle));
    let shared = import_fd(two.transport(), fd).unwrap();
    assert_eq!(shared, 1);
    let foreign = create(&vendor, 4096, ork_rknpu::uapi::mem::DATA);
    let foreign_fd = export_fd(vendor.transport(), foreign.handle).unwrap();
    assert_eq!(import_fd(one.transport(), foreign_fd), Err(Errno::EINVAL));
    let mut heap = DmaHeapAllocation { len: 4096, fd_flags: 2, ..Default::default() };
    // SAFETY: the struct holds no address.
    unsafe { board.open_heap().ioctl(HEAP_ALLOC, heap.as_mut_bytes()) }.unwrap();
    assert_eq!(import_fd(one.transport(), heap.fd as i32), Err(Errno::EINVAL), "nor one of the heap");
    board.close_fd(heap.fd as i32).unwrap();
    for fd in [fd, foreign_fd] {
        board.close_fd(fd).unwrap();
    }
    drop((one, two, vendor));
    all_gone(&board);
}

#[test]
fn a_closed_file_leaves_nothing_also_with_jobs_in_flight() {
    let (board, gate) = gated_board();
    let npu = open(&board);
    let data = npu.create_bo(4096).unwrap();
    submit(&npu, &[job(&data)]).unwrap();
    drop(npu);
    gate.wait();
    all_gone(&board);
}

#[test]
fn polled_memory_needs_no_call_when_it_is_shared() {
    let options = EmuOptions { coherency: Coherency::Shared, ..Default::default() };
    let (board, _) = board_with(&options, adding);
    let npu = open(&board);
    let data = npu.create_bo(4096).unwrap();
    let mapping = map(&npu, &data, 128);
    submit(&npu, &[job(&data)]).unwrap();
    eventually("the result", || peek(&mapping, 64) == 1);
    assert_eq!(peek(&mapping, 0), 1);
}
