// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers: made, mapped, filled with programs, tasks and data, synchronised, freed.

use ork_drm::uapi as drm;
use ork_rknpu::uapi::{
    self as rknpu, RknpuMemCreate, RknpuMemDestroy, RknpuMemMap, RknpuMemSync, RknpuTask, mem,
};
use ork_rocket::uapi::{self as rocket, RocketCreateBo, RocketFiniBo, RocketPrepBo};
use zerocopy::IntoBytes;

use super::arena::Seen;
use super::{BUFFER_BYTES, Buffer, Driver, Session};
use crate::harness::words::program;

impl Session<'_> {
    /// What a job needs, so that most jobs are more than a refusal: a task array, a place for programs, and one for data.
    pub(super) fn prepare(&mut self) {
        const PARTS: [(u64, u32); 3] = [(4096, mem::TASKS), (0x1_0000, mem::DATA), (0x10_0000, mem::DATA)];
        for (size, flags) in PARTS {
            let file = self.file();
            match self.driver {
                Driver::Rknpu => {
                    self.create_rknpu(file, &mut RknpuMemCreate { size, flags, ..Default::default() })
                }
                Driver::Rocket => {
                    let mut argument = RocketCreateBo { size: size as u32, ..Default::default() };
                    self.create_rocket(file, &mut argument)
                }
            };
            let last = self.buffers.len().saturating_sub(1);
            self.map_buffer(last, None);
            if let Some(buffer) = self.buffers.last_mut() {
                buffer.prepared = true;
            }
        }
        let [.., tasks, code, data] = &self.buffers[..] else { return };
        let (tasks, code, data) = (tasks.obj_addr, code.iova, data.iova);
        self.arrays.push(tasks);
        let (array, place) = (self.buffers.len() - 3, self.buffers.len() - 2);
        for slot in 0..6 {
            let words = program(&mut self.random, &[data]);
            let at = 0x2000 * slot;
            self.put(place, at, words.as_bytes());
            self.programs.push((code.wrapping_add(at as u32), words.len() as u32));
        }
        self.maintain_buffer(place, 1);
        let entries: Vec<u8> = (0..16).flat_map(|_| self.task().as_bytes().to_vec()).collect();
        self.put(array, 0, &entries);
        self.maintain_buffer(array, 1);
    }

    pub(super) fn put(&self, buffer: usize, at: usize, bytes: &[u8]) {
        let Some((mapping, _)) = self.buffers.get(buffer).and_then(|buffer| buffer.mapping.as_ref()) else {
            return;
        };
        let count = bytes.len().min(mapping.len().saturating_sub(at));
        let start = mapping.as_ptr().as_ptr();
        // SAFETY: inside the mapping; jobs that read it at the same time read through it too.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.wrapping_add(at), count) };
    }

    pub(super) fn create(&mut self) {
        let file = self.file();
        let size = match self.random.below(16) {
            0 => self.random.value(),
            1 => 1 << self.random.below(34),
            _ => self.random.pick(&BUFFER_BYTES),
        };
        match self.driver {
            Driver::Rknpu => {
                let flags = match self.random.below(8) {
                    0 => self.random.value() as u32,
                    1 => 0,
                    2 => mem::KERNEL_MAPPING,
                    3..=5 => mem::TASKS,
                    _ => mem::DATA,
                };
                let domain = if self.random.one_in(8) { self.random.value() as i32 } else { 0 };
                let mut argument =
                    RknpuMemCreate { size, flags, iommu_domain_id: domain, ..Default::default() };
                self.random.disturb(argument.as_mut_bytes());
                self.create_rknpu(file, &mut argument);
            }
            Driver::Rocket => {
                let mut argument = RocketCreateBo { size: size as u32, ..Default::default() };
                self.random.disturb(argument.as_mut_bytes());
                self.create_rocket(file, &mut argument);
            }
        }
    }

    pub(super) fn create_rknpu(&mut self, file: usize, argument: &mut RknpuMemCreate) {
        if self.issue(file, rknpu::MEM_CREATE, argument.as_mut_bytes()).is_ok() {
            let &mut RknpuMemCreate { handle, obj_addr, dma_addr, size, .. } = argument;
            self.created(file, Buffer { handle, obj_addr, iova: dma_addr as u32, size, ..Buffer::default() });
        }
    }

    pub(super) fn create_rocket(&mut self, file: usize, argument: &mut RocketCreateBo) {
        if self.issue(file, rocket::CREATE_BO, argument.as_mut_bytes()).is_ok() {
            let &mut RocketCreateBo { handle, dma_address, offset, size } = argument;
            let (iova, size) = (dma_address as u32, size.into());
            self.created(file, Buffer { handle, iova, offset, size, ..Buffer::default() });
        }
    }

    pub(super) fn created(&mut self, file: usize, buffer: Buffer) {
        for value in [u64::from(buffer.handle), buffer.obj_addr, buffer.iova.into(), buffer.offset] {
            self.random.remember(value);
        }
        self.buffers.push(Buffer { file: self.files[file].0, ..buffer });
    }

    pub(super) fn file_of(&self, buffer: usize) -> Option<usize> {
        self.files.iter().position(|(number, _)| *number == self.buffers[buffer].file)
    }

    pub(super) fn map(&mut self) {
        let Some(index) = self.random.index(self.buffers.len()) else { return };
        let place = self.random.one_in(8).then(|| (self.random.value(), self.random.value() as usize));
        self.map_buffer(index, place);
    }

    /// Maps a buffer, or something else.
    pub(super) fn map_buffer(&mut self, index: usize, place: Option<(u64, usize)>) {
        if index >= self.buffers.len() {
            return;
        }
        let Some(file) = self.file_of(index) else { return };
        let mut offset = self.buffers[index].offset;
        if self.driver == Driver::Rknpu {
            let mut argument = RknpuMemMap { handle: self.buffers[index].handle, ..Default::default() };
            if self.call(file, rknpu::MEM_MAP, &mut argument).is_ok() {
                offset = argument.offset;
            }
        }
        let (offset, len) = place.unwrap_or((offset, self.buffers[index].size as usize));
        let Ok(mapping) = self.files[file].1.device.mmap(offset, len) else { return };
        let seen = Seen(mapping.as_ptr().as_ptr().expose_provenance());
        let recorded = match (self.recorder, self.files[file].1.recorded) {
            (Some(recorder), Some(number)) => {
                Some(recorder.map(number, offset, mapping.len(), Box::new(seen)))
            }
            _ => None,
        };
        self.unmap_buffer(index);
        self.buffers[index].mapping = Some((mapping, recorded));
    }

    pub(super) fn unmap_buffer(&mut self, index: usize) {
        if let Some((_, Some(recorded))) = &self.buffers[index].mapping
            && let Some(recorder) = self.recorder
        {
            recorder.unmap(*recorded);
        }
        self.buffers[index].mapping = None;
    }

    pub(super) fn forget_buffer(&mut self, index: usize) {
        self.unmap_buffer(index);
        self.buffers.swap_remove(index);
    }

    /// Some buffer to do harm to.
    pub(super) fn victim(&mut self) -> Option<usize> {
        let index = self.random.index(self.buffers.len())?;
        (!self.buffers[index].prepared || self.random.one_in(8)).then_some(index)
    }

    pub(super) fn unmap(&mut self) {
        if let Some(index) = self.victim() {
            self.unmap_buffer(index);
        }
    }

    /// Writes a program, tasks, or data into a mapping, and mostly flushes it.
    pub(super) fn fill(&mut self) {
        let Some(index) = self.victim() else { return };
        if self.buffers[index].mapping.is_none() {
            return self.map_buffer(index, None);
        }
        let addresses: Vec<u32> = self.buffers.iter().map(|buffer| buffer.iova).collect();
        let iova = self.buffers[index].iova;
        let len = self.buffers[index].mapping.as_ref().map_or(0, |(mapping, _)| mapping.len());
        let at = 64 * self.random.below(len / 64 + 1).min(8);
        let bytes = match self.random.below(3) {
            0 => {
                let words = program(&mut self.random, &addresses);
                if self.programs.len() > 16 {
                    self.programs.remove(0);
                }
                self.programs.push((iova.wrapping_add(at as u32), words.len() as u32));
                words.as_bytes().to_vec()
            }
            1 => (0..8).flat_map(|_| self.task().as_bytes().to_vec()).collect(),
            _ => {
                let some = self.random.below(4096);
                self.random.bytes(some)
            }
        };
        self.put(index, at, &bytes);
        if !self.random.one_in(4) {
            self.maintain_buffer(index, 1);
        }
    }

    pub(super) fn task(&mut self) -> RknpuTask {
        let (address, words) = match self.random.index(self.programs.len()) {
            Some(index) => self.programs[index],
            None => (self.random.value() as u32, 108),
        };
        let mut task = RknpuTask {
            int_mask: self.random.pick(&[0x300, 0x300, 0x300, 0x300, 0x300, 0xC00, 0x100]),
            regcfg_amount: words.saturating_sub(4),
            regcmd_addr: address.into(),
            ..Default::default()
        };
        if self.random.one_in(4) {
            self.random.disturb(task.as_mut_bytes());
        }
        task
    }

    pub(super) fn maintain(&mut self) {
        if let Some(index) = self.random.index(self.buffers.len()) {
            let direction = self.random.pick(&[1, 2, 3]);
            self.maintain_buffer(index, direction);
        }
    }

    pub(super) fn maintain_buffer(&mut self, index: usize, direction: u32) {
        let Some(file) = self.file_of(index) else { return };
        let Buffer { obj_addr, handle, size, .. } = self.buffers[index];
        match self.driver {
            Driver::Rknpu => {
                let mut argument = RknpuMemSync { flags: direction, obj_addr, size, ..Default::default() };
                let _ = self.call(file, rknpu::MEM_SYNC, &mut argument);
            }
            Driver::Rocket if direction == 1 => {
                let _ = self.call(file, rocket::FINI_BO, &mut RocketFiniBo { handle, reserved: 0 });
            }
            Driver::Rocket => {
                // All jobs end, so that waiting for ever is no problem.
                let timeout_ns = self.random.pick(&[0, -1, 1, i64::MAX, i64::MAX]);
                let mut argument = RocketPrepBo { handle, reserved: 0, timeout_ns };
                let _ = self.call(file, rocket::PREP_BO, &mut argument);
            }
        }
    }

    pub(super) fn free(&mut self) {
        let Some(index) = self.victim() else { return };
        let Some(file) = self.file_of(index) else { return };
        let Buffer { handle, obj_addr, .. } = self.buffers[index];
        let result = if self.driver == Driver::Rknpu && self.random.one_in(2) {
            let mut argument = RknpuMemDestroy { handle, reserved: 0, obj_addr };
            self.call(file, rknpu::MEM_DESTROY, &mut argument)
        } else {
            self.call(file, drm::GEM_CLOSE, &mut drm::DrmGemClose { handle, pad: 0 })
        };
        if result.is_ok() && self.random.one_in(2) {
            self.forget_buffer(index);
        }
    }
}
