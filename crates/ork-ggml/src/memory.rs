// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory behind a weight buffer: our own, or the host's.

use crate::buffer::ALIGNMENT;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Zeroed memory whose pages appear when first written, or memory of the host.
#[derive(Debug)]
pub(crate) struct HostMemory {
    /// What is to be freed; `None` for memory of the host, which is never written.
    pub(crate) owned: Option<(NonNull<u8>, Layout)>,
    /// First aligned byte of the allocation.
    pub(crate) start: NonNull<u8>,
    pub(crate) size: usize,
}

impl HostMemory {
    pub(crate) fn zeroed(size: usize) -> Option<Self> {
        // Aligned by hand: asked for a large alignment, the allocator zeroes by writing, which touches every page.
        let layout = Layout::from_size_align(size.checked_add(ALIGNMENT)?, 1).ok()?;
        // SAFETY: the layout's size is not zero.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let pad = allocation.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: pad < ALIGNMENT, and the allocation is that much longer than `size`.
        let start = unsafe { allocation.add(pad) };
        Some(Self { owned: Some((allocation, layout)), start, size })
    }

    /// # Safety
    /// `at + size` must be inside, and `source` must hold `size` bytes; it may be the destination itself.
    pub(crate) unsafe fn write(&self, at: usize, source: *const u8, size: usize) {
        // SAFETY: passed on.
        let to = unsafe { self.start.as_ptr().add(at) };
        // Memory of the host is never written, since its bytes are where they are wanted.
        if std::ptr::eq(to, source) {
            return;
        }
        // SAFETY: passed on; `copy` allows overlap.
        unsafe { std::ptr::copy(source, to, size) };
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some((allocation, layout)) = self.owned {
            // SAFETY: allocated with this layout in `zeroed`.
            unsafe { dealloc(allocation.as_ptr(), layout) };
        }
    }
}

// SAFETY: plain memory. ggml orders writes (while loading) before reads (while computing); we add no access of our own
// outside its calls.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}
