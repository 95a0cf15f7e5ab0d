// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each fault of the plan, firing and named.

use crate::support;
use ork_drm::dma_buf::{DmaHeapAllocation, HEAP_ALLOC};
use ork_drm::{Errno, Mapping, Transport};
use ork_emu::{Board, EmuOptions, Fault, FaultPlan, When};
use ork_rknpu::CreateRequest;
use ork_rknpu::uapi::{RknpuSubmit, action, job, mem};
use support::*;
use zerocopy::IntoBytes;

fn board_that(faults: FaultPlan) -> Board {
    board_with(&EmuOptions { faults, domain_wait_ms: 10, ..Default::default() }, adding).0
}

/// A file, a job on a non-cacheable buffer, and the buffer's bytes.
struct Bench {
    board: Board,
    npu: Npu,
    tasks: Tasks,
    data: Mapping,
}

fn bench(faults: FaultPlan) -> Bench {
    let board = board_that(faults);
    let npu = open(&board);
    let mut tasks = tasks(&npu, 1, 0x300);
    let buffer = create(&npu, 4096, 0);
    point_task_at(&mut tasks, buffer.dma_addr);
    let data = map(&npu, &buffer, 4096);
    Bench { board, npu, tasks, data }
}

impl Bench {
    fn run(&self, core_mask: u32) -> Result<u32, (Errno, u32)> {
        match submit(&self.npu, &request(&self.tasks, core_mask, 1)) {
            Ok(report) => Ok(report.task_counter),
            Err(ork_rknpu::RknpuError::Submit { source, task_counter, .. }) => Err((source, task_counter)),
            Err(other) => panic!("{other}"),
        }
    }

    fn end(self) {
        let Self { board, npu, tasks, data } = self;
        drop((npu, tasks, data));
        all_gone(&board);
    }
}

#[test]
fn nothing_happens_by_default() {
    let bench = bench(FaultPlan::default());
    for _ in 0..100 {
        bench.run(1).unwrap();
    }
    assert!(bench.board.take_findings().is_empty());
    bench.end();
}

#[test]
fn a_hang() {
    let bench = bench(FaultPlan { hang: When::Nth(2), ..Default::default() });
    assert_eq!(bench.run(1), Ok(1));
    assert_eq!(bench.run(1), Err((Errno::ETIMEDOUT, 0)));
    assert_eq!(injected(&bench.board), [Fault::Hang]);
    assert_eq!(bench.run(1), Ok(1));
    bench.end();
}

#[test]
fn a_dropped_job_leaves_the_output_and_a_retry_works() {
    let bench = bench(FaultPlan { dropped: When::Nth(1), ..Default::default() });
    let lost = RknpuSubmit { flags: job::PC | job::NONBLOCK, ..request(&bench.tasks, 1, 1) };
    submit(&bench.npu, &lost).unwrap();
    eventually("the finding", || injected(&bench.board) == [Fault::Dropped]);
    assert_eq!(peek(&bench.data, 64), 0);
    // The finding is told before the core counts as stuck: a job submitted in between waits behind the lost one, until the
    // next submit reaps that.
    eventually("the result", || {
        submit(&bench.npu, &lost).unwrap();
        peek(&bench.data, 64) == 1
    });
    bench.end();
}

#[test]
fn jobs_dropped_at_a_rate() {
    let bench = bench(FaultPlan { seed: 5, dropped: "one-in:10".parse().unwrap(), ..Default::default() });
    let lost = (0..200).filter(|_| bench.run(1).is_err()).count();
    assert!((5..50).contains(&lost), "{lost}");
    assert_eq!(injected(&bench.board), vec![Fault::Dropped; lost]);
    bench.end();
}

