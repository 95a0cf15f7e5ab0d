// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance checklist of an emulation, item by item. What is not here is where the table says.
//!
//! | # | Item | Test |
//! |---|---|---|
//! | 1 | sizes of all structs | `uapi` tests of `ork-rknpu`, `ork-rocket`, `ork-drm` |
//! | 2 | 40- and 48-byte MEM_CREATE on card and render node | here |
//! | 3 | actions | `memory.rs` `actions`, `versions.rs` |
//! | 4 | first offset; descending and aligned addresses | `memory.rs` `handles_sizes_offsets_and_addresses`, `domain.rs` |
//! | 5 | mmap of 440 bytes; survives close | `memory.rs` `mapping_rules`, `a_mapping_outlives_handle_and_file` |
//! | 6 | ranges for one, automatic, two, three cores | `jobs.rs` `ranges_and_cores` |
//! | 7 | odd `regcfg_amount`, tail, chains, early stop | here, `recorded_programs.rs` |
//! | 8 | interrupt masks | `jobs.rs` `events_must_come_in_pairs`, pooling in `recorded_programs.rs` |
//! | 9 | NONBLOCK, FENCE_OUT, polled memory | `asynchronous.rs`, `shared_memory.rs` |
//! | 10 | MEM_SYNC on non-cacheable and imported objects | `memory.rs` `errno_table_…`, `sharing.rs` `what_an_import_…` |
//! | 11 | domains | `memory.rs`, `asynchronous.rs`, `versions.rs` |
//! | 12 | import | `sharing.rs` |
//! | 13 | rocket | `rocket.rs` |
//! | 14 | discovery by libdrm and Mesa | needs device nodes: the preloaded library's tests |
//! | – | dispatch, copying, core calls, all nodes | `core_calls.rs` |
//! | – | call sequences of real programs | here; whole programs: the preloaded library's tests |

use crate::support;
use ork_drm::{Errno, export_fd, flink};
use ork_emu::EmuOptions;
use ork_rknpu::Rknpu;
use ork_rknpu::uapi::{self, RknpuMemCreate, RknpuSubcoreTask, RknpuSubmit, RknpuTask, action, mem};
use support::*;
use zerocopy::IntoBytes;

#[test]
fn item_2_both_sizes_on_both_nodes() {
    let board = board();
    for npu in [open(&board), Rknpu::new(board.open_render())] {
        for (request, bytes) in [(uapi::MEM_CREATE_SHORT, 40), (uapi::MEM_CREATE, 48)] {
            let mut create = RknpuMemCreate { size: 1, flags: mem::DATA, ..Default::default() };
            raw(&npu, request, &mut create.as_mut_bytes()[..bytes]).unwrap();
            assert_eq!((create.size, create.dma_addr % 4096), (4096, 0));
        }
    }
}

/// The library that Rockchip ships, from its first question to its last call.
#[test]
fn the_calls_of_the_closed_runtime() {
    let (board, log) = board_with(&EmuOptions::default(), adding);
    let npu = open(&board);
    let answers = [
        (action::GET_HW_VERSION, u32::MAX, Ok(0x4649_5245)),
        (action::GET_DRV_VERSION, 0, Ok(908)),
        (action::POWER_ON, 0, Err(Errno::EINVAL)),
        (action::SET_PROC_NICE, (-19_i32).cast_unsigned(), Ok((-19_i32).cast_unsigned())),
        (action::GET_DRV_VERSION, 0, Ok(908)),
    ];
    for (code, value, answer) in answers {
        assert_eq!(npu.action(code, value).map_err(|error| error.errno()), answer, "action {code}");
    }
    // Each buffer is named, exported, mapped and synchronised as a whole.
    let mut fds = Vec::new();
    let mut allocate = |size: u64, flags| {
        assert_eq!(npu.action(action::GET_IOMMU_EN, 0), Ok(1));
        let buffer = create(&npu, size, flags);
        flink(npu.transport(), buffer.handle).unwrap();
        fds.push(export_fd(npu.transport(), buffer.handle).unwrap());
        let mapping = map(&npu, &buffer, size as usize);
        // SAFETY: the object is alive, and no slice of its mapping is.
        unsafe { npu.mem_sync(buffer.obj_addr, 0, size, 3) }.unwrap();
        (buffer, mapping)
    };
    let (array, mapping) = allocate(40, mem::TASKS);
    let mut tasks = Tasks { buffer: array, mapping };
    let (data, mut bytes) = allocate(1 << 20, mem::DATA);
    let task =
        RknpuTask { int_mask: 0x300, regcfg_amount: 108, regcmd_addr: data.dma_addr, ..Default::default() };
    put(&mut tasks.mapping, 0, task.as_bytes());
    put(&mut bytes, 0, &[40]);
    flush(&npu, &data, 0, 64);
    // Three times the real count, and the same range for whichever core it becomes.
    let report = submit(&npu, &RknpuSubmit { task_number: 3, ..request(&tasks, 0, 1) }).unwrap();
    assert_eq!((report.task_counter, log.runs.lock().unwrap().len()), (3, 1));
    for _ in 0..2 {
        invalidate(&npu, &data, 0, 128);
    }
    assert_eq!((get(&bytes, 0), get(&bytes, 64), get(&tasks.mapping, 21)), (41, 41, 3));
    assert_eq!(npu.action(action::POWER_OFF, 0).unwrap_err().errno(), Errno::EINVAL);
    drop(bytes);
    for handle in [tasks.buffer.handle, data.handle] {
        npu.mem_destroy(handle).unwrap();
    }
    for fd in fds {
        board.close_fd(fd).unwrap();
    }
    drop((tasks, npu));
    all_gone(&board);
    assert_eq!(kinds(&board), []);
}

