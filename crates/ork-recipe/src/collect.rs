// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gathering statistics of activations: one set of sums for every distinct input, within a stated bound of memory.

use std::collections::BTreeMap;

use ork_quant::{Collect, Statistics, TensorStatistics};

use crate::RecipeError;

/// Activations that one or more weights multiply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalibrationInput {
    /// The first of its weights: the name that its statistics have.
    pub weight: String,
    /// The others: keys and values beside queries, up beside gate.
    pub also: Vec<String>,
    /// Channels.
    pub k: usize,
}

/// Statistics in the making.
#[derive(Debug)]
pub struct Collector {
    statistics: Statistics,
}

impl Collector {
    /// Bytes that statistics of these inputs take at most, with what adding `rows` rows at once takes beside them. Known
    /// before anything is reserved.
    pub fn bytes_max(inputs: &[CalibrationInput], collect: Collect, rows: u64) -> u64 {
        let sums = Statistics::bytes_max(inputs.iter().map(|input| (input.k as u64, collect)));
        let largest = inputs.iter().map(|input| input.k as u64).max().unwrap_or(0);
        sums + rows_bytes_max(largest, collect, rows)
    }

    /// Statistics of nothing yet.
    ///
    /// # Errors
    /// [`RecipeError::Memory`] if they could take more than `bytes_max`; nothing is reserved then.
    pub fn new(
        inputs: &[CalibrationInput],
        collect: Collect,
        rows: u64,
        bytes_max: u64,
    ) -> Result<Self, RecipeError> {
        let needed = Self::bytes_max(inputs, collect, rows);
        if needed > bytes_max {
            return Err(RecipeError::Memory { inputs: inputs.len(), needed, allowed: bytes_max });
        }
        let tensors = inputs
            .iter()
            .map(|input| (input.weight.clone(), TensorStatistics::new(input.k, collect)))
            .collect::<BTreeMap<_, _>>();
        let shared = inputs
            .iter()
            .flat_map(|input| input.also.iter().map(|weight| (weight.clone(), input.weight.clone())));
        Ok(Self { statistics: Statistics { tensors, shared: shared.collect(), position: 0 } })
    }

    /// Goes on from statistics that were gathered before.
    ///
    /// # Errors
    /// [`RecipeError::Knowledge`] if they are not of these inputs, [`RecipeError::Memory`].
    pub fn resume(
        inputs: &[CalibrationInput],
        collect: Collect,
        rows: u64,
        bytes_max: u64,
        found: Statistics,
    ) -> Result<Self, RecipeError> {
        let mut fresh = Self::new(inputs, collect, rows, bytes_max)?;
        let differs = |weight: &str| RecipeError::Knowledge {
            weight: weight.to_owned(),
            what: "the unfinished statistics are of other weights: delete the file to start anew".to_owned(),
        };
        for (name, tensor) in &fresh.statistics.tensors {
            let kept = found.tensors.get(name).ok_or_else(|| differs(name))?;
            if (kept.k(), kept.collects()) != (tensor.k(), tensor.collects()) {
                return Err(differs(name));
            }
        }
        if let Some(name) = found.tensors.keys().find(|name| !fresh.statistics.tensors.contains_key(*name)) {
            return Err(differs(name));
        }
        if found.shared != fresh.statistics.shared {
            return Err(differs("(all)"));
        }
        fresh.statistics = found;
        Ok(fresh)
    }

    /// Whether statistics of a weight are kept under its own name: whether its activations are to be added.
    pub fn wants(&self, weight: &str) -> bool {
        self.statistics.tensors.contains_key(weight)
    }

    /// Adds rows of activations of a weight.
    ///
    /// # Errors
    /// [`RecipeError::Statistics`] for rows that do not fit or are not finite, [`RecipeError::Knowledge`] for a weight
    /// that was not asked for.
    pub fn add(&mut self, weight: &str, rows: &[f32]) -> Result<(), RecipeError> {
        let Some(tensor) = self.statistics.tensors.get_mut(weight) else {
            let what = "nobody asked for its activations".to_owned();
            return Err(RecipeError::Knowledge { weight: weight.to_owned(), what });
        };
        tensor.add_rows(rows).map_err(|source| RecipeError::Statistics { weight: weight.to_owned(), source })
    }

    /// Notes how far the text has been read.
    pub fn advance(&mut self, position: u64) {
        self.statistics.position = position;
    }

    /// What is there.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }
}

/// Bytes that adding `rows` rows of K activations takes beside the sums, at most: the rows, and scratch.
pub const fn rows_bytes_max(k: u64, collect: Collect, rows: u64) -> u64 {
    let scratch = match collect {
        Collect::Sums => 0,
        Collect::Hessian => TensorStatistics::scratch_bytes_max(k),
    };
    4 * k * rows + scratch
}
