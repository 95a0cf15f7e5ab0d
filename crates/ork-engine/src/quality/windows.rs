// SPDX-License-Identifier: MIT OR Apache-2.0
//! A text as windows of tokens.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::model::Model;

/// How a text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowPlan {
    /// Tokens of a window, at least 4.
    pub context_tokens: u32,
    /// Most windows to evaluate; unset: all that the text fills. Tokens behind the last whole window are left out.
    pub windows: Option<u32>,
}

impl Default for WindowPlan {
    /// 512 tokens, as llama.cpp's tool has it.
    fn default() -> Self {
        Self { context_tokens: 512, windows: None }
    }
}

/// A tokenised text, cut into windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    tokens: Vec<i32>,
    context: usize,
    /// Put in place of the first token of every window, if the model wants one.
    start: Option<i32>,
    vocabulary: usize,
}

impl Windows {
    /// Shortest window: one token of context, one that predicts another.
    const CONTEXT_MIN: u32 = 4;

    /// Tokenises a text with the model's vocabulary and cuts it.
    ///
    /// # Errors
    /// [`EngineError::InvalidOption`] for a window that is too short or no windows at all,
    /// [`EngineError::TextTooShort`] if the text does not fill one (or as many as asked for).
    pub fn of(model: &Model, text: &str, plan: &WindowPlan) -> Result<Self, EngineError> {
        if plan.context_tokens < Self::CONTEXT_MIN {
            let value = plan.context_tokens.to_string();
            let why = "a window needs at least 4 tokens";
            return Err(EngineError::InvalidOption { option: "context_tokens", value, why });
        }
        if plan.windows == Some(0) {
            let why = "there is nothing to evaluate";
            return Err(EngineError::InvalidOption { option: "windows", value: "0".to_owned(), why });
        }
        let mut tokens = model.tokenize(text)?;
        let context = plan.context_tokens as usize;
        let filled = tokens.len() / context;
        let wanted = plan.windows.map_or(filled.max(1), |windows| windows as usize);
        if filled < wanted {
            return Err(EngineError::TextTooShort { tokens: tokens.len(), wanted: wanted * context });
        }
        tokens.truncate(wanted * context);
        let vocabulary = model.info().vocabulary as usize;
        Ok(Self { tokens, context, start: model.raw().start_token(), vocabulary })
    }

    /// Windows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tokens.len() / self.context
    }

    /// Tokens of a window.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        self.context
    }

    /// All tokens, in windows.
    #[must_use]
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Size of the vocabulary they are of.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Positions of a window whose next token is scored: from the middle to the last but one.
    #[must_use]
    pub fn scored(&self) -> Range<usize> {
        self.context / 2..self.context - 1
    }

    /// What the model is given for window `index`.
    pub(crate) fn input(&self, index: usize) -> Option<Vec<i32>> {
        let mut tokens = self.window(index)?.to_vec();
        if let (Some(start), Some(first)) = (self.start, tokens.first_mut()) {
            *first = start;
        }
        Some(tokens)
    }

    /// The tokens to be predicted in window `index`, one for each scored position.
    pub(crate) fn targets(&self, index: usize) -> Option<&[i32]> {
        let scored = self.scored();
        self.window(index)?.get(scored.start + 1..=scored.end)
    }

    fn window(&self, index: usize) -> Option<&[i32]> {
        self.tokens.chunks_exact(self.context).nth(index)
    }

    /// BLAKE3 of everything that decides what is evaluated, in hex.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = blake3::Hasher::new();
        let start = self.start.map_or(-1, i64::from);
        for number in [self.context as u64, self.vocabulary as u64, start.cast_unsigned()] {
            hash.update(&number.to_le_bytes());
        }
        for token in &self.tokens {
            hash.update(&token.to_le_bytes());
        }
        hash.finalize().to_hex().to_string()
    }
}
