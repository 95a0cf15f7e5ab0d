// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ork_drm::Mapping;
use ork_isa::Iova;
use ork_rknpu::uapi::{self, RknpuTask};
use ork_rknpu::{Buffer, CreateRequest};
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::counters::add;
use crate::device::Shared;
use crate::error::DeviceError;
use crate::submission::Completed;

/// Bytes of a CPU cache line: the granule in which memory becomes visible. Ranges that different sides write must
/// not share a line.
pub const CACHE_LINE_BYTES: u64 = 64;

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Features, weights, results.
    Data,
    /// Register programs.
    Regcmd,
    /// Task arrays, which the kernel reads too. [`Device::submit`](crate::Device::submit) has its own.
    Tasks,
}

impl Purpose {
    const fn flags(self) -> u32 {
        match self {
            Self::Data | Self::Regcmd => uapi::mem::DATA,
            Self::Tasks => uapi::mem::TASKS,
        }
    }
}

/// An address space of the NPU. Equal addresses in two domains are different bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DomainId(pub u8);

impl fmt::Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Owner of a GEM handle.
struct Handle {
    device: Arc<Shared>,
    buffer: Buffer,
    iova: Iova,
    len: u64,
    domain: DomainId,
    purpose: Purpose,
}

impl Handle {
    fn sync(&self, range: &Range<u64>, direction: u32) -> Result<bool, DeviceError> {
        if range.start > range.end || range.end > self.len {
            return Err(DeviceError::Range { range: range.clone(), len: self.len });
        }
        let size = range.end - range.start;
        if size == 0 {
            return Ok(false);
        }
        // SAFETY: this handle keeps the object alive.
        unsafe { self.device.npu.mem_sync(self.buffer.obj_addr, range.start, size, direction) }.map_err(
            |source| DeviceError::Call { doing: format!("cannot synchronise {}", self.describe()), source },
        )?;
        Ok(true)
    }

    fn describe(&self) -> String {
        format!(
            "a {:?} buffer of {} bytes at {} in domain {}",
            self.purpose, self.len, self.iova, self.domain
        )
    }

    fn map(&self) -> Result<Mapping, DeviceError> {
        let npu = &self.device.npu;
        // A length beyond the address space cannot have been allocated.
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        npu.mem_map(self.buffer.handle)
            .and_then(|offset| npu.mmap(offset, len))
            .map_err(|source| DeviceError::Call { doing: format!("cannot map {}", self.describe()), source })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        match self.device.npu.mem_destroy(self.buffer.handle) {
            Ok(()) => add(&self.device.counters.buffers_freed, 1),
            Err(error) => {
                add(&self.device.counters.failed_frees, 1);
                tracing::warn!(%error, errno = %error.errno(), "leaked {}", self.describe());
            }
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

/// A buffer of the NPU with a cached CPU mapping.
///
/// The two sides see different bytes until a range is synchronised. The CPU's bytes are ordinary memory; they are
/// undefined where the NPU has written and nothing was invalidated since, so keep what the NPU writes and what the
/// CPU writes in different cache lines, and do not read a range while a job that writes it is in flight.
#[derive(Debug)]
pub struct DmaBuffer {
    // Drop order: the mapping goes first, then the handle.
    mapping: Mapping,
    handle: Handle,
}

impl DmaBuffer {
    pub(crate) fn allocate(
        device: &Arc<Shared>,
        domain: DomainId,
        purpose: Purpose,
        len: u64,
    ) -> Result<Self, DeviceError> {
        const WINDOW_BYTES: u64 = 1 << 32;
        if len == 0 || len > WINDOW_BYTES {
            return Err(DeviceError::Length { len });
        }
        device.check_domain(domain)?;
        let request = CreateRequest { size: len, flags: purpose.flags(), domain: i32::from(domain.0) };
        let buffer = device.npu.mem_create(&request).map_err(|source| DeviceError::Call {
            doing: format!("cannot allocate a {purpose:?} buffer of {len} bytes in domain {domain}"),
            source,
        })?;
        add(&device.counters.buffers_allocated, 1);
        add(&device.counters.bytes_allocated, buffer.size);
        // From here on the handle frees itself.
        let mut handle =
            Handle { device: Arc::clone(device), buffer, iova: Iova::default(), len, domain, purpose };
        let address = buffer.dma_addr;
        match u32::try_from(address) {
            Ok(low) if address + len <= WINDOW_BYTES => handle.iova = Iova(low),
            _ => return Err(DeviceError::Address { address, len }),
        }
        Ok(Self { mapping: handle.map()?, handle })
    }

    /// Device address of the first byte.
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.handle.iova
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.handle.len
    }

    /// Never true: a buffer has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.handle.len == 0
    }

    /// The domain that the address belongs to.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.handle.domain
    }