/// The oldest open program: headers of the first versions, memory that is not cached, no synchronisation.
#[test]
fn the_calls_of_the_first_open_program() {
    let (board, log) = board_with(&EmuOptions::default(), adding);
    let npu = open(&board);
    let allocate = |flags| {
        let mut argument = RknpuMemCreate { size: 1024, flags, iommu_domain_id: 99, ..Default::default() };
        raw(&npu, uapi::MEM_CREATE_SHORT, &mut argument.as_mut_bytes()[..40]).unwrap();
        let offset = npu.mem_map(argument.handle).unwrap();
        (argument, npu.mmap(offset, 1024).unwrap())
    };
    let ((data, mut bytes), (array, mut tasks)) = (allocate(0), allocate(mem::KERNEL_MAPPING));
    npu.action(action::ACT_RESET, 0).unwrap();
    put(&mut bytes, 0, &[0; 1024]);
    put(&mut bytes, 0, &[40]);
    let task = RknpuTask {
        enable_mask: 0xD,
        int_mask: 0x300,
        int_clear: 0x1_FFFF,
        regcfg_amount: 108,
        regcmd_addr: data.dma_addr,
        ..Default::default()
    };
    put(&mut tasks, 0, task.as_bytes());
    let entry = |task_start, task_number| RknpuSubcoreTask { task_start, task_number };
    let order = RknpuSubmit {
        flags: 5,
        timeout: 6000,
        task_number: 1,
        task_obj_addr: array.obj_addr,
        core_mask: 1,
        fence_fd: -1,
        subcore_task: [entry(0, 1), entry(1, 0), entry(2, 0), entry(0, 0), entry(0, 0)],
        ..Default::default()
    };
    assert_eq!(submit(&npu, &order).unwrap().task_counter, 1);
    assert_eq!((get(&bytes, 0), get(&bytes, 64), log.runs.lock().unwrap().len()), (41, 41, 1));
    drop((bytes, tasks));
    for made in [data, array] {
        npu.mem_destroy(made.handle).unwrap();
    }
    drop(npu);
    all_gone(&board);
    assert_eq!(kinds(&board), []);
}

const LINK: u64 = 0x0101_0000_0000_0010;
const AMOUNT: u64 = 0x0101_0000_0000_0014;
const MARK: u64 = 0x0041_0000_0000_0000;
/// Enables nothing: a program that completes at once, if its last word is seen.
const ENABLE: u64 = 0x0081_0000_0000_0008;

/// Copies of a small recorded program (an element-wise sum) as a chain, 256 bytes apart, on a board with the NPU model.
/// Gives the result of a submit of `count` of them, after `change` has touched the words of all.
fn chain(copies: usize, count: u32, change: impl Fn(&mut [Vec<u64>])) -> Result<u32, (Errno, u32)> {
    padded_chain(0, copies, count, change)
}

