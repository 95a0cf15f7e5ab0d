// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models that encode: vectors of sentences, and every product on the way.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::error::EngineError;
use crate::llama::{ContextResult, Outputs};
use crate::model::Model;
use crate::watch::{Wanted, Watcher, WeightProduct};
use ork_engine_options::ContextOptions;

/// How like a model and its reference are over some sentences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Likeness {
    /// Sentences.
    pub sentences: u64,
    /// Tokens, special ones included.
    pub tokens: u64,
    /// Mean cosine of the two vectors of a sentence.
    pub mean_cosine: f64,
    /// The smallest.
    pub min_cosine: f64,
    /// One entry per weight, in the order of their names.
    pub layers: Vec<LayerError>,
    /// Host time of the model's own evaluation in seconds. Watching every product slows it.
    pub host_seconds: f64,
}

/// How far the results of one product are from the reference's. What earlier products did wrong is in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerError {
    /// Name of the weight.
    pub weight: String,
    /// Root of the sum of squared differences over that of the reference's squares, over all sentences.
    pub relative: f64,
}

/// The vector of each sentence, of length 1. A sentence longer than the context is cut.
///
/// # Errors
/// As [`crate::Generation::run_tokens`]; [`EngineError::Missing`] if the model does not pool its tokens into one vector.
pub fn embed(
    model: &Model,
    sentences: &[&str],
    options: &ContextOptions,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let mut encoder = Encoder::open(model, options, None)?;
    sentences.iter().map(|sentence| Ok(encoder.encode(sentence)?.vector)).collect()
}

/// Encodes each sentence with a model and its reference, and compares vectors and products.
///
/// # Errors
/// As [`embed`]; [`EngineError::NotComparable`] if the models cut a sentence into different tokens or have other shapes.
pub fn likeness(
    model: &Model,
    reference: &Model,
    sentences: &[&str],
    options: &ContextOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<Likeness, EngineError> {
    let not = |why: String| EngineError::NotComparable { why };
    if sentences.is_empty() {
        return Err(not("there are no sentences".to_owned()));
    }
    let (my_products, its_products) = (Products::default(), Products::default());
    let mut mine = Encoder::open(model, options, Some(&my_products))?;
    let mut its = Encoder::open(reference, options, Some(&its_products))?;
    let (mut cosines, mut tokens, mut host) = (Vec::new(), 0, Duration::ZERO);
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (index, sentence) in sentences.iter().enumerate() {
        let started = Instant::now();
        let my = mine.encode(sentence)?;
        host += started.elapsed();
        let exact = its.encode(sentence)?;
        if my.tokens != exact.tokens || my.vector.len() != exact.vector.len() {
            return Err(not(format!("sentence {index} has other tokens, or its vectors have other lengths")));
        }
        tokens += my.tokens.len() as u64;
        cosines.push(my.vector.iter().zip(&exact.vector).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum());
        let found = my_products.take();
        for (weight, exact) in its_products.take() {
            let found = found.get(&weight).filter(|found| found.len() == exact.len());
            let found = found.ok_or_else(|| not(format!("{weight} is not multiplied by in both")))?;
            let (wrong, all) = sums.entry(weight).or_default();
            for (found, exact) in found.iter().zip(&exact) {
                let (found, exact) = (f64::from(*found), f64::from(*exact));
                *wrong += (found - exact).powi(2);
                *all += exact * exact;
            }
        }
        progress(index + 1);
    }
    let layers = sums.into_iter().map(|(weight, (wrong, all))| LayerError {
        weight,
        relative: if all > 0.0 { (wrong / all).sqrt() } else { 0.0 },
    });
    Ok(Likeness {
        sentences: cosines.len() as u64,
        tokens,
        mean_cosine: cosines.iter().sum::<f64>() / cosines.len() as f64,
        min_cosine: cosines.iter().copied().fold(f64::INFINITY, f64::min),
        layers: layers.collect(),
        host_seconds: host.as_secs_f64(),
    })
}

/// Results of the products since they were last taken, by weight.
#[derive(Debug, Clone, Default)]
struct Products(Arc<Mutex<BTreeMap<String, Vec<f32>>>>);

impl Products {
    fn take(&self) -> BTreeMap<String, Vec<f32>> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Vec<f32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher for Products {
    fn wants(&mut self, product: &WeightProduct<'_>) -> Wanted {
        // Products of two activations have no weight: llama.cpp ends the names of weights so.
        if product.weight().ends_with(".weight") { Wanted::Results } else { Wanted::Nothing }
    }

    // It never ends one.
    fn ended(&self) {}

    fn take(&mut self, product: &WeightProduct<'_>, rows: &[f32]) -> ControlFlow<()> {
        self.lock().insert(product.weight(), rows.to_vec());
        ControlFlow::Continue(())
    }
}

/// A context that encodes.
struct Encoder<'m> {
    context: Context<'m>,
}

struct Encoded {
    tokens: Vec<i32>,
    vector: Vec<f32>,
}

impl<'m> Encoder<'m> {
    fn open(
        model: &'m Model,
        options: &ContextOptions,
        products: Option<&Products>,
    ) -> Result<Self, EngineError> {
        let trained = model.info().trained_context.max(1);
        let context_tokens = options.context_tokens.map_or(trained, |tokens| tokens.min(trained));
        // An encoder sees all of a sentence at once.
        let options = ContextOptions {
            context_tokens: Some(context_tokens),
            batch_tokens: Some(context_tokens),
            ..options.clone()
        };
        let watcher = products.map(|products| Box::new(products.clone()) as Box<dyn Watcher>);
        let context = Context::open_watched(model, &options, ContextResult::Embedding, watcher)?;
        Ok(Self { context })
    }

    fn encode(&mut self, sentence: &str) -> Result<Encoded, EngineError> {
        let mut tokens = self.context.model().tokenize(sentence)?;
        tokens.truncate(self.context.context_tokens() as usize);
        self.context.clear();
        self.context.admit(&tokens)?;
        self.context.evaluate(&tokens, Outputs::All)?;
        let raw = self.context.raw().embedding().ok_or(EngineError::Missing { what: "pooled embedding" })?;
        let length = raw.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        if !length.is_finite() || length == 0.0 {
            let why = "the vector of a sentence has no direction".to_owned();
            return Err(EngineError::NotComparable { why });
        }
        let vector = raw.iter().map(|&x| (f64::from(x) / length) as f32).collect();
        Ok(Encoded { tokens, vector })
    }
}
