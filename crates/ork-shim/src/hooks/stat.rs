// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program can learn about a path or an fd without opening it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use ork_drm::Errno;

use super::open::is_interesting;
use super::{Outcome, answer, inside, next};
use crate::board::{c_string, known, world};
use crate::device::FDS;
use crate::tree::Node;
use crate::{fds, guard, raw};

/// Where a path of the board really is. From inside, and for other paths: nothing.
pub(super) fn place_of(folder: c_int, path: &CStr) -> Option<CString> {
    if guard::is_inside() || !is_interesting(folder, path) {
        return None;
    }
    let mut place = None;
    _ = inside(|| -> Outcome<usize> {
        place = world().machine.as_ref().and_then(|machine| machine.place(folder, path));
        None
    });
    place
}

/// The node that a file stands for, if the board has shown any.
fn node_of(stat: &libc::stat) -> Option<&'static Node> {
    known()?.machine.as_ref()?.node(stat)
}

/// The node behind an fd of ours.
fn node_behind(fd: c_int) -> Option<&'static Node> {
    if !fds::maybe(fd) || guard::is_inside() || !guard::owns_state() {
        return None;
    }
    let mut node = None;
    _ = inside(|| -> Outcome<usize> {
        node = FDS.get(fd).and_then(|file| file.node);
        None
    });
    node
}

/// Who may use a node: everybody, as with the udev rules that people install.
const NODE_MODE: u32 = libc::S_IFCHR | 0o666;

fn disguise(stat: &mut libc::stat, node: &Node) {
    stat.st_mode = NODE_MODE;
    stat.st_rdev = libc::makedev(node.number.0, node.number.1);
    stat.st_size = 0;
    stat.st_blocks = 0;
}

fn stat_at(folder: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
    let text = match c_string(path) {
        Ok(text) => text,
        Err(errno) => return answer(Err(errno)) as c_int,
    };
    let place = place_of(folder, text);
    let real = place.as_deref().unwrap_or(text);
    let arguments = [folder as usize, real.as_ptr() as usize, out as usize, flags as usize, 0, 0];
    // SAFETY: a terminated string; the kernel checks the address of the struct, which is libc's on 64-bit Linux.
    let result = unsafe { raw::syscall(libc::SYS_newfstatat, arguments) };
    if result == 0 {
        // SAFETY: the kernel has just filled it.
        let stat = unsafe { &mut *out };
        let by_fd = if text.is_empty() { node_behind(folder) } else { None };
        if let Some(node) = by_fd.or_else(|| node_of(stat)) {
            disguise(stat, node);
        }
    }
    raw::answer(result) as c_int
}

fn stat_fd(fd: c_int, out: *mut libc::stat) -> c_int {
    // SAFETY: the kernel checks the address of the struct, which is libc's on 64-bit Linux.
    let result = unsafe { raw::syscall(libc::SYS_fstat, [fd as usize, out as usize, 0, 0, 0, 0]) };
    if result == 0 {
        // SAFETY: the kernel has just filled it.
        let stat = unsafe { &mut *out };
        if let Some(node) = node_behind(fd).or_else(|| node_of(stat)) {
            disguise(stat, node);
        }
    }
    raw::answer(result) as c_int
}

macro_rules! hook_stat {
    ($($name:ident($($argument:ident: $type:ty),*) = $body:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            $body
        }
    )*};
}

const HERE: c_int = libc::AT_FDCWD;
const LINK: c_int = libc::AT_SYMLINK_NOFOLLOW;

