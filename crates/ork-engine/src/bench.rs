// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wall time of prefill and decode, on tokens that mean nothing.

use crate::context::Context;
use crate::error::EngineError;
use crate::generation::rate;
use crate::llama::Outputs;
use crate::model::Model;
use ork_engine_options::ContextOptions;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BenchOptions {
    /// Tokens of the prompt; 0 = no prefill.
    pub prefill_tokens: u32,
    /// Single tokens evaluated after it; 0 = no decode.
    pub decode_tokens: u32,
    /// Measured rounds.
    pub rounds: u32,
    /// Rounds before them that do not count.
    pub warmup_rounds: u32,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self { prefill_tokens: 512, decode_tokens: 128, rounds: 3, warmup_rounds: 1 }
    }
}

/// One measured round: the host's wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchRound {
    /// Time of the prefill.
    pub prefill: Duration,
    /// Time of all decode steps.
    pub decode: Duration,
}

/// All rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchReport {
    /// What was measured.
    pub options: BenchOptions,
    /// The rounds, in order.
    pub rounds: Vec<BenchRound>,
}

impl BenchReport {
    /// Prefill tokens per second of each round.
    pub fn prefill_per_second(&self) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| rate(self.options.prefill_tokens, round.prefill)).collect()
    }

    /// Decode tokens per second of each round.
    pub fn decode_per_second(&self) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| rate(self.options.decode_tokens, round.decode)).collect()
    }
}

/// Runs the rounds, each in an emptied context.
///
/// # Errors
/// [`EngineError::PromptTooLong`] if prefill and decode do not fit the context, and all of
/// [`crate::Generation::run_tokens`].
pub fn bench(
    model: &Model,
    options: &BenchOptions,
    context_options: &ContextOptions,
) -> Result<BenchReport, EngineError> {
    let total = options.prefill_tokens.saturating_add(options.decode_tokens);
    if total == 0 || options.rounds == 0 {
        let (option, value) = ("rounds × (prefill_tokens + decode_tokens)", "0".to_owned());
        return Err(EngineError::InvalidOption { option, value, why: "there is nothing to measure" });
    }
    let context_tokens = context_options.context_tokens.or(Some(total));
    let mut context = Context::open(model, &ContextOptions { context_tokens, ..context_options.clone() })?;
    let tokens = meaningless_tokens(model, total as usize);
    context.admit(&tokens)?;
    let (prompt, singles) = tokens.split_at(options.prefill_tokens as usize);
    let mut rounds = Vec::new();
    for round in 0..options.warmup_rounds.saturating_add(options.rounds) {
        context.clear();
        let batch = context.batch_tokens();
        let started = Instant::now();
        for chunk in prompt.chunks(batch) {
            context.evaluate(chunk, Outputs::Last)?;
        }
        let prefill = started.elapsed();
        let started = Instant::now();
        for single in singles.chunks(1) {
            context.evaluate(single, Outputs::Last)?;
        }
        let decode = started.elapsed();
        if round >= options.warmup_rounds {
            rounds.push(BenchRound { prefill, decode });
        }
    }
    Ok(BenchReport { options: options.clone(), rounds })
}

/// Ordinary tokens in a fixed, scattered order: control tokens would change nothing in time but read oddly in logs.
fn meaningless_tokens(model: &Model, count: usize) -> Vec<i32> {
    let vocabulary = model.info().vocabulary.max(1);
    let scattered = (0u32..).map(|i| i.wrapping_mul(2_654_435_761) % vocabulary);
    let tokens = scattered.take(count.saturating_mul(64).saturating_add(1024));
    let ordinary = tokens.filter_map(|t| i32::try_from(t).ok()).filter(|&t| !model.raw().is_control(t));
    let mut chosen: Vec<i32> = ordinary.take(count).collect();
    chosen.resize(count, 0);
    chosen
}
