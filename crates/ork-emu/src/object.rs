// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffer objects.

use std::sync::{Arc, Weak};

use ork_drm::{Errno, Mapping};
use ork_rknpu::uapi::{RknpuMemCreate, mem, sync};
use parking_lot::Mutex;

use crate::board::Inner;
use crate::domain::{Alignment, PAGE_BYTES};
use crate::finding::FindingKind;
use crate::memory::{CpuView, Dram, LINE_BYTES};

/// First fake mmap offset.
const FIRST_OFFSET: u64 = 0x1_0000_0000;
/// Object addresses look like kernel pointers, and none is given out twice.
const FIRST_OBJECT_ADDRESS: u64 = 0xFFFF_FF81_0000_0000;
const OBJECT_ADDRESS_STEP: u64 = 0x400;

/// A buffer object: alive while a handle, a mapping or a call refers to it.
pub(crate) struct Object {
    board: Arc<Inner>,
    dram: Arc<Dram>,
    pub(crate) size: u64,
    flags: u32,
    pub(crate) domain: u8,
    pub(crate) iova: u32,
    pub(crate) address: u64,
    pub(crate) offset: u64,
    /// The CPU's side, while mapped.
    view: Mutex<Weak<CpuView>>,
}

/// Objects by what names them.
pub(crate) struct Objects {
    pub(crate) by_address: std::collections::HashMap<u64, Weak<Object>>,
    /// By fake offset, with the size.
    by_offset: std::collections::BTreeMap<u64, (u64, Weak<Object>)>,
    next_address: u64,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            by_address: Default::default(),
            by_offset: Default::default(),
            next_address: FIRST_OBJECT_ADDRESS,
        }
    }
}

impl Objects {
    /// The lowest gap among the fake offsets.
    fn free_offset(&self, size: u64) -> u64 {
        let mut place = FIRST_OFFSET;
        for (start, (len, _)) in &self.by_offset {
            if place + size <= *start {
                break;
            }
            place = start + len;
        }
        place
    }

    pub(crate) fn at_offset(&self, offset: u64) -> Option<Arc<Object>> {
        self.by_offset.get(&offset)?.1.upgrade()
    }

    pub(crate) fn at_address(&self, address: u64) -> Option<Arc<Object>> {
        self.by_address.get(&address)?.upgrade()
    }
}

impl Object {
    /// Allocates memory and a device address. The domain is live already.
    pub(crate) fn allocate(
        board: &Arc<Inner>,
        request: &RknpuMemCreate,
        domain: u8,
    ) -> Result<Arc<Self>, Errno> {
        if request.size == 0 {
            return Err(Errno::EINVAL);
        }
        let size = request.size.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        let packed = board.knows_address_packing() && request.flags & mem::IOMMU_LIMIT_IOVA_ALIGNMENT != 0;
        let alignment = if packed { Alignment::Page } else { Alignment::Size };
        let memory = || {
            let len = usize::try_from(size).map_err(|_| Errno::ENOMEM)?;
            Dram::new(len, &board.counts.dram_bytes).map(Arc::new).map_err(|_| Errno::ENOMEM)
        };
        let (iova, dram) = board.space(domain).write().map(size, alignment, memory)?;

        let mut objects = board.objects.lock();
        let (address, offset) = (objects.next_address, objects.free_offset(size));
        objects.next_address += OBJECT_ADDRESS_STEP;
        let object = Arc::new(Self {
            board: Arc::clone(board),
            dram,
            size,
            flags: request.flags,
            domain,
            iova,
            address,
            offset,
            view: Mutex::default(),
        });
        objects.by_address.insert(address, Arc::downgrade(&object));
        objects.by_offset.insert(offset, (size, Arc::downgrade(&object)));
        drop(objects);
        board.counts.objects.up();
        Ok(object)
    }

    fn is_cacheable(&self) -> bool {
        self.flags & mem::CACHEABLE != 0
    }

    pub(crate) fn has_kernel_mapping(&self) -> bool {
        self.flags & mem::KERNEL_MAPPING != 0
    }

    /// Maps the first `len` bytes for the CPU. `keep` lives as long as the mapping.
    pub(crate) fn map(
        self: &Arc<Self>,
        len: usize,
        keep: impl Send + Sync + 'static,
    ) -> Result<Mapping, Errno> {
        let view = if self.is_cacheable() { Some(self.share_view()?) } else { None };
        let start = match &view {
            Some(view) => view.start(),
            None => self.dram.start(),
        };
        // Drop order: view, object, file.
        let owner = (view, Arc::clone(self), keep);
        debug_assert!(len as u64 <= self.size);
        // SAFETY: the view or the DRAM has `size` bytes, at least `len`, and lives in `owner`.
        Ok(unsafe { Mapping::new(start, len, owner) })
    }

    /// The CPU's side: the one that exists, or a new one.
    fn share_view(&self) -> Result<Arc<CpuView>, Errno> {
        let mut slot = self.view.lock();
        if let Some(view) = slot.upgrade() {
            return Ok(view);
        }
        let view = CpuView::new(&self.dram, &self.board.counts.view_bytes).map_err(|_| Errno::ENOMEM)?;
        let view = Arc::new(view);
        *slot = Arc::downgrade(&view);
        Ok(view)
    }

    fn view(&self) -> Option<Arc<CpuView>> {
        self.view.lock().upgrade()
    }

    /// Cache maintenance, in whole lines. Without a mapping nothing is cached.
    pub(crate) fn sync(&self, direction: u32, offset: u64, size: u64) -> Result<(), Errno> {
        if !self.is_cacheable() {
            return Err(Errno::EINVAL);
        }
        let end = offset.saturating_add(size);
        if end > self.size {
            self.board.report(None, 0, FindingKind::SyncRange { offset, size, buffer: self.size });
        }
        let first = (offset / LINE_BYTES * LINE_BYTES).min(self.size);
        let last = end.min(self.size).next_multiple_of(LINE_BYTES).max(first);
        let Some(view) = self.view().filter(|_| size != 0) else { return Ok(()) };
        let range = first as usize..last as usize;
        if direction & sync::TO_DEVICE != 0 {
            self.dram.write(range.start, view.read(range.clone()));
        }
        if direction & sync::FROM_DEVICE != 0 {
            view.load(&self.dram, range);
        }
        Ok(())
    }

    /// Reads through the kernel's own mapping, which is coherent with the CPU's caches.
    pub(crate) fn kernel_read(&self, start: usize, out: &mut [u8]) {
        match self.view() {
            Some(view) => out.copy_from_slice(view.read(start..start + out.len())),
            None => self.dram.copy_to(start, out),
        }
    }

    /// Writes through the kernel's own mapping.
    pub(crate) fn kernel_write(&self, start: usize, data: &[u8]) {
        match self.view() {
            Some(view) => view.write(start, data),
            None => self.dram.write(start, data),
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.board.space(self.domain).write().unmap(self.iova);
        let mut objects = self.board.objects.lock();
        objects.by_address.remove(&self.address);
        objects.by_offset.remove(&self.offset);
        drop(objects);
        self.board.counts.objects.down();
    }
}
