// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that a kernel makes besides its device nodes: dma-bufs and fences, named by descriptors.

use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use zerocopy::IntoBytes;

use crate::dma_buf::{self, DmaBufSync, DmaHeapAllocation};
use crate::kernel_fd::Mapped;
use crate::{Errno, Mapping, uapi};

/// The system heap of dma-bufs, below the folder of device nodes.
pub const SYSTEM_HEAP: &str = "dma_heap/system";

/// What can be done with the descriptors that a kernel gives out. [`HostFiles`] is the real kernel; an emulated one
/// brings its own, because it numbers and maps its files itself.
pub trait Files: Send + Sync + fmt::Debug {
    /// `DMA_BUF_IOCTL_SYNC` with these [`flags`](dma_buf::sync): brackets an access of the CPU.
    ///
    /// # Errors
    /// The kernel's errno; `ENOTTY` for a file that is no dma-buf.
    fn sync(&self, fd: RawFd, flags: u64) -> Result<(), Errno>;

    /// Maps the first `len` bytes of a dma-buf, shared, readable and writable.
    ///
    /// # Errors
    /// The kernel's errno.
    fn map(&self, fd: RawFd, len: usize) -> Result<Mapping, Errno>;

    /// Size of a dma-buf in bytes.
    ///
    /// # Errors
    /// The kernel's errno.
    fn size(&self, fd: RawFd) -> Result<u64, Errno>;

    /// Waits until a fence is signalled, at most so long; whether it was.
    ///
    /// # Errors
    /// The kernel's errno, `EINTR` among them.
    fn wait(&self, fd: RawFd, limit: Duration) -> Result<bool, Errno>;

    /// Allocates a dma-buf from the system heap; the caller closes the descriptor.
    ///
    /// # Errors
    /// The kernel's errno; `ENOENT` or `EACCES` when there is no heap that this process may use.
    fn allocate(&self, len: u64) -> Result<RawFd, Errno>;

    /// Whether [`lend`](Self::lend) can work.
    fn lends(&self) -> bool {
        false
    }

    /// Makes a dma-buf of whole pages of a file as they lie, for devices to read; the caller closes the descriptor. `len` is
    /// rounded up to pages. No real kernel does that, so the default refuses: `udmabuf` takes sealed memfds only, and PRIME
    /// takes nothing but dma-bufs (`uapi.md` 1.4). An emulated kernel may.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where there is no such thing; `EINVAL` for a range that does not start at a page or is not in the file.
    fn lend(&self, _file: BorrowedFd<'_>, _offset: u64, _len: u64) -> Result<RawFd, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Closes a descriptor that this kernel gave out.
    fn close(&self, fd: RawFd);
}

/// Descriptors of this process.
#[derive(Clone, Debug)]
pub struct HostFiles {
    /// Path of the heap that [`Files::allocate`] uses.
    heap: std::path::PathBuf,
}

impl HostFiles {
    /// The real kernel's files; the heap is looked for below `dev_root` (normally `/dev`).
    #[must_use]
    pub fn new(dev_root: &std::path::Path) -> Self {
        Self { heap: dev_root.join(SYSTEM_HEAP) }
    }
}

fn ioctl(fd: RawFd, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
    debug_assert!(argument.len() >= uapi::argument_size(request));
    // SAFETY: the kernel touches at most the size that the request encodes, which `argument` has; the structs that
    // this module passes hold no address.
    let status = unsafe { libc::ioctl(fd, libc::c_ulong::from(request) as _, argument.as_mut_ptr()) };
    if status < 0 { Err(Errno::last()) } else { Ok(()) }
}

impl Files for HostFiles {
    fn sync(&self, fd: RawFd, flags: u64) -> Result<(), Errno> {
        ioctl(fd, dma_buf::SYNC, DmaBufSync { flags }.as_mut_bytes())
    }

