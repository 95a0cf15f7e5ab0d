// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that stand before libc's.
//!
//! Each looks first, without a lock, whether the call could be about a device; if not, it does what libc does.
//! Functions that take a variable number of arguments in C are declared with all that they can have: on both
//! architectures those arrive in the same registers.

mod dir;
mod fd;
mod ioctl;
mod memory;
mod open;
mod socket;
mod stat;

use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ork_drm::Errno;

use crate::board::complain;
use crate::{guard, raw};

/// What a call about the board has come to; `None`: it was not about the board.
type Outcome<R> = Option<Result<R, Errno>>;

/// Runs the part of a call that needs the state of this library. A call from inside has none.
fn inside<R>(body: impl FnOnce() -> Outcome<R>) -> Outcome<R> {
    let entered = guard::enter()?;
    let errno = raw::errno();
    // The state is guarded by locks whose poison is ignored: each change of it is complete in itself.
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        complain("a bug in libork_shim.so; the call fails with EIO");
        Some(Err(Errno::EIO))
    });
    raw::set_errno(errno);
    drop(entered);
    outcome
}

/// The same for functions that give -1 on failure.
fn answer(outcome: Result<usize, Errno>) -> isize {
    match outcome {
        Ok(value) => value as isize,
        Err(errno) => {
            raw::set_errno(errno);
            -1
        }
    }
}

/// The function that the program would have got without this library.
struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicUsize::new(0) }
    }

    /// Its address; the process ends if there is none, because then libc itself is missing.
    fn get(&self) -> *const c_void {
        let known = self.address.load(Relaxed);
        if known != 0 {
            return std::ptr::with_exposed_provenance(known);
        }
        // SAFETY: a terminated string; dlsym finds symbols of libraries behind this one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            complain("a function of libc is missing");
            std::process::abort();
        }
        self.address.store(found.expose_provenance(), Relaxed);
        found
    }
}

/// The next function of a name, as a pointer of its C type. Its unsafe part is that libc's function must have it:
/// `next!(c"fopen", fn(*const c_char, *const c_char) -> *mut FILE)(path, mode)`.
macro_rules! next {
    ($name:literal, fn($($argument:ty),*) -> $result:ty) => {{
        static NEXT: $crate::hooks::Next = $crate::hooks::Next::new($name);
        std::mem::transmute::<*const std::ffi::c_void, unsafe extern "C" fn($($argument),*) -> $result>(NEXT.get())
    }};
}
use next;
