// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::ops::Deref;

use ork_isa::Iova;

/// Device-side view of memory behind the IOMMU. A range may cross buffer borders where the IOVAs are adjacent.
///
/// What a job read as weights it may read once more, at the latest when it ends.
///
/// The simulator never holds a [`Span`] while it calls [`write`](Bus::write), from any thread of the same job.
pub trait Bus: Sync {
    /// `len` bytes from `iova`; zero-copy when one buffer holds them.
    ///
    /// # Errors
    /// [`BusFault`] when some byte of the range is not mapped.
    fn read(&self, iova: Iova, len: u64) -> Result<Span<'_>, BusFault>;

    /// Stores `data` at `iova`.
    ///
    /// # Errors
    /// [`BusFault`] when some byte of the range is not mapped; nothing is stored then.
    fn write(&self, iova: Iova, data: &[u8]) -> Result<(), BusFault>;
}

enum Bytes<'a> {
    Borrowed(&'a [u8]),
    Owned(Box<dyn AsRef<[u8]> + 'a>),
}

/// Bytes that were read: a borrow, a copy, or a guard of the bus.
pub struct Span<'a>(Bytes<'a>);

impl<'a> Span<'a> {
    /// A span that owns its holder: a `Vec<u8>`, a lock guard, …
    pub fn new(bytes: impl AsRef<[u8]> + 'a) -> Self {
        Self(Bytes::Owned(Box::new(bytes)))
    }

    /// A span that only borrows.
    #[must_use]
    pub fn borrowed(bytes: &'a [u8]) -> Self {
        Self(Bytes::Borrowed(bytes))
    }
}

impl Deref for Span<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Owned(holder) => (**holder).as_ref(),
        }
    }
}

impl fmt::Debug for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes)", self.len())
    }
}

/// Direction of a bus access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The NPU reads.
    Read,
    /// The NPU writes.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// An access that no mapping covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no mapping for a {access} of {len} bytes at {iova}")]
pub struct BusFault {
    /// First address of the access, or the first unmapped one where the bus knows it.
    pub iova: Iova,
    /// Length of the access in bytes.
    pub len: u64,
    /// Direction.
    pub access: Access,
}
