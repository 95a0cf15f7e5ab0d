// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffer objects.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use ork_drm::{Errno, Mapping};
use ork_rknpu::uapi::sync;

use crate::board::{Driver, Inner};
use crate::dma_buf::{self, Content, DmaBuf};
use crate::domain::{AddressSpace, Alignment, PAGE_BYTES};
use crate::fault::Fault;
use crate::finding::FindingKind;
use crate::grant::Grant;
use crate::lock::{Mutex, RwLock};
use crate::memory::{CpuView, Dram, LINE_BYTES};
use crate::options::Coherency;
use crate::pages::Backing;
use crate::rocket_job::Completion;

/// First fake mmap offset.
const FIRST_OFFSET: u64 = 0x1_0000_0000;
/// Object addresses look like kernel pointers, and none is given out twice.
const FIRST_OBJECT_ADDRESS: u64 = 0xFFFF_FF81_0000_0000;
const OBJECT_ADDRESS_STEP: u64 = 0x400;

/// A buffer object: alive while a handle, a mapping, a dma-buf or a call refers to it.
pub(crate) struct Object {
    board: Arc<Inner>,
    pub(crate) driver: Driver,
    dram: Arc<Dram>,
    /// All of it, in whole pages.
    pub(crate) size: u64,
    /// What of it lies in on-chip SRAM.
    pub(crate) sram: u64,
    cacheable: bool,
    kernel_mapping: bool,
    /// The domain that the driver remembers: 0 for imports, wherever they are mapped.
    pub(crate) domain: u8,
    space: Arc<RwLock<AddressSpace>>,
    pub(crate) iova: u32,
    pub(crate) address: u64,
    /// Fake offset; imports have none.
    pub(crate) offset: Option<u64>,
    /// What this imports.
    source: Option<Source>,
    /// The dma-buf that stands for this outside: one that exports it, or the one with lent pages that it imports.
    export: Mutex<Weak<dma_buf::Inside>>,
    /// Held while the CPU's side is made.
    mapping: Mutex<()>,
    /// Jobs in flight that write this (`rocket`).
    writers: Mutex<Vec<Arc<Completion>>>,
}

/// What an imported object keeps besides its memory.
enum Source {
    /// The dma-buf, with its file.
    Kept(DmaBuf),
    /// Nothing, of a dma-buf with lent pages: a model has more weights than a process has descriptors.
    Lent,
}

/// What to allocate.
pub(crate) struct Allocation {
    pub(crate) driver: Driver,
    /// Not 0.
    pub(crate) size: u64,
    pub(crate) alignment: Alignment,
    pub(crate) cacheable: bool,
    pub(crate) kernel_mapping: bool,
    /// Bytes wanted in on-chip SRAM.
    pub(crate) sram: u64,
    pub(crate) domain: u8,
    pub(crate) space: Arc<RwLock<AddressSpace>>,
}

/// Objects by what names them.
pub(crate) struct Objects {
    by_address: HashMap<u64, Weak<Object>>,
    /// By fake offset, with the size.
    by_offset: BTreeMap<u64, (u64, Weak<Object>)>,
    /// By FLINK name.
    by_name: BTreeMap<u32, Weak<Object>>,
    next_address: u64,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            by_address: HashMap::new(),
            by_offset: BTreeMap::new(),
            by_name: BTreeMap::new(),
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

    pub(crate) fn at_name(&self, name: u32) -> Option<Arc<Object>> {
        self.by_name.get(&name)?.upgrade()
    }

    /// The name of an object: the one it has, or the lowest free one.
    pub(crate) fn name(&mut self, object: &Arc<Object>) -> u32 {
        let same = |(_, known): &(&u32, &Weak<Object>)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(object));
        if let Some((name, _)) = self.by_name.iter().find(same) {
            return *name;
        }
        let free = (1..).zip(self.by_name.keys()).find(|(number, taken)| number != *taken);
        let name = free.map_or(self.by_name.len() as u32 + 1, |(number, _)| number);
        self.by_name.insert(name, Arc::downgrade(object));
        name
    }
}

