// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fences: a sync_file for programs, an eventfd for `poll`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ork_drm::Errno;
use ork_drm::dma_buf::{SyncFenceInfo, SyncFileInfo, SyncMerge};
use zerocopy::IntoBytes;

use crate::board::{Board, Inner};
use crate::fd_table::KernelFile;
use crate::lock::{Condvar, Mutex};
use crate::user_memory;

/// A sync_file: done, or not yet. Clones are the same file.
#[derive(Clone)]
pub struct SyncFile(Arc<Fence>);

pub(crate) struct Fence {
    board: Arc<Inner>,
    event: OwnedFd,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether it belongs to the emulated driver, which does not wait for its own fences.
    own: bool,
}

#[derive(Default)]
struct State {
    /// When it was signalled.
    signalled_ns: Option<u64>,
    /// How many fences a merged one still waits for.
    pending: u32,
    /// Merged fences that wait for this one, as long as anybody waits for them.
    merged: Vec<Weak<Fence>>,
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.board.counts.fences.down();
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live struct to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

impl Fence {
    fn signal(&self) {
        let mut state = self.state.lock();
        if state.signalled_ns.is_some() {
            return;
        }
        state.signalled_ns = Some(monotonic_ns());
        let merged = std::mem::take(&mut state.merged);
        drop(state);
        let one = 1_u64.to_ne_bytes();
        // SAFETY: 8 live bytes, written to an eventfd that this fence owns.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        self.changed.notify_all();
        for fence in merged.iter().filter_map(Weak::upgrade) {
            fence.parent_signalled();
        }
    }

    fn parent_signalled(&self) {
        let mut state = self.state.lock();
        state.pending -= 1;
        if state.pending == 0 {
            drop(state);
            self.signal();
        }
    }
}

impl SyncFile {
    /// A fence of the emulated driver.
    pub(crate) fn own(board: &Arc<Inner>) -> Result<Self, Errno> {
        Self::new(board, true)
    }

    /// A fence of some other driver, for FENCE_IN; [`signal`](Self::signal) it.
    ///
    /// # Errors
    /// `EMFILE` when there is no descriptor left.
    pub fn foreign(board: &Board) -> Result<Self, Errno> {
        Self::new(&board.0, false)
    }

    fn new(board: &Arc<Inner>, own: bool) -> Result<Self, Errno> {
        // SAFETY: a plain call with numbers.
        let event = || unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let mut fd = event();
        if fd < 0 {
            board.fds.forget_closed();
            fd = event();
        }
        if fd < 0 {
            return Err(Errno::from_io(&io::Error::last_os_error()));
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        board.counts.fences.up();
        let board = Arc::clone(board);
        Ok(Self(Arc::new(Fence { board, event, state: Mutex::default(), changed: Condvar::new(), own })))
    }

    pub(crate) fn downgrade(&self) -> Weak<Fence> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn upgrade(weak: &Weak<Fence>) -> Option<Self> {
        weak.upgrade().map(Self)
    }

    /// A real descriptor that polls readable once the fence is signalled.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }

    /// Signals it.
    pub fn signal(&self) {
        self.0.signal();
    }

    /// Whether it was signalled.
    #[must_use]
    pub fn is_signalled(&self) -> bool {
        self.0.state.lock().signalled_ns.is_some()
    }

    /// Waits for it, at most so long; whether it was signalled.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let active = |state: &mut State| state.signalled_ns.is_none();
        let mut state = self.0.changed.wait_while(self.0.state.lock(), Some(deadline), active);
        !active(&mut state)
    }

    pub(crate) fn is_own(&self) -> bool {
        self.0.own
    }

    /// One that is signalled when both are.
    fn merge(&self, other: &Self) -> Result<Self, Errno> {
        let both = Self::new(&self.0.board, self.0.own && other.0.own)?;
        // Held at 1 until both parents know it.
        both.0.state.lock().pending = 1;
        for parent in [self, other] {
            let mut state = parent.0.state.lock();
            if state.signalled_ns.is_none() {
                both.0.state.lock().pending += 1;
                state.merged.retain(|fence| fence.strong_count() != 0);
                state.merged.push(Arc::downgrade(&both.0));
            }
        }
        both.0.parent_signalled();
        Ok(both)
    }

    /// `SYNC_IOC_MERGE`.
    pub(crate) fn merge_call(&self, board: &Board, argument: &mut SyncMerge) -> Result<(), Errno> {
        if argument.flags != 0 || argument.pad != 0 {
            return Err(Errno::EINVAL);
        }
        let KernelFile::SyncFile(other) = board.0.fds.resolve(argument.fd2).map_err(|_| Errno::ENOENT)?
        else {
            return Err(Errno::ENOENT);
        };
        let both = self.merge(&other)?;
        argument.fence = board.0.fds.install(KernelFile::SyncFile(both), true)?;
        Ok(())
    }

    /// `SYNC_IOC_FILE_INFO`.
    ///
    /// # Safety
    /// The array address must be writable for the count beside it.
    pub(crate) unsafe fn info_call(&self, argument: &mut SyncFileInfo) -> Result<(), Errno> {
        if argument.flags != 0 || argument.pad != 0 {
            return Err(Errno::EINVAL);
        }
        let signalled_ns = self.0.state.lock().signalled_ns;
        let name = |text: &str| {
            let mut name = [0; 32];
            name[..text.len()].copy_from_slice(text.as_bytes());
            name
        };
        let status = i32::from(signalled_ns.is_some());
        if argument.num_fences > 0 {
            let info = SyncFenceInfo {
                obj_name: name("rknpu-fence"),
                driver_name: name("rknpu"),
                status,
                flags: 0,
                timestamp_ns: signalled_ns.unwrap_or(0),
            };
            // SAFETY: there is room for at least one entry, by the caller's promise.
            unsafe { user_memory::copy_out(argument.sync_fence_info, info.as_bytes()) }?;
        }
        argument.name = name("rknpu");
        argument.status = status;
        argument.num_fences = 1;
        Ok(())
    }
}

impl fmt::Debug for SyncFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SyncFile({})", if self.is_signalled() { "signalled" } else { "active" })
    }
}
