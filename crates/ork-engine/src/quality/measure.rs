// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models over windows.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::moments::{Estimate, KlPercentiles, Moments, Perplexity, Versus};
use super::reference::{ReferenceFile, ReferenceIdentity, ReferenceWriter};
use super::score::Table;
use super::windows::Windows;
use crate::context::Context;
use crate::error::EngineError;
use crate::llama::Outputs;
use crate::model::Model;
use ork_engine_options::ContextOptions;

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Windows evaluated.
    pub windows: u64,
    /// Tokens evaluated.
    pub tokens: u64,
    /// Tokens scored.
    pub scored: u64,
    /// Perplexity.
    pub perplexity: Perplexity,
    /// Distance from the reference, if there was one.
    pub versus: Option<Versus>,
    /// Host time that the model's own evaluation took, in seconds: neither the reference's nor the scoring.
    pub host_seconds: f64,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Windows done.
    pub done: usize,
    /// Windows.
    pub total: usize,
    /// Perplexity so far; nothing while there is none.
    pub perplexity: Option<f64>,
}

/// Where the reference's distributions come from.
#[derive(Debug)]
pub enum ReferenceSource<'a> {
    /// Computed alongside, window by window.
    Model {
        /// The reference.
        model: &'a Model,
        /// The same text in its own tokens, which must be the same tokens.
        windows: &'a Windows,
        /// Of its context, which may have a cache of another type.
        options: &'a ContextOptions,
    },
    /// Kept by [`keep_reference`].
    File(&'a mut ReferenceFile),
}

/// Evaluates a text, and compares with a reference.
///
/// Memory beside the contexts: 8 bytes × scored positions of a window × vocabulary for each of model and reference, and 4
/// bytes for each scored position of the text.
///
/// # Errors
/// As [`crate::Generation::run_tokens`]; [`EngineError::NotComparable`] if the reference is of other tokens or a logit is not
/// a number; [`EngineError::Reference`] for a damaged file.
pub fn measure(
    model: &Model,
    windows: &Windows,
    options: &ContextOptions,
    reference: Option<ReferenceSource<'_>>,
    progress: &mut dyn FnMut(Pace),
) -> Result<Quality, EngineError> {
    let mut evaluator = Evaluator::open(model, windows, options)?;
    let mut against = reference.map(|reference| Against::open(reference, windows)).transpose()?;
    let (mut nll, mut host) = (Moments::default(), Duration::ZERO);
    for index in 0..windows.count() {
        let started = Instant::now();
        let logits = evaluator.logits(windows, index)?;
        host += started.elapsed();
        let table = table(windows, index, logits)?;
        table.rows.iter().for_each(|row| nll.add(-row.target));
        if let Some(against) = &mut against {
            against.window(windows, index, &table)?;
        }
        let perplexity = Some(nll.exponential().value);
        progress(Pace { done: index + 1, total: windows.count(), perplexity });
    }
    Ok(Quality {
        windows: windows.count() as u64,
        tokens: windows.tokens().len() as u64,
        scored: nll.count(),
        perplexity: nll.perplexity(),
        versus: against.and_then(Against::finish),
        host_seconds: host.as_secs_f64(),
    })
}

/// Evaluates a text with a reference and keeps its distributions in a file of [`ReferenceIdentity::data_bytes`]. What an
/// interrupted run left in `PATH.part` is continued.
///
/// # Errors
/// As [`measure`], and [`EngineError::Reference`] if the file cannot be written.
pub fn keep_reference(
    model: &Model,
    windows: &Windows,
    options: &ContextOptions,
    path: &Path,
    identity: &ReferenceIdentity,
    progress: &mut dyn FnMut(Pace),
) -> Result<ReferenceFile, EngineError> {
    let mut writer = ReferenceWriter::open(path, identity)?;
    let mut evaluator = Evaluator::open(model, windows, options)?;
    let mut nll = Moments::default();
    for index in writer.written()..windows.count() {
        let logits = evaluator.logits(windows, index)?;
        let table = table(windows, index, logits)?;
        writer.add(&table)?;
        table.rows.iter().for_each(|row| nll.add(-row.target));
        let perplexity = Some(nll.exponential().value);
        progress(Pace { done: index + 1, total: windows.count(), perplexity });
    }
    writer.finish()
}

fn table(windows: &Windows, index: usize, logits: Vec<f32>) -> Result<Table, EngineError> {
    Table::of(windows.vocabulary(), logits, windows.targets(index).unwrap_or_default())
}

