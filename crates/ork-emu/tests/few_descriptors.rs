// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that closes what the kernel gave it without saying so. Alone in its process, because the limit of descriptors is
//! the process's.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use ork_drm::Transport;
use ork_drm::dma_buf::{DmaHeapAllocation, HEAP_ALLOC};
use ork_emu::{Board, EmuOptions, KernelFile, SyncFile};
use ork_rknpu::uapi::mem;
use ork_rknpu::{CreateRequest, Rknpu};
use zerocopy::IntoBytes;

fn close(fd: i32) {
    // SAFETY: the number was just given to this program, and nothing else uses it.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

#[test]
fn what_the_program_closed_is_not_kept_when_it_is_needed() {
    let limit = libc::rlimit { rlim_cur: 48, rlim_max: 48 };
    // SAFETY: a live struct to read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    // Descriptors: each fence keeps one of its own while the table knows it.
    let board = Board::new(&EmuOptions::default());
    for _ in 0..300 {
        let fence = SyncFile::foreign(&board).unwrap();
        close(board.fds().install(KernelFile::SyncFile(fence), true).unwrap());
    }
    assert_eq!(board.live().fences, 0);
    // Not one is left: the next fence takes the place of what is known and closed.
    for _ in 0..10 {
        let fence = SyncFile::foreign(&board).unwrap();
        close(board.fds().install(KernelFile::SyncFile(fence), true).unwrap());
    }
    let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    drop(SyncFile::foreign(&board).unwrap());
    drop(taken);

    // Memory: two buffers do not fit.
    let board = Board::new(&EmuOptions { memory_bytes: 1 << 20, ..EmuOptions::default() });
    let mut heap = DmaHeapAllocation { len: 600 << 10, fd_flags: 2, ..Default::default() };
    // SAFETY: the struct holds no address.
    unsafe { board.open_heap().ioctl(HEAP_ALLOC, heap.as_mut_bytes()) }.unwrap();
    let npu = Rknpu::new(board.open());
    let request = CreateRequest { size: 600 << 10, flags: mem::DATA, domain: 0 };
    npu.mem_create(&request).unwrap_err();
    close(i32::try_from(heap.fd).unwrap());
    npu.mem_create(&request).unwrap();
}
