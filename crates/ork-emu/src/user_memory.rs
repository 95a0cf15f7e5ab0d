// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the calling program, reached as a kernel reaches it: a bad address is `EFAULT`, not a crash.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use ork_drm::Errno;
use zerocopy::{FromBytes, IntoBytes};

fn vectors(own: *mut u8, address: u64, len: usize) -> (libc::iovec, libc::iovec) {
    let remote = std::ptr::with_exposed_provenance_mut::<libc::c_void>(address as usize);
    (libc::iovec { iov_base: own.cast(), iov_len: len }, libc::iovec { iov_base: remote, iov_len: len })
}

/// Whether the host cannot do such copies at all (emulators, sandboxes).
fn is_missing() -> bool {
    matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

/// A pipe, for hosts that cannot copy otherwise: its calls check addresses too.
struct Pipe {
    from: OwnedFd,
    to: OwnedFd,
}

impl Pipe {
    /// Bytes that a pipe always takes without waiting.
    const ROOM: usize = 4096;

    fn new() -> Result<Self, Errno> {
        let mut fds = [0; 2];
        // SAFETY: room for two numbers.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(Errno::from_io(&std::io::Error::last_os_error()));
        }
        // SAFETY: fresh descriptors that nobody else owns.
        let [from, to] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self { from, to })
    }

    /// Copies through the pipe; a range that is not mapped is `EFAULT`.
    ///
    /// # Safety
    /// The target must not be borrowed.
    unsafe fn copy(&self, source: u64, target: u64, len: usize) -> Result<(), Errno> {
        for at in (0..len).step_by(Self::ROOM) {
            let bytes = Self::ROOM.min(len - at);
            let place = |address: u64| {
                let address = address.checked_add(at as u64).ok_or(Errno::EFAULT)?;
                Ok(std::ptr::with_exposed_provenance_mut::<libc::c_void>(address as usize))
            };
            // SAFETY: the kernel checks the range.
            let written = unsafe { libc::write(self.to.as_raw_fd(), place(source)?, bytes) };
            if written != bytes as isize {
                return Err(Errno::EFAULT);
            }
            // SAFETY: the kernel checks the range, and nobody borrows it, by the caller's promise.
            let read = unsafe { libc::read(self.from.as_raw_fd(), place(target)?, bytes) };
            if read != bytes as isize {
                return Err(Errno::EFAULT);
            }
        }
        Ok(())
    }
}

/// Copies bytes in.
pub(crate) fn copy_in(address: u64, out: &mut [u8]) -> Result<(), Errno> {
    if out.is_empty() {
        return Ok(());
    }
    let (own, remote) = vectors(out.as_mut_ptr(), address, out.len());
    // SAFETY: `own` is a live slice; the kernel checks the remote range.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &own, 1, &remote, 1, 0) };
    if copied == out.len() as isize {
        return Ok(());
    }
    if copied < 0 && is_missing() {
        let own = out.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the target is `out`.
        return unsafe { Pipe::new()?.copy(address, own, out.len()) };
    }
    Err(Errno::EFAULT)
}

/// Copies bytes out.
///
/// # Safety
/// What is mapped of the `data.len()` bytes at `address` must not be borrowed.
pub(crate) unsafe fn copy_out(address: u64, data: &[u8]) -> Result<(), Errno> {
    if data.is_empty() {
        return Ok(());
    }
    let (own, remote) = vectors(data.as_ptr().cast_mut(), address, data.len());
    // SAFETY: `own` is a live slice that is only read; the kernel checks the remote range.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &own, 1, &remote, 1, 0) };
    if copied == data.len() as isize {
        return Ok(());
    }
    if copied < 0 && is_missing() {
        let own = data.as_ptr().expose_provenance() as u64;
        // SAFETY: not borrowed, by the caller's promise.
        return unsafe { Pipe::new()?.copy(own, address, data.len()) };
    }
    Err(Errno::EFAULT)
}

/// Copies an array of structs in, `stride` bytes apart; `stride` is at least the size of one.
pub(crate) fn copy_array<T: FromBytes + IntoBytes>(
    address: u64,
    count: u32,
    stride: u32,
) -> Result<Vec<T>, Errno> {
    /// Bytes that are copied in one go, so that a wrong count needs no more memory than what is there to be copied.
    const CHUNK_BYTES: usize = 1 << 16;
    let size = size_of::<T>();
    // What lies between items need not be readable.
    let in_one_go = if stride as usize == size { (CHUNK_BYTES / size).max(1) } else { 1 };
    let mut items = Vec::new();
    while items.len() < count as usize {
        let first = items.len();
        let more = in_one_go.min(count as usize - first);
        let at = address.checked_add(first as u64 * u64::from(stride)).ok_or(Errno::EFAULT)?;
        let mut bytes = vec![0; more * size];
        copy_in(at, &mut bytes)?;
        items.extend(bytes.chunks_exact(size).flat_map(T::read_from_bytes));
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_addresses_are_errors() {
        let mut byte = [0_u8; 1];
        assert_eq!(copy_in(0, &mut byte), Err(Errno::EFAULT));
        // SAFETY: nothing is mapped there.
        assert_eq!(unsafe { copy_out(0, &byte) }, Err(Errno::EFAULT));
        assert_eq!(copy_array::<u32>(u64::MAX, 2, 4), Err(Errno::EFAULT));
    }

    #[test]
    fn a_pipe_copies_and_checks_like_the_kernel() {
        let source: Vec<u8> = (0..10_007_u32).map(|i| (i % 251) as u8).collect();
        let mut target = vec![0; source.len()];
        let address = |place: *const u8| place.expose_provenance() as u64;
        let pipe = Pipe::new().unwrap();
        let to = target.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: nobody looks at the target during the call.
        unsafe { pipe.copy(address(source.as_ptr()), to, source.len()) }.unwrap();
        assert_eq!(target, source);
        // SAFETY: as above; nothing is mapped at 8.
        assert_eq!(unsafe { Pipe::new().unwrap().copy(8, to, 5) }, Err(Errno::EFAULT));
        // SAFETY: nothing is mapped at 8.
        assert_eq!(unsafe { pipe.copy(to, 8, 5) }, Err(Errno::EFAULT));
    }

    #[test]
    fn arrays_have_strides() {
        let words = [1_u32, 2, 3, 4, 5, 6];
        let address = words.as_ptr().expose_provenance() as u64;
        assert_eq!(copy_array::<u32>(address, 3, 8), Ok(vec![1, 3, 5]));
        // More than one go, and a count that is too large by far.
        let long: Vec<u32> = (0..50_000).collect();
        let address = long.as_ptr().expose_provenance() as u64;
        assert_eq!(copy_array::<u32>(address, 50_000, 4), Ok(long.clone()));
        assert_eq!(copy_array::<u32>(u64::MAX - (1 << 20), u32::MAX, 4), Err(Errno::EFAULT));
        let mut out = [0_u8; 4];
        // SAFETY: 4 live bytes that nobody borrows during the call.
        unsafe { copy_out(out.as_mut_ptr().expose_provenance() as u64, &9_u32.to_le_bytes()) }.unwrap();
        assert_eq!(u32::from_le_bytes(out), 9);
    }
}
