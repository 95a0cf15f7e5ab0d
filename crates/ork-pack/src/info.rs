// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Calibration, Hash, Pack, SourceId, Target, Version};

/// What a pack is, in numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Info {
    /// Format version.
    pub version: Version,
    /// What it is for.
    pub target: Target,
    /// What it was made from.
    pub source: SourceId,
    /// What it was calibrated with.
    pub calibration: Option<Calibration>,
    /// Who made it.
    pub writer: String,
    /// By which plan.
    pub plan: Hash,
    /// Sizes of its files.
    pub file_bytes: Vec<u64>,
    /// Tensors.
    pub tensors: usize,
    /// Weights in them, padding not counted.
    pub weights: u64,
    /// Bits per weight: codes and scales, padding of tiles included, padding of pages not.
    pub bits_per_weight: f64,
    /// By what was done, as text (`w4a4+rotate+gptq+clip`).
    pub schemes: BTreeMap<String, SchemeTotal>,
}

/// The tensors of one scheme.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SchemeTotal {
    /// Tensors.
    pub tensors: usize,
    /// Weights.
    pub weights: u64,
    /// Bytes of codes, scales and smoothing.
    pub bytes: u64,
}

/// Looks at a pack's headers.
pub fn info(pack: &Pack) -> Info {
    let mut schemes: BTreeMap<String, SchemeTotal> = BTreeMap::new();
    for entry in pack.entries() {
        let total = schemes.entry(entry.scheme.to_string()).or_default();
        total.tensors += 1;
        total.weights = total.weights.saturating_add(u64::from(entry.k) * u64::from(entry.n));
        total.bytes += entry.sections().map(|section| section.bytes).sum::<u64>();
    }
    let weights = schemes.values().fold(0u64, |sum, total| sum.saturating_add(total.weights));
    let bytes: u64 = schemes.values().map(|total| total.bytes).sum();
    Info {
        version: pack.version(),
        target: pack.target().clone(),
        source: pack.source().clone(),
        calibration: pack.calibration().cloned(),
        writer: pack.writer().to_owned(),
        plan: pack.plan(),
        file_bytes: pack.files().map(|(_, bytes)| bytes).collect(),
        tensors: pack.entries().count(),
        weights,
        bits_per_weight: if weights == 0 { 0.0 } else { bytes as f64 * 8.0 / weights as f64 },
        schemes,
    }
}
