// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers, mappings, caches, domains and the rules of the device file.

use crate::support;
use ork_drm::{Errno, uapi as drm, version};
use ork_emu::{Board, EmuOptions, FindingKind, Live};
use ork_isa::Iova;
use ork_rknpu::CreateRequest;
use ork_rknpu::uapi::{self, RknpuMemCreate, RknpuMemDestroy, action, mem, sync};
use support::*;
use zerocopy::{FromBytes, IntoBytes};

fn with_version(driver_version: [u32; 3]) -> Board {
    Board::new(&EmuOptions { driver_version, ..Default::default() })
}

#[test]
fn the_driver_names_itself() {
    let npu = open(&board());
    let version = version(npu.transport()).unwrap();
    assert_eq!(version.to_string(), "rknpu 0.9.8");
    assert_eq!((version.date.as_str(), version.description.as_str()), ("20240828", "RKNPU driver"));
}

#[test]
fn a_string_is_cut_to_the_callers_room_and_its_real_length_comes_back() {
    let npu = open(&board());
    let mut name = *b"........";
    let mut argument = drm::DrmVersion {
        name_len: 3,
        name: name.as_mut_ptr().expose_provenance() as u64,
        ..Default::default()
    };
    // SAFETY: 3 bytes at `name` are writable; the other addresses are null.
    unsafe { ork_drm::Transport::ioctl(npu.transport(), drm::VERSION, argument.as_mut_bytes()) }.unwrap();
    assert_eq!(&name, b"rkn.....");
    assert_eq!((argument.name_len, argument.date_len, argument.desc_len), (5, 8, 12));
}

#[test]
fn actions() {
    let npu = open(&board());
    let values = [
        (action::GET_HW_VERSION, 0x4649_5245),
        (action::GET_DRV_VERSION, 908),
        (action::GET_FREQ, 1_000_000_000),
        (action::GET_VOLT, 800_000),
        (action::ACT_RESET, 7),
        (action::GET_TOTAL_RW_AMOUNT, 7),
        (action::SET_PROC_NICE, 7),
        (action::GET_IOMMU_EN, 1),
        (action::GET_TOTAL_SRAM_SIZE, 0),
        (action::GET_FREE_SRAM_SIZE, 0),
        (action::GET_IOMMU_DOMAIN_ID, 0),
    ];
    for (code, value) in values {
        assert_eq!(npu.action(code, 7), Ok(value), "action {code}");
    }
    let refused = [
        action::SET_FREQ,
        action::SET_VOLT,
        7,
        8,
        9,
        10,
        11,
        12,
        action::POWER_ON,
        action::POWER_OFF,
        26,
        0x100,
        u32::MAX,
    ];
    for code in refused {
        assert_eq!(npu.action(code, 7).unwrap_err().errno(), Errno::EINVAL, "action {code}");
    }
}

#[test]
fn dispatch_rules() {
    let npu = open(&board());
    let mut zeros = [0_u8; 256];
    // Unknown driver and core numbers.
    assert_eq!(raw(&npu, drm::read_write(b'd', 0x46, 8), &mut zeros), Err(Errno::EINVAL));
    assert_eq!(raw(&npu, drm::read_write(b'd', 0x3F, 8), &mut zeros), Err(Errno::EINVAL));
    // Another type byte: the misc-device build's numbers.
    assert_eq!(raw(&npu, 0xC008_7200, &mut zeros), Err(Errno::ENOTTY));
    // No sync objects, no modesetting.
    assert_eq!(raw(&npu, drm::read_write(b'd', 0xBF, 8), &mut zeros), Err(Errno::EOPNOTSUPP));
    assert_eq!(raw(&npu, drm::GET_CAP, &mut zeros), Err(Errno::EOPNOTSUPP));
    let mut capability = drm::DrmGetCap { capability: drm::CAP_PRIME, value: 0 };
    assert_eq!(raw(&npu, drm::GET_CAP, capability.as_mut_bytes()), Ok(()));
    assert_eq!(capability.value, 3);
    let mut unique = drm::DrmUnique { len: 9, unique: 0 };
    assert_eq!(raw(&npu, drm::GET_UNIQUE, unique.as_mut_bytes()), Ok(()));
    assert_eq!(unique.len, 0);
    // A buffer shorter than the request says.
    assert_eq!(raw(&npu, uapi::ACTION, &mut zeros[..7]), Err(Errno::EFAULT));
}

