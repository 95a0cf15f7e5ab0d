// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libggml-ork.so`: the NPU for an unmodified llama.cpp that was built with dynamic backends.
//!
//! The host loads the library and calls [`ggml_backend_score`], then [`ggml_backend_init`]. The functions of its ggml
//! are looked up by name in the running process (`host`): nothing is linked, so that one file serves every program
//! with that ggml, however its libraries are called. Settings are those of `ork`, from the same files and environment
//! variables (`ork-config`). The NPU is opened when the first model asks for it.
//!
//! What goes wrong is printed to standard error, and the host goes on without the NPU.

mod host;
mod report;
mod start;

use std::panic::catch_unwind;
use std::ptr::null_mut;

use ork_ggml::abi;

/// ggml's first question: how well does this backend suit the machine? 0 means not at all.
#[unsafe(no_mangle)]
pub extern "C" fn ggml_backend_score() -> libc::c_int {
    catch_unwind(start::score).unwrap_or(0)
}

/// ggml's second question: the backend's registration. Null, after a line that says why, if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn ggml_backend_init() -> *mut abi::Reg {
    match catch_unwind(start::registration) {
        Ok(Ok(registration)) => registration,
        Ok(Err(error)) => {
            report::complain(error);
            null_mut()
        }
        Err(_) => {
            report::complain(&start::StartError::Panic);
            null_mut()
        }
    }
}
