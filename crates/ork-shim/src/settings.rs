// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `ork emulate` and `ork capture` tell the preloaded library: one JSON object in one environment variable.
//!
//! The command and the library compile this same file, because the library's crate cannot be linked into the
//! command: it would replace the command's own `open`.

use std::path::PathBuf;

use ork_emu::{Coherency, EmuOptions};
use serde::{Deserialize, Serialize};

/// The environment variable.
pub(crate) const VARIABLE: &str = "ORK_SHIM";

/// Everything that the library can be told. Without the variable: [`Settings::default`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The board that the program sees; without one, it sees the machine as it is.
    pub(crate) emulate: Option<Emulation>,
    /// File for a trace of what the program says to the NPU driver.
    pub(crate) capture: Option<PathBuf>,
    /// File to which findings and times are appended, one JSON object a line.
    pub(crate) report: Option<PathBuf>,
    /// Folder for the board's files; somebody else makes and removes it. Without it the library makes its own.
    pub(crate) root: Option<PathBuf>,
    /// The program and its arguments, for the trace.
    #[serde(default)]
    pub(crate) program: Vec<String>,
}

/// The board that the program sees.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Emulation {
    /// Kernel driver.
    pub(crate) driver: Driver,
    /// The board.
    pub(crate) options: EmuOptions,
}

impl Default for Emulation {
    fn default() -> Self {
        let options = EmuOptions { coherency: Coherency::Shared, ..EmuOptions::default() };
        Self { driver: Driver::default(), options }
    }
}

/// A kernel driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Driver {
    /// The vendor's.
    #[default]
    Rknpu,
    /// The mainline one.
    Rocket,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            emulate: Some(Emulation::default()),
            capture: None,
            report: None,
            root: None,
            program: Vec::new(),
        }
    }
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReportLine {
    /// Something that silicon would have suffered in silence.
    Finding {
        /// Process.
        process: i32,
        /// What.
        text: String,
    },
    /// A process that used the board ended.
    End {
        /// Process.
        process: i32,
        /// Modelled time that passed on its board, in nanoseconds.
        modelled_ns: u64,
    },
    /// Something went wrong in the library.
    Trouble {
        /// Process.
        process: i32,
        /// What.
        text: String,
    },
}