#[test]
fn structs_are_cut_and_extended_by_the_callers_size() {
    let npu = open(&board());
    // An old program's 40-byte allocation: the missing tail is zero.
    let mut short = RknpuMemCreate { size: 5000, flags: 0x403, iommu_domain_id: 99, ..Default::default() };
    assert_eq!(raw(&npu, uapi::MEM_CREATE_SHORT, &mut short.as_mut_bytes()[..40]), Ok(()));
    assert_eq!((short.handle, short.size, short.iommu_domain_id), (1, 8192, 99));
    // A longer struct than the kernel knows: its tail comes back as it was.
    let mut long = [0xAB_u8; 64];
    long[..48].copy_from_slice(RknpuMemCreate { size: 1, flags: 0x403, ..Default::default() }.as_bytes());
    assert_eq!(raw(&npu, drm::read_write(b'd', 0x42, 64), &mut long), Ok(()));
    assert_eq!(RknpuMemCreate::read_from_bytes(&long[..48]).unwrap().handle, 2);
    assert_eq!(long[48..], [0xAB; 16]);
    // Only the low 8 bits choose the call; direction bits choose what is copied.
    let mut action = [0_u8, 0, 0, 0, 1, 2, 3, 4];
    assert_eq!(raw(&npu, drm::write(b'd', 0x40, 8), &mut action), Ok(()));
    assert_eq!(action[4..], [1, 2, 3, 4], "write-only: nothing comes back");
    let mut code_only = 1_u32.to_le_bytes();
    assert_eq!(raw(&npu, drm::read_write(b'd', 0x40, 4), &mut code_only), Ok(()));
    // Copy-out happens on failure too: here of a struct that the handler never saw.
    let mut hidden = [0xEE_u8; 8];
    let read_only = (1 << 31) | (8 << 16) | (0x64 << 8) | 0x44;
    assert_eq!(raw(&npu, read_only, &mut hidden), Err(Errno::EINVAL));
    assert_eq!(hidden, [0; 8]);
}

#[test]
fn handles_sizes_offsets_and_addresses() {
    let board = board();
    let npu = open(&board);
    let sizes = [1, 0x15000, 0xCFFF];
    let buffers: Vec<_> = sizes.iter().map(|size| create(&npu, *size, mem::DATA)).collect();
    let field = |f: fn(&ork_rknpu::Buffer) -> u64| buffers.iter().map(f).collect::<Vec<_>>();
    assert_eq!(field(|b| b.handle.into()), [1, 2, 3]);
    assert_eq!(field(|b| b.size), [0x1000, 0x15000, 0xD000]);
    assert_eq!(field(|b| b.dma_addr), [0xFFFF_F000, 0xFFFE_A000, 0xFFFD_D000]);
    let offsets: Vec<_> = buffers.iter().map(|b| npu.mem_map(b.handle).unwrap()).collect();
    assert_eq!(offsets, [0x1_0000_0000, 0x1_0000_1000, 0x1_0001_6000]);
    assert!(
        buffers.iter().all(|b| b.obj_addr != 0 && b.obj_addr != b.dma_addr && b.obj_addr > u32::MAX.into())
    );

    // The lowest free handle and offset come back; another file counts for itself.
    npu.mem_destroy(2).unwrap();
    let again = create(&npu, 0x1000, mem::DATA);
    assert_eq!((again.handle, npu.mem_map(2).unwrap()), (2, 0x1_0000_1000));
    let other = open(&board);
    assert_eq!(create(&other, 0x1000, mem::DATA).handle, 1);

    // A known handle queries, whatever the other fields say.
    let mut query = RknpuMemCreate { handle: 3, size: 77, iommu_domain_id: 9, ..Default::default() };
    raw(&npu, uapi::MEM_CREATE, query.as_mut_bytes()).unwrap();
    assert_eq!((query.handle, query.size, query.obj_addr), (3, 0xD000, buffers[2].obj_addr));
    // An unknown one allocates.
    let mut stale = RknpuMemCreate { handle: 30, size: 77, flags: mem::DATA, ..Default::default() };
    raw(&npu, uapi::MEM_CREATE, stale.as_mut_bytes()).unwrap();
    assert_eq!((stale.handle, stale.size), (4, 0x1000));
}

