// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libork_shim.so`: preloaded into an unmodified program (`LD_PRELOAD`), it makes the program see an emulated board,
//! or records what the program says to a real one.
//!
//! - `hooks` are the functions that stand before libc's: files, fds, mappings, ioctls;
//! - `tree` is the folder that stands for `/dev/dri`, `/proc/device-tree`, `/sys/class/...` of the board; paths under
//!   those names lead there, so that what the host has is hidden;
//! - `device` are open device files: the emulated kernel of `ork-emu`, or a real node beside an `ork-trace`
//!   recorder;
//! - `fds` and `maps` know which descriptors and which ranges of the address space belong to them;
//! - `guard` keeps calls from inside apart, and forks safe.
//!
//! After `fork`, a board stays with the process that has opened it, where the threads are that run its jobs. A child
//! keeps its mappings; on the files that it has inherited every call is answered with `ENODEV`. When it opens the device
//! anew, it gets a board of its own. So nothing of the parent's board, which its threads may have left locked, is
//! touched in the child. A program started by `exec` is in the same position.
//!
//! The library reads one environment variable, `ORK_SHIM`, which `ork emulate` and `ork capture` set.
#![cfg_attr(
    test,
    expect(dead_code, reason = "tests run without the hooks, which would replace libc's functions")
)]

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("written for glibc on x86-64 and arm64 Linux");

mod board;
mod chip;
mod device;
mod fds;
mod guard;
#[cfg(not(test))]
mod hooks;
#[cfg(not(test))]
mod inherited;
mod maps;
mod path;
mod raw;
mod settings;
mod tree;

use std::cell::Cell;

thread_local! {
    /// What a forking thread holds.
    static HELD: Cell<Option<device::MapsGuard>> = const { Cell::new(None) };
}

/// No thread is inside. What can be locked outside is held through the fork.
fn lock_for_fork() {
    HELD.set(Some(device::MAPS.lock()));
}

fn unlock_after_fork() {
    HELD.set(None);
}

fn after_fork_in_child() {
    device::after_fork_in_child();
    board::after_fork_in_child();
}
