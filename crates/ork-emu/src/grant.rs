// SPDX-License-Identifier: MIT OR Apache-2.0
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ork_drm::{Errno, Mapping, Transport};

/// A file of the emulated kernel, as an embedder sees it. One value is one open file: `dup` is another reference to
/// it, and dropping the last reference closes it.
pub trait EmulatedFile: Transport {
    /// What mmap would map: the board's own pointer, and the memfd that a real mmap can use.
    ///
    /// # Errors
    /// As [`Transport::mmap`].
    fn grant(&self, offset: u64, len: usize) -> Result<Grant, Errno>;
}

/// The right to touch a buffer: what a mapping is to the emulated kernel. Dropping it is munmap.
#[derive(Debug)]
pub struct Grant {
    mapping: Mapping,
    memfd: Option<(Arc<OwnedFd>, u64)>,
}

impl Grant {
    pub(crate) fn new(mapping: Mapping, memfd: Option<(Arc<OwnedFd>, u64)>) -> Self {
        Self { mapping, memfd }
    }

    /// The file and the offset at which a shared mapping shows the same bytes; always there with
    /// [`Coherency::Shared`](crate::Coherency).
    #[must_use]
    pub fn memfd(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.memfd.as_ref().map(|(fd, offset)| (fd.as_fd(), *offset))
    }

    /// The board's own mapping, valid while the grant lives.
    #[must_use]
    pub fn pointer(&self) -> NonNull<u8> {
        self.mapping.as_ptr()
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    pub(crate) fn into_mapping(self) -> Mapping {
        self.mapping
    }
}
