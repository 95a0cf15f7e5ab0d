// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that this program has from the one before `exec`.
//!
//! Their placeholders are ordinary memory files to the kernel, on which mappings would succeed and calls would fail in a
//! way that no device knows. So they are looked for once, when the library is loaded.

use std::ffi::c_int;
use std::panic::catch_unwind;

use crate::{board, device, guard, tree};

/// How the kernel shows a memory file.
const SHOWN: &str = "/memfd:";

/// Enters them. Their board has gone with the program before, so that calls are answered with `ENODEV`.
fn adopt() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    for entry in entries.flatten() {
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<c_int>().ok()) else {
            continue;
        };
        let Ok(link) = std::fs::read_link(entry.path()) else { continue };
        let Some(name) = link.to_str().and_then(|shown| shown.strip_prefix(SHOWN)) else { continue };
        let name = name.trim_end_matches(" (deleted)");
        let node = tree::node_of_placeholder(name);
        if node.is_some() || name.as_bytes() == ork_emu::MEMORY_FILE_NAME.to_bytes() {
            // Calls are only looked at when there is a world.
            board::world();
            device::adopt(fd, node);
        }
    }
}

extern "C" fn on_load() {
    let Some(_inside) = guard::enter() else { return };
    // Nothing may leave through here.
    let _ = catch_unwind(adopt);
}

/// Called by the loader, before the program starts.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;