#[test]
fn errno_table_of_the_memory_calls() {
    let board = board();
    let npu = open(&board);
    let create_errno =
        |size, domain| npu.mem_create(&CreateRequest { size, flags: mem::DATA, domain }).unwrap_err().errno();
    assert_eq!(create_errno(0, 0), Errno::EINVAL);
    assert_eq!(create_errno(4096, 16), Errno::EINVAL);
    assert_eq!(create_errno(4096, -1), Errno::EINVAL);
    assert_eq!(create_errno(1 << 32, 0), Errno::EFAULT);
    assert_eq!(create_errno(u64::MAX, 0), Errno::EINVAL);
    assert_eq!(npu.mem_map(1).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(npu.mem_destroy(1).unwrap_err().errno(), Errno::EINVAL);
    let mut close = drm::DrmGemClose { handle: 1, pad: 0 };
    assert_eq!(raw(&npu, drm::GEM_CLOSE, close.as_mut_bytes()), Err(Errno::EINVAL));

    let plain = create(&npu, 4096, 0);
    // SAFETY: the emulated kernel checks object addresses.
    let sync_errno = |address| unsafe { npu.mem_sync(address, 0, 64, sync::TO_DEVICE) }.unwrap_err().errno();
    assert_eq!(sync_errno(plain.obj_addr), Errno::EINVAL);
    assert_eq!(sync_errno(0), Errno::EINVAL);
    assert_eq!(board.take_findings(), []);
    assert_eq!(sync_errno(0xDEAD), Errno::EINVAL);
    assert_eq!(kinds(&board), [FindingKind::UnknownObject { obj_addr: 0xDEAD }]);

    assert_eq!(raw(&npu, drm::GEM_CLOSE, close.as_mut_bytes()), Ok(()));
    assert_eq!(board.live().objects, 0);
}

#[test]
fn every_memory_flag_is_accepted_and_memory_is_zero() {
    let npu = open(&board());
    for bit in 0..11 {
        let flags = 1 << bit;
        let buffer = create(&npu, 4096, flags);
        let mut mapping = map(&npu, &buffer, 4096);
        assert!((0..4096).all(|at| get(&mapping, at) == 0), "{flags:#x}");
        put(&mut mapping, 0, &[0xFF; 4096]);
        if flags == mem::CACHEABLE {
            flush(&npu, &buffer, 0, 4096);
        }
        drop(mapping);
        // The next one gets the same place.
        npu.mem_destroy(buffer.handle).unwrap();
    }
}

#[test]
fn an_object_address_is_good_in_every_file_and_destroy_does_not_look_at_it() {
    let board = board();
    let (one, two) = (open(&board), open(&board));
    let buffer = create(&one, 4096, mem::DATA);
    let mut mapping = map(&one, &buffer, 64);
    put(&mut mapping, 0, &[9]);
    flush(&two, &buffer, 0, 64);
    drop(mapping);
    assert_eq!(get(&map(&one, &buffer, 64), 0), 9);
    let mut destroy = RknpuMemDestroy { handle: buffer.handle, reserved: 7, obj_addr: 0xDEAD };
    assert_eq!(raw(&two, uapi::MEM_DESTROY, destroy.as_mut_bytes()), Err(Errno::EINVAL), "another file's");
    assert_eq!(raw(&one, uapi::MEM_DESTROY, destroy.as_mut_bytes()), Ok(()));
    assert_eq!(board.live().objects, 0);
}

#[test]
fn the_memory_of_the_machine_is_finite() {
    let board = Board::new(&EmuOptions { memory_bytes: 0x5000, ..Default::default() });
    let npu = open(&board);
    let rocket = ork_rocket::Rocket::new(board.open_rocket());
    let errno =
        |size| npu.mem_create(&CreateRequest { size, flags: mem::DATA, domain: 0 }).unwrap_err().errno();
    let first = create(&npu, 0x3000, mem::DATA);
    assert_eq!(
        (errno(0x3000), rocket.create_bo(0x3000).unwrap_err().errno()),
        (Errno::ENOMEM, Errno::ENOMEM)
    );
    let bo = rocket.create_bo(0x2000).unwrap();
    assert_eq!(errno(1), Errno::ENOMEM);
    // Nothing is left of what failed, and what is freed can be used again.
    assert_eq!((board.live().dram_bytes, board.live().iova_bytes), (0x5000, 0x5000));
    npu.mem_destroy(first.handle).unwrap();
    assert_eq!(create(&npu, 0x3000, mem::DATA).dma_addr, first.dma_addr);
    rocket.close_bo(bo.handle).unwrap();
}

#[test]
fn mapping_rules() {
    let board = board();
    let npu = open(&board);
    let buffer = create(&npu, 5000, mem::DATA);
    let offset = npu.mem_map(buffer.handle).unwrap();
    assert_eq!(npu.mmap(offset, 440).unwrap().len(), 440);
    assert_eq!(npu.mmap(offset, 8192).unwrap().len(), 8192);
    let errno = |offset, len| npu.mmap(offset, len).unwrap_err().errno();
    assert_eq!(errno(offset, 8193), Errno::EINVAL);
    assert_eq!(errno(offset, 0), Errno::EINVAL);
    assert_eq!(errno(offset, usize::MAX), Errno::EINVAL);
    assert_eq!(errno(offset + 4096, 440), Errno::EINVAL);
    assert_eq!(errno(0, 440), Errno::EINVAL);
    let stranger = open(&board);
    create(&stranger, 8192, mem::DATA);
    assert_eq!(stranger.mmap(offset, 440).unwrap_err().errno(), Errno::EACCES);
}

#[test]
fn a_mapping_outlives_handle_and_file() {
    let board = board();
    let npu = open(&board);
    let buffer = create(&npu, 4096, mem::DATA);
    let mut mapping = map(&npu, &buffer, 440);
    npu.mem_destroy(buffer.handle).unwrap();
    assert_eq!(npu.mmap(0x1_0000_0000, 440).unwrap_err().errno(), Errno::EACCES, "the handle is gone");
    put(&mut mapping, 439, &[3]);
    flush(&npu, &buffer, 0, 440);
    drop(npu);
    assert_eq!(get(&mapping, 439), 3);
    let kept = Live {
        files: 1,
        mappings: 1,
        objects: 1,
        dram_bytes: 4096,
        view_bytes: 4096,
        iova_bytes: 4096,
        ..Live::default()
    };
    assert_eq!(board.live(), kept);
    // The address stays taken.
    assert_eq!(create(&open(&board), 4096, mem::DATA).dma_addr, 0xFFFF_E000);
    drop(mapping);
    assert_eq!(board.live(), Live::default());
}

#[test]
fn closing_a_file_frees_what_it_leaked() {
    let board = board();
    let npu = open(&board);
    for domain in [0, 3, 3] {
        npu.mem_create(&CreateRequest { size: 8192, flags: mem::DATA, domain }).unwrap();
    }
    let live = board.live();
    assert_eq!((live.files, live.handles, live.objects, live.domains), (1, 3, 3, 1));
    assert_eq!((live.dram_bytes, live.iova_bytes, live.view_bytes), (3 * 8192, 3 * 8192, 0));
    drop(npu);
    assert_eq!(board.live(), Live::default());
}

/// Reads and writes device memory from a core.
fn memory_core() -> (Board, std::sync::Arc<Log>) {
    // The job's base address is where the core adds 1 to a byte and to the one 64 bytes further on.
    board_with(&EmuOptions::default(), |_, bus, job| {
        for at in [job.base, job.base.checked_add(64).unwrap()] {
            let byte = bus.read(at, 1).unwrap()[0];
            bus.write(at, &[byte + 1]).unwrap();
        }
        done(job)
    })
}

#[test]
fn a_forgotten_flush_leaves_the_device_with_old_bytes() {
    let (board, _) = memory_core();
    let npu = open(&board);
    let mut tasks = tasks(&npu, 1, 0x300);
    let buffer = create(&npu, 4096, mem::DATA);
    let mut mapping = map(&npu, &buffer, 4096);
    point_task_at(&mut tasks, buffer.dma_addr);
    put(&mut mapping, 0, &[40]);
    put(&mut mapping, 64, &[50]);
    // Only the first line; byte 1 stands for the whole of it.
    flush(&npu, &buffer, 1, 1);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    invalidate(&npu, &buffer, 0, 128);
    assert_eq!((get(&mapping, 0), get(&mapping, 64)), (41, 1));
    let iova = Iova(buffer.dma_addr as u32 + 64);
    assert_eq!(kinds(&board), [FindingKind::NotFlushed { iova }]);
    // What the device has written since is not the CPU's to flush.
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    assert_eq!(kinds(&board), []);
}

#[test]
fn a_forgotten_invalidate_leaves_the_cpu_with_old_bytes() {
    let (board, _) = memory_core();
    let npu = open(&board);
    let mut tasks = tasks(&npu, 1, 0x300);
    let buffer = create(&npu, 4096, mem::DATA);
    let mapping = map(&npu, &buffer, 4096);
    point_task_at(&mut tasks, buffer.dma_addr);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    assert_eq!((get(&mapping, 0), get(&mapping, 64)), (0, 0));
    invalidate(&npu, &buffer, 64, 1);
    assert_eq!((get(&mapping, 0), get(&mapping, 64)), (0, 1));
    invalidate(&npu, &buffer, 0, 64);
    assert_eq!((get(&mapping, 0), get(&mapping, 64)), (1, 1));
    assert_eq!(kinds(&board), [], "nothing was forgotten that the device could see");
}

#[test]
fn an_invalidate_drops_what_the_cpu_had_not_flushed() {
    let npu = open(&board());
    let buffer = create(&npu, 4096, mem::DATA);
    let mut mapping = map(&npu, &buffer, 4096);
    put(&mut mapping, 0, &[9; 65]);
    invalidate(&npu, &buffer, 63, 1);
    assert_eq!((get(&mapping, 0), get(&mapping, 63), get(&mapping, 64)), (0, 0, 9));
}

#[test]
fn maintenance_moves_whole_lines() {
    let npu = open(&board());
    let buffer = create(&npu, 4096, mem::DATA);
    let mut mapping = map(&npu, &buffer, 4096);
    put(&mut mapping, 0, &[9; 256]);
    // Bytes 100..101 stand for their line, 64..128.
    flush(&npu, &buffer, 100, 1);
    drop(mapping);
    let mapping = map(&npu, &buffer, 4096);
    assert_eq!([63, 64, 127, 128].map(|at| get(&mapping, at)), [0, 9, 9, 0]);
}

#[test]
fn both_directions_clean_first() {
    let npu = open(&board());
    let buffer = create(&npu, 4096, mem::DATA);
    let mut mapping = map(&npu, &buffer, 4096);
    put(&mut mapping, 0, &[9]);
    // SAFETY: the object is alive, and no slice of its mapping is.
    unsafe { npu.mem_sync(buffer.obj_addr, 0, 64, sync::TO_DEVICE | sync::FROM_DEVICE) }.unwrap();
    assert_eq!(get(&mapping, 0), 9);
}

#[test]
fn a_buffer_without_caches_has_one_copy() {
    let (board, _) = memory_core();
    let npu = open(&board);
    let mut tasks = tasks(&npu, 1, 0x300);
    let buffer = create(&npu, 4096, 0);
    let mut mapping = map(&npu, &buffer, 128);
    point_task_at(&mut tasks, buffer.dma_addr);
    put(&mut mapping, 0, &[40]);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    assert_eq!((get(&mapping, 0), get(&mapping, 64)), (41, 1));
    assert_eq!(board.live().view_bytes, 4096, "only the task array has a view");
}

#[test]
fn the_cpu_view_lives_from_the_first_mapping_to_the_last() {
    let board = board();
    let npu = open(&board);
    let buffer = create(&npu, 8192, mem::DATA);
    assert_eq!(board.live().view_bytes, 0);
    let mut first = map(&npu, &buffer, 440);
    let second = map(&npu, &buffer, 8192);
    assert_eq!((board.live().view_bytes, board.live().mappings), (8192, 2));
    put(&mut first, 0, &[1]);
    assert_eq!(get(&second, 0), 1, "two mappings of one buffer are coherent");
    flush(&npu, &buffer, 0, 1);
    put(&mut first, 64, &[2]);
    drop((first, second));
    assert_eq!(board.live().view_bytes, 0);
    // Maintenance without a mapping has nothing to move.
    flush(&npu, &buffer, 0, 8192);
    let again = map(&npu, &buffer, 8192);
    assert_eq!((get(&again, 0), get(&again, 64)), (1, 0), "what was never flushed is gone");
}

#[test]
fn maintenance_beyond_the_buffer_is_cut_and_reported() {
    let board = board();
    let npu = open(&board);
    let buffer = create(&npu, 4096, mem::DATA);
    let mut mapping = map(&npu, &buffer, 4096);
    put(&mut mapping, 4095, &[7]);
    flush(&npu, &buffer, 4000, 1000);
    drop(mapping);
    assert_eq!(get(&map(&npu, &buffer, 4096), 4095), 7);
    let findings = board.take_findings();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].kind, FindingKind::SyncRange { offset: 4000, size: 1000, buffer: 4096 });
    flush(&npu, &buffer, 1 << 40, u64::MAX);
    assert_eq!(board.take_findings().len(), 1);
}

