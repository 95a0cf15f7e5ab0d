// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use ork_drm::Mapping;
use ork_drm::dma_buf::sync;
use ork_isa::Iova;
use ork_rknpu::uapi::RknpuTask;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, IntoBytes};

use crate::counters::add;
use crate::error::DeviceError;
use crate::kernel::{Direction, KernelError, Object, Request};
use crate::pool::{Room, Ticket};
use crate::shared::Shared;
use crate::submission::Completed;

/// Bytes of a CPU cache line: the granule in which memory becomes visible. Ranges that different sides write must
/// not share a line.
pub const CACHE_LINE_BYTES: u64 = 64;
/// Bytes of an address space.
pub(crate) const WINDOW_BYTES: u64 = 1 << 32;

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Features, weights, results.
    Data,
    /// Register programs.
    Regcmd,
    /// Task arrays, which the kernel reads too. [`Device::submit`](crate::Device::submit) has its own.
    Tasks,
    /// Features or results in on-chip memory, as far as there is some; the rest lies in DRAM.
    OnChip,
}

/// An address space of the NPU. Equal addresses in two domains are different bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DomainId(pub u8);

impl fmt::Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Whose bytes an object has.
#[derive(Debug)]
enum Source {
    /// Its own.
    Kernel,
    /// Those of this dma-buf, which another device or the CPU may write.
    DmaBuf(OwnedFd),
    /// Those of a file, which nobody writes.
    File,
}

/// An object of the kernel, freed when the last buffer in it is gone.
pub(crate) struct Slab {
    device: Arc<Shared>,
    object: Object,
    iova: Iova,
    len: u64,
    domain: DomainId,
    purpose: Purpose,
    source: Source,
    /// The CPU's mapping, while somebody has it.
    mapping: Mutex<Weak<Mapping>>,
}

impl Slab {
    /// Allocates.
    pub(crate) fn allocate(
        device: &Arc<Shared>,
        domain: DomainId,
        purpose: Purpose,
        len: u64,
    ) -> Result<Self, DeviceError> {
        if len == 0 || len > WINDOW_BYTES {
            return Err(DeviceError::Length { len });
        }
        device.check_domain(domain)?;
        device.check_open()?;
        let request = Request {
            len,
            domain,
            kernel_mapping: purpose == Purpose::Tasks,
            sram: purpose == Purpose::OnChip,
        };
        // Until the object is known: who closes the device waits for it.
        let _used = device.enter(domain)?;
        let object = device.kernel.alloc(&request).map_err(|source| DeviceError::Call {
            doing: format!("cannot allocate a {purpose:?} buffer of {len} bytes in domain {domain}"),
            source,
        })?;
        add(&device.counters.buffers_allocated, 1);
        add(&device.counters.bytes_allocated, object.size);
        add(&device.counters.sram_bytes, object.sram_bytes);
        Self::own(device, object, len, domain, purpose, Source::Kernel)
    }

    /// Imports a dma-buf.
    pub(crate) fn import(
        device: &Arc<Shared>,
        domain: DomainId,
        fd: BorrowedFd<'_>,
    ) -> Result<Self, DeviceError> {
        device.check_domain(domain)?;
        device.check_open()?;
        let own = fd
            .try_clone_to_owned()
            .map_err(|error| import_failed("cannot keep its descriptor")(ork_drm::Errno::from_io(&error)))?;
        let (object, len) = Self::imported(device, domain, own.as_raw_fd())?;
        Self::own(device, object, len, domain, Purpose::Data, Source::DmaBuf(own))
    }

    /// Imports whole pages of a file as they lie, where the device's kernel lends them.
    pub(crate) fn of_file(
        device: &Arc<Shared>,
        domain: DomainId,
        file: BorrowedFd<'_>,
        range: Range<u64>,
    ) -> Result<Self, DeviceError> {
        device.check_domain(domain)?;
        device.check_open()?;
        let lent = device.files.lend(file, range.start, range.end - range.start);
        let fd = lent.map_err(import_failed("cannot make a dma-buf of a part of a file"))?;
        let imported = Self::imported(device, domain, fd);
        // The object keeps the pages. One descriptor for each of a model's weights would be too many.
        device.files.close(fd);
        let (object, len) = imported?;
        Self::own(device, object, len, domain, Purpose::Data, Source::File)
    }

