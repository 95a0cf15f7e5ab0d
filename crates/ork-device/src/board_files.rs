// SPDX-License-Identifier: MIT OR Apache-2.0
//! dma-bufs and fences of an emulated board.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use ork_drm::dma_buf::{self, DmaBufSync, DmaHeapAllocation};
use ork_drm::{Errno, Files, HostFiles, Mapping, Transport};
use ork_emu::{Board, KernelFile};
use zerocopy::IntoBytes;

/// The descriptors that a board gave out, or that a program made of them.
#[derive(Debug)]
pub(crate) struct BoardFiles {
    board: Board,
    host: HostFiles,
}

impl BoardFiles {
    pub(crate) fn new(board: &Board) -> Self {
        // Fences poll like any file of the host; nothing else is asked of it.
        Self { board: board.clone(), host: HostFiles::new(std::path::Path::new("/nonexistent")) }
    }

    fn dma_buf(&self, fd: RawFd) -> Result<ork_emu::DmaBuf, Errno> {
        match self.board.fds().resolve(fd)? {
            KernelFile::DmaBuf(buffer) => Ok(buffer),
            KernelFile::SyncFile(_) => Err(Errno::ENOTTY),
        }
    }
}

impl Files for BoardFiles {
    fn sync(&self, fd: RawFd, flags: u64) -> Result<(), Errno> {
        let file = self.board.fds().resolve(fd)?;
        // SAFETY: the struct holds no address.
        unsafe { file.ioctl(&self.board, dma_buf::SYNC, DmaBufSync { flags }.as_mut_bytes()) }
    }

    fn map(&self, fd: RawFd, len: usize) -> Result<Mapping, Errno> {
        let grant = self.dma_buf(fd)?.grant(0, len)?;
        let start = grant.pointer();
        // SAFETY: the grant keeps `len` bytes at the address.
        Ok(unsafe { Mapping::new(start, len, grant) })
    }

    fn size(&self, fd: RawFd) -> Result<u64, Errno> {
        Ok(self.dma_buf(fd)?.size())
    }

    fn wait(&self, fd: RawFd, limit: Duration) -> Result<bool, Errno> {
        self.host.wait(fd, limit)
    }

    fn allocate(&self, len: u64) -> Result<RawFd, Errno> {
        let fd_flags = dma_buf::HEAP_FD_FLAGS;
        let mut argument = DmaHeapAllocation { len, fd_flags, ..DmaHeapAllocation::default() };
        // SAFETY: the struct holds no address.
        unsafe { self.board.open_heap().ioctl(dma_buf::HEAP_ALLOC, argument.as_mut_bytes()) }?;
        RawFd::try_from(argument.fd).map_err(|_| Errno::EBADF)
    }

    fn lends(&self) -> bool {
        true
    }

    fn lend(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<RawFd, Errno> {
        let buffer = ork_emu::DmaBuf::lend(&self.board, file, offset, len)?;
        self.board.fds().install(KernelFile::DmaBuf(buffer), true)
    }

    fn close(&self, fd: RawFd) {
        if self.board.close_fd(fd).is_err() {
            self.host.close(fd);
        }
    }
}