impl Object {
    /// Allocates memory and a device address. The domain is live already.
    pub(crate) fn allocate(board: &Arc<Inner>, request: &Allocation) -> Result<Arc<Self>, Errno> {
        if request.size == 0 {
            return Err(Errno::EINVAL);
        }
        let size = request.size.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::EINVAL)?;
        if board.injects(Fault::OutOfMemory) {
            return Err(Errno::ENOMEM);
        }
        board.make_room(size);
        let backing = match board.options.coherency {
            Coherency::Shared => Backing::Memfd,
            Coherency::Strict => Backing::Private,
        };
        let memory = || board.new_dram(backing, size).map(Arc::new).map_err(|_| Errno::ENOMEM);
        let (iova, dram) = place(board, &request.space, size, request.alignment, memory)?;
        let sram = board.take_sram(request.sram.min(size) / PAGE_BYTES * PAGE_BYTES);
        let mut objects = board.objects.lock();
        let (offset, address) = (objects.free_offset(size), objects.next_address);
        let object = objects.add(Self {
            board: Arc::clone(board),
            driver: request.driver,
            dram,
            size,
            sram,
            cacheable: request.cacheable,
            kernel_mapping: request.kernel_mapping,
            domain: request.domain,
            space: Arc::clone(&request.space),
            iova,
            address,
            offset: Some(offset),
            source: None,
            export: Mutex::default(),
            mapping: Mutex::default(),
            writers: Mutex::default(),
        });
        objects.by_offset.insert(offset, (size, Arc::downgrade(&object)));
        Ok(object)
    }

    /// Maps a dma-buf into the given space, which the driver does not remember.
    pub(crate) fn import(
        board: &Arc<Inner>,
        driver: Driver,
        source: &DmaBuf,
        space: &Arc<RwLock<AddressSpace>>,
    ) -> Result<Arc<Self>, Errno> {
        let size = source.size();
        let memory = || Ok(Arc::clone(source.dram()));
        let (iova, dram) = place(board, space, size, Alignment::Size, memory).map_err(|_| Errno::ENOMEM)?;
        let (kept, export) = match source.content() {
            Content::Lent(_) => (Source::Lent, source.downgrade()),
            Content::Heap(heap) => {
                heap.attached.fetch_add(1, Relaxed);
                (Source::Kept(source.clone()), Weak::new())
            }
            Content::Object(_) => (Source::Kept(source.clone()), Weak::new()),
        };
        let mut objects = board.objects.lock();
        let address = objects.next_address;
        Ok(objects.add(Self {
            board: Arc::clone(board),
            driver,
            dram,
            size,
            sram: 0,
            cacheable: false,
            kernel_mapping: false,
            domain: 0,
            space: Arc::clone(space),
            iova,
            address,
            offset: None,
            source: Some(kept),
            export: Mutex::new(export),
            mapping: Mutex::default(),
            writers: Mutex::default(),
        }))
    }

    pub(crate) fn is_import_of(&self, source: &DmaBuf) -> bool {
        match &self.source {
            Some(Source::Kept(own)) => own.is(source),
            Some(Source::Lent) => DmaBuf::upgrade(&self.export.lock()).is_some_and(|own| own.is(source)),
            None => false,
        }
    }

    pub(crate) fn is_import(&self) -> bool {
        self.source.is_some()
    }

    /// The dma-buf of this object, the same for every export.
    pub(crate) fn export(self: &Arc<Self>) -> Result<DmaBuf, Errno> {
        if let Some(Source::Kept(source)) = &self.source {
            return Ok(source.clone());
        }
        let mut slot = self.export.lock();
        if let Some(known) = DmaBuf::upgrade(&slot) {
            return Ok(known);
        }
        let fresh = match self.source {
            Some(Source::Lent) => DmaBuf::of_lent(&self.board, Arc::clone(&self.dram))?,
            _ => DmaBuf::of(&self.board, self)?,
        };
        *slot = fresh.downgrade();
        Ok(fresh)
    }

    pub(crate) fn dram(&self) -> &Arc<Dram> {
        &self.dram
    }

    pub(crate) fn memfd(&self) -> Option<&Arc<OwnedFd>> {
        self.dram.memfd()
    }

    /// Jobs in flight that write this.
    pub(crate) fn writers(&self) -> Vec<Arc<Completion>> {
        let mut writers = self.writers.lock();
        writers.retain(|writer| !writer.is_done());
        writers.clone()
    }

    pub(crate) fn add_writer(&self, writer: &Arc<Completion>) {
        let mut writers = self.writers.lock();
        writers.retain(|writer| !writer.is_done());
        writers.push(Arc::clone(writer));
    }

    /// Whether the CPU's side is a copy that cache maintenance keeps.
    fn has_two_sides(&self) -> bool {
        self.cacheable && self.board.options.coherency == Coherency::Strict
    }

    pub(crate) fn has_kernel_mapping(&self) -> bool {
        self.kernel_mapping
    }

    /// Maps `len` bytes from `offset` for the CPU; they are inside. `keep` lives as long as the mapping.
    pub(crate) fn grant(
        self: &Arc<Self>,
        offset: usize,
        len: usize,
        keep: impl Send + Sync + 'static,
    ) -> Result<Grant, Errno> {
        let view = if self.has_two_sides() { Some(self.share_view()?) } else { None };
        let start = match &view {
            Some(view) => view.start(),
            None => self.dram.start(),
        };
        let memfd = if view.is_some() { None } else { self.memfd().cloned() };
        // Drop order: view, object, file.
        let owner = (view, Arc::clone(self), keep);
        debug_assert!(offset as u64 + len as u64 <= self.size);
        // SAFETY: inside the view or the DRAM, which have `size` bytes.
        let start = unsafe { start.add(offset) };
        // SAFETY: the view or the DRAM has `len` bytes there and lives in `owner`.
        let mapping = unsafe { Mapping::new(start, len, owner) };
        Ok(Grant::new(mapping, memfd.map(|memfd| (memfd, offset as u64))))
    }

    /// The CPU's side: the one that exists, or a new one.
    fn share_view(&self) -> Result<Arc<CpuView>, Errno> {
        let _one = self.mapping.lock();
        if let Some(view) = self.dram.view() {
            return Ok(view);
        }
        let view = CpuView::new(Backing::Private, &self.dram, &self.board.counts.view_bytes);
        let view = Arc::new(view.map_err(|_| Errno::ENOMEM)?);
        self.dram.attach(&view);
        Ok(view)
    }

    /// The CPU's side, while mapped. That of an imported buffer belongs to its dma-buf.
    fn view(&self) -> Option<Arc<CpuView>> {
        if self.is_import() { None } else { self.dram.view() }
    }

    /// `MEM_SYNC`.
    pub(crate) fn sync(&self, direction: u32, offset: u64, size: u64) -> Result<(), Errno> {
        if !self.cacheable {
            return Err(Errno::EINVAL);
        }
        self.maintain(direction, offset, size);
        Ok(())
    }

    /// Cache maintenance, in whole lines. Without a mapping nothing is cached.
    pub(crate) fn maintain(&self, direction: u32, offset: u64, size: u64) {
        let end = offset.saturating_add(size);
        if end > self.size {
            self.board.report(None, 0, FindingKind::SyncRange { offset, size, buffer: self.size });
        }
        let first = (offset / LINE_BYTES * LINE_BYTES).min(self.size);
        let last = end.min(self.size).next_multiple_of(LINE_BYTES).max(first);
        let Some(view) = self.view().filter(|_| size != 0) else { return };
        let mut range = first as usize..last as usize;
        if !range.is_empty() && self.board.injects(Fault::StaleLine) {
            range.start += LINE_BYTES as usize;
        }
        if direction & sync::TO_DEVICE != 0 {
            view.flush(&self.dram, range.clone());
        }
        if direction & sync::FROM_DEVICE != 0 {
            view.load(&self.dram, range);
        }
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

impl Objects {
    fn add(&mut self, object: Object) -> Arc<Object> {
        self.next_address += OBJECT_ADDRESS_STEP;
        object.board.counts.objects.up();
        object.board.counts.iova_bytes.fetch_add(object.size, Relaxed);
        let object = Arc::new(object);
        self.by_address.insert(object.address, Arc::downgrade(&object));
        object
    }
}

/// Finds an address, within the window that the plan leaves.
fn place(
    board: &Arc<Inner>,
    space: &RwLock<AddressSpace>,
    size: u64,
    alignment: Alignment,
    memory: impl FnOnce() -> Result<Arc<Dram>, Errno>,
) -> Result<(u32, Arc<Dram>), Errno> {
    let mut space = space.write();
    if let Some(window) = board.options.faults.window_bytes
        && space.mapped_bytes().saturating_add(size) > window
    {
        board.report(None, 0, FindingKind::Injected { fault: Fault::FullWindow });
        return Err(space.full());
    }
    space.map(size, alignment, memory)
}

impl Drop for Object {
    fn drop(&mut self) {
        self.space.write().unmap(self.iova);
        if let Some(Source::Kept(source)) = &self.source
            && let Content::Heap(heap) = source.content()
        {
            heap.attached.fetch_sub(1, Relaxed);
        }
        self.board.give_sram(self.sram);
        let mut objects = self.board.objects.lock();
        objects.by_address.remove(&self.address);
        if let Some(offset) = self.offset {
            objects.by_offset.remove(&offset);
        }
        objects.by_name.retain(|_, named| !std::ptr::eq(named.as_ptr(), self));
        drop(objects);
        self.board.counts.iova_bytes.fetch_sub(self.size, Relaxed);
        self.board.counts.objects.down();
    }
}
