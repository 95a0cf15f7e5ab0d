// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model file in another of llama.cpp's types, by the linked llama.cpp: files to compare with, without its tools.
//!
//! `cargo run --release -p ork-engine --example requantise -- MODEL.gguf F16|Q8_0|Q4_K_M|Q4_0 OUT.gguf`
//!
//! The types are llama.cpp's file types; without an importance matrix, as its own tool does by default. The output is
//! written to `OUT.gguf.part` and renamed.

#![allow(clippy::print_stdout, reason = "an example for the terminal")]

use llama_cpp_sys_2 as sys;
use std::error::Error;
use std::ffi::CString;

fn main() -> Result<(), Box<dyn Error>> {
    const USAGE: &str = "usage: requantise MODEL.gguf F16|Q8_0|Q4_K_M|Q4_0 OUT.gguf";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, type_name, out] = arguments.as_slice() else { return Err(USAGE.into()) };
    let file_type = match type_name.as_str() {
        "F16" => sys::LLAMA_FTYPE_MOSTLY_F16,
        "Q8_0" => sys::LLAMA_FTYPE_MOSTLY_Q8_0,
        "Q4_K_M" => sys::LLAMA_FTYPE_MOSTLY_Q4_K_M,
        "Q4_0" => sys::LLAMA_FTYPE_MOSTLY_Q4_0,
        _ => return Err(USAGE.into()),
    };
    let part = format!("{out}.part");
    let (from, to) = (CString::new(model.as_str())?, CString::new(part.as_str())?);
    // SAFETY: no arguments.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.ftype = file_type;
    params.allow_requantize = true;
    params.nthread = i32::try_from(std::thread::available_parallelism()?.get())?;
    // SAFETY: both names are NUL-terminated, and the parameters are plain values.
    let status = unsafe { sys::llama_model_quantize(from.as_ptr(), to.as_ptr(), &raw const params) };
    if status != 0 {
        return Err(format!("llama.cpp could not write {type_name} of {model} (status {status})").into());
    }
    std::fs::rename(&part, out)?;
    println!("{out}: {} bytes", std::fs::metadata(out)?.len());
    Ok(())
}
