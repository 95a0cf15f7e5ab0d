// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library must stay mapped once it is loaded: its threads outlive a host's `dlclose`, and ggml keeps pointers to
//! its tables for ever.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