#[test]
fn a_wild_read_and_a_wild_write_stay_inside_the_domain() {
    let read = bench(FaultPlan { wild_read: When::Nth(1), ..Default::default() });
    let other = create(&read.npu, 4096, 0);
    // Whatever it reads instead: the task array or the other buffer.
    put(&mut map(&read.npu, &other, 1), 0, &[70]);
    flush(&read.npu, &read.tasks.buffer, 0, 40);
    read.run(1).unwrap();
    assert_eq!(injected(&read.board), [Fault::WildRead]);
    // One more than a byte of some other buffer: the task array's are small, the spare one's first is 70.
    assert_ne!(peek(&read.data, 64), 0);
    read.end();

    let write = bench(FaultPlan { wild_write: When::Nth(1), ..Default::default() });
    let other = create(&write.npu, 4096, 0);
    let elsewhere = map(&write.npu, &other, 4096);
    write.run(1).unwrap();
    assert_eq!(injected(&write.board), [Fault::WildWrite]);
    assert_eq!((peek(&write.data, 0), peek(&write.data, 64)), (0, 1), "the first write went astray");
    invalidate(&write.npu, &write.tasks.buffer, 0, 40);
    assert!(peek(&elsewhere, 0) == 1 || get(&write.tasks.mapping, 0) == 1);
    drop(elsewhere);
    write.end();
}

#[test]
fn a_write_past_a_mapping_hangs_the_write_dma() {
    let bench = bench(FaultPlan { overrun: When::Nth(1), ..Default::default() });
    assert_eq!(bench.run(1), Err((Errno::ETIMEDOUT, 0)));
    assert_eq!(injected(&bench.board), [Fault::Overrun]);
    assert_eq!(peek(&bench.data, 0), 0);
    bench.end();
}

#[test]
fn a_late_write_back_comes_after_the_interrupt() {
    let plan = FaultPlan { late_write_back: When::Nth(1), late_write_back_ms: 50, ..Default::default() };
    let bench = bench(plan);
    bench.run(1).unwrap();
    assert_eq!((peek(&bench.data, 0), peek(&bench.data, 64)), (1, 0));
    assert_eq!(injected(&bench.board), [Fault::LateWriteBack]);
    eventually("the write-back", || peek(&bench.data, 64) == 1);
    bench.end();
}

#[test]
fn a_lost_interrupt_times_out_although_the_work_is_done() {
    let bench = bench(FaultPlan { lost_interrupt: When::Nth(1), ..Default::default() });
    assert_eq!(bench.run(1), Err((Errno::ETIMEDOUT, 1)));
    assert_eq!(injected(&bench.board), [Fault::LostInterrupt]);
    assert_eq!(peek(&bench.data, 64), 1);
    bench.end();
}

#[test]
fn a_stale_line_survives_cache_maintenance() {
    let board = board_that(FaultPlan { stale_line: When::Nth(1), ..Default::default() });
    let npu = open(&board);
    let buffer = create(&npu, 4096, mem::DATA);
    let mut mapping = map(&npu, &buffer, 4096);
    put(&mut mapping, 0, &[9; 128]);
    flush(&npu, &buffer, 0, 128);
    assert_eq!(injected(&board), [Fault::StaleLine]);
    drop(mapping);
    let mapping = map(&npu, &buffer, 4096);
    assert_eq!((get(&mapping, 63), get(&mapping, 64)), (0, 9));
}

