// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wall time of prefill and decode, on tokens that mean nothing.

use crate::context::Context;
use crate::error::EngineError;
use crate::llama::Outputs;
use crate::model::Model;
use ork_engine_options::ContextOptions;
use std::time::{Duration, Instant};

/// Times evaluations in one context, which stays open between them: what a first evaluation allocates is there for the
/// next.
pub struct Stopwatch<'m> {
    context: Context<'m>,
    tokens: Vec<i32>,
}

impl std::fmt::Debug for Stopwatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopwatch").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl<'m> Stopwatch<'m> {
    /// For evaluations of up to so many tokens; the context is as large unless the options say otherwise.
    ///
    /// # Errors
    /// [`EngineError::InvalidOption`] for no tokens, [`EngineError::PromptTooLong`] if they do not fit the context, and
    /// what opening a context can meet.
    pub fn open(
        model: &'m Model,
        tokens_max: u32,
        context_options: &ContextOptions,
    ) -> Result<Self, EngineError> {
        if tokens_max == 0 {
            let (option, value) = ("tokens_max", "0".to_owned());
            return Err(EngineError::InvalidOption { option, value, why: "there is nothing to measure" });
        }
        let context_tokens = context_options.context_tokens.or(Some(tokens_max));
        let context = Context::open(model, &ContextOptions { context_tokens, ..context_options.clone() })?;
        let tokens = meaningless_tokens(model, tokens_max as usize);
        context.admit(&tokens)?;
        Ok(Self { context, tokens })
    }

    /// Wall time of a prompt of so many tokens, in batches, in an emptied context.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn prefill(&mut self, tokens: u32) -> Result<Duration, EngineError> {
        let batch = self.context.batch_tokens();
        self.evaluate(tokens, batch)
    }

    /// Wall time of so many single tokens, one after the other, in an emptied context.
    ///
    /// # Errors
    /// [`EngineError::PromptTooLong`] for more tokens than it was opened for; what an evaluation can meet.
    pub fn decode(&mut self, tokens: u32) -> Result<Duration, EngineError> {
        self.evaluate(tokens, 1)
    }

    fn evaluate(&mut self, tokens: u32, batch: usize) -> Result<Duration, EngineError> {
        let tokens = self.tokens.get(..tokens as usize).ok_or_else(|| EngineError::PromptTooLong {
            prompt_tokens: tokens as usize,
            context_tokens: u32::try_from(self.tokens.len()).unwrap_or(u32::MAX),
        })?;
        self.context.clear();
        let start = Instant::now();
        for chunk in tokens.chunks(batch) {
            self.context.evaluate(chunk, Outputs::Last)?;
        }
        Ok(start.elapsed())
    }
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
