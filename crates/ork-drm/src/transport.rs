// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::Errno;

/// An open device file: a real one, or an emulated kernel.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Issues one ioctl. `argument` is the whole struct; it is input and output, and it is also written when the
    /// call fails (the DRM core copies out in any case).
    ///
    /// One call is one attempt: `EINTR` is returned, not retried.
    ///
    /// # Errors
    /// The kernel's errno; `EFAULT` when `argument` is shorter than the size that `request` encodes.
    ///
    /// # Safety
    /// Whatever the request makes the kernel read or write through addresses inside `argument` must be valid for
    /// that. A request whose struct holds no address is always safe.
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno>;

    /// Maps `len` bytes of the buffer object at the fake `offset`, shared, readable and writable.
    ///
    /// # Errors
    /// The kernel's errno (`EINVAL`: not the offset of an object, or longer than the object).
    fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno>;

    /// Takes the advisory lock of the device, which lives as long as the file: `false` when another open file
    /// holds it. A transport that cannot be shared with another process has nothing to lock.
    ///
    /// # Errors
    /// The kernel's errno.
    fn try_lock(&self) -> Result<bool, Errno> {
        Ok(true)
    }
}

impl<T: Transport + ?Sized> Transport for Arc<T> {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { (**self).ioctl(request, argument) }
    }

    fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        (**self).mmap(offset, len)
    }

    fn try_lock(&self) -> Result<bool, Errno> {
        (**self).try_lock()
    }
}

/// A CPU mapping of a buffer object; unmapped on drop.
///
/// The mapping keeps the object and its device address alive in the kernel, also after the handle and the file
/// are gone.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Drops last and unmaps.
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: the mapping is plain memory, owned by `_owner`, which is `Send`; no thread-bound state is involved.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` gives out bytes only through `unsafe` methods that state the aliasing rules.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Wraps memory that `owner` keeps mapped.
    ///
    /// # Safety
    /// `start .. start + len` must stay valid for reads and writes, at a fixed address, until `owner` is dropped,
    /// and `len` must not exceed `isize::MAX`.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len: usize, owner: impl Send + Sync + 'static) -> Self {
        Self { start, len, _owner: Box::new(owner) }
    }

    /// First byte.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping has no bytes; never true for one that a kernel made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, as the CPU sees them.
    ///
    /// # Safety
    /// While the slice lives nobody may write the memory: no other mapping of the object, no cache maintenance
    /// from the device, and, for non-cacheable objects, no job.
    #[must_use]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: valid memory by the contract of `new`; no writer by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, writable.
    ///
    /// # Safety
    /// As for [`bytes`](Self::bytes), and nobody else may read the memory while the slice lives: in particular no
    /// cache maintenance towards the device.
    #[must_use]
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: valid memory by the contract of `new`; no other access by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:p}, {} bytes)", self.start, self.len)
    }
}
