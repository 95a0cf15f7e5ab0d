// SPDX-License-Identifier: MIT OR Apache-2.0
//! Distributions of one window, and the scores of its positions.

use rayon::prelude::*;

use crate::error::EngineError;

/// Distributions at the scored positions of one window.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    /// Values per row.
    pub(crate) vocabulary: usize,
    /// Per position and token: a logit. Adding a constant to a row changes nothing.
    pub(crate) logits: Vec<f32>,
    /// Per position.
    pub(crate) rows: Vec<Row>,
}

/// One position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    /// Logarithm of the sum of all exponentials of the logits.
    pub(crate) log_sum: f64,
    /// The likeliest token; of several the last.
    pub(crate) top: u32,
    /// Logarithm of the probability of the token that follows in the text.
    pub(crate) target: f64,
}

impl Table {
    /// Takes the logits of a window apart: one row of the vocabulary per target.
    pub(crate) fn of(vocabulary: usize, logits: Vec<f32>, targets: &[i32]) -> Result<Self, EngineError> {
        let not = |why: String| EngineError::NotComparable { why };
        if vocabulary == 0 || logits.len() != vocabulary * targets.len() {
            let (found, wanted) = (logits.len(), targets.len());
            return Err(not(format!(
                "{found} logits for {wanted} positions and a vocabulary of {vocabulary}"
            )));
        }
        let rows =
            logits.par_chunks_exact(vocabulary).zip(targets).enumerate().map(|(position, (row, &target))| {
                let (log_sum, top) = summary(row);
                let target = usize::try_from(target).ok().and_then(|token| row.get(token));
                let target =
                    target.ok_or_else(|| not(format!("token {target:?} is outside the vocabulary")))?;
                let target = f64::from(*target) - log_sum;
                if !log_sum.is_finite() || !target.is_finite() {
                    return Err(not(format!("the logits of scored position {position} are not all numbers")));
                }
                Ok(Row { log_sum, top, target })
            });
        let rows = rows.collect::<Result<_, _>>()?;
        Ok(Self { vocabulary, logits, rows })
    }

    pub(crate) fn row(&self, position: usize) -> &[f32] {
        self.logits.get(position * self.vocabulary..(position + 1) * self.vocabulary).unwrap_or_default()
    }

    /// KL(self ‖ other) in nats, for each position.
    pub(crate) fn divergences(&self, other: &Self) -> Vec<f64> {
        let positions = self.rows.par_iter().zip(&other.rows).enumerate();
        positions
            .map(|(position, (mine, theirs))| {
                // Both rows less their own normaliser: log-probabilities.
                let (p_sum, q_sum) = (mine.log_sum, theirs.log_sum);
                let pairs = self.row(position).iter().zip(other.row(position));
                pairs
                    .map(|(&p, &q)| {
                        let p = f64::from(p) - p_sum;
                        // e^-40 of anything that a logit can be is less than the rounding of the sum.
                        if p < LOG_NOTHING { 0.0 } else { p.exp() * (p - (f64::from(q) - q_sum)) }
                    })
                    .sum()
            })
            .collect()
    }
}

/// Log-probabilities below this add nothing to a sum of f64.
const LOG_NOTHING: f64 = -40.0;

/// Logarithm of the sum of exponentials, and the index of the largest value.
pub(crate) fn summary(row: &[f32]) -> (f64, u32) {
    let (mut max, mut top) = (f32::NEG_INFINITY, 0);
    let mut nan = false;
    for (index, &value) in row.iter().enumerate() {
        nan |= value.is_nan();
        if value >= max {
            (max, top) = (value, index);
        }
    }
    if nan {
        return (f64::NAN, 0);
    }
    // In f64 throughout: divergences of 1e-8 are differences of these.
    let max = f64::from(max);
    let sum: f64 = row.iter().map(|&value| (f64::from(value) - max).exp()).sum();
    (max + sum.ln(), u32::try_from(top).unwrap_or(u32::MAX))
}