    fn map(&self, fd: RawFd, len: usize) -> Result<Mapping, Errno> {
        map_shared(fd, 0, len)
    }

    fn size(&self, fd: RawFd) -> Result<u64, Errno> {
        // SAFETY: a plain call on a descriptor.
        let end = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
        u64::try_from(end).map_err(|_| Errno::last())
    }

    fn wait(&self, fd: RawFd, limit: Duration) -> Result<bool, Errno> {
        // Rounded up: a wait of less than a millisecond is a wait.
        let ms = limit.as_nanos().div_ceil(1_000_000);
        let ms = libc::c_int::try_from(ms).unwrap_or(libc::c_int::MAX);
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        match unsafe { libc::poll(&mut poll, 1, ms) } {
            0 => Ok(false),
            1 if poll.revents & libc::POLLNVAL != 0 => Err(Errno::EBADF),
            1 => Ok(true),
            _ => Err(Errno::last()),
        }
    }

    fn allocate(&self, len: u64) -> Result<RawFd, Errno> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&self.heap);
        let file = file.map_err(|error| Errno::from_io(&error))?;
        let mut argument = DmaHeapAllocation { len, fd: 0, fd_flags: dma_buf::HEAP_FD_FLAGS, heap_flags: 0 };
        ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), dma_buf::HEAP_ALLOC, argument.as_mut_bytes())?;
        RawFd::try_from(argument.fd).map_err(|_| Errno::EBADF)
    }

    fn close(&self, fd: RawFd) {
        // SAFETY: the kernel gave the descriptor out for this caller, who closes it once.
        unsafe { libc::close(fd) };
    }
}

/// Maps a part of an open file, shared, readable and writable.
pub(crate) fn map_shared(fd: RawFd, offset: u64, len: usize) -> Result<Mapping, Errno> {
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EINVAL)?;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            offset,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::EFAULT)?;
    // SAFETY: mmap returned `len` valid bytes, which stay until `Mapped` unmaps them; the kernel refuses lengths
    // beyond the address space.
    Ok(unsafe { Mapping::new(start, len, Mapped { start, len }) })
}

/// `CLOCK_MONOTONIC` in nanoseconds: the time that kernel interfaces with absolute deadlines mean.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live struct to fill; the call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    fn files() -> HostFiles {
        HostFiles::new(std::path::Path::new("/nowhere"))
    }

    #[test]
    fn a_plain_file_maps_and_is_no_dma_buf() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[5; 5000]).unwrap();
        let fd = file.as_raw_fd();
        assert_eq!(files().size(fd), Ok(5000));
        let mapping = files().map(fd, 4999).unwrap();
        // SAFETY: nobody writes the file.
        assert_eq!(unsafe { mapping.bytes() }[4998], 5);
        let refused = files().sync(fd, 1);
        // QEMU's user mode knows no ioctl of dma-bufs, and has a word of its own for that.
        assert!(matches!(refused, Err(Errno::ENOTTY | Errno::ENOSYS)), "{refused:?}");
        assert_eq!(files().size(-1), Err(Errno::EBADF));
    }

    #[test]
    fn waiting_ends_with_the_event_or_with_the_limit() {
        // SAFETY: a plain call with numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert_eq!(files().wait(fd, Duration::from_micros(1)), Ok(false));
        // SAFETY: 8 live bytes, written to a descriptor of this test.
        unsafe { libc::write(fd, 1_u64.to_ne_bytes().as_ptr().cast(), 8) };
        assert_eq!(files().wait(fd, Duration::from_secs(60)), Ok(true));
        files().close(fd);
        assert_eq!(files().wait(fd, Duration::ZERO), Err(Errno::EBADF));
    }

    #[test]
    fn without_a_heap_nothing_is_allocated() {
        assert_eq!(files().allocate(4096), Err(Errno::ENOENT));
    }

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let first = monotonic_ns();
        assert!(first > 0 && monotonic_ns() >= first);
    }
}
