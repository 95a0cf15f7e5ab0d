// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that share buffer objects between files and processes.
//!
//! File descriptors are plain numbers here: an emulated kernel may number them its own way.

use zerocopy::IntoBytes;

use crate::uapi::{self, DrmGemClose, DrmGemFlink, DrmGemOpen, DrmPrimeHandle};
use crate::{Errno, Transport};

fn call(
    transport: &(impl Transport + ?Sized),
    request: u32,
    argument: &mut (impl IntoBytes + zerocopy::FromBytes),
) -> Result<(), Errno> {
    // SAFETY: none of the structs of this module holds an address.
    unsafe { transport.ioctl(request, argument.as_mut_bytes()) }
}

/// Drops a handle (`DRM_IOCTL_GEM_CLOSE`).
///
/// # Errors
/// `EINVAL` for an unknown handle.
pub fn close_handle(transport: &(impl Transport + ?Sized), handle: u32) -> Result<(), Errno> {
    call(transport, uapi::GEM_CLOSE, &mut DrmGemClose { handle, pad: 0 })
}

/// Gives an object a name that other files can open. Primary nodes only.
///
/// # Errors
/// `ENOENT` for an unknown handle, `EACCES` on a render node.
pub fn flink(transport: &(impl Transport + ?Sized), handle: u32) -> Result<u32, Errno> {
    let mut argument = DrmGemFlink { handle, name: 0 };
    call(transport, uapi::GEM_FLINK, &mut argument)?;
    Ok(argument.name)
}

/// Opens an object by its name; gives the handle and the size.
///
/// # Errors
/// `ENOENT` for an unknown name, `EACCES` on a render node.
pub fn open_name(transport: &(impl Transport + ?Sized), name: u32) -> Result<(u32, u64), Errno> {
    let mut argument = DrmGemOpen { name, ..DrmGemOpen::default() };
    call(transport, uapi::GEM_OPEN, &mut argument)?;
    Ok((argument.handle, argument.size))
}

/// Exports an object as a dma-buf, close-on-exec; gives the file descriptor, which the caller closes.
///
/// # Errors
/// `ENOENT` for an unknown handle, `EMFILE` when the table of descriptors is full.
pub fn export_fd(transport: &(impl Transport + ?Sized), handle: u32) -> Result<i32, Errno> {
    let flags = uapi::PRIME_CLOEXEC | uapi::PRIME_RDWR;
    let mut argument = DrmPrimeHandle { handle, flags, fd: -1 };
    call(transport, uapi::PRIME_HANDLE_TO_FD, &mut argument)?;
    Ok(argument.fd)
}

/// Imports a dma-buf; the same one gives the same handle again.
///
/// # Errors
/// `EBADF` for a number that is no descriptor, `EINVAL` for one that is no dma-buf.
pub fn import_fd(transport: &(impl Transport + ?Sized), fd: i32) -> Result<u32, Errno> {
    let mut argument = DrmPrimeHandle { handle: 0, flags: 0, fd };
    call(transport, uapi::PRIME_FD_TO_HANDLE, &mut argument)?;
    Ok(argument.handle)
}
