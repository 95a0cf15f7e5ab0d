// SPDX-License-Identifier: MIT OR Apache-2.0
//! A context of a model: where tokens are evaluated, shared by generation, evaluation and benchmarks.

use crate::error::EngineError;
use crate::llama::{ContextResult, ContextSizes, Outputs, RawContext};
use crate::log;
use crate::model::Model;
use crate::watch::Watcher;
use ork_engine_options::ContextOptions;

/// An open context.
pub(crate) struct Context<'m> {
    raw: RawContext<'m>,
    model: &'m Model,
    context_tokens: u32,
    batch_tokens: usize,
    /// Tokens evaluated so far.
    position: usize,
}

impl<'m> Context<'m> {
    pub(crate) fn open(model: &'m Model, options: &ContextOptions) -> Result<Self, EngineError> {
        Self::open_watched(model, options, ContextResult::Logits, None)
    }

    /// A context whose products somebody may look at.
    pub(crate) fn open_watched(
        model: &'m Model,
        options: &ContextOptions,
        result: ContextResult,
        watcher: Option<Box<dyn Watcher>>,
    ) -> Result<Self, EngineError> {
        let positive = |option, value: Option<u32>, default: u32| match value {
            Some(0) => {
                Err(EngineError::InvalidOption { option, value: "0".to_owned(), why: "must be at least 1" })
            }
            Some(value) => Ok(value),
            None => Ok(default.max(1)),
        };
        let trained = model.info().trained_context.min(ContextOptions::DEFAULT_CONTEXT_MAX);
        let context_tokens = positive("context_tokens", options.context_tokens, trained)?;
        let batch = positive("batch_tokens", options.batch_tokens, ContextOptions::DEFAULT_BATCH)?;
        let batch_tokens = batch.min(context_tokens);
        let available =
            std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1));
        let threads = positive("threads", options.threads, available)?;
        log::take_complaints();
        let sizes = ContextSizes {
            context_tokens,
            batch_tokens,
            threads,
            cache_types: (options.cache_type_k, options.cache_type_v),
            result,
        };
        let raw = RawContext::new(model.raw(), sizes, watcher)
            .ok_or_else(|| EngineError::Context { context_tokens, log: log::take_complaints() })?;
        // llama.cpp rounds up; the number asked for is the promise.
        let context_tokens = context_tokens.min(raw.context_tokens());
        Ok(Self { raw, model, context_tokens, batch_tokens: batch_tokens as usize, position: 0 })
    }

    pub(crate) fn model(&self) -> &'m Model {
        self.model
    }

    pub(crate) fn raw(&mut self) -> &mut RawContext<'m> {
        &mut self.raw
    }

    pub(crate) fn context_tokens(&self) -> u32 {
        self.context_tokens
    }

    pub(crate) fn batch_tokens(&self) -> usize {
        self.batch_tokens
    }

    /// Tokens that still fit.
    pub(crate) fn room(&self) -> usize {
        (self.context_tokens as usize).saturating_sub(self.position)
    }

    pub(crate) fn clear(&mut self) {
        self.raw.clear();
        self.position = 0;
    }

    /// Checks that a prompt can be evaluated in an empty context.
    pub(crate) fn admit(&self, tokens: &[i32]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens.len() > self.context_tokens as usize {
            return Err(EngineError::PromptTooLong {
                prompt_tokens: tokens.len(),
                context_tokens: self.context_tokens,
            });
        }
        let vocabulary = self.model.info().vocabulary;
        match tokens.iter().find(|&&token| u32::try_from(token).map_or(true, |t| t >= vocabulary)) {
            Some(&token) => Err(EngineError::NoSuchToken { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// Evaluates one micro-batch after what is there.
    pub(crate) fn evaluate(&mut self, tokens: &[i32], outputs: Outputs) -> Result<(), EngineError> {
        let backend = self.model.engine().backend();
        let failure = |status, position| EngineError::Decode {
            tokens: tokens.len(),
            position,
            status,
            source: backend.and_then(|backend| backend.take_error()),
        };
        self.raw.decode(tokens, self.position, &outputs).map_err(|status| failure(status, self.position))?;
        // A buffer callback has no status: a weight the host could not read shows only here.
        if let Some(source) = backend.and_then(|backend| backend.take_error()) {
            let (tokens, position) = (tokens.len(), self.position);
            return Err(EngineError::Decode { tokens, position, status: 0, source: Some(source) });
        }
        self.position += tokens.len();
        Ok(())
    }
}
