// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is inside this library, and what happens to it when the process forks.
//!
//! Two rules keep it free of deadlocks:
//!
//! - A call that comes from inside ([`enter`] gives nothing) goes straight to the kernel. So the emulated board and
//!   the standard library may open, map and close as they like.
//! - A fork waits until no thread is inside. So the child finds no lock held by a thread that it does not have.
//!
//! Calls that have nothing to do with an emulated device must not get this far: they are told apart without a lock
//! that could be held for long.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};

use crate::raw;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Threads that are inside.
static THREADS: AtomicU32 = AtomicU32::new(0);
/// A fork is under way.
static FORKING: AtomicBool = AtomicBool::new(false);
/// The process that the state of this library belongs to; 0 before there is any.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The calling thread is inside until this is dropped.
pub(crate) struct Inside(());

impl Drop for Inside {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, SeqCst);
        INSIDE.set(false);
    }
}

/// Whether the calling thread is inside.
pub(crate) fn is_inside() -> bool {
    // During the end of a thread there may be no such variable any more: then nothing of ours runs.
    INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// Enters, unless the calling thread is inside already.
pub(crate) fn enter() -> Option<Inside> {
    if is_inside() {
        return None;
    }
    loop {
        while FORKING.load(SeqCst) {
            std::thread::yield_now();
        }
        THREADS.fetch_add(1, SeqCst);
        if !FORKING.load(SeqCst) {
            break;
        }
        THREADS.fetch_sub(1, SeqCst);
    }
    INSIDE.set(true);
    Some(Inside(()))
}

/// Whether this is the process that the state belongs to. It is not between `vfork` and `exec`: that child shares
/// our memory, but not our fds, and must not touch any state.
pub(crate) fn owns_state() -> bool {
    PROCESS.load(SeqCst) == raw::process()
}

/// Registers what has to happen around a fork. Called once, when there is state to protect.
pub(crate) fn watch_forks() {
    PROCESS.store(raw::process(), SeqCst);
    // SAFETY: the three functions live as long as this library, which is never unloaded.
    let status = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    debug_assert_eq!(status, 0, "no memory for three function pointers");
}

extern "C" fn before() {
    while FORKING.swap(true, SeqCst) {
        std::thread::yield_now();
    }
    while THREADS.load(SeqCst) != 0 {
        std::thread::yield_now();
    }
    crate::lock_for_fork();
}

extern "C" fn in_parent() {
    crate::unlock_after_fork();
    FORKING.store(false, SeqCst);
}

extern "C" fn in_child() {
    crate::unlock_after_fork();
    PROCESS.store(raw::process(), SeqCst);
    FORKING.store(false, SeqCst);
    crate::after_fork_in_child();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_once() {
        let inside = enter();
        assert!(inside.is_some() && is_inside());
        assert!(enter().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(enter().is_some(), "other threads enter beside it"));
        });
        drop(inside);
        assert!(!is_inside());
    }
}
