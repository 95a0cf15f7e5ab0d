// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lifetime of fds: `close`, `dup`, `fcntl` and their relatives.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use libc::FILE;

use super::{Outcome, answer, inside, next};
use crate::device::FDS;
use crate::{fds, guard, raw};

/// Whether an fd could be ours, and this process may say so.
fn could_be_ours(fd: c_int) -> bool {
    fds::maybe(fd) && !guard::is_inside() && guard::owns_state()
}

/// Forgets an fd that is closed or about to be: what was behind it ends with its last fd.
fn forget(fd: c_int) {
    _ = inside(|| -> Outcome<usize> {
        drop(FDS.forget(fd));
        if let Some(world) = crate::board::known() {
            world.report_findings();
        }
        None
    });
}

/// `close` of libc.
#[unsafe(no_mangle)]
pub(super) extern "C" fn close(fd: c_int) -> c_int {
    if could_be_ours(fd) {
        // Before the number is free for others.
        forget(fd);
    }
    raw::answer(raw::close(fd)) as c_int
}

/// `close_range` of libc.
#[unsafe(no_mangle)]
pub(super) extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    if flags & CLOEXEC == 0 && !guard::is_inside() && guard::owns_state() {
        let clamp = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
        let mut ours = Vec::new();
        _ = inside(|| -> Outcome<usize> {
            ours = FDS.within(clamp(first), clamp(last));
            None
        });
        ours.into_iter().for_each(forget);
    }
    // SAFETY: closing fds touches no memory.
    raw::answer(unsafe {
        raw::syscall(libc::SYS_close_range, [first as usize, last as usize, flags as usize, 0, 0, 0])
    }) as c_int
}

/// `closefrom` of libc.
#[unsafe(no_mangle)]
pub(super) extern "C" fn closefrom(first: c_int) {
    close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}

/// `fclose` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    if !stream.is_null() {
        // SAFETY: the caller's promise: an open stream.
        let fd = unsafe { libc::fileno(stream) };
        if fd >= 0 && could_be_ours(fd) {
            forget(fd);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { next!(c"fclose", fn(*mut FILE) -> c_int)(stream) }
}

/// After the kernel made `copy` out of `fd`.
fn copied(fd: c_int, copy: c_int) {
    if !(could_be_ours(fd) || could_be_ours(copy)) {
        return;
    }
    _ = inside(|| -> Outcome<usize> {
        match FDS.get(fd) {
            Some(file) => FDS.insert(copy, Arc::clone(&file)),
            None => drop(FDS.forget(copy)),
        }
        None
    });
}

fn copy_to(fd: c_int, copy: c_int, flags: c_int) -> c_int {
    // SAFETY: copying an fd touches no memory.
    let new = unsafe { raw::syscall(libc::SYS_dup3, [fd as usize, copy as usize, flags as usize, 0, 0, 0]) };
    if new >= 0 {
        copied(fd, copy);
    }
    raw::answer(new) as c_int
}

/// `dup` of libc.
#[unsafe(no_mangle)]
pub(super) extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: copying an fd touches no memory.
    let new = unsafe { raw::syscall(libc::SYS_dup, [fd as usize, 0, 0, 0, 0, 0]) };
    if new >= 0 {
        copied(fd, new as c_int);
    }
    raw::answer(new) as c_int
}

/// `dup2` of libc.
#[unsafe(no_mangle)]
pub(super) extern "C" fn dup2(fd: c_int, copy: c_int) -> c_int {
    if fd == copy {
        // `dup3` refuses that; here it only asks whether the fd is open.
        // SAFETY: F_GETFD touches no memory.
        let open =
            unsafe { raw::syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) };
        return if raw::answer(open) < 0 { -1 } else { copy };
    }
    copy_to(fd, copy, 0)
}

/// `dup3` of libc.
#[unsafe(no_mangle)]
pub(super) extern "C" fn dup3(fd: c_int, copy: c_int, flags: c_int) -> c_int {
    copy_to(fd, copy, flags)
}

/// Any `fcntl`; the argument is a number or an address, which is the program's matter.
unsafe fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { raw::syscall(libc::SYS_fcntl, [fd as usize, command as usize, argument, 0, 0, 0]) };
    if result >= 0 && matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        copied(fd, result as c_int);
    }
    raw::answer(result) as c_int
}

/// `fcntl` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { control(fd, command, argument) }
}

/// `fcntl64` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { control(fd, command, argument) }
}

/// `flock` of libc: a lock on a device is seen by all processes that see the same board.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flock(fd: c_int, operation: c_int) -> c_int {
    let mut target = fd;
    if could_be_ours(fd) {
        _ = inside(|| -> Outcome<usize> {
            target = FDS.get(fd).and_then(|file| file.lock_fd()).unwrap_or(fd);
            None
        });
    }
    // SAFETY: locking touches no memory.
    let result = unsafe { raw::syscall(libc::SYS_flock, [target as usize, operation as usize, 0, 0, 0, 0]) };
    answer(raw::result(result)) as c_int
}
