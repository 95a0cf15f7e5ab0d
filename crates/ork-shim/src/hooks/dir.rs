// SPDX-License-Identifier: MIT OR Apache-2.0
//! Folders: `opendir`, `readdir`, `scandir`, `glob`.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::{DIR, dirent};

use super::next;
use super::stat::place_of;
use crate::board::{c_string, known};

/// `opendir` of libc.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    let place = c_string(path).ok().and_then(|text| place_of(libc::AT_FDCWD, text));
    let real = place.as_ref().map_or(path, |place| place.as_ptr());
    // SAFETY: the caller's promise; a replaced path is a terminated string too.
    unsafe { next!(c"opendir", fn(*const c_char) -> *mut DIR)(real) }
}

/// Entries that stand for nodes say so.
unsafe fn disguise(entry: *mut dirent) -> *mut dirent {
    let Some(machine) = known().and_then(|world| world.machine.as_ref()) else { return entry };
    if entry.is_null() {
        return entry;
    }
    // SAFETY: libc has given a live entry with a terminated name.
    let (inode, name) = unsafe { ((*entry).d_ino, CStr::from_ptr((*entry).d_name.as_ptr())) };
    if machine.is_node_entry(inode, name) {
        // SAFETY: as above; the entry is the caller's until its next call.
        unsafe { (*entry).d_type = libc::DT_CHR };
    }
    entry
}

macro_rules! hook_readdir {
    ($($name:ident $symbol:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(folder: *mut DIR) -> *mut dirent {
            // SAFETY: the caller's promise, and then libc's own entry.
            unsafe { disguise(next!($symbol, fn(*mut DIR) -> *mut dirent)(folder)) }
        }
    )*};
}

hook_readdir! {
    readdir c"readdir";
    readdir64 c"readdir64";
}

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Order = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

macro_rules! hook_scandir {
    ($($name:ident $symbol:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(
            path: *const c_char,
            list: *mut *mut *mut dirent,
            filter: Filter,
            order: Order,
        ) -> c_int {
            let place = c_string(path).ok().and_then(|text| place_of(libc::AT_FDCWD, text));
            let real = place.as_ref().map_or(path, |place| place.as_ptr());
            // SAFETY: the type of libc's function.
            let next = unsafe {
                next!($symbol, fn(*const c_char, *mut *mut *mut dirent, Filter, Order) -> c_int)
            };
            // SAFETY: the caller's promise; a replaced path is a terminated string too.
            let count = unsafe { next(real, list, filter, order) };
            if place.is_some() {
                for index in 0..usize::try_from(count).unwrap_or(0) {
                    // SAFETY: libc has made a list of `count` entries.
                    unsafe { disguise(*(*list).add(index)) };
                }
            }
            count
        }
    )*};
}

hook_scandir! {
    scandir c"scandir";
    scandir64 c"scandir64";
}

/// `glob_t` of glibc, with the functions that a caller may bring.
#[repr(C)]
pub(super) struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    closedir: Option<unsafe extern "C" fn(*mut c_void)>,
    readdir: Option<unsafe extern "C" fn(*mut c_void) -> *mut dirent>,
    opendir: Option<unsafe extern "C" fn(*const c_char) -> *mut c_void>,
    lstat: Option<unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int>,
    stat: Option<unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int>,
}

/// The caller brings its own functions.
const GLOB_ALTDIRFUNC: c_int = 1 << 9;

unsafe extern "C" fn glob_opendir(path: *const c_char) -> *mut c_void {
    // SAFETY: glob gives a terminated string.
    unsafe { opendir(path).cast() }
}

unsafe extern "C" fn glob_readdir(folder: *mut c_void) -> *mut dirent {
    // SAFETY: glob gives what `glob_opendir` has returned.
    unsafe { readdir(folder.cast()) }
}

unsafe extern "C" fn glob_closedir(folder: *mut c_void) {
    // SAFETY: glob gives what `glob_opendir` has returned, once.
    unsafe { libc::closedir(folder.cast()) };
}

unsafe extern "C" fn glob_stat(path: *const c_char, out: *mut c_void) -> c_int {
    // SAFETY: glob gives a terminated string and room for a `stat`.
    unsafe { super::stat::stat(path, out.cast()) }
}

unsafe extern "C" fn glob_lstat(path: *const c_char, out: *mut c_void) -> c_int {
    // SAFETY: glob gives a terminated string and room for a `stat`.
    unsafe { super::stat::lstat(path, out.cast()) }
}

type OnError = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

macro_rules! hook_glob {
    ($($name:ident $symbol:literal;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc, with our functions where the caller brings none.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(
            pattern: *const c_char,
            flags: c_int,
            on_error: OnError,
            out: *mut Glob,
        ) -> c_int {
            // SAFETY: the type of libc's function.
            let next = unsafe { next!($symbol, fn(*const c_char, c_int, OnError, *mut Glob) -> c_int) };
            if flags & GLOB_ALTDIRFUNC != 0 || out.is_null() {
                // SAFETY: the caller's promise.
                return unsafe { next(pattern, flags, on_error, out) };
            }
            // SAFETY: the caller's struct has room for the functions, which glibc reads with the flag only.
            unsafe {
                (*out).closedir = Some(glob_closedir);
                (*out).readdir = Some(glob_readdir);
                (*out).opendir = Some(glob_opendir);
                (*out).lstat = Some(glob_lstat);
                (*out).stat = Some(glob_stat);
                let result = next(pattern, flags | GLOB_ALTDIRFUNC, on_error, out);
                (*out).flags &= !GLOB_ALTDIRFUNC;
                result
            }
        }
    )*};
}

hook_glob! {
    glob c"glob";
    glob64 c"glob64";
}
