// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that come through a socket.

use std::ffi::{c_int, c_void};

use libc::{cmsghdr, msghdr};

use super::{Outcome, inside, next};
use crate::device;
use crate::guard;

/// The descriptors of a received message.
///
/// # Safety
/// A message as `recvmsg` has filled it.
unsafe fn descriptors(message: *const msghdr) -> Vec<c_int> {
    let mut found = Vec::new();
    // SAFETY: the caller's promise; the macros stay inside the control data.
    let mut header: *const cmsghdr = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: a header inside the control data, which its length does not leave.
        unsafe {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data: *const c_void = libc::CMSG_DATA(header).cast();
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                found.extend(
                    (0..bytes / size_of::<c_int>()).map(|i| data.cast::<c_int>().add(i).read_unaligned()),
                );
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    found
}

/// `recvmsg` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    let result = unsafe { next!(c"recvmsg", fn(c_int, *mut msghdr, c_int) -> isize)(socket, message, flags) };
    if result < 0 || guard::is_inside() {
        return result;
    }
    // SAFETY: filled by the call that has just succeeded.
    let fds = unsafe { descriptors(message) };
    if !fds.is_empty() {
        _ = inside(|| -> Outcome<usize> {
            fds.into_iter().for_each(device::received);
            None
        });
    }
    result
}
