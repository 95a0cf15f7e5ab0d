// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of `ork-engine` as plain values.
//!
//! They have a crate of their own because the engine links llama.cpp, and the configuration tree that nests them is
//! read by the plug-in too, which must not.
#![forbid(unsafe_code)]

mod cache_type;

pub use cache_type::{CacheNote, CacheType};

use serde::{Deserialize, Serialize};

/// How a model is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadOptions {
    /// Map the file instead of reading it.
    pub mmap: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { mmap: true }
    }
}

/// Options of a context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContextOptions {
    /// Tokens the context holds; unset: what the model was trained with, at most
    /// [`ContextOptions::DEFAULT_CONTEXT_MAX`].
    pub context_tokens: Option<u32>,
    /// Tokens evaluated at once (the micro-batch), so the largest m a matmul sees; unset:
    /// [`ContextOptions::DEFAULT_BATCH`].
    pub batch_tokens: Option<u32>,
    /// Threads for the CPU's share; unset: all the process may use. Threads wait for each other many times per
    /// token, so one slow or busy core slows all: on a chip with big and little cores, name the number of big ones.
    pub threads: Option<u32>,
    /// Type of the keys in the cache.
    pub cache_type_k: CacheType,
    /// Type of the values in the cache.
    pub cache_type_v: CacheType,
}

impl ContextOptions {
    /// Bound of the default context, which would otherwise take gigabytes for some models.
    pub const DEFAULT_CONTEXT_MAX: u32 = 4096;
    /// Default micro-batch.
    pub const DEFAULT_BATCH: u32 = 512;

    /// What a user should know of these cache types.
    pub fn cache_notes(&self) -> Vec<CacheNote> {
        CacheNote::of(self.cache_type_k, self.cache_type_v)
    }
}

/// What to generate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GenerateOptions {
    /// Most tokens to generate. 0 evaluates the prompt and generates nothing.
    pub max_tokens: u32,
    /// How tokens are chosen.
    pub sampling: Sampling,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { max_tokens: 128, sampling: Sampling::default() }
    }
}

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
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`InvalidOption`].
    pub fn check(&self) -> Result<(), InvalidOption> {
        let bad = |option, value: f32, why| Err(InvalidOption { option, value: value.to_string(), why });
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
}

/// An option has a value that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option} = {value}: {why}")]
pub struct InvalidOption {
    /// Name of the option.
    pub option: &'static str,
    /// The value given.
    pub value: String,
    /// What is wrong with it.
    pub why: &'static str,
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
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
