// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the next token is chosen.

use crate::error::EngineError;
use crate::llama::{RawSampler, SamplerStep};
use serde::{Deserialize, Serialize};

/// Sampling options. Temperature 0 is greedy: the likeliest token, always; the other options are then unused.
///
/// Otherwise the chain is top-k → top-p → min-p → temperature → draw.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 = greedy; higher is more random.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 = all.
    pub top_k: u32,
    /// Keep the likeliest tokens whose probabilities sum to `top_p`; 1 = all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the likeliest; 0 = none.
    pub min_p: f32,
    /// Seed of the draw; equal seeds give equal text.
    pub seed: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 0 }
    }
}

impl Sampling {
    /// The likeliest token, always.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`EngineError::InvalidOption`].
    pub fn check(&self) -> Result<(), EngineError> {
        let bad = |option, value: f32, why| {
            Err(EngineError::InvalidOption { option, value: value.to_string(), why })
        };
        if !(0.0..=100.0).contains(&self.temperature) {
            return bad("temperature", self.temperature, "must be between 0 and 100");
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return bad("top_p", self.top_p, "must be between 0 and 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return bad("min_p", self.min_p, "must be between 0 and 1");
        }
        Ok(())
    }

    pub(crate) fn sampler(&self) -> Result<RawSampler, EngineError> {
        self.check()?;
        let mut steps = Vec::new();
        if self.temperature == 0.0 {
            steps.push(SamplerStep::Greedy);
        } else {
            if self.top_k > 0 {
                steps.push(SamplerStep::TopK(i32::try_from(self.top_k).unwrap_or(i32::MAX)));
            }
            if self.top_p < 1.0 {
                steps.push(SamplerStep::TopP(self.top_p));
            }
            if self.min_p > 0.0 {
                steps.push(SamplerStep::MinP(self.min_p));
            }
            steps.push(SamplerStep::Temperature(self.temperature));
            steps.push(SamplerStep::Draw { seed: self.seed });
        }
        RawSampler::chain(&steps).ok_or(EngineError::Missing { what: "sampler" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert!(Sampling::default().check().is_ok());
        assert!(Sampling::greedy().check().is_ok());
        for bad in [
            Sampling { temperature: -0.1, ..Sampling::default() },
            Sampling { temperature: f32::NAN, ..Sampling::default() },
            Sampling { top_p: 1.5, ..Sampling::default() },
            Sampling { min_p: -1.0, ..Sampling::default() },
        ] {
            assert!(matches!(bad.check(), Err(EngineError::InvalidOption { .. })), "{bad:?}");
        }
    }
}
