// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ioctl`, and `syscall` for programs that go around the wrappers.

use std::ffi::{c_char, c_int, c_long, c_ulong};

use super::{answer, inside};
use crate::device::FDS;
use crate::{fds, guard, raw};

/// Calls that the kernel answers for any file, before a driver sees them.
fn is_generic(request: u32) -> bool {
    [libc::FIOCLEX, libc::FIONCLEX, libc::FIONBIO, libc::FIOASYNC]
        .map(|known| known as u32)
        .contains(&request)
}

/// `ioctl` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if fds::maybe(fd) && !is_generic(request as u32) && !guard::is_inside() && guard::owns_state() {
        // The request is 32 bits; callers that keep it in an int hand over its sign too.
        let done = inside(|| Some(FDS.get(fd)?.ioctl(fd, request as u32, argument)));
        if let Some(result) = done {
            return answer(result.map(|()| 0)) as c_int;
        }
    }
    // SAFETY: the caller's promise.
    raw::answer(unsafe { raw::syscall(libc::SYS_ioctl, [fd as usize, request as usize, argument, 0, 0, 0]) })
        as c_int
}

/// `syscall` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let path = |address: usize| std::ptr::with_exposed_provenance::<c_char>(address);
    // SAFETY: the caller's promise, for all: each function has the arguments of its system call.
    unsafe {
        match number {
            libc::SYS_ioctl => ioctl(a as c_int, b as c_ulong, c) as c_long,
            libc::SYS_openat => super::open::open_at(a as c_int, path(b), c as c_int, d as u32) as c_long,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => super::open::open_at(libc::AT_FDCWD, path(a), b as c_int, c as u32) as c_long,
            libc::SYS_close => super::fd::close(a as c_int) as c_long,
            libc::SYS_close_range => super::fd::close_range(a as u32, b as u32, c as c_int) as c_long,
            libc::SYS_dup => super::fd::dup(a as c_int) as c_long,
            libc::SYS_dup3 => super::fd::dup3(a as c_int, b as c_int, c as c_int) as c_long,
            libc::SYS_fcntl => super::fd::fcntl(a as c_int, b as c_int, c) as c_long,
            libc::SYS_mmap => {
                super::memory::map(a, b, c as c_int, d as c_int, e as c_int, f as u64) as c_long
            }
            libc::SYS_munmap => super::memory::munmap(std::ptr::with_exposed_provenance_mut(a), b) as c_long,
            _ => raw::answer(raw::syscall(number, [a, b, c, d, e, f])) as c_long,
        }
    }
}
