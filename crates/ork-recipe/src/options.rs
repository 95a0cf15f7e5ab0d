// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options: plain values, no reads of the world.

use ork_pack::WriteOptions;
use ork_quant::CALIBRATION_ROWS;
use serde::{Deserialize, Serialize};

/// How statistics are gathered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CalibrateOptions {
    /// Tokens of the text that are evaluated: rows of activations.
    pub tokens: u64,
    /// Tokens that follow each other before the context is emptied.
    pub window_tokens: u32,
    /// Most memory that statistics may take, in bytes.
    pub memory_bytes_max: u64,
    /// Seconds between saves of what was gathered: what a killed calibration loses at most.
    pub save_seconds: u64,
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self {
            // More was not seen to pay.
            tokens: CALIBRATION_ROWS,
            window_tokens: 512,
            memory_bytes_max: 8 << 30,
            save_seconds: 60,
        }
    }
}

/// How packs are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PackOptions {
    /// Largest file of a pack, in bytes. A pack that needs more becomes several files.
    pub part_bytes_max: u64,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self { part_bytes_max: WriteOptions::default().part_bytes_max }
    }
}
