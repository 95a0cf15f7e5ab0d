// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that DRM itself answers, on all nodes, and how it copies their arguments.

use crate::support;
use std::sync::Arc;

use ork_drm::dma_buf::{self, DmaHeapAllocation};
use ork_drm::{Errno, Transport, close_handle, export_fd, flink, import_fd, uapi as drm};
use ork_emu::{Board, EmuOptions, FdTable, KernelFile, SyncFile};
use ork_rknpu::Rknpu;
use ork_rknpu::uapi::{self, RknpuSubmit, action, job, mem};
use ork_rocket::uapi::{self as rocket, RocketFiniBo, RocketPrepBo};
use support::*;
use zerocopy::IntoBytes;

/// An ioctl whose struct holds no address.
fn call(file: &dyn Transport, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: no address in the struct.
    unsafe { file.ioctl(request, argument) }
}

/// One file of each node that has a master.
fn primary_files(board: &Board) -> [Box<dyn Transport>; 2] {
    [Box::new(board.open()), Box::new(board.open_rocket())]
}

#[test]
fn a_render_node_answers_what_is_allowed_there() {
    let (board, _) = board_with(&EmuOptions::default(), adding);
    let npu = Rknpu::new(board.open_render());
    // The six calls of the driver.
    let mut tasks = tasks(&npu, 1, 0x300);
    let buffer = create(&npu, 4096, mem::DATA);
    point_task_at(&mut tasks, buffer.dma_addr);
    let mapping = map(&npu, &buffer, 128);
    flush(&npu, &buffer, 0, 128);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    invalidate(&npu, &buffer, 0, 128);
    assert_eq!((get(&mapping, 64), npu.action(action::GET_DRV_VERSION, 0)), (1, Ok(908)));
    npu.mem_destroy(buffer.handle).unwrap();
    // Those of DRM.
    let other = create(&npu, 4096, mem::DATA);
    assert_eq!(ork_drm::version(npu.transport()).unwrap().name, "rknpu");
    let mut capability = drm::DrmGetCap { capability: drm::CAP_PRIME, value: 0 };
    assert_eq!(raw(&npu, drm::GET_CAP, capability.as_mut_bytes()), Ok(()));
    let fd = export_fd(npu.transport(), other.handle).unwrap();
    assert_eq!(import_fd(npu.transport(), fd), Ok(other.handle));
    board.close_fd(fd).unwrap();
    assert_eq!(close_handle(npu.transport(), other.handle), Ok(()));
    // And those that are not.
    let mut zeros = [0; 64];
    let refused =
        [drm::GET_UNIQUE, drm::GEM_FLINK, drm::GEM_OPEN, drm::GET_MAGIC, drm::AUTH_MAGIC, drm::SET_VERSION];
    for request in refused.into_iter().chain([drm::SET_MASTER, drm::DROP_MASTER, drm::SET_CLIENT_CAP]) {
        assert_eq!(raw(&npu, request, &mut zeros), Err(Errno::EACCES), "{request:#x}");
    }
}

#[test]
fn the_first_opener_is_master_and_authenticates_itself() {
    for file in primary_files(&board()) {
        let mut magic = 0_u32;
        call(&*file, drm::GET_MAGIC, magic.as_mut_bytes()).unwrap();
        assert_ne!(magic, 0);
        assert_eq!(call(&*file, drm::AUTH_MAGIC, magic.as_mut_bytes()), Ok(()));
        assert_eq!(call(&*file, drm::AUTH_MAGIC, (magic + 1).as_mut_bytes()), Err(Errno::EINVAL));
        for request in [drm::SET_MASTER, drm::DROP_MASTER, drm::SET_VERSION] {
            assert_eq!(call(&*file, request, &mut [0; 16]), Ok(()), "{request:#x}");
        }
    }
}

#[test]
fn there_is_sharing_and_neither_sync_objects_nor_modesetting() {
    for file in primary_files(&board()) {
        for capability in 0..0x20 {
            let mut argument = drm::DrmGetCap { capability, value: 77 };
            let expected = match capability {
                drm::CAP_PRIME => Ok(3),
                drm::CAP_SYNCOBJ => Ok(0),
                _ => Err(Errno::EOPNOTSUPP),
            };
            let result = call(&*file, drm::GET_CAP, argument.as_mut_bytes());
            assert_eq!(result.map(|()| argument.value), expected, "{capability:#x}");
        }
        // Create, destroy, the two conversions, wait, reset, signal; wait, query, transfer and signal of timelines;
        // an event descriptor.
        for number in [0xBF, 0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC5, 0xCA, 0xCB, 0xCC, 0xCD, 0xCF] {
            let refused = call(&*file, drm::read_write(b'd', number, 16), &mut [0; 16]);
            assert_eq!(refused, Err(Errno::EOPNOTSUPP), "{number:#x}");
        }
        assert_eq!(call(&*file, drm::SET_CLIENT_CAP, &mut [0; 16]), Err(Errno::EOPNOTSUPP));
        // Between and behind.
        for number in [0x3F, 0x46, 0x9F, 0xA0, 0xD0, 0xFF] {
            let refused = call(&*file, drm::read_write(b'd', number, 16), &mut [0; 16]);
            assert_eq!(refused, Err(Errno::EINVAL), "{number:#x}");
        }
    }
}

