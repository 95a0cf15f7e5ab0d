// SPDX-License-Identifier: MIT OR Apache-2.0
//! What differs between driver versions, chips and kernel configurations.

use crate::support;
use ork_drm::{Errno, version};
use ork_emu::{Board, EmuOptions, FindingKind, JobOutcome, JobStats, Live, Soc};
use ork_rknpu::CreateRequest;
use ork_rknpu::uapi::{self, HW_VERSION_RK3588, RknpuMemCreate, RknpuSubcoreTask, RknpuSubmit, action, mem};
use support::*;
use zerocopy::IntoBytes;

fn with_version(driver_version: [u32; 3]) -> Board {
    Board::new(&EmuOptions { driver_version, ..Default::default() })
}

fn on(soc: Soc) -> (Board, std::sync::Arc<Log>) {
    board_with(&EmuOptions { soc, ..Default::default() }, |_, _, job| done(job))
}

fn errno(npu: &Npu, code: u32) -> Option<Errno> {
    npu.action(code, 7).err().map(|error| error.errno())
}

#[test]
fn versions_name_themselves() {
    let table = [
        ([0, 8, 2], "20220829", 802),
        ([0, 9, 5], "20240226", 905),
        ([0, 9, 6], "20240322", 906),
        ([0, 9, 7], "20240424", 907),
        ([0, 9, 8], "20240828", 908),
    ];
    for (driver_version, date, code) in table {
        let npu = open(&with_version(driver_version));
        let version = version(npu.transport()).unwrap();
        assert_eq!((version.name.as_str(), version.date.as_str()), ("rknpu", date));
        assert_eq!(npu.action(action::GET_DRV_VERSION, 0), Ok(code));
    }
}

#[test]
fn before_0_9_6_an_allocation_has_40_bytes_and_jobs_have_no_domain() {
    let (board, _) =
        board_with(&EmuOptions { driver_version: [0, 9, 2], ..Default::default() }, |_, _, job| done(job));
    let npu = open(&board);
    let mut long = RknpuMemCreate {
        size: 4096,
        flags: mem::DATA,
        iommu_domain_id: 99,
        core_mask: 0xABCD,
        ..Default::default()
    };
    raw(&npu, uapi::MEM_CREATE, long.as_mut_bytes()).unwrap();
    assert_eq!((long.handle, long.iommu_domain_id, long.core_mask), (1, 99, 0xABCD), "the tail comes back");
    let tasks = tasks(&npu, 1, 0x300);
    let old = RknpuSubmit { iommu_domain_id: 77, hw_elapse_time: 5, ..request(&tasks, 1, 1) };
    let report = submit(&npu, &old).unwrap();
    assert_eq!((report.task_counter, report.hw_elapse_ns), (1, 5), "that field was user data");
    for code in [action::GET_IOMMU_DOMAIN_ID, action::SET_IOMMU_DOMAIN_ID] {
        assert_eq!(errno(&npu, code), Some(Errno::EINVAL));
    }
}

#[test]
fn version_0_8_has_power_actions_and_another_errno_for_a_full_window() {
    let npu = open(&with_version([0, 8, 2]));
    assert_eq!((errno(&npu, action::POWER_ON), errno(&npu, action::POWER_OFF)), (None, None));
    let full = npu.mem_create(&CreateRequest { size: 1 << 32, flags: mem::DATA, domain: 0 });
    assert_eq!(full.unwrap_err().errno(), Errno::ENOMEM);
    let npu = open(&with_version([0, 9, 8]));
    assert_eq!(errno(&npu, action::POWER_ON), Some(Errno::EINVAL));
}

#[test]
fn only_0_9_8_waits_for_the_users_of_a_domain_and_packs_addresses() {
    for (driver_version, waits) in [([0, 9, 6], false), ([0, 9, 7], false), ([0, 9, 8], true)] {
        let board = Board::new(&EmuOptions { driver_version, domain_wait_ms: 5, ..Default::default() });
        let npu = open(&board);
        let hold = board.hold_domain(1).unwrap();
        let switched = npu.action(action::SET_IOMMU_DOMAIN_ID, 2).is_ok();
        assert_eq!(switched, !waits, "{driver_version:?}");
        drop(hold);
        let buffer = create(&npu, 0x3000, mem::DATA);
        assert_eq!(buffer.dma_addr, if waits { 0xFFFF_D000 } else { 0xFFFF_C000 });
    }
}

