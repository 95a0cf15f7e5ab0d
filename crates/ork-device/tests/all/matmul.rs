// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program from the device's API through the ioctl and the emulated kernel to the model and back, and each way
//! to get it wrong.

use crate::support;
use ork_device::{
    CACHE_LINE_BYTES, Device, DomainId, Elapsed, FindingKind, Purpose, Submission, SubmitError, Task,
};
use ork_isa::{Iova, Link};
use support::*;

const ZERO: DomainId = DomainId(0);

/// The findings of a job that timed out, and how many tasks were done.
fn timed_out(result: Result<ork_device::Completed, SubmitError>) -> (u32, Vec<FindingKind>) {
    match result.unwrap_err() {
        SubmitError::TimedOut { tasks_done, findings, .. } => {
            (tasks_done, findings.into_iter().map(|finding| finding.kind).collect())
        }
        other => panic!("no time-out: {other:?}"),
    }
}

#[test]
fn a_matmul_equals_plain_loops() {
    let (device, board) = device();
    let mut matmul = Matmul::new(&device, ZERO, 1).flushed();
    let completed = matmul.run(&device, 0).unwrap();
    assert_eq!((completed.core(), completed.tasks()), (0, 1));
    assert!(completed.findings().is_empty(), "{:?}", completed.findings());
    assert!(matches!(completed.elapsed(), Elapsed::Modelled { .. }));
    assert_eq!(matmul.result(&completed), matmul.expected);
    assert!(matmul.expected.iter().any(|value| value.abs() > 32768), "the case needs 32 bits");

    let counters = device.counters();
    assert_eq!((counters.submits(), counters.tasks(), counters.timeouts, counters.failures), (1, 1, 0, 0));
    assert_eq!((counters.cores[0].submits, counters.cores[1].submits), (1, 0));
    // A, weights, program and one 40-byte task descriptor; nothing more.
    assert_eq!(counters.bytes_flushed, 256 + 4096 + 0x380 + 40);
    assert_eq!((counters.bytes_invalidated, counters.invalidates), (1024, 1));
    // A, B, C, program, task array.
    assert_eq!((counters.buffers_allocated, counters.buffers_freed), (5, 0));
    drop((matmul, device));
    assert_eq!(board.live(), Default::default());
}

#[test]
fn three_threads_drive_three_cores() {
    let (device, board) = device();
    std::thread::scope(|scope| {
        for core in 0..3 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..5 {
                    let mut matmul = Matmul::new(device, ZERO, 10 * round + u64::from(core)).flushed();
                    let completed = matmul.run(device, core).unwrap();
                    assert_eq!(matmul.result(&completed), matmul.expected, "core {core}, round {round}");
                }
            });
        }
    });
    assert_eq!(device.counters().cores.map(|core| (core.submits, core.tasks)), [(5, 5); 3]);
    drop(device);
    assert_eq!(board.live(), Default::default());
}

/// Three linked programs in one buffer, each with its own operands.
fn chain(device: &Device) -> (Vec<Matmul>, ork_device::DmaBuffer, Vec<Task>) {
    const PITCH: u32 = 0x380;
    let matmuls: Vec<_> = (0..3).map(|seed| Matmul::new(device, ZERO, seed).flushed()).collect();
    let mut regcmd = device.alloc(Purpose::Regcmd, u64::from(3 * PITCH)).unwrap();
    let at = |index: usize| Iova(regcmd.iova().0 + index as u32 * PITCH);
    let places: Vec<_> = (0..3).map(at).collect();
    let mut tasks = Vec::new();
    for (index, matmul) in matmuls.iter().enumerate() {
        let link = places.get(index + 1).map_or(Link::Last, |next| Link::Next { at: *next, amount: 55 });
        let program = program(matmul.a.iova(), matmul.b.iova(), matmul.c.iova(), link);
        program.write_to(&mut regcmd.host_mut()[index * PITCH as usize..]);
        tasks.push(Task::dpu(places[index], program.body_words() as u32, MATMUL_BLOCKS));
    }
    regcmd.flush(0..regcmd.len()).unwrap();
    (matmuls, regcmd, tasks)
}

