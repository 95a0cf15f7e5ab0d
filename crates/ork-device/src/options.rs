// SPDX-License-Identifier: MIT OR Apache-2.0
use std::path::PathBuf;

use ork_emu::EmuOptions;
use serde::{Deserialize, Serialize};

use crate::counters::CORES_MAX;

/// Which device to open, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceOptions {
    /// Kind of device.
    pub kind: DeviceKind,
    /// Device node to use instead of searching; may be a symbolic link. The driver behind it is checked.
    pub node: Option<PathBuf>,
    /// Where device nodes are searched.
    pub dev_root: PathBuf,
    /// Longest time a job may take, in milliseconds; at least 1. The kernel can wait three times as long when jobs
    /// of others are queued on the core.
    pub timeout_ms: u32,
    /// Take the advisory lock of the real device, so that a second program fails clearly instead of disturbing the
    /// first.
    pub exclusive: bool,
    /// Cores to use, 1 to 3: the first so many.
    pub cores: u8,
    /// The emulated board, when one is used.
    pub emulated: EmuOptions,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            kind: DeviceKind::Auto,
            node: None,
            dev_root: PathBuf::from("/dev"),
            timeout_ms: 6000,
            exclusive: true,
            cores: CORES_MAX as u8,
            emulated: EmuOptions::default(),
        }
    }
}

/// Kind of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The first usable real device, else the emulated one.
    #[default]
    Auto,
    /// The emulated board.
    Sim,
    /// A real device with the vendor's `rknpu` driver.
    Rknpu,
}
