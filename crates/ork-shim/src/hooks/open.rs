// SPDX-License-Identifier: MIT OR Apache-2.0
//! `open` and its relatives.

use std::ffi::{CStr, c_char, c_int};

use libc::FILE;
use ork_drm::Errno;

use super::{Outcome, answer, inside, next};
use crate::board::{c_string, known, world};
use crate::device;
use crate::fds;
use crate::path::{self, Place};
use crate::{guard, raw};

/// Opens a path of the board; `None` for other paths. The caller is inside.
pub(super) fn open_inside(folder: c_int, path: &CStr, flags: c_int, mode: u32) -> Outcome<usize> {
    let world = world();
    let Some(machine) = &world.machine else {
        if !world.records() {
            return None;
        }
        let answer = raw::result(raw::openat(folder, path, flags, mode));
        if let Ok(fd) = answer {
            device::opened_real(world, fd as c_int, path);
        }
        return Some(answer);
    };
    let place = machine.place(folder, path)?;
    let fd = match raw::result(raw::openat(folder, &place, flags, mode)) {
        Ok(fd) => fd as c_int,
        Err(errno) => return Some(Err(errno)),
    };
    let node = raw::fstat(fd).ok().and_then(|stat| machine.node(&stat));
    match node {
        Some(node) if flags & libc::O_PATH == 0 => {
            raw::close(fd);
            Some(device::open_node(world, node, flags & libc::O_CLOEXEC != 0).map(|fd| fd as usize))
        }
        _ => Some(Ok(fd as usize)),
    }
}

/// Whether a path needs a closer look.
pub(super) fn is_interesting(folder: c_int, path: &CStr) -> bool {
    let bytes = path.to_bytes();
    match bytes.first() {
        Some(b'/') => path::place(bytes) != Place::Host,
        // Relative to a folder that may be the board's, if the board has shown one.
        Some(_) => folder != libc::AT_FDCWD && known().is_some(),
        None => false,
    }
}

/// A number that the kernel gave to something else: whatever we knew of it is over.
fn taken(fd: isize) {
    if let Ok(fd) = c_int::try_from(fd)
        && fds::maybe(fd)
        && guard::owns_state()
    {
        _ = inside(|| -> Outcome<usize> {
            // Looking it up notices that it means another file.
            drop(device::FDS.get(fd));
            None
        });
    }
}

pub(super) fn open_at(folder: c_int, path: *const c_char, flags: c_int, mode: u32) -> c_int {
    let text = match c_string(path) {
        Ok(text) => text,
        Err(errno) => return answer(Err(errno)) as c_int,
    };
    if !guard::is_inside()
        && is_interesting(folder, text)
        && let Some(outcome) = inside(|| open_inside(folder, text, flags, mode))
    {
        return answer(outcome) as c_int;
    }
    let fd = raw::answer(raw::openat(folder, text, flags, mode));
    taken(fd);
    fd as c_int
}

macro_rules! hook_open {
    ($($name:ident($($argument:ident: $type:ty),*) = ($folder:expr, $path:expr, $flags:expr, $mode:expr);)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            open_at($folder, $path, $flags, $mode)
        }
    )*};
}

const CREATE: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

hook_open! {
    open(path: *const c_char, flags: c_int, mode: u32) = (libc::AT_FDCWD, path, flags, mode);
    open64(path: *const c_char, flags: c_int, mode: u32) = (libc::AT_FDCWD, path, flags, mode);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: u32) = (folder, path, flags, mode);
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: u32) = (folder, path, flags, mode);
    __open_2(path: *const c_char, flags: c_int) = (libc::AT_FDCWD, path, flags, 0);
    __open64_2(path: *const c_char, flags: c_int) = (libc::AT_FDCWD, path, flags, 0);
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) = (folder, path, flags, 0);
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) = (folder, path, flags, 0);
    creat(path: *const c_char, mode: u32) = (libc::AT_FDCWD, path, CREATE, mode);
    creat64(path: *const c_char, mode: u32) = (libc::AT_FDCWD, path, CREATE, mode);
}

/// `open` flags of an `fopen` mode.
fn flags_of(mode: &CStr) -> c_int {
    let text = mode.to_bytes();
    let access = if text.contains(&b'+') {
        libc::O_RDWR
    } else if text.first() == Some(&b'r') {
        libc::O_RDONLY
    } else {
        libc::O_WRONLY
    };
    let more = match text.first() {
        Some(b'w') => libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => libc::O_CREAT | libc::O_APPEND,
        _ => 0,
    };
    let cloexec = if text.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    access | more | cloexec
}

/// Opens a stream on a path of the board.
fn stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    let (Ok(text), Ok(mode_text)) = (c_string(path), c_string(mode)) else { return None };
    if guard::is_inside() || !is_interesting(libc::AT_FDCWD, text) {
        return None;
    }
    let fd = match inside(|| open_inside(libc::AT_FDCWD, text, flags_of(mode_text), 0o666))? {
        Ok(fd) => fd as c_int,
        Err(errno) => {
            raw::set_errno(errno);
            return Some(std::ptr::null_mut());
        }
    };
    // SAFETY: an fd that nobody else knows, and the program's own mode.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.is_null() {
        // SAFETY: the fd was opened above.
        unsafe { libc::close(fd) };
    }
    Some(stream)
}

/// `fopen` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    stream(path, mode).unwrap_or_else(|| {
        // SAFETY: the caller's promise.
        unsafe { next!(c"fopen", fn(*const c_char, *const c_char) -> *mut FILE)(path, mode) }
    })
}

/// `fopen64` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    stream(path, mode).unwrap_or_else(|| {
        // SAFETY: the caller's promise.
        unsafe { next!(c"fopen64", fn(*const c_char, *const c_char) -> *mut FILE)(path, mode) }
    })
}

/// The path that `freopen` has to be given.
fn reopen(path: *const c_char) -> Result<Option<std::ffi::CString>, Errno> {
    if path.is_null() {
        return Ok(None);
    }
    let text = c_string(path)?;
    if guard::is_inside() || !is_interesting(libc::AT_FDCWD, text) {
        return Ok(None);
    }
    let mut place = None;
    _ = inside(|| -> Outcome<usize> {
        place = world().machine.as_ref().and_then(|machine| machine.place(libc::AT_FDCWD, text));
        None
    });
    Ok(place)
}

macro_rules! hook_freopen {
    ($($name:ident $symbol:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc; a stream on a device node is not possible here.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
            let place = reopen(path).unwrap_or(None);
            let path = place.as_ref().map_or(path, |place| place.as_ptr());
            // SAFETY: the caller's promise; a replaced path is a terminated string too.
            unsafe { next!($symbol, fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE)(path, mode, stream) }
        }
    )*};
}

hook_freopen! {
    freopen c"freopen";
    freopen64 c"freopen64";
}