hook_stat! {
    stat(path: *const c_char, out: *mut libc::stat) = stat_at(HERE, path, out, 0);
    stat64(path: *const c_char, out: *mut libc::stat) = stat_at(HERE, path, out, 0);
    lstat(path: *const c_char, out: *mut libc::stat) = stat_at(HERE, path, out, LINK);
    lstat64(path: *const c_char, out: *mut libc::stat) = stat_at(HERE, path, out, LINK);
    fstat(fd: c_int, out: *mut libc::stat) = stat_fd(fd, out);
    fstat64(fd: c_int, out: *mut libc::stat) = stat_fd(fd, out);
    fstatat(folder: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int)
        = stat_at(folder, path, out, flags);
    fstatat64(folder: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int)
        = stat_at(folder, path, out, flags);
    __xstat(_version: c_int, path: *const c_char, out: *mut libc::stat) = stat_at(HERE, path, out, 0);
    __xstat64(_version: c_int, path: *const c_char, out: *mut libc::stat) = stat_at(HERE, path, out, 0);
    __lxstat(_version: c_int, path: *const c_char, out: *mut libc::stat) = stat_at(HERE, path, out, LINK);
    __lxstat64(_version: c_int, path: *const c_char, out: *mut libc::stat) = stat_at(HERE, path, out, LINK);
    __fxstat(_version: c_int, fd: c_int, out: *mut libc::stat) = stat_fd(fd, out);
    __fxstat64(_version: c_int, fd: c_int, out: *mut libc::stat) = stat_fd(fd, out);
    __fxstatat(_version: c_int, folder: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int)
        = stat_at(folder, path, out, flags);
    __fxstatat64(_version: c_int, folder: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int)
        = stat_at(folder, path, out, flags);
    access(path: *const c_char, mode: c_int) = access_at(HERE, path, mode, 0);
    euidaccess(path: *const c_char, mode: c_int) = access_at(HERE, path, mode, libc::AT_EACCESS);
    eaccess(path: *const c_char, mode: c_int) = access_at(HERE, path, mode, libc::AT_EACCESS);
    faccessat(folder: c_int, path: *const c_char, mode: c_int, flags: c_int)
        = access_at(folder, path, mode, flags);
}

fn access_at(folder: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    let text = match c_string(path) {
        Ok(text) => text,
        Err(errno) => return answer(Err(errno)) as c_int,
    };
    let place = place_of(folder, text);
    let real = place.as_deref().unwrap_or(text).as_ptr() as usize;
    let short = [folder as usize, real, mode as usize, 0, 0, 0];
    // SAFETY: a terminated string; nothing is written.
    let result = unsafe {
        if flags == 0 {
            raw::syscall(libc::SYS_faccessat, short)
        } else {
            raw::syscall(libc::SYS_faccessat2, [folder as usize, real, mode as usize, flags as usize, 0, 0])
        }
    };
    raw::answer(result) as c_int
}

/// `statx` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    out: *mut libc::statx,
) -> c_int {
    // A null path is allowed: it means the fd.
    let text = c_string(path).unwrap_or(c"");
    let place = place_of(folder, text);
    let real = place.as_ref().map_or(path, |place| place.as_ptr()) as usize;
    let arguments = [folder as usize, real, flags as usize, mask as usize, out as usize, 0];
    // SAFETY: a terminated string or null; the kernel checks the address of the struct.
    let result = unsafe { raw::syscall(libc::SYS_statx, arguments) };
    if result == 0 {
        let by_fd = if text.is_empty() { node_behind(folder) } else { None };
        // SAFETY: the kernel has just filled it.
        let filled = unsafe { &mut *out };
        // SAFETY: an all-zero `stat` is a valid value.
        let mut identity: libc::stat = unsafe { std::mem::zeroed() };
        identity.st_dev = libc::makedev(filled.stx_dev_major, filled.stx_dev_minor);
        identity.st_ino = filled.stx_ino;
        if let Some(node) = by_fd.or_else(|| node_of(&identity)) {
            filled.stx_mode = NODE_MODE as u16;
            (filled.stx_rdev_major, filled.stx_rdev_minor) = node.number;
            (filled.stx_size, filled.stx_blocks) = (0, 0);
        }
    }
    raw::answer(result) as c_int
}

