// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a weight can become, as data: what a recipe asks for, a pack records and a census compares.
#![forbid(unsafe_code)]

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Codebook, GROUP, GROUP_BYTES, StepKind};

/// How a weight is stored and multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Tier {
    /// int8 stored, int8 computed.
    W8A8,
    /// int4 stored, inflated to int8 at load, int8 computed.
    I4A8 {
        /// Meaning of a nibble.
        codebook: Codebook,
    },
    /// int4 stored with a multiplier and an offset per [`GROUP`] input channels, inflated to int8 at load, int8 computed.
    I4A8Group,
    /// int4 stored, int4 computed: activations are four bits too, so the weight needs a basis to be worth anything.
    W4A4,
}

impl Tier {
    /// Bytes of the codes of a tensor whose elements, padding included, are `elements`: nothing if that is no number of
    /// whole bytes and groups.
    pub const fn code_bytes(self, elements: u64) -> Option<u64> {
        let (unit, bytes) = match self {
            Self::W8A8 => (1, 1),
            Self::I4A8 { .. } | Self::W4A4 => (2, 1),
            Self::I4A8Group => (GROUP as u64, GROUP_BYTES as u64),
        };
        if elements.is_multiple_of(unit) { (elements / unit).checked_mul(bytes) } else { None }
    }

    /// Bits of a stored K × N weight with its scales; K is filled up to whole groups where there are groups.
    pub const fn bits_of(self, k: u64, n: u64) -> u64 {
        let row = match self {
            Self::W8A8 => 8 * k,
            Self::I4A8 { .. } | Self::W4A4 => 4 * k,
            Self::I4A8Group => 8 * GROUP_BYTES as u64 * k.div_ceil(GROUP as u64),
        };
        n * (row + 32)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::W8A8 => "w8a8",
            Self::I4A8 { codebook: Codebook::Uniform } => "i4a8",
            Self::I4A8 { codebook: Codebook::Nf4 } => "i4a8-nf4",
            Self::I4A8Group => "i4a8+group",
            Self::W4A4 => "w4a4",
        })
    }
}

/// How weights were rounded to codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// To the nearest code.
    Nearest,
    /// By chance between two codes ([`crate::Rounding::Stochastic`]).
    Stochastic,
    /// With feedback of errors ([`crate::Factor`]).
    Gptq,
}

/// What decided the clipping point of a row of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClipRule {
    /// The largest magnitude.
    AbsMax,
    /// The importance-weighted search of stored int4.
    Importance,
    /// The self-tuning search of native int4.
    SelfTuning,
}

/// Everything that was done to a weight. A pack records it per tensor, because a run whose GPTQ never took place looks
/// the same in every other way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// How it is stored and multiplied.
    pub tier: Tier,
    /// How codes were chosen.
    pub method: Method,
    /// How scales were chosen.
    pub clip: ClipRule,
    /// Kinds of the basis' steps, first to last; empty for the plain basis.
    pub basis: Vec<StepKind>,
}

impl Scheme {
    /// int8 as always: nearest code, largest magnitude, no basis.
    pub const fn w8a8() -> Self {
        Self { tier: Tier::W8A8, method: Method::Nearest, clip: ClipRule::AbsMax, basis: Vec::new() }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tier)?;
        for step in &self.basis {
            f.write_str(match step {
                StepKind::Smooth => "+smooth",
                StepKind::Signs => "+signs",
                StepKind::Rotate => "+rotate",
            })?;
        }
        f.write_str(match self.method {
            Method::Nearest => "",
            Method::Stochastic => "+stochastic",
            Method::Gptq => "+gptq",
        })?;
        f.write_str(match self.clip {
            ClipRule::AbsMax => "",
            ClipRule::Importance => "+imatrix",
            ClipRule::SelfTuning => "+clip",
        })
    }
}
