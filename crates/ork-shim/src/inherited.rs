// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that this program has from another one: from the one before `exec`, or through a socket.
//!
//! Their placeholders are ordinary memory files to the kernel, on which mappings would succeed and calls would fail in a
//! way that no device knows. So they are looked for when the library is loaded, and when descriptors arrive.

use std::ffi::c_int;
use std::panic::catch_unwind;

use crate::{board, device, guard, tree};

/// How the kernel shows a memory file.
const SHOWN: &str = "/memfd:";

/// Enters an fd if it is one. Its board is in another process or has gone with it, so that calls are answered with
/// `ENODEV`.
pub(crate) fn adopt(fd: c_int) {
    let Ok(link) = std::fs::read_link(format!("/proc/self/fd/{fd}")) else { return };
    let Some(name) = link.to_str().and_then(|shown| shown.strip_prefix(SHOWN)) else { return };
    let name = name.trim_end_matches(" (deleted)");
    let node = tree::node_of_placeholder(name);
    if node.is_some() || name.as_bytes() == ork_emu::MEMORY_FILE_NAME.to_bytes() {
        // Calls are only looked at when there is a world.
        board::world();
        device::enter_boardless(fd, node);
    }
}

fn adopt_all() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<c_int>().ok();
    entries.flatten().filter_map(number).for_each(adopt);
}

extern "C" fn on_load() {
    let Some(_inside) = guard::enter() else { return };
    // Nothing may leave through here.
    let _ = catch_unwind(adopt_all);
}

/// Called by the loader, before the program starts.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;
