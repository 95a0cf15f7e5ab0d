// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fs::{File, OpenOptions, TryLockError};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

use crate::{Errno, Mapping, Transport, uapi};

/// An open device node.
#[derive(Debug)]
pub struct KernelFd {
    file: File,
}

impl KernelFd {
    /// Opens a node for reading and writing, close-on-exec.
    ///
    /// # Errors
    /// The errno of `open`.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| Errno::from_io(&e))?;
        Ok(Self { file })
    }
}

impl Transport for KernelFd {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        if argument.len() < uapi::argument_size(request) {
            return Err(Errno::EFAULT);
        }
        // SAFETY: the kernel touches at most the size that the request encodes, which lies inside `argument`, and
        // what the caller has promised is valid.
        let status = unsafe {
            libc::ioctl(self.file.as_raw_fd(), libc::c_ulong::from(request) as _, argument.as_mut_ptr())
        };
        if status < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        crate::files::map_shared(self.file.as_raw_fd(), offset, len)
    }

    fn try_lock(&self) -> Result<bool, Errno> {
        // `flock`, on the open file.
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(Errno::from_io(&error)),
        }
    }
}

/// Owner of a mapping.
pub(crate) struct Mapped {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: only an address; `munmap` may be called from any thread.
unsafe impl Send for Mapped {}
// SAFETY: nothing is reachable through a shared reference.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned, unmapped once; the `Mapping` that gave it out is gone.
        let status = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(status, 0, "munmap of a range that mmap returned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_that_is_no_device_answers_enotty() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let node = KernelFd::open(file.path()).unwrap();
        let mut argument = [0; 64];
        // SAFETY: a zeroed VERSION struct holds only null addresses.
        assert_eq!(unsafe { node.ioctl(uapi::VERSION, &mut argument) }, Err(Errno::ENOTTY));
    }

    #[test]
    fn a_short_argument_never_reaches_the_kernel() {
        let node = KernelFd::open(Path::new("/dev/null")).unwrap();
        let mut argument = [0; 63];
        // SAFETY: the call is refused before the kernel sees it.
        assert_eq!(unsafe { node.ioctl(uapi::VERSION, &mut argument) }, Err(Errno::EFAULT));
    }

    #[test]
    fn mappings_are_shared_and_may_have_odd_lengths() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 4096]).unwrap();
        let node = KernelFd::open(file.path()).unwrap();
        let mut mapping = node.mmap(0, 440).unwrap();
        assert_eq!(mapping.len(), 440);
        // SAFETY: the file is private to this test and no other slice of the mapping exists.
        let bytes = unsafe { mapping.bytes_mut() };
        bytes[439] = 9;
        drop(mapping);
        assert_eq!(std::fs::read(file.path()).unwrap()[438..441], [7, 9, 7]);
        assert_eq!(node.mmap(0, 0).unwrap_err(), Errno::EINVAL);
        assert_eq!(node.mmap(u64::MAX, 4096).unwrap_err(), Errno::EINVAL);
    }

    #[test]
    fn the_lock_excludes_a_second_open_file_until_it_closes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let first = KernelFd::open(file.path()).unwrap();
        let second = KernelFd::open(file.path()).unwrap();
        assert_eq!(first.try_lock(), Ok(true));
        assert_eq!(second.try_lock(), Ok(false));
        drop(first);
        assert_eq!(second.try_lock(), Ok(true));
    }
}
