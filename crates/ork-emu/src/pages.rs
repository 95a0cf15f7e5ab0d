// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages: zeroed and private to the process, zeroed behind a memfd that others can map, or those of a file, to be read.

use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memmap2::{Advice, Mmap, MmapMut, MmapOptions};

/// Name of the memory files behind shared buffers, as the host's kernel shows it.
pub const MEMORY_FILE_NAME: &CStr = c"ork-emu";

/// From here on a buffer asks the host for huge pages.
const HUGE_FROM_BYTES: usize = 4 << 20;

/// Where pages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// This process only.
    Private,
    /// A memfd: children and other mappings see the same bytes.
    Memfd,
}

/// Pages that the host provides when they are touched.
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
    /// Counter of the board that includes these pages.
    total: Arc<AtomicU64>,
    memfd: Option<Arc<OwnedFd>>,
    access: PageAccess,
    /// Owns the memory; only accessed through `start`.
    _map: Map,
}

/// What may be done with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageAccess {
    /// They are of a file: the host kills who writes.
    Read,
    /// Everything.
    ReadWrite,
}

#[expect(dead_code, reason = "held, not read")]
enum Map {
    Own(MmapMut),
    File(Mmap),
}

// SAFETY: plain memory; every access goes through methods that state who may touch what.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(backing: Backing, len: usize, total: &Arc<AtomicU64>) -> io::Result<Self> {
        let (mut map, memfd) = match backing {
            Backing::Private => {
                let map = MmapMut::map_anon(len)?;
                if len >= HUGE_FROM_BYTES {
                    // A wish. Weights are written once, and half of that time went into making small pages.
                    let _ = map.advise(Advice::HugePage);
                }
                (map, None)
            }
            Backing::Memfd => {
                let memfd = sealed_memfd(len)?;
                // SAFETY: the size of the file is sealed, so the mapping never loses its pages; its bytes are
                // accessed by raw pointers only.
                let map = unsafe { MmapOptions::new().len(len).map_mut(&memfd) }?;
                (map, Some(Arc::new(memfd)))
            }
        };
        let start = NonNull::from(&mut map[..]).cast();
        total.fetch_add(len as u64, Relaxed);
        let map = Map::Own(map);
        Ok(Self { start, len, total: Arc::clone(total), memfd, access: PageAccess::ReadWrite, _map: map })
    }

    /// Pages of a file as they lie; `offset` is a multiple of the page, and the file has the pages.
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        total: &Arc<AtomicU64>,
    ) -> io::Result<Self> {
        // SAFETY: read only, and only by raw pointers. Whoever lends the file promises that nobody shortens it; if somebody
        // does, the host sends SIGBUS to who touches what is gone.
        let map = unsafe { MmapOptions::new().offset(offset).len(len).map(file.as_raw_fd()) }?;
        let start = NonNull::from(&map[..]).cast();
        total.fetch_add(len as u64, Relaxed);
        let (total, access) = (Arc::clone(total), PageAccess::Read);
        Ok(Self { start, len, total, memfd: None, access, _map: Map::File(map) })
    }

    /// What may be done with them.
    pub(crate) fn access(&self) -> PageAccess {
        self.access
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// First byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The file behind the pages, which start at its offset 0.
    pub(crate) fn memfd(&self) -> Option<&Arc<OwnedFd>> {
        self.memfd.as_ref()
    }

    /// Address of a byte range, which must lie inside.
    pub(crate) fn at(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        // SAFETY: inside the allocation, by the check above.
        unsafe { self.start.as_ptr().add(range.start) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.total.fetch_sub(self.len as u64, Relaxed);
    }
}

/// A memfd of `len` bytes whose size can never change.
pub(crate) fn sealed_memfd(len: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a NUL-terminated constant.
    let fd = unsafe { libc::memfd_create(MEMORY_FILE_NAME.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let size = libc::off_t::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: two calls on a descriptor that is owned here, with plain numbers.
    let failed = unsafe {
        libc::ftruncate(fd.as_raw_fd(), size) < 0 || libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) < 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_mapping_of_the_memfd_sees_the_same_bytes() {
        let pages = Pages::new(Backing::Memfd, 8192, &Arc::default()).unwrap();
        let memfd = pages.memfd().unwrap();
        // SAFETY: the size is sealed; the test accesses both mappings in turn.
        let other = unsafe { MmapOptions::new().len(440).map_mut(memfd.as_ref()) }.unwrap();
        // SAFETY: inside the pages; nobody else accesses them now.
        unsafe { pages.at(&(439..440)).write(7) };
        assert_eq!(other[439], 7);
        // SAFETY: a plain call on an open descriptor.
        assert!(unsafe { libc::ftruncate(memfd.as_raw_fd(), 0) } < 0, "the size is sealed");
    }

    #[test]
    fn private_pages_have_no_file() {
        assert!(Pages::new(Backing::Private, 4096, &Arc::default()).unwrap().memfd().is_none());
    }
}