    fn imported(device: &Arc<Shared>, domain: DomainId, fd: RawFd) -> Result<(Object, u64), DeviceError> {
        let len = device.files.size(fd).map_err(import_failed("cannot ask for its size"))?;
        if len == 0 || len > WINDOW_BYTES {
            return Err(DeviceError::Length { len });
        }
        // The kernel maps it into the domain that is live. Until the object is known: who closes the device waits for it.
        let _used = device.enter(domain)?;
        let object = device.kernel.import(fd, domain).map_err(|source| DeviceError::Call {
            doing: format!("cannot import a dma-buf of {len} bytes into domain {domain}"),
            source,
        })?;
        add(&device.counters.buffers_imported, 1);
        Ok((object, len))
    }

    fn own(
        device: &Arc<Shared>,
        object: Object,
        len: u64,
        domain: DomainId,
        purpose: Purpose,
        source: Source,
    ) -> Result<Self, DeviceError> {
        if let Err(closed) = device.adopt(&object, domain) {
            let _ = device.kernel.free(&object);
            return Err(closed);
        }
        // From here on the object frees itself.
        let mut slab = Self {
            device: Arc::clone(device),
            object,
            iova: Iova::default(),
            len,
            domain,
            purpose,
            source,
            mapping: Mutex::default(),
        };
        let address = object.dma_addr;
        match u32::try_from(address) {
            Ok(low) if address + len <= WINDOW_BYTES => slab.iova = Iova(low),
            _ => return Err(DeviceError::Address { address, len }),
        }
        Ok(slab)
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The CPU's mapping of all of it.
    pub(crate) fn map(&self) -> Result<Arc<Mapping>, DeviceError> {
        let mut slot = self.mapping.lock();
        if let Some(mapping) = slot.upgrade() {
            return Ok(mapping);
        }
        // A length beyond the address space cannot have been allocated.
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        let mapping = match &self.source {
            Source::Kernel => self.device.kernel.map(&self.object, len),
            // A mapping can be written.
            Source::File => {
                Err(KernelError::File { doing: "pages of a file", source: ork_drm::Errno::EACCES })
            }
            Source::DmaBuf(fd) => self
                .device
                .files
                .map(fd.as_raw_fd(), len)
                .map_err(|source| KernelError::File { doing: "cannot map a dma-buf", source }),
        };
        let mapping = mapping.map_err(|source| DeviceError::Call {
            doing: format!("cannot map {}", self.describe()),
            source,
        })?;
        let mapping = Arc::new(mapping);
        *slot = Arc::downgrade(&mapping);
        Ok(mapping)
    }

    fn describe(&self) -> String {
        format!(
            "a {:?} buffer of {} bytes at {} in domain {}",
            self.purpose, self.len, self.iova, self.domain
        )
    }

    /// Cache maintenance; gives the bytes that it covered.
    fn sync(&self, range: Range<u64>, direction: Direction) -> Result<u64, DeviceError> {
        let result = match &self.source {
            // The page cache's pages, which nobody writes.
            Source::File => Ok(0),
            // The driver's own maintenance does not know imported buffers (`uapi.md` A.11 row 13).
            Source::DmaBuf(fd) => {
                let access = match direction {
                    Direction::ToDevice => sync::WRITE,
                    Direction::FromDevice => sync::READ,
                };
                let files = &self.device.files;
                files
                    .sync(fd.as_raw_fd(), access)
                    .and_then(|()| files.sync(fd.as_raw_fd(), sync::END | access))
                    .map(|()| self.len)
                    .map_err(|source| KernelError::File { doing: "DMA_BUF_IOCTL_SYNC failed", source })
            }
            Source::Kernel => {
                let _used = self.device.enter(self.domain)?;
                // SAFETY: `self` keeps the object alive.
                unsafe { self.device.kernel.sync(&self.object, range, direction) }
            }
        };
        result.map_err(|source| DeviceError::Call {
            doing: format!("cannot synchronise {}", self.describe()),
            source,
        })
    }
}

fn import_failed(doing: &'static str) -> impl FnOnce(ork_drm::Errno) -> DeviceError {
    move |source| DeviceError::Call {
        doing: "cannot import a dma-buf".to_owned(),
        source: KernelError::File { doing, source },
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        self.device.free(&self.object);
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

/// A part of an object that belongs to one buffer.
#[derive(Debug)]
struct Region {
    // Drop order: the room goes back to its pool before the object can go.
    _room: Option<Room>,
    /// What it counts for in its address space, if it is not in a pool.
    _ticket: Option<Ticket>,
    slab: Arc<Slab>,
    offset: u64,
    len: u64,
}

impl Region {
    fn iova(&self) -> Iova {
        // The slab lies inside the window, and the region inside the slab.
        Iova(self.slab.iova.0 + self.offset as u32)
    }

    fn range(&self, range: &Range<u64>) -> Result<Option<Range<u64>>, DeviceError> {
        if range.start > range.end || range.end > self.len {
            return Err(DeviceError::Range { range: range.clone(), len: self.len });
        }
        let within = self.offset + range.start..self.offset + range.end;
        Ok((!within.is_empty()).then_some(within))
    }
}

/// A buffer of the NPU with a cached CPU mapping.
///
/// The two sides see different bytes until a range is synchronised. The CPU's bytes are ordinary memory; they are
/// undefined where the NPU has written and nothing was invalidated since, so keep what the NPU writes and what the
/// CPU writes in different cache lines, and do not read a range while a job that writes it is in flight.
#[derive(Debug)]
pub struct DmaBuffer {
    // Drop order: the mapping goes first, then the object.
    mapping: Arc<Mapping>,
    region: Region,
}

impl DmaBuffer {
    pub(crate) fn allocate(
        device: &Arc<Shared>,
        domain: DomainId,
        purpose: Purpose,
        len: u64,
    ) -> Result<Self, DeviceError> {
        Self::whole(Slab::allocate(device, domain, purpose, len)?)
    }

    pub(crate) fn import(
        device: &Arc<Shared>,
        domain: DomainId,
        fd: BorrowedFd<'_>,
    ) -> Result<Self, DeviceError> {
        Self::whole(Slab::import(device, domain, fd)?)
    }

    fn whole(slab: Slab) -> Result<Self, DeviceError> {
        let mapping = slab.map()?;
        let len = slab.len;
        Ok(Self {
            mapping,
            region: Region { _room: None, _ticket: None, slab: Arc::new(slab), offset: 0, len },
        })
    }

    /// A part of a pooled object that nobody else has.
    pub(crate) fn pooled(slab: Arc<Slab>, room: Room) -> Result<Self, DeviceError> {
        let mapping = slab.map()?;
        let Range { start, end } = room.range();
        Ok(Self {
            mapping,
            region: Region { _room: Some(room), _ticket: None, slab, offset: start, len: end - start },
        })
    }

    /// Device address of the first byte.
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.region.iova()
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// Never true: a buffer has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.len == 0
    }

    /// The domain that the address belongs to.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.region.slab.domain
    }

    /// Bytes of it that lie in on-chip memory.
    #[must_use]
    pub fn sram_bytes(&self) -> u64 {
        self.region.slab.object.sram_bytes
    }

    /// The CPU's view.
    #[must_use]
    pub fn host(&self) -> &[u8] {
        // SAFETY: inside the mapping, which `self` keeps; buffers in one mapping have disjoint regions. The mapping is
        // cached: its bytes change only by cache maintenance, which takes `&mut self`, and, on silicon, when a line
        // that was not cached is loaded while a job writes it; the type's documentation excludes reading such a
        // range.
        unsafe { std::slice::from_raw_parts(self.start(), self.region.len as usize) }
    }

    /// The CPU's view, writable. Writes reach the NPU by [`flush`](Self::flush).
    #[must_use]
    pub fn host_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `host`; `flush`, which reads the bytes, cannot run while they are borrowed mutably. Where the
        // kernel maintains whole objects, pooled ones are only ever cleaned, which changes no byte of the CPU's; an emulated
        // kernel reads them for that, so who fills pooled buffers there does it with one thread (`Residency::place_tiles`).
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.region.len as usize) }
    }

    fn start(&self) -> *mut u8 {
        debug_assert!(self.region.offset + self.region.len <= self.mapping.len() as u64);
        // SAFETY: the region lies inside the object, all of which is mapped.
        unsafe { self.mapping.as_ptr().add(self.region.offset as usize) }.as_ptr()
    }

    /// Makes what the CPU wrote in `range` visible to the NPU, in whole cache lines.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::Call`], [`DeviceError::DomainBusy`].
    pub fn flush(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let Some(within) = self.region.range(&range)? else { return Ok(()) };
        let maintained = self.region.slab.sync(within, Direction::ToDevice)?;
        let counters = &self.region.slab.device.counters;
        add(&counters.flushes, 1);
        add(&counters.bytes_flushed, range.end - range.start);
        add(&counters.bytes_maintained, maintained);
        Ok(())
    }

    /// Makes what a completed job wrote in `range` visible to the CPU, in whole cache lines: CPU writes to those
    /// lines that were not flushed are lost.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::Call`], [`DeviceError::DomainBusy`]; [`DeviceError::Pooled`] for a
    /// buffer that shares its object with others.
    pub fn invalidate(&mut self, range: Range<u64>, after: &Completed) -> Result<(), DeviceError> {
        let _evidence = after;
        self.reload(range)
    }

    /// [`invalidate`](Self::invalidate) without the evidence, for who looks for it.
    pub(crate) fn reload(&mut self, range: Range<u64>) -> Result<(), DeviceError> {
        if self.region._room.is_some() {
            return Err(DeviceError::Pooled);
        }
        let Some(within) = self.region.range(&range)? else { return Ok(()) };
        let maintained = self.region.slab.sync(within, Direction::FromDevice)?;
        self.count_reload(range.end - range.start, maintained);
        Ok(())
    }

    pub(crate) fn count_reload(&self, asked: u64, maintained: u64) {
        let counters = &self.region.slab.device.counters;
        add(&counters.invalidates, 1);
        add(&counters.bytes_invalidated, asked);
        add(&counters.bytes_maintained, maintained);
    }

    /// [`invalidate`](Self::invalidate), and the bytes of the range.
    ///
    /// # Errors
    /// As `invalidate`.
    pub fn fetch(&mut self, range: Range<u64>, after: &Completed) -> Result<&[u8], DeviceError> {
        self.invalidate(range.clone(), after)?;
        // The range lies inside the mapping: `invalidate` has checked it.
        Ok(&self.host()[range.start as usize..range.end as usize])
    }

    /// Gives up the CPU's view, for example of weights that are uploaded. What was not flushed is lost.
    #[must_use]
    pub fn unmap_host(self) -> ResidentBuffer {
        ResidentBuffer { region: self.region }
    }

    /// What the kernel knows the buffer by; for buffers that are an object of their own.
    pub(crate) fn object(&self) -> Option<&Object> {
        self.region._room.is_none().then_some(&self.region.slab.object)
    }

    /// Whether a device made it.
    pub(crate) fn is_of(&self, device: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.region.slab.device, device)
    }

    /// Fills the head of the buffer with task descriptors; there must be room. Whether they differ from those that were
    /// there, but for what the kernel writes into them.
    pub(crate) fn write_tasks(&mut self, tasks: impl Iterator<Item = RknpuTask>) -> bool {
        let mut changed = false;
        for (place, task) in self.host_mut().chunks_exact_mut(size_of::<RknpuTask>()).zip(tasks) {
            let old = RknpuTask::read_from_bytes(place).map(|old| RknpuTask { int_status: 0, ..old });
            if old != Ok(task) {
                place.copy_from_slice(task.as_bytes());
                changed = true;
            }
        }
        changed
    }
}

