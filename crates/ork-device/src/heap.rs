// SPDX-License-Identifier: MIT OR Apache-2.0
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ork_drm::Mapping;

use crate::buffer::{DomainId, ResidentBuffer};
use crate::device::Device;
use crate::error::DeviceError;
use crate::kernel::KernelError;

/// Memory of the system heap, mapped for the CPU. The NPU has no address for it until it is imported.
#[derive(Debug)]
pub struct HeapBuffer {
    // Drop order: the mapping goes first.
    mapping: Mapping,
    fd: OwnedFd,
    len: u64,
}

impl HeapBuffer {
    /// Bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The CPU's view, writable. What is written before an import is visible to the NPU after it.
    #[must_use]
    pub fn host_mut(&mut self) -> &mut [u8] {
        // SAFETY: the only mapping of a buffer that no device has an address for; one that has is not reachable by this
        // type any more, or was imported by somebody with the descriptor, who answers for it.
        unsafe { self.mapping.bytes_mut() }
    }

    /// Gives up the CPU's view and keeps the memory.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for HeapBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Device {
    /// Allocates memory from the system heap of the device's kernel.
    ///
    /// # Errors
    /// [`DeviceError::Call`] when there is no heap, or none that this program may use; [`DeviceError::Length`].
    pub fn allocate_heap(&self, len: u64) -> Result<HeapBuffer, DeviceError> {
        let bytes = usize::try_from(len).ok().filter(|len| *len != 0).ok_or(DeviceError::Length { len })?;
        let files = Arc::clone(self.files());
        let call = |doing: &'static str| {
            move |source| DeviceError::Call {
                doing: format!("cannot allocate {len} bytes of the system heap"),
                source: KernelError::File { doing, source },
            }
        };
        let fd: RawFd = files.allocate(len).map_err(call("DMA_HEAP_IOCTL_ALLOC failed"))?;
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let raw = std::os::fd::AsRawFd::as_raw_fd(&fd);
        let mapping = files.map(raw, bytes).map_err(call("cannot map a dma-buf"))?;
        Ok(HeapBuffer { mapping, fd, len })
    }

    /// Gives a dma-buf an address for the NPU, without a view of the CPU, and makes what the CPU wrote to it visible.
    ///
    /// # Errors
    /// [`DeviceError`]; the mainline driver imports nothing.
    pub fn import_resident(
        &self,
        domain: DomainId,
        dma_buf: BorrowedFd<'_>,
    ) -> Result<ResidentBuffer, DeviceError> {
        ResidentBuffer::import(&self.shared, domain, dma_buf)
    }
}
