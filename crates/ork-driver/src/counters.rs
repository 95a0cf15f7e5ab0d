// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a driver has done since it was made. Times are of this host, measured; the submit phase contains the NPU or
/// its simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverCounters {
    /// Weights loaded.
    pub weights: u64,
    /// Of those, the ones whose tiles lay ready.
    pub weights_ready: u64,
    /// Device memory that weights were given, in bytes.
    pub weight_bytes: u64,
    /// Products computed.
    pub matmuls: u64,
    /// Rows of those products.
    pub rows: u64,
    /// Multiply-adds of those products, without padding.
    pub macs: u64,
    /// Register programs submitted, one per tile.
    pub programs: u64,
    /// Products whose K slices the host added.
    pub sliced: u64,
    /// Plans made; every other product used one that was kept.
    pub plans: u64,
    /// Soft resets of the NPU because its datapath changed.
    pub resets: u64,
    /// Passes run again because the float pipeline was cold, or because the NPU was reset under them.
    pub rewarmed: u64,
    /// Products whose sums the host rounded or combined, beyond adding K slices.
    pub host_finished: u64,
    /// *Modelled* time of the programs and their submits on an RK3588, in nanoseconds: a prediction, without the host's
    /// work and without resets. A pass that ran again counts again, and products of a queue in one chain count as if each
    /// was submitted by itself. Precompiled programs have none.
    pub modelled_ns: u64,
    /// Bringing activations into the bases of weights.
    pub turn: Duration,
    /// Quantising and laying out activations.
    pub quantise: Duration,
    /// Planning and writing programs.
    pub synthesise: Duration,
    /// Cache maintenance.
    pub sync: Duration,
    /// From submit to completion.
    pub submit: Duration,
    /// Adding K slices, applying scales, writing rows.
    pub dequantise: Duration,
}

impl DriverCounters {
    /// Time of all phases.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.turn + self.quantise + self.synthesise + self.sync + self.submit + self.dequantise
    }
}

impl fmt::Display for DriverCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} matmuls ({} rows, {:.1} GMAC), {} of them in K slices; {} programs, {} plans made",
            self.matmuls,
            self.rows,
            self.macs as f64 / 1e9,
            self.sliced,
            self.programs,
            self.plans
        )?;
        if self.resets + self.rewarmed + self.host_finished != 0 {
            writeln!(
                f,
                "{} resets and {} repeated passes for changes of the datapath; {} results finished by the host",
                self.resets, self.rewarmed, self.host_finished
            )?;
        }
        writeln!(f, "{} weights resident in {:.1} MB", self.weights, self.weight_bytes as f64 / 1e6)?;
        write!(
            f,
            "host time, measured: turn {:.3} s, quantise {:.3} s, synthesise {:.3} s, sync {:.3} s, submit and wait {:.3} s, \
             dequantise {:.3} s",
            self.turn.as_secs_f64(),
            self.quantise.as_secs_f64(),
            self.synthesise.as_secs_f64(),
            self.sync.as_secs_f64(),
            self.submit.as_secs_f64(),
            self.dequantise.as_secs_f64()
        )
    }
}