#[test]
fn a_chain_runs_all_its_programs() {
    let (device, _) = device();
    let (mut matmuls, _regcmd, tasks) = chain(&device);
    let completed = device.submit(&Submission::new(1, tasks)).unwrap();
    assert_eq!(completed.tasks(), 3);
    for matmul in &mut matmuls {
        assert_eq!(matmul.result(&completed), matmul.expected);
    }
    assert_eq!((device.counters().cores[1].submits, device.counters().cores[1].tasks), (1, 3));
}

#[test]
fn more_tasks_than_the_chain_has_programs_time_out() {
    let (device, _) = device();
    let (_matmuls, _regcmd, mut tasks) = chain(&device);
    tasks.push(tasks[2]);
    let (tasks_done, findings) = timed_out(device.submit(&Submission::new(0, tasks)));
    assert_eq!(tasks_done, 3);
    assert!(matches!(findings[..], [FindingKind::Simulator(_)]), "{findings:?}");
    assert_eq!(device.counters().timeouts, 1);
}

#[test]
fn an_unflushed_input_gives_the_result_of_the_old_bytes() {
    let (device, _) = device();
    let mut matmul = Matmul::new(&device, ZERO, 3);
    matmul.regcmd.flush(0..matmul.regcmd.len()).unwrap();
    let completed = matmul.run(&device, 0).unwrap();
    assert_eq!(matmul.result(&completed), vec![0; M * N], "A was never flushed: the NPU saw zeros");
    // One row is flushed: one row is right.
    matmul.a.flush(0..K as u64).unwrap();
    let completed = matmul.run(&device, 0).unwrap();
    let result = matmul.result(&completed);
    assert_eq!(result[..N], matmul.expected[..N]);
    assert_eq!(result[N..], vec![0; 3 * N]);
}

#[test]
fn results_that_are_not_invalidated_stay_unseen() {
    let (device, _) = device();
    let mut matmul = Matmul::new(&device, ZERO, 4).flushed();
    let completed = matmul.run(&device, 0).unwrap();
    assert_eq!(words_of(matmul.c.host()), vec![0; M * N]);
    matmul.c.invalidate(0..CACHE_LINE_BYTES, &completed).unwrap();
    let seen = words_of(matmul.c.host());
    let line = CACHE_LINE_BYTES as usize / 4;
    assert_eq!(seen[..line], matmul.expected[..line]);
    assert_eq!(seen[line..], vec![0; M * N - line]);
}

#[test]
fn an_unflushed_program_times_out_with_a_reason() {
    let (device, _) = device();
    let matmul = Matmul::new(&device, ZERO, 5);
    matmul.a.flush(0..matmul.a.len()).unwrap();
    let error = matmul.run(&device, 2).unwrap_err();
    assert!(matches!(
        error,
        SubmitError::TimedOut { core: 2, tasks_done: 0, tasks: 1, timeout_ms: 6000, .. }
    ));
    // The kernel model names the forgotten flush, the NPU model what it met.
    assert_eq!(error.findings().len(), 2);
    assert!(error.findings()[0].to_string().contains("still in its caches"), "{error}");
    assert_eq!(error.findings()[1].core, Some(2));
    assert!(
        error.to_string().contains("timed out after 6000 ms with 0 of 1 tasks done · job 1 on core 2"),
        "{error}"
    );
}