/// What is copied is what both the caller's request and the kernel's definition name.
#[test]
fn directions_are_those_that_both_sides_have() {
    let board = board();
    let file = board.open_rocket();
    const READ: u32 = 1 << 31;
    const WRITE: u32 = 1 << 30;
    // PREP_BO is copied in only, so a caller who also asks for copy-out keeps what he has ...
    let mut prep = RocketPrepBo { handle: 9, reserved: 0, timeout_ns: 5 };
    assert_eq!(call(&file, rocket::PREP_BO | READ, prep.as_mut_bytes()), Err(Errno::ENOENT));
    assert_eq!((prep.handle, prep.timeout_ns), (9, 5));
    // ... and one who asks for nothing else hands over zeros, and keeps it too.
    let mut fini = RocketFiniBo { handle: 9, reserved: 7 };
    let only_out = (rocket::FINI_BO & !WRITE) | READ;
    assert_eq!(call(&file, only_out, fini.as_mut_bytes()), Err(Errno::ENOENT), "reserved arrived as 0");
    assert_eq!((fini.handle, fini.reserved), (9, 7));
    // GET_MAGIC is copied out only.
    let mut magic = 77_u32;
    call(&file, (drm::GET_MAGIC & !READ) | WRITE, magic.as_mut_bytes()).unwrap();
    assert_eq!(magic, 77);
    // Of a struct that is only copied out, what the kernel does not know is zero; if it was also copied in, it comes
    // back as it came.
    let mut long = [0xEE; 24];
    call(&file, drm::read(b'd', 0x01, 24), &mut long).unwrap();
    assert_eq!(long, [0; 24]);
    long = [0xEE; 24];
    call(&file, drm::read_write(b'd', 0x01, 24), &mut long).unwrap();
    assert_eq!((&long[..8], &long[8..]), (&[0; 8][..], &[0xEE; 16][..]));
}

/// A table without room.
#[derive(Debug)]
struct Full;

impl FdTable for Full {
    fn install(&self, _file: KernelFile, _cloexec: bool) -> Result<i32, Errno> {
        Err(Errno::EMFILE)
    }

    fn resolve(&self, _fd: i32) -> Result<KernelFile, Errno> {
        Err(Errno::EBADF)
    }
}

#[test]
fn a_full_descriptor_table_is_emfile_and_leaves_nothing() {
    let board = Board::with_fd_table(&EmuOptions::default(), Arc::new(Full));
    let npu = open(&board);
    let tasks = tasks(&npu, 1, 0x300);
    assert_eq!(export_fd(npu.transport(), tasks.buffer.handle), Err(Errno::EMFILE));
    let mut heap = DmaHeapAllocation { len: 4096, fd_flags: 2, ..Default::default() };
    assert_eq!(call(&board.open_heap(), dma_buf::HEAP_ALLOC, heap.as_mut_bytes()), Err(Errno::EMFILE));
    let fenced = RknpuSubmit { flags: job::PC | job::NONBLOCK | job::FENCE_OUT, ..request(&tasks, 1, 1) };
    assert_eq!(submit(&npu, &fenced).unwrap_err().errno(), Errno::EMFILE);
    assert_eq!(board.live().jobs, 0);
    // The domain is free again.
    assert_eq!(npu.action(action::SET_IOMMU_DOMAIN_ID, 3), Ok(3));
    drop((tasks, npu));
    all_gone(&board);
}

#[test]
fn kinds_of_descriptors_are_told_apart() {
    let board = board();
    let npu = open(&board);
    let buffer = create(&npu, 4096, mem::DATA);
    let memory = export_fd(npu.transport(), buffer.handle).unwrap();
    let fence = board.fds().install(KernelFile::SyncFile(SyncFile::foreign(&board).unwrap()), true).unwrap();
    assert_eq!(import_fd(npu.transport(), fence), Err(Errno::EINVAL), "a fence is no buffer");
    let waits = RknpuSubmit {
        flags: job::PC | job::FENCE_IN,
        fence_fd: memory,
        ..request(&tasks(&npu, 1, 0x300), 1, 1)
    };
    assert_eq!(submit(&npu, &waits).unwrap_err().errno(), Errno::EINVAL, "a buffer is no fence");
    for fd in [memory, fence] {
        // SAFETY: a plain call on an open descriptor.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
        board.close_fd(fd).unwrap();
    }
    let mut open_on_exec = drm::DrmPrimeHandle { handle: buffer.handle, flags: drm::PRIME_RDWR, fd: -1 };
    raw(&npu, drm::PRIME_HANDLE_TO_FD, open_on_exec.as_mut_bytes()).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::fcntl(open_on_exec.fd, libc::F_GETFD) }, 0);
    board.close_fd(open_on_exec.fd).unwrap();
    assert_eq!(flink(npu.transport(), buffer.handle), Ok(1));
}

#[test]
fn numbers_of_the_other_build_and_of_other_types_are_no_calls() {
    let board = board();
    let mut zeros = [0; 128];
    for file in primary_files(&board) {
        for request in [0xC008_7200, 0xC068_7201, 0xC030_7202, 0xC010_7203, 0xC010_7204, 0xC020_7205] {
            assert_eq!(call(&*file, request, &mut zeros), Err(Errno::ENOTTY), "{request:#x}");
        }
    }
    // The lowest 8 bits alone choose, whatever size and direction say.
    let mut version = [1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(call(&board.open(), drm::bare(b'd', 0x40), &mut version), Ok(()));
    assert_eq!(call(&board.open(), uapi::ACTION, &mut version), Ok(()));
    assert_eq!(u32::from_le_bytes(version[4..].try_into().unwrap()), 908);
}
