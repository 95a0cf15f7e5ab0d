// SPDX-License-Identifier: MIT OR Apache-2.0
//! `mmap`, `munmap`, `mremap`.

use std::ffi::{c_int, c_void};

use ork_drm::Errno;

use super::{Outcome, answer, inside};
use crate::device::{self, FDS, MAPS, MapCall};
use crate::{fds, guard, raw};

/// Whether a range meets a mapping of ours, and this call may do something about it.
fn meets_ours(start: usize, len: usize) -> bool {
    // In this order: from inside, the table may be locked by this very thread.
    !guard::is_inside() && MAPS.touches(start, len) && guard::owns_state()
}

/// `mmap`, with addresses as numbers.
///
/// # Safety
/// As for libc's `mmap`.
pub(super) unsafe fn map(
    place: usize,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: u64,
) -> usize {
    if fd >= 0
        && flags & libc::MAP_ANONYMOUS == 0
        && fds::maybe(fd)
        && !guard::is_inside()
        && guard::owns_state()
    {
        let call = MapCall { len, protection, flags, offset };
        // SAFETY: the caller's promise.
        if let Some(outcome) = inside(|| Some(unsafe { FDS.get(fd)?.mmap(fd, place, call) })) {
            return answer(outcome) as usize;
        }
    }
    if flags & libc::MAP_FIXED != 0 && meets_ours(place, len) {
        _ = inside(|| -> Outcome<usize> {
            MAPS.holds(place, len).iter().for_each(|hold| hold.before_unmap());
            None
        });
    }
    let arguments = [place, len, protection as usize, flags as usize, fd as usize, offset as usize];
    // SAFETY: the caller's promise.
    let start = unsafe { raw::syscall(libc::SYS_mmap, arguments) };
    if flags & libc::MAP_FIXED != 0 && raw::result(start).is_ok() && meets_ours(place, len) {
        _ = inside(|| -> Outcome<usize> {
            drop(MAPS.cut(place, len));
            None
        });
    }
    raw::answer(start) as usize
}

/// `mmap` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mmap(
    place: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let start = unsafe { map(place.expose_provenance(), len, protection, flags, fd, offset as u64) };
    std::ptr::with_exposed_provenance_mut(start)
}

/// `mmap64` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mmap64(
    place: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(place, len, protection, flags, fd, offset) }
}

/// `munmap` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn munmap(start: *mut c_void, len: usize) -> c_int {
    if meets_ours(start.addr(), len) {
        // SAFETY: the caller's promise.
        let outcome = inside(|| Some(raw::result(unsafe { device::munmap(start, len) })));
        if let Some(outcome) = outcome {
            return answer(outcome) as c_int;
        }
    }
    // SAFETY: the caller's promise.
    raw::answer(unsafe { raw::munmap(start, len) }) as c_int
}

/// `mremap` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    place: usize,
) -> *mut c_void {
    let kernel_mremap = || {
        let arguments = [old.expose_provenance(), old_len, new_len, flags as usize, place, 0];
        // SAFETY: the caller's promise.
        raw::result(unsafe { raw::syscall(libc::SYS_mremap, arguments) })
    };
    let moved = if meets_ours(old.addr(), old_len.max(1)) {
        inside(|| {
            let holds = MAPS.holds(old.addr(), old_len.max(1));
            let [hold] = &holds[..] else { return Some(Err(Errno::EFAULT)) };
            // A device cannot make a buffer longer, and the board's own memory does not move.
            if new_len > old_len || hold.is_boards {
                return Some(Err(Errno::EFAULT));
            }
            hold.before_unmap();
            let outcome = kernel_mremap();
            if let Ok(start) = outcome {
                drop(MAPS.cut(old.addr(), old_len));
                MAPS.insert(start, new_len, hold.clone());
            }
            Some(outcome)
        })
    } else {
        None
    };
    let outcome = moved.unwrap_or_else(kernel_mremap);
    std::ptr::with_exposed_provenance_mut(answer(outcome) as usize)
}
