// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls: submits, sharing, the heap, files that the kernel makes, and anything.

use ork_drm::dma_buf::{self, DmaBufSync, DmaBufSyncFile, DmaHeapAllocation, SyncFileInfo, SyncMerge};
use ork_drm::uapi as drm;
use ork_rknpu::uapi::{self as rknpu, RknpuAction, RknpuSubcoreTask, RknpuSubmit, RknpuTask, job};
use ork_rocket::uapi::{self as rocket, RocketJob, RocketSubmit, RocketTask};
use zerocopy::IntoBytes;

use super::{BUFFER_BYTES, Buffer, Driver, Node, Open, Session};
use crate::harness::words::Random;

impl Session<'_> {
    /// Any number, direction, size and bytes.
    pub(super) fn anything(&mut self) {
        let file = self.random.below(self.files.len());
        let number = match self.random.below(4) {
            0 => self.random.below(256),
            1 => self.random.pick(&[0x00, 0x01, 0x09, 0x0A, 0x0B, 0x0C, 0x2D, 0x2E]),
            _ => 0x40 + self.random.below(6),
        } as u32;
        let kind = self.random.pick(&[b'd', b'd', b'd', b'd', b'd', b'r', b'b', b'H', b'>', 0]);
        let size = match self.random.below(8) {
            0 => self.random.below(1 << 14),
            1 => 0,
            _ => self.random.pick(&[4, 8, 12, 16, 24, 32, 40, 48, 64, 104]),
        };
        let direction = self.random.pick(&[3, 3, 3, 1, 2, 0]);
        let request = direction << 30 | (size as u32) << 16 | u32::from(kind) << 8 | number;
        let mut bytes = self.random.bytes(size);
        // Sometimes with less memory than the request says.
        if self.random.one_in(16) && size > 0 {
            bytes.truncate(self.random.below(size));
        }
        // Addresses where structs have them.
        for at in (0..bytes.len() / 8).filter(|_| self.random.one_in(4)).collect::<Vec<_>>() {
            let address = self.arena.address(&mut self.random);
            bytes[8 * at..8 * at + 8].copy_from_slice(&address.to_le_bytes());
        }
        let _ = self.issue(file, request, &mut bytes);
        // What came back may be a descriptor.
        if matches!(number, 0x2D | 0x41 | 0) {
            for chunk in bytes.as_chunks::<4>().0 {
                self.keep_descriptor(i32::from_le_bytes(*chunk));
            }
        }
    }

    pub(super) fn action(&mut self) {
        let file = self.file();
        let flags = match self.random.below(4) {
            0 => self.random.value() as u32,
            _ => self.random.below(27) as u32,
        };
        let value = self.random.value() as u32 % 20;
        let _ = self.call(file, rknpu::ACTION, &mut RknpuAction { flags, value });
    }

    pub(super) fn submit(&mut self) {
        match self.driver {
            Driver::Rknpu => self.submit_rknpu(),
            Driver::Rocket => self.submit_rocket(),
        }
    }

    pub(super) fn submit_rknpu(&mut self) {
        let file = self.file();
        let array = match (self.random.index(self.arrays.len()), self.random.index(self.buffers.len())) {
            (Some(array), _) if !self.random.one_in(8) => self.arrays[array],
            (_, Some(buffer)) => self.buffers[buffer].obj_addr,
            _ => 0,
        };
        let range = |random: &mut Random| RknpuSubcoreTask {
            task_start: random.below(16) as u32,
            task_number: random.pick(&[1, 1, 1, 1, 2, 3]),
        };
        let same = range(&mut self.random);
        let mut argument = RknpuSubmit {
            flags: job::PC | self.random.pick(&[0, 0, 4, 4, 4, 4, 2, 8, 16, 18, 26]),
            timeout: self.random.pick(&[0, 1, 10, 6000, u32::MAX]),
            task_start: same.task_start,
            task_number: same.task_number,
            task_obj_addr: array,
            core_mask: self.random.pick(&[0, 1, 1, 2, 4, 1, 2, 4, 3, 7, 5, 9]),
            fence_fd: self.random.index(self.fds.len()).map_or(-1, |index| self.fds[index]),
            subcore_task: std::array::from_fn(|_| range(&mut self.random)),
            ..Default::default()
        };
        if self.call(file, rknpu::SUBMIT, &mut argument).is_ok() {
            self.tally.jobs += 1;
            self.tally.completed += u64::from(argument.flags & job::NONBLOCK == 0);
            self.keep_descriptor(argument.fence_fd);
        }
    }

    pub(super) fn submit_rocket(&mut self) {
        let file = self.file();
        let count = self.random.below(4);
        let mut jobs = Vec::new();
        for _ in 0..count {
            let tasks: Vec<RocketTask> = (0..self.random.pick(&[1, 1, 1, 2, 3, 0]))
                .map(|_| {
                    let RknpuTask { regcmd_addr, regcfg_amount, .. } = self.task();
                    RocketTask { regcmd: regcmd_addr as u32, regcmd_count: regcfg_amount.saturating_add(4) }
                })
                .collect();
            let handles = |random: &mut Random| -> Vec<u32> {
                let some = random.below(3);
                let handle = |random: &mut Random| match random.index(self.buffers.len()) {
                    Some(index) if !random.one_in(24) => self.buffers[index].handle,
                    _ => random.value() as u32,
                };
                (0..some).map(|_| handle(random)).collect()
            };
            let (reads, writes) = (handles(&mut self.random), handles(&mut self.random));
            let mut job = RocketJob {
                tasks: self.arena.put(&mut self.random, tasks.as_bytes()),
                task_count: tasks.len() as u32,
                task_struct_size: size_of::<RocketTask>() as u32,
                in_bo_handles: self.arena.put(&mut self.random, reads.as_bytes()),
                in_bo_handle_count: reads.len() as u32,
                out_bo_handles: self.arena.put(&mut self.random, writes.as_bytes()),
                out_bo_handle_count: writes.len() as u32,
            };
            if self.random.one_in(4) {
                self.random.disturb(job.as_mut_bytes());
            }
            if self.random.one_in(16) {
                job.tasks = self.arena.address(&mut self.random);
            }
            jobs.push(job);
        }
        let mut argument = RocketSubmit {
            jobs: self.arena.put(&mut self.random, jobs.as_bytes()),
            job_count: count as u32,
            job_struct_size: size_of::<RocketJob>() as u32,
            reserved: 0,
        };
        if self.call(file, rocket::SUBMIT, &mut argument).is_ok() {
            self.tally.jobs += count as u64;
        }
    }

    /// Exports, imports, names.
    pub(super) fn share(&mut self) {
        let file = self.file();
        let Some(index) = self.random.index(self.buffers.len()) else { return };
        let Buffer { handle, size, iova, .. } = self.buffers[index];
        match self.random.below(4) {
            0 => {
                let mut prime = drm::DrmPrimeHandle { handle, flags: drm::PRIME_CLOEXEC, fd: -1 };
                if self.call(file, drm::PRIME_HANDLE_TO_FD, &mut prime).is_ok() {
                    self.keep_descriptor(prime.fd);
                }
            }
            1 => {
                let fd = self.random.index(self.fds.len()).map_or(-1, |index| self.fds[index]);
                let mut prime = drm::DrmPrimeHandle { fd, ..Default::default() };
                if self.call(file, drm::PRIME_FD_TO_HANDLE, &mut prime).is_ok() {
                    self.random.remember(prime.handle.into());
                    let file = self.files[file].0;
                    let handle = prime.handle;
                    self.buffers.push(Buffer { file, handle, iova, size, ..Buffer::default() });
                }
            }
            2 => {
                let mut flink = drm::DrmGemFlink { handle, name: 0 };
                if self.call(file, drm::GEM_FLINK, &mut flink).is_ok() {
                    self.random.remember(flink.name.into());
                }
            }
            _ => {
                let mut open =
                    drm::DrmGemOpen { name: 1 + self.random.below(3) as u32, ..Default::default() };
                if self.call(file, drm::GEM_OPEN, &mut open).is_ok() {
                    self.random.remember(open.handle.into());
                }
            }
        }
    }

    pub(super) fn heap(&mut self) {
        let heap = self.files.iter().position(|(_, open)| open.node == Node::Heap);
        let file = heap.unwrap_or_else(|| {
            self.enter(Open { device: Box::new(self.board.open_heap()), node: Node::Heap, recorded: None });
            self.files.len() - 1
        });
        let len = if self.random.one_in(8) { self.random.value() } else { self.random.pick(&BUFFER_BYTES) };
        let fd_flags = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
        let mut argument = DmaHeapAllocation { len, fd_flags, ..Default::default() };
        if self.call(file, dma_buf::HEAP_ALLOC, &mut argument).is_ok() {
            self.keep_descriptor(argument.fd as i32);
        }
    }

    /// Calls on dma-bufs and fences, and their end.
    pub(super) fn use_descriptor(&mut self) {
        let Some(index) = self.random.index(self.fds.len()) else { return };
        let fd = self.fds[index];
        let other = self.random.index(self.fds.len()).map_or(-1, |index| self.fds[index]);
        let Ok(file) = self.board.fds().resolve(fd) else { return };
        let call = |session: &mut Self, request: u32, bytes: &mut [u8]| {
            session.tally.calls += 1;
            // SAFETY: addresses inside are the arena's, or of nothing; the host checks them.
            unsafe { file.ioctl(session.board, request, bytes) }
        };
        match self.random.below(6) {
            0 => {
                let mut argument = DmaBufSync { flags: self.random.below(8) as u64 };
                self.random.disturb(argument.as_mut_bytes());
                let _ = call(self, dma_buf::SYNC, argument.as_mut_bytes());
            }
            1 => {
                let mut argument = DmaBufSyncFile { flags: 1 + self.random.below(3) as u32, fd: -1 };
                self.random.disturb(argument.as_mut_bytes());
                if call(self, dma_buf::EXPORT_SYNC_FILE, argument.as_mut_bytes()).is_ok() {
                    self.keep_descriptor(argument.fd);
                }
            }
            2 => {
                let mut argument = DmaBufSyncFile { flags: 1, fd: other };
                self.random.disturb(argument.as_mut_bytes());
                let _ = call(self, dma_buf::IMPORT_SYNC_FILE, argument.as_mut_bytes());
            }
            3 => {
                let mut argument = SyncMerge { fd2: other, ..Default::default() };
                self.random.disturb(argument.as_mut_bytes());
                if call(self, dma_buf::FENCE_MERGE, argument.as_mut_bytes()).is_ok() {
                    self.keep_descriptor(argument.fence);
                }
            }
            4 => {
                let mut argument =
                    SyncFileInfo { num_fences: self.random.below(3) as u32, ..Default::default() };
                self.random.disturb(argument.as_mut_bytes());
                // What stands here is written to: half an address could be anybody's.
                argument.sync_fence_info = self.arena.address(&mut self.random);
                let _ = call(self, dma_buf::FENCE_INFO, argument.as_mut_bytes());
            }
            _ => {
                drop(file);
                self.fds.swap_remove(index);
                let _ = self.descriptors.close(fd);
            }
        }
    }

    /// Calls that DRM answers, with addresses in the arena.
    pub(super) fn core_call(&mut self) {
        let file = self.file();
        if self.random.one_in(2) {
            let mut version = drm::DrmVersion::default();
            for (len, address) in [
                (&mut version.name_len, &mut version.name),
                (&mut version.date_len, &mut version.date),
                (&mut version.desc_len, &mut version.desc),
            ] {
                *len = self.random.value();
                *address = self.arena.address(&mut self.random);
            }
            // Not disturbed: the strings are written to what stands there.
            let _ = self.issue(file, drm::VERSION, version.as_mut_bytes());
        } else {
            let capability = self.random.below(0x20) as u64;
            let _ = self.call(file, drm::GET_CAP, &mut drm::DrmGetCap { capability, value: 0 });
        }
    }
}
