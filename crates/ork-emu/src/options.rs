// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_sim::SimOptions;
use serde::{Deserialize, Serialize};

/// How the emulated board behaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmuOptions {
    /// Whether time passes on the host.
    pub time: TimePolicy,
    /// Driver version to answer with, `[major, minor, patch]`. Before 0.9.6 there are no domains, before 0.9.8
    /// device addresses are always aligned to the size.
    pub driver_version: [u32; 3],
    /// How long (host time, milliseconds) a call waits for jobs of another IOMMU domain before it fails with
    /// `EINVAL`. Silicon waits 6 s; the model runs jobs slower than silicon.
    pub domain_wait_ms: u32,
    /// Options of the NPU model.
    pub sim: SimOptions,
}

impl Default for EmuOptions {
    fn default() -> Self {
        Self {
            time: TimePolicy::Virtual,
            driver_version: [0, 9, 8],
            domain_wait_ms: 60_000,
            sim: SimOptions::default(),
        }
    }
}

/// Whether the emulated kernel spends real time where a real one would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimePolicy {
    /// Nothing sleeps: a job that hangs has timed out at once, a reset takes no time.
    #[default]
    Virtual,
    /// A job that hangs takes its whole timeout, a reset 100 ms.
    Real,
}
