// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text from a prompt: prefill, then one token after the other.

use crate::context::Context;
use crate::error::EngineError;
use crate::llama::Outputs;
use crate::model::{Model, Prompt};
use crate::sampling::sampler;
use crate::text::Utf8Stream;
use ork_engine_options::{ContextOptions, GenerateOptions};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Something happened that the caller may show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Part of the prompt was evaluated.
    Prefill {
        /// Tokens evaluated so far.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// New text, whole characters, never empty.
    Text(&'a str),
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model said so.
    EndOfText,
    /// `max_tokens` was reached.
    TokenLimit,
    /// The context is full.
    ContextFull,
    /// The callback asked to stop.
    Stopped,
}

/// Numbers of one generation. Times are the host's wall clock, measured, whatever the device is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationStats {
    /// Tokens of the prompt, template included.
    pub prompt_tokens: u32,
    /// Time from the first evaluation to the first token's logits.
    pub prefill: Duration,
    /// Tokens generated; the end token, if any, is not counted.
    pub generated_tokens: u32,
    /// Evaluations of a single token: the first token comes from the prefill, so one less than tokens sampled.
    pub decode_steps: u32,
    /// Time of the decode steps, sampling included, callback excluded.
    pub decode: Duration,
    /// Why it ended.
    pub stop: StopReason,
}

impl GenerationStats {
    /// Prompt tokens per second, `None` if nothing was measured.
    pub fn prefill_per_second(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prefill)
    }

    /// Decode steps per second, `None` if there were none.
    pub fn decode_per_second(&self) -> Option<f64> {
        rate(self.decode_steps, self.decode)
    }
}

pub(crate) fn rate(count: u32, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| f64::from(count) / time.as_secs_f64())
}

/// A context to generate in; reused from prompt to prompt, each of which starts from nothing.
pub struct Generation<'m> {
    context: Context<'m>,
}

impl std::fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Generation").field("context_tokens", &self.context.context_tokens()).finish()
    }
}

impl<'m> Generation<'m> {
    /// Opens a context.
    ///
    /// # Errors
    /// [`EngineError::InvalidOption`], [`EngineError::Context`].
    pub fn new(model: &'m Model, options: &ContextOptions) -> Result<Self, EngineError> {
        Ok(Self { context: Context::open(model, options)? })
    }

    /// Tokens the context holds.
    pub fn context_tokens(&self) -> u32 {
        self.context.context_tokens()
    }

    /// Generates text after `prompt`. `on_event` may end it at any event by breaking.
    ///
    /// # Errors
    /// Of the prompt ([`EngineError::PromptTooLong`], [`EngineError::EmptyPrompt`], the template's), of the options,
    /// and [`EngineError::Decode`].
    pub fn run(
        &mut self,
        prompt: &Prompt,
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<GenerationStats, EngineError> {
        let tokens = self.context.model().prompt_tokens(prompt)?;
        self.run_tokens(&tokens, options, on_event)
    }

    /// As [`Self::run`], for a prompt that is tokens already.
    ///
    /// # Errors
    /// As [`Self::run`], and [`EngineError::NoSuchToken`].
    pub fn run_tokens(
        &mut self,
        prompt: &[i32],
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<GenerationStats, EngineError> {
        self.context.admit(prompt)?;
        let mut sampler = sampler(&options.sampling)?;
        self.context.clear();
        let mut stats = GenerationStats {
            prompt_tokens: u32::try_from(prompt.len()).unwrap_or(u32::MAX),
            prefill: Duration::ZERO,
            generated_tokens: 0,
            decode_steps: 0,
            decode: Duration::ZERO,
            stop: StopReason::TokenLimit,
        };
        let batch = self.context.batch_tokens();
        let mut done = 0;
        for chunk in prompt.chunks(batch) {
            let started = Instant::now();
            let last = done + chunk.len() == prompt.len();
            self.context.evaluate(chunk, if last { Outputs::Last } else { Outputs::None })?;
            stats.prefill += started.elapsed();
            done += chunk.len();
            if on_event(Event::Prefill { done, total: prompt.len() }).is_break() {
                stats.stop = StopReason::Stopped;
                return Ok(stats);
            }
        }
        let model = self.context.model();
        let mut text = Utf8Stream::default();
        let mut bytes = Vec::new();
        while stats.generated_tokens < options.max_tokens {
            let started = Instant::now();
            let token = sampler.sample(self.context.raw());
            stats.decode += started.elapsed();
            if model.raw().ends_generation(token) {
                stats.stop = StopReason::EndOfText;
                break;
            }
            stats.generated_tokens += 1;
            bytes.clear();
            model.raw().piece(token, &mut bytes);
            let piece = text.push(&bytes);
            if !piece.is_empty() && on_event(Event::Text(&piece)).is_break() {
                stats.stop = StopReason::Stopped;
                return Ok(stats);
            }
            if stats.generated_tokens == options.max_tokens {
                break;
            }
            if self.context.room() == 0 {
                stats.stop = StopReason::ContextFull;
                break;
            }
            let started = Instant::now();
            self.context.evaluate(&[token], Outputs::Last)?;
            stats.decode += started.elapsed();
            stats.decode_steps += 1;
        }
        let rest = text.finish();
        if !rest.is_empty() && on_event(Event::Text(&rest)).is_break() {
            stats.stop = StopReason::Stopped;
        }
        Ok(stats)
    }
}
