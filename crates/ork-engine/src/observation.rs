// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looking at the activations of weights while text is evaluated.

use crate::context::Context;
use crate::error::EngineError;
use crate::llama::{ContextResult, Outputs};
use crate::model::Model;
use crate::watch::{ExpertChoice, Wanted, Watcher, WeightProduct};
use ork_engine_options::ContextOptions;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A product of a weight and activations, in one evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedProduct {
    /// Name of the weight.
    pub weight: String,
    /// Channels of the activations.
    pub k: usize,
    /// Names the activations inside one evaluation: equal for weights that share them.
    pub input: usize,
}

/// The experts that tokens chose, in one evaluation: what a product with the experts of a layer obeys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedChoice {
    /// Name of the weight that holds the experts.
    pub stack: String,
    /// How many there are.
    pub experts: usize,
    /// Elements of a row of an expert.
    pub k: usize,
    /// Rows of an expert.
    pub n: usize,
}

/// Whoever looks at activations.
pub trait Observer: Send {
    /// Whether the activations of a product are wanted. Asked for every product of every evaluation, in their order;
    /// nothing has been computed yet.
    fn wants(&mut self, product: &ObservedProduct) -> bool;

    /// The activations of a wanted product: rows of `product.k` values, one per token. `Break` ends the evaluation,
    /// which then fails.
    fn take(&mut self, product: &ObservedProduct, rows: &[f32]) -> ControlFlow<()>;

    /// Whether a choice of experts is wanted. Asked for every product with experts of every evaluation.
    fn wants_choice(&mut self, _choice: &ObservedChoice) -> bool {
        false
    }

    /// The experts that were chosen, token by token. `Break` ends the evaluation, which then fails.
    fn take_choice(&mut self, _choice: &ObservedChoice, _experts: &[i32]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A context whose products an observer sees. Use a model without the NPU: activations are read from host memory.
pub struct Observation<'m, O> {
    context: Context<'m>,
    observer: Arc<Mutex<O>>,
    ended: Arc<AtomicBool>,
}

impl<O> std::fmt::Debug for Observation<'_, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observation").finish_non_exhaustive()
    }
}

struct Shared<O>(Arc<Mutex<O>>, Arc<AtomicBool>);

fn observed(product: &WeightProduct<'_>) -> ObservedProduct {
    ObservedProduct { weight: product.weight(), k: product.k(), input: product.input() }
}

fn chosen(choice: &ExpertChoice<'_>) -> ObservedChoice {
    let [k, n] = choice.size();
    ObservedChoice { stack: choice.stack(), experts: choice.experts(), k, n }
}

impl<O: Observer> Watcher for Shared<O> {
    fn wants(&mut self, product: &WeightProduct<'_>) -> Wanted {
        let wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner).wants(&observed(product));
        if wanted { Wanted::Activations } else { Wanted::Nothing }
    }

    fn ended(&self) {
        self.1.store(true, Ordering::Relaxed);
    }

    fn take(&mut self, product: &WeightProduct<'_>, rows: &[f32]) -> ControlFlow<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(&observed(product), rows)
    }

    fn wants_choice(&mut self, choice: &ExpertChoice<'_>) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).wants_choice(&chosen(choice))
    }

    fn take_choice(&mut self, choice: &ExpertChoice<'_>, experts: &[i32]) -> ControlFlow<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take_choice(&chosen(choice), experts)
    }
}

impl<'m, O: Observer + 'static> Observation<'m, O> {
    /// Opens a context.
    ///
    /// # Errors
    /// [`EngineError::Context`], [`EngineError::InvalidOption`].
    pub fn new(model: &'m Model, options: &ContextOptions, observer: O) -> Result<Self, EngineError> {
        let observer = Arc::new(Mutex::new(observer));
        let ended = Arc::new(AtomicBool::new(false));
        let watcher = Box::new(Shared(Arc::clone(&observer), Arc::clone(&ended)));
        Ok(Self {
            context: Context::open_watched(model, options, ContextResult::Logits, Some(watcher))?,
            observer,
            ended,
        })
    }

    /// Evaluates tokens in an emptied context, with logits after each, so that the output matrix sees every position.
    ///
    /// # Errors
    /// As [`crate::logits`]; [`EngineError::ObserverEnded`] when the observer ended the evaluation, or panicked.
    pub fn evaluate(&mut self, tokens: &[i32]) -> Result<(), EngineError> {
        self.context.clear();
        self.context.admit(tokens)?;
        let batch = self.context.batch_tokens();
        self.ended.store(false, Ordering::Relaxed);
        for chunk in tokens.chunks(batch) {
            let evaluated = self.context.evaluate(chunk, Outputs::All);
            if self.ended.load(Ordering::Relaxed) {
                return Err(EngineError::ObserverEnded);
            }
            evaluated?;
        }
        Ok(())
    }

    /// The observer.
    pub fn with<R>(&mut self, act: impl FnOnce(&mut O) -> R) -> R {
        act(&mut self.observer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
