// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared coherency: one memory, behind memfds, for unmodified programs.

use crate::support;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use ork_drm::Errno;
use ork_emu::{Board, Coherency, EmuOptions, EmulatedFile, Live};
use ork_rknpu::Rknpu;
use ork_rknpu::uapi::{RknpuSubmit, job, mem};
use support::*;

fn shared() -> Board {
    board_with(&EmuOptions { coherency: Coherency::Shared, ..Default::default() }, adding).0
}

/// A real mapping, as a preloaded library makes it for a program.
struct Place(*mut u8, usize);

impl Place {
    fn of(fd: i32, offset: u64, len: usize) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the host's choice.
        let place =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, offset as i64) };
        assert_ne!(place, libc::MAP_FAILED);
        Self(place.cast(), len)
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn put(&self, at: usize, value: u8) {
        assert!(at < self.1);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(at).write_volatile(value) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: the range that was mapped.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

#[test]
fn cacheable_memory_needs_no_maintenance_and_there_is_one_copy() {
    let board = shared();
    let npu = open(&board);
    let mut tasks = tasks(&npu, 1, 0x300);
    let buffer = create(&npu, 4096, mem::DATA);
    let mut mapping = map(&npu, &buffer, 128);
    point_task_at(&mut tasks, buffer.dma_addr);
    put(&mut mapping, 0, &[40]);
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    assert_eq!((get(&mapping, 0), get(&mapping, 64)), (41, 41));
    // Maintenance is legal as before, and moves nothing.
    flush(&npu, &buffer, 0, 128);
    invalidate(&npu, &buffer, 0, 128);
    assert_eq!((get(&mapping, 64), board.live().view_bytes), (41, 0));
    let plain = create(&npu, 4096, 0);
    // SAFETY: the object is alive.
    assert_eq!(unsafe { npu.mem_sync(plain.obj_addr, 0, 64, 1) }.unwrap_err().errno(), Errno::EINVAL);
    // What was written stays when the last mapping goes.
    drop(mapping);
    assert_eq!(get(&map(&npu, &buffer, 128), 64), 41);
}

#[test]
fn a_grant_names_the_file_for_a_real_mapping() {
    let board = shared();
    let file = Arc::new(board.open());
    let npu = Rknpu::new(Arc::clone(&file));
    let request_ = ork_rknpu::CreateRequest { size: 5000, flags: mem::DATA, domain: 0 };
    let buffer = npu.mem_create(&request_).unwrap();
    let offset = npu.mem_map(buffer.handle).unwrap();
    let grant = file.grant(offset, 440).unwrap();
    let (memfd, at) = grant.memfd().unwrap();
    let place = Place::of(memfd.as_raw_fd(), at, 440);
    place.put(439, 7);
    // SAFETY: inside the grant; nobody else accesses the byte now.
    assert_eq!(unsafe { grant.pointer().add(439).read_volatile() }, 7);
    assert_eq!(board.live().mappings, 1);
    // The rules are those of mmap.
    for (offset, len) in [(offset + 4096, 440), (offset, 8193), (offset, 0)] {
        assert_eq!(file.grant(offset, len).unwrap_err(), Errno::EINVAL);
    }
    // The grant outlives handle and file, as a mapping does.
    npu.mem_destroy(buffer.handle).unwrap();
    drop((npu, file));
    assert_eq!((board.live().files, board.live().objects, place.get(439)), (1, 1, 7));
    drop(grant);
    assert_eq!((board.live(), place.get(439)), (Live::default(), 7));
}

#[test]
fn with_strict_coherency_there_is_only_a_pointer() {
    let board = board();
    let file = Arc::new(board.open());
    let npu = Rknpu::new(Arc::clone(&file));
    let buffer = npu.mem_create(&ork_rknpu::CreateRequest { size: 1, flags: mem::DATA, domain: 0 }).unwrap();
    let grant = file.grant(npu.mem_map(buffer.handle).unwrap(), 4096).unwrap();
    assert!(grant.memfd().is_none());
    assert_eq!(grant.len(), 4096);
}

#[test]
fn a_child_sees_the_memory() {
    let board = shared();
    let npu = open(&board);
    let mut tasks = tasks(&npu, 1, 0x300);
    let buffer = create(&npu, 4096, 0);
    let mapping = map(&npu, &buffer, 128);
    point_task_at(&mut tasks, buffer.dma_addr);
    let start = mapping.as_ptr().as_ptr();
    // SAFETY: the child only reads memory, sleeps and ends; it takes no lock and allocates nothing.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for _ in 0..10_000 {
            // SAFETY: inside the mapping, which the child inherited.
            if unsafe { start.add(64).read_volatile() } == 1 {
                // SAFETY: ends the child without destructors.
                unsafe { libc::_exit(7) };
            }
            // SAFETY: a plain call.
            unsafe { libc::usleep(1000) };
        }
        // SAFETY: as above.
        unsafe { libc::_exit(1) };
    }
    submit(&npu, &request(&tasks, 1, 1)).unwrap();
    let mut status = 0;
    // SAFETY: a live variable; the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
}

#[test]
fn a_program_that_polls_the_last_word_finds_all_the_others() {
    // Results are written from the last line to the first, so that their natural order would be wrong.
    let options = EmuOptions { coherency: Coherency::Shared, ..Default::default() };
    let (board, _) = board_with(&options, |_, bus, job| {
        for line in (0..64).rev() {
            bus.write(job.base.checked_add(line * 64).unwrap(), &[1; 64]).unwrap();
        }
        done(job)
    });
    let npu = open(&board);
    let mut tasks = tasks(&npu, 1, 0x300);
    let buffer = create(&npu, 4096, mem::DATA);
    let mut mapping = map(&npu, &buffer, 4096);
    point_task_at(&mut tasks, buffer.dma_addr);
    let nonblocking = RknpuSubmit { flags: job::PC | job::NONBLOCK, ..request(&tasks, 1, 1) };
    for _ in 0..200 {
        put(&mut mapping, 0, &[0; 4096]);
        submit(&npu, &nonblocking).unwrap();
        while peek(&mapping, 4095) == 0 {
            std::hint::spin_loop();
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        assert!((0..4096).all(|at| peek(&mapping, at) == 1));
        eventually("the end of the job", || board.live().jobs == 0);
    }
}

#[test]
fn a_heap_and_a_mainline_file_have_files_too() {
    let board = shared();
    let npu = board.open_rocket();
    let rocket = ork_rocket::Rocket::new(npu);
    let bo = rocket.create_bo(100).unwrap();
    let grant = rocket.transport().grant(bo.offset, 100).unwrap();
    assert!(grant.memfd().is_some());
    assert_eq!(board.open_heap().grant(0, 1).unwrap_err(), Errno::ENODEV);
    let file: &dyn EmulatedFile = rocket.transport();
    assert!(file.mmap(bo.offset, 100).is_ok());
}