#[test]
fn chips_have_their_cores() {
    for (soc, cores) in [(Soc::Rk3588, 3), (Soc::Rk3576, 2), (Soc::Rk3568, 1)] {
        let (board, log) = on(soc);
        let npu = open(&board);
        let tasks = tasks(&npu, 4, 0x300);
        let all = (1 << cores) - 1;
        assert_eq!(submit(&npu, &request(&tasks, all + 1, 1)).unwrap_err().errno(), Errno::EINVAL);
        submit(&npu, &request(&tasks, all, 1)).unwrap();
        assert_eq!(log.runs.lock().unwrap().len(), cores);
    }
}

#[test]
fn a_chip_with_one_interrupt_line_uses_the_ranges_of_the_struct_itself() {
    let entry = RknpuSubcoreTask { task_start: 0, task_number: 3 };
    for (soc, expected) in [(Soc::Rk3576, (0x1000, 3)), (Soc::Rk3568, (0x3000, 2))] {
        let (board, log) = on(soc);
        let npu = open(&board);
        let tasks = tasks(&npu, 4, 0x300);
        let own =
            RknpuSubmit { task_start: 2, task_number: 2, subcore_task: [entry; 5], ..request(&tasks, 1, 2) };
        assert_eq!(submit(&npu, &own).unwrap().task_counter, 2);
        let (_, job) = log.runs.lock().unwrap()[0];
        assert_eq!((job.base.0, job.tasks), expected, "{soc:?}");
        // The pointers of CNA and CORE are written on chips with several cores only.
        assert_eq!(job.s_pointer, (soc.cores() > 1).then_some(0xE));
    }
}

#[test]
fn longest_chains() {
    for (soc, slices) in [(Soc::Rk3588, vec![4095, 4095, 10]), (Soc::Rk3576, vec![8200])] {
        let (board, log) = on(soc);
        let npu = open(&board);
        let tasks = tasks(&npu, 8200, 0x300);
        submit(&npu, &request(&tasks, 1, 8200)).unwrap();
        let lengths: Vec<u16> = log.runs.lock().unwrap().iter().map(|(_, job)| job.tasks).collect();
        assert_eq!(lengths, slices);
    }
}

#[test]
fn registers_that_only_some_chips_have() {
    let moving = |_, _: &dyn ork_emu::Bus, job: &ork_emu::PcJob| JobOutcome {
        stats: JobStats { written_bytes: 5, feature_bytes: 7, weight_bytes: 11, ..Default::default() },
        ..done(job)
    };
    for (soc, has_counters, has_window) in
        [(Soc::Rk3588, false, false), (Soc::Rk3576, true, false), (Soc::Rk3568, true, true)]
    {
        let (board, _) = board_with(&EmuOptions { soc, ..Default::default() }, moving);
        let npu = open(&board);
        let tasks = tasks(&npu, 1, 0x300);
        submit(&npu, &request(&tasks, 1, 1)).unwrap();
        let read = |code| npu.action(code, 99).unwrap();
        let amounts = [
            action::GET_DT_WR_AMOUNT,
            action::GET_DT_RD_AMOUNT,
            action::GET_WT_RD_AMOUNT,
            action::GET_TOTAL_RW_AMOUNT,
        ];
        let expected = if has_counters { [5, 7, 11, 23] } else { [99; 4] };
        assert_eq!(amounts.map(read), expected, "{soc:?}");
        assert_eq!(npu.action(action::ACT_CLR_TOTAL_RW_AMOUNT, 1), Ok(1));
        assert_eq!(read(action::GET_TOTAL_RW_AMOUNT), if has_counters { 0 } else { 99 });
        for code in [7, 9, 11] {
            if has_window {
                assert_eq!(npu.action(code + 1, 5), Ok(5));
                assert_eq!(npu.action(code, 0), Ok(5));
            } else {
                assert_eq!(
                    (errno(&npu, code), errno(&npu, code + 1)),
                    (Some(Errno::EINVAL), Some(Errno::EINVAL))
                );
            }
        }
    }
}

