// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the next token is chosen.

use ork_engine_options::Sampling;

use crate::error::EngineError;
use crate::llama::{RawSampler, SamplerStep};

/// The chain of samplers that the options describe.
pub(crate) fn sampler(options: &Sampling) -> Result<RawSampler, EngineError> {
    options.check()?;
    let mut steps = Vec::new();
    if options.temperature == 0.0 {
        steps.push(SamplerStep::Greedy);
    } else {
        if options.top_k > 0 {
            steps.push(SamplerStep::TopK(i32::try_from(options.top_k).unwrap_or(i32::MAX)));
        }
        if options.top_p < 1.0 {
            steps.push(SamplerStep::TopP(options.top_p));
        }
        if options.min_p > 0.0 {
            steps.push(SamplerStep::MinP(options.min_p));
        }
        steps.push(SamplerStep::Temperature(options.temperature));
        steps.push(SamplerStep::Draw { seed: options.seed });
    }
    RawSampler::chain(&steps).ok_or(EngineError::Missing { what: "sampler" })
}