/// A context that evaluates windows.
struct Evaluator<'m> {
    context: Context<'m>,
}

impl<'m> Evaluator<'m> {
    fn open(model: &'m Model, windows: &Windows, options: &ContextOptions) -> Result<Self, EngineError> {
        if model.info().vocabulary as usize != windows.vocabulary() {
            let (model, text) = (model.info().vocabulary, windows.vocabulary());
            let why =
                format!("the model has {model} tokens, the text is in tokens of a vocabulary of {text}");
            return Err(EngineError::NotComparable { why });
        }
        let context_tokens = u32::try_from(windows.context_tokens()).ok();
        let mut context = Context::open(model, &ContextOptions { context_tokens, ..options.clone() })?;
        context.admit(windows.tokens().get(..windows.context_tokens()).unwrap_or_default())?;
        context.clear();
        Ok(Self { context })
    }

    /// Logits at the scored positions of a window.
    fn logits(&mut self, windows: &Windows, index: usize) -> Result<Vec<f32>, EngineError> {
        let tokens = windows.input(index).ok_or(EngineError::Missing { what: "window" })?;
        let scored = windows.scored();
        let mut logits = Vec::with_capacity(scored.len() * windows.vocabulary());
        self.context.clear();
        let batch = self.context.batch_tokens();
        for (number, chunk) in tokens.chunks(batch).enumerate() {
            let first = number * batch;
            let inside = |position: usize| position.saturating_sub(first).min(chunk.len());
            let wanted = inside(scored.start)..inside(scored.end);
            self.context.evaluate(chunk, Outputs::Range(wanted.clone()))?;
            for position in wanted {
                let row =
                    i32::try_from(position).ok().and_then(|position| self.context.raw().logits(position));
                logits.extend_from_slice(row.ok_or(EngineError::Missing { what: "logits" })?);
            }
        }
        Ok(logits)
    }
}

/// The other side of a comparison, and its sums.
struct Against<'a> {
    source: Source<'a>,
    reference_nll: Moments,
    nll_difference: Moments,
    kl: Moments,
    kls: Vec<f32>,
    agreed: Moments,
}

enum Source<'a> {
    Model(Evaluator<'a>),
    File(&'a mut ReferenceFile),
}

impl<'a> Against<'a> {
    fn open(reference: ReferenceSource<'a>, windows: &Windows) -> Result<Self, EngineError> {
        let not = |why: &str| Err(EngineError::NotComparable { why: why.to_owned() });
        let source = match reference {
            ReferenceSource::Model { windows: its, .. } if its != windows => {
                return not("model and reference cut the text into different tokens");
            }
            ReferenceSource::Model { model, options, .. } => {
                Source::Model(Evaluator::open(model, windows, options)?)
            }
            ReferenceSource::File(file) if file.identity().windows_digest != windows.digest() => {
                return not("the reference file is of another text, other tokens or other windows");
            }
            ReferenceSource::File(file) => Source::File(file),
        };
        let fresh = Moments::default();
        Ok(Self {
            source,
            reference_nll: fresh,
            nll_difference: fresh,
            kl: fresh,
            kls: Vec::new(),
            agreed: fresh,
        })
    }

    fn window(&mut self, windows: &Windows, index: usize, mine: &Table) -> Result<(), EngineError> {
        let reference = match &mut self.source {
            Source::Model(evaluator) => {
                let logits = evaluator.logits(windows, index)?;
                table(windows, index, logits)?
            }
            Source::File(file) => file.window(index)?,
        };
        for (its, my) in reference.rows.iter().zip(&mine.rows) {
            self.reference_nll.add(-its.target);
            self.nll_difference.add(its.target - my.target);
            self.agreed.add(f64::from(u8::from(its.top == my.top)));
        }
        for kl in reference.divergences(mine) {
            self.kl.add(kl);
            self.kls.push(kl as f32);
        }
        Ok(())
    }

    fn finish(mut self) -> Option<Versus> {
        let percentiles = KlPercentiles::of(&mut self.kls)?;
        let share = self.agreed.estimate();
        Some(Versus {
            reference: self.reference_nll.perplexity(),
            ratio: self.nll_difference.exponential(),
            kl: self.kl.estimate(),
            percentiles,
            top1_agreement: Estimate { value: share.value, error: share.error },
        })
    }
}