#[test]
fn equal_addresses_in_two_domains_are_different_bytes() {
    let (board, _) = memory_core();
    let npu = open(&board);
    let in_domain = |domain, flags| npu.mem_create(&CreateRequest { size: 4096, flags, domain }).unwrap();
    let (zero, five) = (in_domain(0, mem::DATA), in_domain(5, mem::DATA));
    assert_eq!(zero.dma_addr, five.dma_addr);
    assert_eq!(npu.action(action::GET_IOMMU_DOMAIN_ID, 0), Ok(5), "the last domain used is live");
    let mut tasks = tasks(&npu, 1, 0x300);
    point_task_at(&mut tasks, five.dma_addr);
    submit(&npu, &ork_rknpu::uapi::RknpuSubmit { iommu_domain_id: 5, ..request(&tasks, 1, 1) }).unwrap();
    assert_eq!(npu.action(action::GET_IOMMU_DOMAIN_ID, 0), Ok(5));
    let (zero, five) = (map(&npu, &zero, 64), map(&npu, &five, 64));
    assert_eq!((get(&zero, 0), get(&five, 0)), (0, 1));
    // All ids exist.
    let last = in_domain(15, mem::DATA);
    assert_eq!((last.dma_addr, npu.action(action::GET_IOMMU_DOMAIN_ID, 0)), (0xFFFF_F000, Ok(15)));
    let outside = ork_rknpu::uapi::RknpuSubmit { iommu_domain_id: 16, ..request(&tasks, 1, 1) };
    assert_eq!(submit(&npu, &outside).unwrap_err().errno(), Errno::EINVAL);
}

