// SPDX-License-Identifier: MIT OR Apache-2.0
use std::path::PathBuf;

use ork_emu::EmuOptions;
use serde::{Deserialize, Serialize};

use crate::counters::CORES_MAX;
use crate::kernel::DriverKind;
use crate::recovery::RecoveryMode;

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
    /// How long to wait for another program that has the device, in milliseconds.
    pub lock_wait_ms: u32,
    /// Folder of the lock file that all users of an NPU share, whatever node they open; a boot should empty it.
    pub lock_dir: PathBuf,
    /// Cores to use, 1 to 3: the first so many.
    pub cores: u8,
    /// How jobs are submitted and waited for.
    pub submit: SubmitMode,
    /// Whether a job that fails is tried again.
    pub recovery: RecoveryMode,
    /// Address spaces to put weights in; 0 for all that the driver has.
    pub domains: u8,
    /// Most bytes of weights in one address space. The rest of its 4 GiB is for activations, results, programs.
    pub domain_bytes_max: u64,
    /// Whether activations and results may lie in on-chip memory.
    pub sram: SramUse,
    /// Driver that the emulated board has.
    pub emulated_driver: DriverKind,
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
            lock_wait_ms: 0,
            lock_dir: PathBuf::from("/run/lock"),
            cores: CORES_MAX as u8,
            submit: SubmitMode::Auto,
            recovery: RecoveryMode::Auto,
            domains: 0,
            domain_bytes_max: 3 << 30,
            sram: SramUse::Off,
            emulated_driver: DriverKind::Rknpu,
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
    /// A real device with the mainline `rocket` driver.
    Rocket,
}

/// How jobs are submitted and waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubmitMode {
    /// By a call that waits, where the driver has one; else by asking for the output.
    #[default]
    Auto,
    /// By a call that waits.
    Blocking,
    /// Left alone, with a look at the output now and then.
    Polled,
    /// Left alone, and waited for by a fence.
    Fenced,
}

/// Whether on-chip memory is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SramUse {
    /// No.
    #[default]
    Off,
    /// Activations and results go there as far as they fit; a device without any is refused.
    Scratch,
}