#[test]
fn hardware_versions_are_known_for_one_chip_only() {
    let (known, _) = on(Soc::Rk3588);
    assert_eq!(open(&known).hardware_version(), Ok(HW_VERSION_RK3588));
    assert!(known.take_findings().is_empty());
    let (unknown, _) = on(Soc::Rk3576);
    assert_eq!(open(&unknown).hardware_version(), Ok(HW_VERSION_RK3588));
    assert!(matches!(unknown.take_findings()[0].kind, FindingKind::NotEmulated { .. }));
    assert_eq!((Soc::Rk3588.status_offset(), Soc::Rk3576.status_offset()), (0x3C, 0x48));
}

#[test]
fn sram_comes_first_and_what_lies_in_ddr_is_the_size() {
    let board = Board::new(&EmuOptions { sram_bytes: 956 << 10, ..Default::default() });
    let npu = open(&board);
    assert_eq!(npu.sram_bytes(), Ok((956 << 10, 956 << 10)));
    let make = |size: u64, wanted: u64, flags: u32| {
        let mut argument = RknpuMemCreate { size, flags, sram_size: wanted, ..Default::default() };
        raw(&npu, uapi::MEM_CREATE, argument.as_mut_bytes()).unwrap();
        argument
    };
    let sram = mem::DATA | mem::TRY_ALLOC_SRAM;
    let part = make(0x10_0000, 0x4_0000, sram);
    assert_eq!((part.sram_size, part.size), (0x4_0000, 0xC_0000));
    // The whole is one range of addresses and one mapping.
    npu.mmap(npu.mem_map(part.handle).unwrap(), 0x10_0000).unwrap();
    let rest = make(0x10_0000, 0, sram);
    assert_eq!(rest.sram_size, (956 << 10) - 0x4_0000, "0 asks for all");
    assert_eq!(npu.sram_bytes().unwrap().1, 0);
    assert_eq!(make(0x1000, 0, sram).sram_size, 0, "silently none");
    assert_eq!(make(0x1000, 0x1000, mem::DATA).sram_size, 0, "not asked for");
    npu.mem_destroy(part.handle).unwrap();
    assert_eq!(npu.sram_bytes().unwrap().1, 0x4_0000);
    drop(npu);
    assert_eq!(board.live(), Live::default());
}

#[test]
fn without_an_iommu_addresses_look_physical_and_there_is_one_domain() {
    let board = Board::new(&EmuOptions { iommu: false, ..Default::default() });
    let npu = open(&board);
    assert_eq!(npu.iommu_enabled(), Ok(false));
    let (first, second) = (create(&npu, 0x1000, mem::DATA), create(&npu, 0x1000, mem::DATA));
    assert_eq!((first.dma_addr, second.dma_addr), (0x1000_0000, 0x1000_1000));
    let other = npu.mem_create(&CreateRequest { size: 1, flags: mem::DATA, domain: 1 });
    assert_eq!(other.unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(npu.action(action::SET_IOMMU_DOMAIN_ID, 0), Ok(0));
    let full = npu.mem_create(&CreateRequest { size: 1 << 32, flags: mem::DATA, domain: 0 });
    assert_eq!(full.unwrap_err().errno(), Errno::EINVAL, "a contiguous allocation fails so");
}

#[test]
fn options_of_other_kernels() {
    let options = EmuOptions { private_actions: true, bypass_soft_reset: true, ..Default::default() };
    let (board, log) = board_with(&options, |_, _, job| done(job));
    let npu = open(&board);
    assert_eq!(npu.action(0x100, 4), Ok(4));
    assert_eq!(npu.action(action::GET_IOMMU_DOMAIN_ID, 0), Ok(4));
    npu.reset().unwrap();
    let tasks = tasks(&npu, 1, 0x300);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    assert_eq!(log.resets[0].load(std::sync::atomic::Ordering::SeqCst), 0);
}