#[test]
fn a_busy_domain_keeps_the_others_out() {
    let board = Board::new(&EmuOptions { domain_wait_ms: 10, ..Default::default() });
    let npu = open(&board);
    let buffer = create(&npu, 4096, mem::DATA);
    let hold = board.hold_domain(2).unwrap();
    let errno =
        npu.mem_create(&CreateRequest { size: 4096, flags: mem::DATA, domain: 0 }).unwrap_err().errno();
    assert_eq!(errno, Errno::EINVAL);
    // SAFETY: the object is alive, and nothing is mapped.
    let sync = unsafe { npu.mem_sync(buffer.obj_addr, 0, 64, sync::TO_DEVICE) };
    assert_eq!(sync.unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(npu.mem_destroy(buffer.handle).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(npu.action(action::SET_IOMMU_DOMAIN_ID, 1).unwrap_err().errno(), Errno::EINVAL);
    npu.mem_create(&CreateRequest { size: 4096, flags: mem::DATA, domain: 2 }).unwrap();
    drop(hold);
    assert_eq!(npu.action(action::SET_IOMMU_DOMAIN_ID, 1), Ok(1));
    assert_eq!(npu.action(action::GET_IOMMU_DOMAIN_ID, 0), Ok(1));
    npu.mem_destroy(buffer.handle).unwrap();
    assert_eq!(board.hold_domain(16).unwrap_err(), Errno::EINVAL);
}

#[test]
fn older_drivers_lack_domains_and_packed_addresses() {
    let npu = open(&with_version([0, 9, 5]));
    assert_eq!(npu.action(action::GET_DRV_VERSION, 0), Ok(905));
    assert_eq!(npu.action(action::GET_IOMMU_DOMAIN_ID, 0).unwrap_err().errno(), Errno::EINVAL);
    // The domain is no part of the struct.
    let first = npu.mem_create(&CreateRequest { size: 0x3000, flags: mem::DATA, domain: 99 }).unwrap();
    assert_eq!(first.dma_addr, 0xFFFF_C000, "aligned to 0x4000");

    let npu = open(&with_version([0, 9, 7]));
    assert_eq!(npu.action(action::GET_IOMMU_DOMAIN_ID, 0), Ok(0));
    assert_eq!(create(&npu, 0x3000, mem::DATA).dma_addr, 0xFFFF_C000);
}

#[test]
fn the_window_of_a_domain_is_4_gib() {
    let board = board();
    let npu = open(&board);
    let gib = 1 << 30;
    for _ in 0..3 {
        create(&npu, gib, mem::DATA);
    }
    let full = npu.mem_create(&CreateRequest { size: gib, flags: mem::DATA, domain: 0 }).unwrap_err();
    assert_eq!(full.errno(), Errno::EFAULT);
    npu.mem_create(&CreateRequest { size: gib, flags: mem::DATA, domain: 1 }).unwrap();
    create(&npu, gib - 0x1000, mem::DATA);
    assert_eq!(board.live().dram_bytes, 5 * gib - 0x1000);
}
