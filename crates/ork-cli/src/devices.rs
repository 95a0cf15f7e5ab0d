// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork devices`.

use std::fmt::Write;

use ork_device::{Device, enumerate};

use crate::failure::{Failure, print};
use crate::flags::Settings;

pub(crate) fn run(settings: &Settings) -> Result<(), Failure> {
    let config = settings.config()?;
    let found = enumerate(&config.device);
    let mut text = String::new();
    for one in &found {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{one}");
        if let Some(hint) = one.hint() {
            let _ = writeln!(text, "    hint: {hint}");
        }
    }
    if found.is_empty() {
        let _ = writeln!(text, "{}: no device node of an NPU", config.device.dev_root.display());
    }
    match Device::open(&config.device) {
        Ok(device) => {
            let _ = writeln!(text, "used by ork: {}", device.describe());
            print(&text)
        }
        Err(error) => {
            print(&text)?;
            Err(error.into())
        }
    }
}
