// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a session stands on: memory that calls name by address, a recorder's file and eyes, descriptors.

use std::io::Write;
use std::sync::{Arc, Mutex};

use ork_drm::Errno;
use ork_emu::{FdTable, HostFds, KernelFile};
use ork_trace::BufferMemory;

use crate::harness::words::Random;

/// Memory of the "program" that calls can name by address, between pages that nobody may touch.
pub(super) struct Arena {
    start: usize,
}

const ARENA_BYTES: usize = 1 << 16;
const GUARD_BYTES: usize = 1 << 16;

impl Arena {
    pub(super) fn new() -> Self {
        // SAFETY: a new mapping at an address of the host's choice.
        let start = unsafe {
            let (len, flags) = (ARENA_BYTES + 2 * GUARD_BYTES, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        let start = start.expose_provenance() + GUARD_BYTES;
        let place = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the middle of the mapping.
        assert_eq!(unsafe { libc::mprotect(place, ARENA_BYTES, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        Self { start }
    }

    /// Puts bytes somewhere inside; their address.
    pub(super) fn put(&self, random: &mut Random, bytes: &[u8]) -> u64 {
        let bytes = &bytes[..bytes.len().min(ARENA_BYTES)];
        // Sometimes as the very last ones.
        let room = ARENA_BYTES - bytes.len();
        let at = if random.one_in(4) { room } else { random.below(room + 1) };
        let place = std::ptr::with_exposed_provenance_mut::<u8>(self.start + at);
        // SAFETY: inside the arena, which only this thread and the calls that it makes touch.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        (self.start + at) as u64
    }

    /// An address that a confused program could hand over: inside, at the end, or of nothing.
    pub(super) fn address(&self, random: &mut Random) -> u64 {
        match random.below(8) {
            0 => 0,
            1 => 8,
            2 => (self.start + ARENA_BYTES - random.below(64)) as u64,
            3 => (self.start - 1) as u64,
            4 => 0xFFFF_8000_0000_0000 | random.value(),
            _ => (self.start + random.below(ARENA_BYTES)) as u64,
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let first = std::ptr::with_exposed_provenance_mut(self.start - GUARD_BYTES);
        // SAFETY: the mapping that was made, which nobody uses any more.
        unsafe { libc::munmap(first, ARENA_BYTES + 2 * GUARD_BYTES) };
    }
}

/// What the recorder writes to.
#[derive(Clone, Default)]
pub(super) struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    /// What was written.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A mapping, as the recorder reads it.
pub(super) struct Seen(pub(super) usize);

impl BufferMemory for Seen {
    fn read(&self, at: usize, out: &mut [u8]) {
        for (index, byte) in out.iter_mut().enumerate() {
            let place = std::ptr::with_exposed_provenance::<u8>(self.0 + at + index);
            // SAFETY: inside the mapping, which the recorder gives up before it goes.
            *byte = unsafe { place.read_volatile() };
        }
    }
}

/// Memory of this process, as a kernel reads it.
pub(super) fn read_memory(address: u64, out: &mut [u8]) -> Result<(), Errno> {
    let own = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let place = std::ptr::with_exposed_provenance_mut(address as usize);
    let remote = libc::iovec { iov_base: place, iov_len: out.len() };
    // SAFETY: `own` is a live slice; the kernel checks the other side.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &own, 1, &remote, 1, 0) };
    if copied == out.len() as isize { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Real descriptors, all of which are known: a call can make one and not tell.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    pub(super) host: HostFds,
    made: Mutex<Vec<i32>>,
}

impl Descriptors {
    pub(super) fn close_all(&self) {
        for fd in std::mem::take(&mut *self.made.lock().unwrap()) {
            // It may have been closed by a call of the session.
            let _ = self.host.close(fd);
        }
    }
}

impl FdTable for Descriptors {
    fn install(&self, file: KernelFile, cloexec: bool) -> Result<i32, Errno> {
        let fd = self.host.install(file, cloexec)?;
        self.made.lock().unwrap().push(fd);
        Ok(fd)
    }

    fn resolve(&self, fd: i32) -> Result<KernelFile, Errno> {
        self.host.resolve(fd)
    }
}