/// The same with `pad` words in front that write nothing.
fn padded_chain(
    pad: usize,
    copies: usize,
    count: u32,
    change: impl Fn(&mut [Vec<u64>]),
) -> Result<u32, (Errno, u32)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
    let arrays = ork_conformance::Arrays::read(&folder.join("ew_add_3separate_n768.npz")).unwrap();
    let recorded = &arrays.get("s0_h2").unwrap().bytes;
    let body: Vec<u64> =
        recorded.chunks_exact(8).take(21).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    // The recorded body ends with its own op-enable word; ours stands in the trailer.
    let is_enable = |word: &&u64| **word >> 48 == 0x81;
    let enable = *body.iter().find(is_enable).unwrap();
    let writes = body.into_iter().filter(|word| !matches!(word >> 48, 0x81 | 0x41 | 0x0101 | 0));
    let body: Vec<u64> = std::iter::repeat_n(0, pad).chain(writes).collect();

    let board = board();
    let npu = open(&board);
    // The program's own addresses lie in the first 128 KiB below 4 GiB.
    let data = create(&npu, 0x2_0000, mem::IOMMU_LIMIT_IOVA_ALIGNMENT);
    let regcmd = create(&npu, 0x1_0000, mem::IOMMU_LIMIT_IOVA_ALIGNMENT);
    let amount = (body.len() as u64 + 4).div_ceil(2) - 1;
    let mut programs: Vec<Vec<u64>> = (0..copies)
        .map(|index| {
            let last = index + 1 == copies;
            let next = if last { 0 } else { regcmd.dma_addr + 256 * (index as u64 + 1) };
            let amount = if last { 0 } else { amount };
            let trailer = [LINK | next << 16, AMOUNT | amount << 16, MARK, enable];
            body.iter().copied().chain(trailer).collect()
        })
        .collect();
    change(&mut programs);
    let mut mapping = map(&npu, &regcmd, 0x1_0000);
    for (index, program) in programs.iter().enumerate() {
        put(&mut mapping, index * 256, program.as_bytes());
    }
    let mut tasks = tasks(&npu, count, 0x300);
    for index in 0..count as usize {
        let task = RknpuTask {
            int_mask: 0x300,
            regcfg_amount: body.len() as u32,
            regcmd_addr: regcmd.dma_addr + 256 * index as u64,
            ..Default::default()
        };
        put(&mut tasks.mapping, index * 40, task.as_bytes());
    }
    let _ = data;
    match submit(&npu, &request(&tasks, 1, count)) {
        Ok(report) => Ok(report.task_counter),
        Err(ork_rknpu::RknpuError::Submit { source, task_counter, .. }) => Err((source, task_counter)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn item_7_a_chain_of_programs_runs_and_its_tail_is_fetched() {
    assert_eq!(chain(1, 1, |_| ()), Ok(1));
    assert_eq!(chain(5, 5, |_| ()), Ok(5));
    // Fewer than there are.
    assert_eq!(chain(5, 3, |_| ()), Ok(3));
    // Without the op-enable word of the tail nothing runs.
    let no_enable = |programs: &mut [Vec<u64>]| *programs[0].last_mut().unwrap() = 0;
    assert_eq!(chain(1, 1, no_enable), Err((Errno::ETIMEDOUT, 0)));
    let nothing = |programs: &mut [Vec<u64>]| *programs[0].last_mut().unwrap() = ENABLE;
    assert!(chain(1, 1, nothing).is_err());
}

#[test]
fn item_7_amount_zero_stops_a_chain_early_and_more_tasks_than_programs_time_out() {
    let stop = |programs: &mut [Vec<u64>]| {
        let amount = programs[1].len() - 3;
        programs[1][amount] = AMOUNT;
    };
    assert_eq!(chain(4, 4, stop), Err((Errno::ETIMEDOUT, 2)));
    assert_eq!(chain(4, 2, stop), Ok(2));
    assert_eq!(chain(2, 3, |_| ()), Err((Errno::ETIMEDOUT, 2)));
    // A link to something else: data that is no program.
    let astray = |programs: &mut [Vec<u64>]| {
        let len = programs[1].len();
        programs[1] = vec![0x1234_5678_9ABC_DEF0; len];
    };
    assert_eq!(chain(2, 2, astray), Err((Errno::ETIMEDOUT, 1)));
    // Several tasks without chain words: nothing is dispatched. With amounts but no addresses the first one runs.
    for (words, counter) in [(2, 0), (1, 1)] {
        let unlinked = |programs: &mut [Vec<u64>]| {
            for program in programs {
                let link = program.len() - 4;
                program[link..link + words].fill(0);
            }
        };
        assert_eq!(
            chain(2, 2, unlinked),
            Err((Errno::ETIMEDOUT, counter)),
            "{words} words of each link missing"
        );
    }
}

#[test]
fn item_7_an_odd_amount_is_rounded_up() {
    // With the trailer's four words one of these is odd, and its last beat half full: rounded down, the op-enable word
    // would be lost.
    for pad in 0..2 {
        assert_eq!(padded_chain(pad, 3, 3, |_| ()), Ok(3), "{pad} words in front");
    }
}
