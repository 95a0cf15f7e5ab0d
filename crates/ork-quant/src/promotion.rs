// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which weights get int8 in a four-bit model, within a budget of bits. Pure data: names and sizes in, tiers out.
//!
//! The order is a prior about structure, not a measurement of weights: at equal bits, the hand-made list beat ranking by
//! rounding error by 3.8 %, because a weight's own error says little about what reaches the output. Beyond about
//! 4.9 bits per weight, more promotion returned less than 1 % (`isa-int4-sdp.md` §7.6).
//!
//! For native int4 whole layers are promoted, so that int4 layers form one run: each change between the int4 and int8
//! datapath costs a reset of about 105 ms, and scattered promotions made 221 of them where whole layers made 4.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::Tier;

/// A weight matrix of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSize {
    /// Its name, as in the model file: `blk.LAYER.ROLE.weight`.
    pub name: String,
    /// Input channels.
    pub k: u64,
    /// Output channels.
    pub n: u64,
}

/// The order in which weights are promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prior {
    /// Whole layers, alternately the last and the first that are not promoted yet. The promoted ends join over the
    /// output matrix and the next token, so a forward pass enters int4 once and leaves it once.
    WholeLayers,
    /// `attn_v` and `ffn_down` of every other layer, then of the layers between (after llama.cpp's Q4_K_M). For tiers
    /// that compute in int8 anyway, where changes cost nothing.
    ValueAndDown,
}

impl Prior {
    /// The prior that suits the tier of the weights that are not promoted.
    pub const fn for_tier(tier: Tier) -> Self {
        match tier {
            Tier::W4A4 => Self::WholeLayers,
            Tier::W8A8 | Tier::I4A8 { .. } | Tier::I4A8Group => Self::ValueAndDown,
        }
    }
}

/// Where the returns of promotion flatten.
pub const BITS_PER_WEIGHT: f64 = 4.9;

/// The tier of every weight, and what that costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Promotion {
    /// One tier per tensor, in the order given.
    pub tiers: Vec<Tier>,
    /// Bits per weight over all tensors, scales included.
    pub bits_per_weight: f64,
    /// Changes between int4 and int8 computation in a forward pass, back to its start: each costs a reset.
    pub transitions: usize,
}

/// Promotes weights from `base` to int8 until the next candidate would exceed `bits_per_weight`. Tensors outside layers
/// (the output matrix) are int8 from the start and count. Order of `tensors`: as a forward pass uses them.
///
/// If the budget does not even hold the start, nothing is promoted and the result says what it costs.
pub fn promote(tensors: &[TensorSize], base: Tier, prior: Prior, bits_per_weight: f64) -> Promotion {
    let mut tiers: Vec<Tier> = tensors
        .iter()
        .map(|tensor| if layer_of(&tensor.name).is_some() { base } else { Tier::W8A8 })
        .collect();
    let weights: u64 = tensors.iter().map(|tensor| tensor.k * tensor.n).sum();
    let budget = bits_per_weight * weights as f64;
    for candidate in candidates(tensors, prior) {
        let mut next = tiers.clone();
        candidate.iter().for_each(|index| next[*index] = Tier::W8A8);
        if bits(tensors, &next) as f64 > budget {
            break;
        }
        tiers = next;
    }
    let bits_per_weight = bits(tensors, &tiers) as f64 / weights.max(1) as f64;
    let transitions = transitions(&tiers);
    Promotion { tiers, bits_per_weight, transitions }
}

/// Changes between int4 and int8 computation when these weights are used in order, over and over.
pub fn transitions(tiers: &[Tier]) -> usize {
    let native = |tier: &Tier| *tier == Tier::W4A4;
    tiers.iter().zip(tiers.iter().cycle().skip(1)).filter(|(tier, next)| native(tier) != native(next)).count()
}

fn bits(tensors: &[TensorSize], tiers: &[Tier]) -> u64 {
    tensors.iter().zip(tiers).map(|(tensor, tier)| tier.bits_of(tensor.k, tensor.n)).sum()
}

/// Layer and role of a weight inside a layer.
fn layer_of(name: &str) -> Option<(u32, &str)> {
    let (layer, role) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, role.strip_suffix(".weight").unwrap_or(role)))
}

/// Groups of tensors that are promoted together, in order.
fn candidates(tensors: &[TensorSize], prior: Prior) -> Vec<Vec<usize>> {
    let places: Vec<(usize, u32, &str)> = tensors
        .iter()
        .enumerate()
        .filter_map(|(index, tensor)| layer_of(&tensor.name).map(|(layer, role)| (index, layer, role)))
        .collect();
    let mut layers: Vec<u32> = places.iter().map(|(_, layer, _)| *layer).collect();
    layers.sort_unstable();
    layers.dedup();
    match prior {
        Prior::WholeLayers => {
            let ordered = (0..layers.len()).map(|step| {
                let place = step / 2;
                if step % 2 == 0 { layers[layers.len() - 1 - place] } else { layers[place] }
            });
            ordered
                .map(|layer| places.iter().filter(|place| place.1 == layer).map(|place| place.0).collect())
                .collect()
        }
        Prior::ValueAndDown => {
            let every_other = layers.iter().step_by(2).chain(layers.iter().skip(1).step_by(2));
            every_other
                .map(|layer| {
                    places
                        .iter()
                        .filter(|(_, of, role)| of == layer && matches!(*role, "attn_v" | "ffn_down"))
                        .map(|place| place.0)
                        .collect()
                })
                .collect()
        }
    }
}