#[test]
fn an_address_that_is_not_mapped_times_out_with_the_fault() {
    let (device, _) = device();
    let mut matmul = Matmul::new(&device, ZERO, 6);
    let wild = Iova(0x0050_0000);
    let program = program(wild, matmul.b.iova(), matmul.c.iova(), Link::Last);
    program.write_to(matmul.regcmd.host_mut());
    let matmul = matmul.flushed();
    let error = matmul.run(&device, 0).unwrap_err();
    assert!(matches!(error, SubmitError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("0x00500000"), "{error}");
    assert_eq!(error.findings().len(), 1);
}

#[test]
fn a_result_beyond_its_mapping_times_out_with_the_fault() {
    let (device, _) = device();
    let mut matmul = Matmul::new(&device, ZERO, 7);
    // Addresses grow down: below the buffer that was made last (the task array comes with the first job) nothing
    // is mapped. The result starts there.
    timed_out(matmul.run(&device, 0));
    let lowest = device.alloc(Purpose::Data, C_BYTES).unwrap();
    let low = lowest.iova().0 - 0x40;
    let program = program(matmul.a.iova(), matmul.b.iova(), Iova(low), Link::Last);
    program.write_to(matmul.regcmd.host_mut());
    let matmul = matmul.flushed();
    let error = matmul.run(&device, 0).unwrap_err();
    assert!(matches!(error, SubmitError::TimedOut { .. }), "{error}");
    assert!(!error.findings().is_empty());
}

#[test]
fn half_a_pair_of_events_never_completes() {
    let (device, _) = device();
    let matmul = Matmul::new(&device, ZERO, 8).flushed();
    let task = Task { int_mask: 0x100, ..matmul.task };
    let (_, findings) = timed_out(device.submit(&Submission::new(0, vec![task])));
    assert!(matches!(findings[..], [FindingKind::NeverCompletes { int_mask: 0x100, .. }]), "{findings:?}");
    let pooling = Task { int_mask: Task::PPU_DONE, ..matmul.task };
    timed_out(device.submit(&Submission::new(0, vec![pooling])));
}

#[test]
fn the_device_works_on_after_a_timeout() {
    let (device, board) = device();
    let mut matmul = Matmul::new(&device, ZERO, 9);
    timed_out(matmul.run(&device, 0));
    matmul = matmul.flushed();
    for core in 0..3 {
        let completed = matmul.run(&device, core).unwrap();
        assert_eq!(matmul.result(&completed), matmul.expected);
    }
    drop((matmul, device));
    assert_eq!(board.live(), Default::default());
}

#[test]
fn a_job_sees_its_own_domain_only() {
    let (device, board) = device();
    let mut matmul = Matmul::new(&device, DomainId(3), 11).flushed();
    let completed = matmul.run(&device, 0).unwrap();
    assert_eq!(matmul.result(&completed), matmul.expected);
    assert_eq!(board.live().domains, 1);
    // The same addresses in domain 0 hold nothing, or the task array.
    timed_out(device.submit(&Submission::new(0, vec![matmul.task])));
    drop((matmul, device));
    assert_eq!(board.live(), Default::default());
}

#[test]
fn submissions_are_checked_before_the_kernel_sees_them() {
    let (device, _) = device();
    let matmul = Matmul::new(&device, ZERO, 12).flushed();
    let on = |core, count| device.submit(&Submission::new(core, vec![matmul.task; count])).unwrap_err();
    assert!(matches!(on(3, 1), SubmitError::Core { core: 3, cores: 3 }));
    assert!(matches!(on(0, 0), SubmitError::Tasks { tasks: 0 }));
    assert!(matches!(on(0, 4096), SubmitError::Tasks { tasks: 4096 }));
    let domain = device.submit(&Submission::new(0, vec![matmul.task]).in_domain(DomainId(16))).unwrap_err();
    assert!(matches!(domain, SubmitError::TaskArray { .. }));
    assert_eq!(device.counters().failures + device.counters().timeouts, 0);

    let one_core = ork_device::DeviceOptions { cores: 1, ..options() };
    let device = Device::on_board(device.board().unwrap(), &one_core).unwrap();
    let second = device.submit(&Submission::new(1, vec![matmul.task])).unwrap_err();
    assert!(matches!(second, SubmitError::Core { core: 1, cores: 1 }));
}

#[test]
fn the_task_array_grows_with_the_chain() {
    let (device, board) = device();
    let (_matmuls, _regcmd, tasks) = chain(&device);
    device.submit(&Submission::new(0, tasks.clone())).unwrap();
    let before = board.live();
    // 200 descriptors do not fit the first page. The chain is too short for them, which is not the point.
    let many: Vec<_> = tasks.iter().cycle().take(200).copied().collect();
    assert_eq!(timed_out(device.submit(&Submission::new(0, many))).0, 3);
    let after = board.live();
    assert_eq!(after.handles, before.handles, "the old array was freed");
    assert_eq!(after.dram_bytes, before.dram_bytes - 4096 + 8192);
    assert_eq!(after.dram_bytes, after.iova_bytes);
}

#[test]
fn time_limits_come_from_the_submission_or_the_device() {
    let (device, _) = device();
    let matmul = Matmul::new(&device, ZERO, 13);
    let submission = Submission::new(0, vec![matmul.task]);
    let limit = |submission: &Submission| match device.submit(submission).unwrap_err() {
        SubmitError::TimedOut { timeout_ms, .. } => timeout_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(limit(&submission), 6000);
    assert_eq!(limit(&submission.clone().with_timeout_ms(77)), 77);
}
