// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors of files that the emulated kernel makes: dma-bufs and fences.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, OnceLock, Weak};

use ork_drm::dma_buf::{self, DmaBufSync, DmaBufSyncFile};
use ork_drm::{Errno, uapi as drm};

use crate::board::Board;
use crate::call::Call;
use crate::dma_buf::{DmaBuf, Inside};
use crate::fence::{Fence, SyncFile};
use crate::lock::Mutex;

/// A file that the emulated kernel made. Clones are the same open file; dropping the last one closes it.
#[derive(Clone, Debug)]
pub enum KernelFile {
    /// Memory that devices share.
    DmaBuf(DmaBuf),
    /// A fence.
    SyncFile(SyncFile),
}

impl KernelFile {
    /// A real descriptor of this process that behaves like the file for `poll`, `lseek` and, where memory is
    /// shared ([`Coherency::Shared`](crate::Coherency)), mmap.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::DmaBuf(buffer) => buffer.as_fd(),
            Self::SyncFile(fence) => fence.as_fd(),
        }
    }

    /// Issues an ioctl on the file.
    ///
    /// # Errors
    /// The kernel's errno; `ENOTTY` for a call that such files do not have.
    ///
    /// # Safety
    /// As for [`Transport::ioctl`](ork_drm::Transport::ioctl).
    pub unsafe fn ioctl(&self, board: &Board, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let call = Call::new(request, argument)?;
        match (self, drm::kind(request), drm::number(request)) {
            (Self::DmaBuf(buffer), b'b', 0) => {
                call.with(dma_buf::SYNC, |sync: &mut DmaBufSync| buffer.sync(sync.flags))
            }
            // A name is a label for debugfs.
            (Self::DmaBuf(_), b'b', 1) => Ok(()),
            (Self::DmaBuf(_), b'b', 2) => {
                call.with(dma_buf::EXPORT_SYNC_FILE, |export| export_fence(board, export))
            }
            (Self::DmaBuf(_), b'b', 3) => {
                call.with(dma_buf::IMPORT_SYNC_FILE, |import| import_fence(board, import))
            }
            (Self::SyncFile(fence), b'>', 3) => {
                call.with(dma_buf::FENCE_MERGE, |merge| fence.merge_call(board, merge))
            }
            (Self::SyncFile(fence), b'>', 4) => {
                // SAFETY: the caller vouches for the addresses inside the struct.
                call.with(dma_buf::FENCE_INFO, |info| unsafe { fence.info_call(info) })
            }
            _ => Err(Errno::ENOTTY),
        }
    }
}

/// `DMA_BUF_IOCTL_EXPORT_SYNC_FILE`. The emulated drivers leave no fences with a dma-buf, so there is nothing to
/// wait for.
fn export_fence(board: &Board, argument: &mut DmaBufSyncFile) -> Result<(), Errno> {
    const DIRECTIONS: u32 = (dma_buf::sync::READ | dma_buf::sync::WRITE) as u32;
    if argument.flags & !DIRECTIONS != 0 || argument.flags & DIRECTIONS == 0 {
        return Err(Errno::EINVAL);
    }
    let fence = SyncFile::foreign(board)?;
    fence.signal();
    argument.fd = board.0.fds.install(KernelFile::SyncFile(fence), true)?;
    Ok(())
}