    /// The CPU's view.
    #[must_use]
    pub fn host(&self) -> &[u8] {
        // SAFETY: this is the only mapping of the object. The mapping is cached: its bytes change only by
        // `invalidate`, which takes `&mut self`, and, on silicon, when a line that was not cached is loaded
        // while a job writes it; the type's documentation excludes reading such a range.
        unsafe { self.mapping.bytes() }
    }

    /// The CPU's view, writable. Writes reach the NPU by [`flush`](Self::flush).
    #[must_use]
    pub fn host_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `host`; `flush`, which reads the bytes, cannot run while they are borrowed mutably.
        unsafe { self.mapping.bytes_mut() }
    }

    /// Makes what the CPU wrote in `range` visible to the NPU, in whole cache lines.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::Call`].
    pub fn flush(&self, range: Range<u64>) -> Result<(), DeviceError> {
        if self.handle.sync(&range, uapi::sync::TO_DEVICE)? {
            let counters = &self.handle.device.counters;
            add(&counters.flushes, 1);
            add(&counters.bytes_flushed, range.end - range.start);
        }
        Ok(())
    }

    /// Makes what a completed job wrote in `range` visible to the CPU, in whole cache lines: CPU writes to those
    /// lines that were not flushed are lost.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::Call`].
    pub fn invalidate(&mut self, range: Range<u64>, after: &Completed) -> Result<(), DeviceError> {
        let _evidence = after;
        if self.handle.sync(&range, uapi::sync::FROM_DEVICE)? {
            let counters = &self.handle.device.counters;
            add(&counters.invalidates, 1);
            add(&counters.bytes_invalidated, range.end - range.start);
        }
        Ok(())
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
        ResidentBuffer { handle: self.handle }
    }
}

/// A buffer that only the NPU sees.
#[derive(Debug)]
pub struct ResidentBuffer {
    handle: Handle,
}

impl ResidentBuffer {
    /// Device address of the first byte.
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.handle.iova
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.handle.len
    }

    /// Never true: a buffer has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.handle.len == 0
    }

    /// The domain that the address belongs to.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.handle.domain
    }

    /// Gives the CPU a view again: what the memory holds now.
    ///
    /// # Errors
    /// [`DeviceError::Call`]; the buffer is freed then.
    pub fn map_host(self) -> Result<DmaBuffer, DeviceError> {
        Ok(DmaBuffer { mapping: self.handle.map()?, handle: self.handle })
    }
}

impl DmaBuffer {
    /// What the kernel names the buffer by.
    pub(crate) fn object_address(&self) -> u64 {
        self.handle.buffer.obj_addr
    }

    /// Fills the head of the buffer with task descriptors; there must be room.
    pub(crate) fn write_tasks(&mut self, tasks: impl Iterator<Item = RknpuTask>) {
        for (place, task) in self.host_mut().chunks_exact_mut(size_of::<RknpuTask>()).zip(tasks) {
            place.copy_from_slice(task.as_bytes());
        }
    }
}