/// A buffer that only the NPU sees.
#[derive(Debug)]
pub struct ResidentBuffer {
    region: Region,
}

impl ResidentBuffer {
    /// A dma-buf, with what the CPU wrote to it made visible: whoever wrote before the import could not do that.
    pub(crate) fn import(
        device: &Arc<Shared>,
        domain: DomainId,
        fd: BorrowedFd<'_>,
    ) -> Result<Self, DeviceError> {
        let slab = Arc::new(Slab::import(device, domain, fd)?);
        let len = slab.len;
        let maintained = slab.sync(0..len, Direction::ToDevice)?;
        add(&device.counters.flushes, 1);
        add(&device.counters.bytes_flushed, len);
        add(&device.counters.bytes_maintained, maintained);
        Ok(Self { region: Region { _room: None, _ticket: None, slab, offset: 0, len } })
    }

    /// Pages of a file. Nothing is to be made visible: the CPU has written nothing.
    pub(crate) fn of_file(
        device: &Arc<Shared>,
        file: BorrowedFd<'_>,
        range: Range<u64>,
        ticket: Ticket,
    ) -> Result<Self, DeviceError> {
        let len = range.end - range.start;
        let slab = Arc::new(Slab::of_file(device, ticket.domain, file, range)?);
        Ok(Self { region: Region { _room: None, _ticket: Some(ticket), slab, offset: 0, len } })
    }

    /// Device address of the first byte.
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.region.iova()
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// Never true: a buffer has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.len == 0
    }

    /// The domain that the address belongs to.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.region.slab.domain
    }

    /// Gives the CPU a view again: what the memory holds now.
    ///
    /// # Errors
    /// [`DeviceError::Call`]; the buffer is freed then.
    pub fn map_host(self) -> Result<DmaBuffer, DeviceError> {
        Ok(DmaBuffer { mapping: self.region.slab.map()?, region: self.region })
    }
}
