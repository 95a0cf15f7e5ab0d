// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the calling program, reached as a kernel reaches it: a bad address is `EFAULT`, not a crash.

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

/// Copies bytes in.
///
/// # Safety
/// Where the host has no checked copy, `out.len()` bytes at `address` must be readable.
pub(crate) unsafe fn copy_in(address: u64, out: &mut [u8]) -> Result<(), Errno> {
    if out.is_empty() {
        return Ok(());
    }
    let (own, remote) = vectors(out.as_mut_ptr(), address, out.len());
    // SAFETY: `own` is a live slice; the kernel checks the remote range.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &own, 1, &remote, 1, 0) };
    if copied == out.len() as isize {
        return Ok(());
    }
    if copied < 0 && address != 0 && is_missing() {
        let source = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: readable by the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len()) };
        return Ok(());
    }
    Err(Errno::EFAULT)
}

/// Copies bytes out.
///
/// # Safety
/// `data.len()` bytes at `address` must be writable and not borrowed (where the host checks the range, not
/// borrowed is enough).
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
    if copied < 0 && address != 0 && is_missing() {
        let target = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: writable by the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), target, data.len()) };
        return Ok(());
    }
    Err(Errno::EFAULT)
}

/// Copies an array of structs in, `stride` bytes apart; `stride` is at least the size of one.
///
/// # Safety
/// As for [`copy_in`], for the whole array.
pub(crate) unsafe fn copy_array<T: FromBytes + IntoBytes>(
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
        // SAFETY: inside the array, by the caller's promise.
        unsafe { copy_in(at, &mut bytes) }?;
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
        // SAFETY: the addresses are never followed where the host checks them, as test hosts do.
        assert_eq!(unsafe { copy_in(0, &mut byte) }, Err(Errno::EFAULT));
        // SAFETY: as above.
        assert_eq!(unsafe { copy_out(0, &byte) }, Err(Errno::EFAULT));
        // SAFETY: as above.
        assert_eq!(unsafe { copy_array::<u32>(u64::MAX, 2, 4) }, Err(Errno::EFAULT));
    }

    #[test]
    fn arrays_have_strides() {
        let words = [1_u32, 2, 3, 4, 5, 6];
        let address = words.as_ptr().expose_provenance() as u64;
        // SAFETY: 24 live bytes.
        assert_eq!(unsafe { copy_array::<u32>(address, 3, 8) }, Ok(vec![1, 3, 5]));
        // More than one go, and a count that is too large by far.
        let long: Vec<u32> = (0..50_000).collect();
        let address = long.as_ptr().expose_provenance() as u64;
        // SAFETY: 200000 live bytes; what lies behind them is not followed where the host checks addresses.
        assert_eq!(unsafe { copy_array::<u32>(address, 50_000, 4) }, Ok(long.clone()));
        // SAFETY: as above.
        assert_eq!(unsafe { copy_array::<u32>(u64::MAX - (1 << 20), u32::MAX, 4) }, Err(Errno::EFAULT));
        let mut out = [0_u8; 4];
        // SAFETY: 4 live bytes that nobody borrows during the call.
        unsafe { copy_out(out.as_mut_ptr().expose_provenance() as u64, &9_u32.to_le_bytes()) }.unwrap();
        assert_eq!(u32::from_le_bytes(out), 9);
    }
}