#[test]
fn an_interrupted_call_is_repeated_by_the_wrapper() {
    let board = board_that(FaultPlan { interrupted: When::Nth(2), ..Default::default() });
    let npu = open(&board);
    for _ in 0..3 {
        assert_eq!(npu.driver_version(), Ok(908));
    }
    assert_eq!(injected(&board), [Fault::Interrupted]);
    // A program without a wrapper sees it.
    let board = board_that(FaultPlan { interrupted: When::Always, ..Default::default() });
    let mut argument = [1_u8, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(raw(&open(&board), ork_rknpu::uapi::ACTION, &mut argument), Err(Errno::EINTR));
    let rocket = ork_rocket::Rocket::new(board.open_rocket());
    let bo = rocket.create_bo(64).unwrap();
    assert_eq!(rocket.prep_bo(bo.handle, 0).unwrap_err().errno(), Errno::EINTR);
}

#[test]
fn the_nth_allocation_finds_no_memory() {
    let board = board_that(FaultPlan { out_of_memory: When::Nth(2), ..Default::default() });
    let npu = open(&board);
    let request = CreateRequest { size: 4096, flags: mem::DATA, domain: 0 };
    npu.mem_create(&request).unwrap();
    assert_eq!(npu.mem_create(&request).unwrap_err().errno(), Errno::ENOMEM);
    npu.mem_create(&request).unwrap();
    assert_eq!(injected(&board), [Fault::OutOfMemory]);

    let board = board_that(FaultPlan { out_of_memory: When::Always, ..Default::default() });
    let rocket = ork_rocket::Rocket::new(board.open_rocket());
    assert_eq!(rocket.create_bo(1).unwrap_err().errno(), Errno::ENOMEM);
    let mut heap = DmaHeapAllocation { len: 1, fd_flags: 2, ..Default::default() };
    // SAFETY: the struct holds no address.
    let refused = unsafe { board.open_heap().ioctl(HEAP_ALLOC, heap.as_mut_bytes()) };
    assert_eq!(refused, Err(Errno::ENOMEM));
    // Without an IOMMU it is a contiguous allocation that fails.
    let faults = FaultPlan { out_of_memory: When::Always, ..Default::default() };
    let board = Board::new(&EmuOptions { iommu: false, faults, ..Default::default() });
    assert_eq!(open(&board).mem_create(&request).unwrap_err().errno(), Errno::EINVAL);
}

#[test]
fn a_dead_core_times_out_and_the_others_work() {
    let bench = bench(FaultPlan { dead_core: Some(1), ..Default::default() });
    for _ in 0..2 {
        assert_eq!((bench.run(1), bench.run(2), bench.run(4)), (Ok(1), Err((Errno::ETIMEDOUT, 0)), Ok(1)));
    }
    assert_eq!(injected(&bench.board), [Fault::DeadCore; 2]);
    bench.end();
}

#[test]
fn a_leaked_domain_counter_keeps_other_domains_out_for_ever() {
    let bench = bench(FaultPlan { leaked_domain: When::Nth(1), ..Default::default() });
    bench.run(1).unwrap();
    assert_eq!(injected(&bench.board), [Fault::LeakedDomain]);
    assert_eq!(bench.npu.action(action::SET_IOMMU_DOMAIN_ID, 1).unwrap_err().errno(), Errno::EINVAL);
    bench.run(1).unwrap();
    bench.end();
}

#[test]
fn a_full_window_is_efault_for_one_driver_and_enospc_for_the_other() {
    let board = board_that(FaultPlan { window_bytes: Some(0x3000), ..Default::default() });
    let npu = open(&board);
    create(&npu, 0x2000, mem::DATA);
    let full = npu.mem_create(&CreateRequest { size: 0x2000, flags: mem::DATA, domain: 0 });
    assert_eq!(full.unwrap_err().errno(), Errno::EFAULT);
    let absurd = npu.mem_create(&CreateRequest { size: u64::MAX - 0xFFF, flags: mem::DATA, domain: 0 });
    assert_eq!(absurd.unwrap_err().errno(), Errno::EFAULT);
    npu.mem_create(&CreateRequest { size: 0x2000, flags: mem::DATA, domain: 1 }).unwrap();
    let rocket = ork_rocket::Rocket::new(board.open_rocket());
    rocket.create_bo(0x3000).unwrap();
    assert_eq!(rocket.create_bo(1).unwrap_err().errno(), Errno::ENOSPC);
    assert_eq!(injected(&board), [Fault::FullWindow; 3]);
}

#[test]
fn a_plan_is_text() {
    let text = r#"
        seed = 7
        hang = "nth:3"
        dropped = "one-in:4000"
        interrupted = "always"
        dead_core = 2
    "#;
    let plan: FaultPlan = toml::from_str(text).unwrap();
    let expected = FaultPlan {
        seed: 7,
        hang: When::Nth(3),
        dropped: "one-in:4000".parse().unwrap(),
        interrupted: When::Always,
        dead_core: Some(2),
        ..Default::default()
    };
    assert_eq!(plan, expected);
    let again: EmuOptions = toml::from_str(&toml::to_string(&EmuOptions::default()).unwrap()).unwrap();
    assert_eq!(again, EmuOptions::default());
}
