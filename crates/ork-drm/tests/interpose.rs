// SPDX-License-Identifier: MIT OR Apache-2.0
//! A library that is preloaded, or an executable that defines the symbols, must be able to stand in for the
//! device. This executable defines `ioctl` and `mmap`; raw system calls would walk past them.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use ork_drm::{Errno, KernelFd, Transport, uapi};

static IOCTLS: AtomicU32 = AtomicU32::new(0);
static MAPS: AtomicU32 = AtomicU32::new(0);

/// Stands in for libc's variadic `ioctl`: on LP64 Linux the third argument travels as a fixed one would.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request as u32 == uapi::VERSION {
        IOCTLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller passes a VERSION struct, whose first field is an int.
        unsafe { argument.cast::<c_int>().write(77) };
        return 0;
    }
    // SAFETY: handed on as it came.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int }
}

/// Counts, and does what libc's does.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    MAPS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: handed on as it came.
    unsafe { libc::syscall(libc::SYS_mmap, at, len, prot, flags, fd, offset) as *mut c_void }
}

#[test]
fn calls_go_through_libc_symbols() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4096).unwrap();
    let node = KernelFd::open(file.path()).unwrap();

    let mut argument = [0; 64];
    // SAFETY: a zeroed VERSION struct holds only null addresses.
    assert_eq!(unsafe { node.ioctl(uapi::VERSION, &mut argument) }, Ok(()));
    assert_eq!(argument[0], 77);
    assert_eq!(IOCTLS.load(Ordering::Relaxed), 1);
    // SAFETY: GEM_CLOSE holds no address.
    let refused = unsafe { node.ioctl(uapi::GEM_CLOSE, &mut [0; 8]) };
    // ENOSYS comes from user-mode emulation, which does not know the request.
    assert!(matches!(refused, Err(Errno::ENOTTY | Errno::ENOSYS)), "{refused:?}");

    let before = MAPS.load(Ordering::Relaxed);
    drop(node.mmap(0, 440).unwrap());
    assert!(MAPS.load(Ordering::Relaxed) > before);
}