/// `DMA_BUF_IOCTL_IMPORT_SYNC_FILE`: nobody will ever wait for the fence.
fn import_fence(board: &Board, argument: &mut DmaBufSyncFile) -> Result<(), Errno> {
    match board.0.fds.resolve(argument.fd) {
        Ok(KernelFile::SyncFile(_)) => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// Numbers files. The default is [`HostFds`]; a preloaded library brings its own.
pub trait FdTable: Send + Sync + fmt::Debug {
    /// Gives the program a descriptor for a file.
    ///
    /// # Errors
    /// `EMFILE` when the table is full.
    fn install(&self, file: KernelFile, cloexec: bool) -> Result<RawFd, Errno>;

    /// What a descriptor means.
    ///
    /// # Errors
    /// `EBADF` for a number that is no descriptor, `EINVAL` for one of another kind.
    fn resolve(&self, fd: RawFd) -> Result<KernelFile, Errno>;

    /// Memory or descriptors are short: lets go of files whose descriptors the program closed without saying so.
    fn forget_closed(&self) {}
}

/// Real descriptors of this process.
#[derive(Default)]
pub struct HostFds {
    table: Mutex<Table>,
    /// Every file that still exists, for duplicates that outlive the descriptor they were made of.
    known: Mutex<Vec<(WeakFile, KnownIdentity)>>,
}

#[derive(Default)]
struct Table {
    files: BTreeMap<RawFd, (KernelFile, KnownIdentity)>,
    /// With so many it is time to look which of them the program has closed by itself.
    many: usize,
}

/// The identity of a file, asked for once.
type KnownIdentity = Arc<OnceLock<Option<Identity>>>;

/// What a table may grow to before it is swept.
const MANY_DESCRIPTORS: usize = 64;

/// A file that may be gone.
enum WeakFile {
    DmaBuf(Weak<Inside>),
    SyncFile(Weak<Fence>),
}

impl WeakFile {
    fn of(file: &KernelFile) -> Self {
        match file {
            KernelFile::DmaBuf(buffer) => Self::DmaBuf(buffer.downgrade()),
            KernelFile::SyncFile(fence) => Self::SyncFile(fence.downgrade()),
        }
    }

    fn exists(&self) -> bool {
        match self {
            Self::DmaBuf(buffer) => buffer.strong_count() != 0,
            Self::SyncFile(fence) => fence.strong_count() != 0,
        }
    }

    fn upgrade(&self) -> Option<KernelFile> {
        match self {
            Self::DmaBuf(buffer) => DmaBuf::upgrade(buffer).map(KernelFile::DmaBuf),
            Self::SyncFile(fence) => SyncFile::upgrade(fence).map(KernelFile::SyncFile),
        }
    }
}

/// What tells a descriptor from others, also after `dup`. Asking for it takes several system calls.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    Inode(u64, u64),
    /// All eventfds share an inode.
    Event(String),
}

impl Identity {
    /// `None` for a number that is no descriptor.
    fn of(fd: RawFd) -> Option<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        if link.to_str().is_some_and(|name| name.contains("[eventfd]")) {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
            let id = info.lines().find(|line| line.starts_with("eventfd-id:"))?;
            return Some(Self::Event(id.to_owned()));
        }
        // SAFETY: an all-zero `stat` is a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a live struct to fill.
        (unsafe { libc::fstat(fd, &mut stat) } == 0).then_some(Self::Inode(stat.st_dev, stat.st_ino))
    }

    /// Whether this is the identity of a file.
    fn is_of(&self, file: &KernelFile, known: &KnownIdentity) -> bool {
        known.get_or_init(|| Self::of(file.as_fd().as_raw_fd())).as_ref() == Some(self)
    }
}

impl HostFds {
    /// Closes a descriptor that [`install`](FdTable::install) gave: whatever the number means by now, as close(2) does.
    ///
    /// # Errors
    /// `EBADF` for any other number.
    pub fn close(&self, fd: RawFd) -> Result<(), Errno> {
        let file = self.table.lock().files.remove(&fd).ok_or(Errno::EBADF)?;
        // SAFETY: the number was given out here, and the caller does not use it any more.
        unsafe { libc::close(fd) };
        drop(file);
        Ok(())
    }

    /// Forgets descriptors that the program closed by itself.
    pub(crate) fn sweep(&self) {
        let mut table = self.table.lock();
        let is_gone = |(fd, (file, known)): &(&RawFd, &(KernelFile, KnownIdentity))| {
            !Identity::of(**fd).is_some_and(|identity| identity.is_of(file, known))
        };
        let gone: Vec<RawFd> = table.files.iter().filter(is_gone).map(|(fd, _)| *fd).collect();
        let files: Vec<_> = gone.iter().filter_map(|fd| table.files.remove(fd)).collect();
        table.many = (2 * table.files.len()).max(MANY_DESCRIPTORS);
        drop(table);
        drop(files);
    }

    /// Whether the table has grown enough to be swept.
    fn is_large(&self) -> bool {
        let table = self.table.lock();
        table.files.len() >= table.many.max(MANY_DESCRIPTORS)
    }
}

impl FdTable for HostFds {
    fn install(&self, file: KernelFile, cloexec: bool) -> Result<RawFd, Errno> {
        // A fence comes and goes with each job; what a program left of others may be large.
        if matches!(file, KernelFile::DmaBuf(_)) || self.is_large() {
            self.sweep();
        }
        let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: a plain call on an open descriptor.
        let duplicate = || unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, 0) };
        let mut fd = duplicate();
        if fd < 0 {
            self.sweep();
            fd = duplicate();
        }
        if fd < 0 {
            return Err(Errno::from_io(&io::Error::last_os_error()));
        }
        let identity = KnownIdentity::default();
        let mut known = self.known.lock();
        known.retain(|(file, _)| file.exists());
        known.push((WeakFile::of(&file), Arc::clone(&identity)));
        drop(known);
        // What had this number before was closed by the program.
        let gone = self.table.lock().files.insert(fd, (file, identity));
        drop(gone);
        Ok(fd)
    }

    fn resolve(&self, fd: RawFd) -> Result<KernelFile, Errno> {
        let identity = Identity::of(fd).ok_or(Errno::EBADF)?;
        let known = self.known.lock();
        let mut files = known.iter().filter_map(|(weak, known)| Some((weak.upgrade()?, known)));
        let found = files.find(|(file, known)| identity.is_of(file, known));
        found.map(|(file, _)| file).ok_or(Errno::EINVAL)
    }

    fn forget_closed(&self) {
        self.sweep();
    }
}

impl fmt::Debug for HostFds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostFds({:?})", self.table.lock().files.keys())
    }
}