fn readlink_at(folder: c_int, path: *const c_char, out: *mut c_char, room: usize) -> isize {
    let text = match c_string(path) {
        Ok(text) => text,
        Err(errno) => return answer(Err(errno)),
    };
    if let Some(shown) = link_of_fd(text) {
        let count = shown.len().min(room);
        return answer(raw::copy_out(&shown.as_bytes()[..count], out as usize).map(|()| count));
    }
    let place = place_of(folder, text);
    let real = place.as_deref().unwrap_or(text).as_ptr() as usize;
    // SAFETY: a terminated string; the kernel checks the address of the result.
    raw::answer(unsafe {
        raw::syscall(libc::SYS_readlinkat, [folder as usize, real, out as usize, room, 0, 0])
    })
}

/// What `/proc/self/fd/N` leads to when N is a device.
fn link_of_fd(path: &CStr) -> Option<&'static str> {
    let fd = path.to_str().ok()?.strip_prefix("/proc/self/fd/")?.parse().ok()?;
    node_behind(fd).map(|node| node.path)
}

/// `readlink` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn readlink(path: *const c_char, out: *mut c_char, room: usize) -> isize {
    readlink_at(HERE, path, out, room)
}

/// `readlinkat` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn readlinkat(
    folder: c_int,
    path: *const c_char,
    out: *mut c_char,
    room: usize,
) -> isize {
    readlink_at(folder, path, out, room)
}

/// `__readlink_chk` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    out: *mut c_char,
    room: usize,
    _known: usize,
) -> isize {
    readlink_at(HERE, path, out, room)
}

/// `realpath` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn realpath(path: *const c_char, out: *mut c_char) -> *mut c_char {
    let place = c_string(path).ok().and_then(|text| place_of(HERE, text));
    let real = place.as_ref().map_or(path, |place| place.as_ptr());
    // SAFETY: the caller's promise; a replaced path is a terminated string too.
    let found = unsafe { next!(c"realpath", fn(*const c_char, *mut c_char) -> *mut c_char)(real, out) };
    if place.is_some() && !found.is_null() {
        // SAFETY: libc has written a terminated string there, and what replaces it is its own end.
        unsafe { cut_root(found) };
    }
    found
}

/// Takes the board's folder off a path, in place.
///
/// # Safety
/// `path` must be a terminated string that may be written.
unsafe fn cut_root(path: *mut c_char) {
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let Some(shown) = known().and_then(|world| world.machine.as_ref()?.shown(bytes)) else { return };
    let (from, count) = (bytes.len() - shown.len(), shown.len() + 1);
    // SAFETY: the end of the string with its NUL moves to its start.
    unsafe { std::ptr::copy(path.add(from), path, count) };
}

/// `__realpath_chk` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    out: *mut c_char,
    _known: usize,
) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe { realpath(path, out) }
}

/// `canonicalize_file_name` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    if path.is_null() {
        raw::set_errno(Errno::EINVAL);
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

macro_rules! hook_xattr {
    ($($name:ident($number:expr; $($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(path: *const c_char, $($argument: $type),*) -> isize {
            let place = c_string(path).ok().and_then(|text| place_of(HERE, text));
            let real = place.as_ref().map_or(path, |place| place.as_ptr());
            let mut arguments = [real as usize, 0, 0, 0, 0, 0];
            arguments[1..].iter_mut().zip([$($argument as usize),*]).for_each(|(slot, value)| *slot = value);
            // SAFETY: a terminated string; the kernel checks the other addresses.
            raw::answer(unsafe { raw::syscall($number, arguments) })
        }
    )*};
}

hook_xattr! {
    getxattr(libc::SYS_getxattr; name: *const c_char, value: *mut c_void, len: usize);
    lgetxattr(libc::SYS_lgetxattr; name: *const c_char, value: *mut c_void, len: usize);
    listxattr(libc::SYS_listxattr; list: *mut c_char, len: usize);
    llistxattr(libc::SYS_llistxattr; list: *mut c_char, len: usize);
}
