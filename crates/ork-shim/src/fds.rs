// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which fds are ours.
//!
//! Every open device file has a placeholder in the kernel, a memory file of its own, so that fd numbers, `dup`,
//! `fork` and close-on-exec work as ever. An fd is ours when the table says so *and* the kernel says that it still
//! is that memory file; so a close that went past us does no harm.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::raw;

/// Identity of a file in the kernel: device and inode.
pub(crate) type FileId = (u64, u64);

/// Something behind an fd.
pub(crate) trait Tracked {
    /// Identity of the placeholder.
    fn id(&self) -> FileId;
}

/// Fds below this number have a bit that is read without a lock.
const BITS: usize = 1 << 16;
static MAYBE: [AtomicU64; BITS / 64] = [const { AtomicU64::new(0) }; BITS / 64];
/// How many fds are tracked beyond the bits.
static BEYOND: AtomicU64 = AtomicU64::new(0);

/// Fds and what is behind them.
pub(crate) struct Table<F> {
    files: Mutex<BTreeMap<c_int, Arc<F>>>,
}

/// Whether an fd could be ours. Without a lock, for the calls of programs that have nothing to do with us.
pub(crate) fn maybe(fd: c_int) -> bool {
    match usize::try_from(fd) {
        Ok(fd) if fd < BITS => MAYBE[fd / 64].load(SeqCst) & (1 << (fd % 64)) != 0,
        Ok(_) => BEYOND.load(SeqCst) != 0,
        Err(_) => false,
    }
}

fn mark(fd: c_int, tracked: bool) {
    let Ok(fd) = usize::try_from(fd) else { return };
    match (fd < BITS, tracked) {
        (true, true) => _ = MAYBE[fd / 64].fetch_or(1 << (fd % 64), SeqCst),
        (true, false) => _ = MAYBE[fd / 64].fetch_and(!(1 << (fd % 64)), SeqCst),
        (false, true) => _ = BEYOND.fetch_add(1, SeqCst),
        (false, false) => _ = BEYOND.fetch_sub(1, SeqCst),
    }
}

/// The identity of an fd, as the kernel sees it.
pub(crate) fn identity(fd: c_int) -> Option<FileId> {
    raw::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

impl<F: Tracked> Table<F> {
    pub(crate) const fn new() -> Self {
        Self { files: Mutex::new(BTreeMap::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<c_int, Arc<F>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is behind an fd, if it is ours.
    pub(crate) fn get(&self, fd: c_int) -> Option<Arc<F>> {
        if !maybe(fd) {
            return None;
        }
        let file = self.lock().get(&fd).cloned()?;
        if identity(fd) == Some(file.id()) {
            return Some(file);
        }
        // It was closed without us, and the number may be in use again.
        drop(self.forget(fd));
        None
    }

    /// Enters an fd.
    pub(crate) fn insert(&self, fd: c_int, file: Arc<F>) {
        let old = self.lock().insert(fd, file);
        if old.is_none() {
            mark(fd, true);
        }
        // A last reference is dropped without the lock.
        drop(old);
    }

    /// Takes an fd out. The caller drops what was behind it, which may end the open file, without a lock.
    #[must_use]
    pub(crate) fn forget(&self, fd: c_int) -> Option<Arc<F>> {
        let old = self.lock().remove(&fd);
        if old.is_some() {
            mark(fd, false);
        }
        old
    }

    /// Any file that is meant.
    pub(crate) fn find(&self, meant: impl Fn(&F) -> bool) -> Option<Arc<F>> {
        self.lock().values().find(|file| meant(file)).cloned()
    }

    /// All fds in a range.
    pub(crate) fn within(&self, first: c_int, last: c_int) -> Vec<c_int> {
        self.lock().keys().copied().filter(|fd| (first..=last).contains(fd)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(FileId);

    impl Tracked for Fake {
        fn id(&self) -> FileId {
            self.0
        }
    }

    fn memfd() -> c_int {
        raw::memfd(c"test", true).unwrap()
    }

    #[test]
    fn an_fd_is_ours_until_it_is_forgotten_or_means_another_file() {
        let table = Table::new();
        let fd = memfd();
        assert!(table.get(fd).is_none());
        table.insert(fd, Arc::new(Fake(identity(fd).unwrap())));
        assert!(maybe(fd) && table.get(fd).is_some());
        assert_eq!(table.within(fd, fd), [fd]);
        let id = identity(fd).unwrap();
        assert!(table.find(|file| file.id() == id).is_some() && table.find(|_| false).is_none());
        // Closed behind our back, and the number is taken by another file.
        raw::close(fd);
        assert!(table.get(fd).is_none());
        assert!(!maybe(fd) && table.within(0, c_int::MAX).is_empty());
    }

    #[test]
    fn numbers_beyond_the_bits_are_found_too() {
        let table = Table::new();
        let far = BITS as c_int + 7;
        table.insert(far, Arc::new(Fake((1, 1))));
        assert!(maybe(far));
        assert!(table.forget(far).is_some());
        assert!(!maybe(far) && !maybe(-1));
    }
}
