// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far apart two ways of computing a model are: logits of one text under each, and their divergence.

use crate::context::Context;
use crate::error::EngineError;
use crate::llama::Outputs;
use crate::model::Model;
use ork_engine_options::ContextOptions;
use serde::{Deserialize, Serialize};

/// Logits after each token of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitTable {
    tokens: Vec<i32>,
    vocabulary: usize,
    logits: Vec<f32>,
}

impl LogitTable {
    /// Builds a table, e.g. from a file.
    ///
    /// # Errors
    /// [`EngineError::NotComparable`] unless there is one row of the vocabulary per token.
    pub fn new(tokens: Vec<i32>, vocabulary: usize, logits: Vec<f32>) -> Result<Self, EngineError> {
        if vocabulary == 0 || logits.len() != tokens.len() * vocabulary {
            let why = format!(
                "{} logits for {} tokens and a vocabulary of {vocabulary}",
                logits.len(),
                tokens.len()
            );
            return Err(EngineError::NotComparable { why });
        }
        Ok(Self { tokens, vocabulary, logits })
    }

    /// The text.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Logits per position.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Logits after the token at `position`.
    pub fn row(&self, position: usize) -> Option<&[f32]> {
        self.logits.get(position * self.vocabulary..(position + 1) * self.vocabulary)
    }

    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.logits.chunks_exact(self.vocabulary)
    }
}

/// Evaluates `tokens` in a fresh context (as large as the text) and returns the logits after each.
///
/// The route of the backend applies as usual: load the model under each route to be compared, and evaluate under it.
/// Memory: 4 bytes × tokens × vocabulary.
///
/// # Errors
/// As [`crate::Generation::run_tokens`].
pub fn logits(model: &Model, tokens: &[i32], options: &ContextOptions) -> Result<LogitTable, EngineError> {
    let context_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX).max(1);
    let mut context =
        Context::open(model, &ContextOptions { context_tokens: Some(context_tokens), ..options.clone() })?;
    context.admit(tokens)?;
    let vocabulary = model.info().vocabulary as usize;
    let mut logits = Vec::with_capacity(tokens.len() * vocabulary);
    let batch = context.batch_tokens();
    for chunk in tokens.chunks(batch) {
        context.evaluate(chunk, Outputs::All)?;
        for index in 0..i32::try_from(chunk.len()).unwrap_or(0) {
            let row = context.raw().logits(index).ok_or(EngineError::Missing { what: "logits" })?;
            logits.extend_from_slice(row);
        }
    }
    LogitTable::new(tokens.to_vec(), vocabulary, logits)
}

/// Distance of a candidate from a reference over one text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Positions compared.
    pub positions: u64,
    /// Mean of KL(reference ‖ candidate), in nats.
    pub mean_kl: f64,
    /// Largest KL of one position.
    pub max_kl: f64,
    /// Where.
    pub max_kl_position: u64,
    /// Share of positions where both put the same token first.
    pub top1_agreement: f64,
    /// Perplexity of the reference on the text's own next tokens.
    pub reference_perplexity: f64,
    /// Perplexity of the candidate.
    pub candidate_perplexity: f64,
}

impl Divergence {
    /// Compares two evaluations of the same text, leaving out the first `skip` positions (which have little context
    /// to go by). The last position has no next token and counts for KL and agreement only.
    ///
    /// # Errors
    /// [`EngineError::NotComparable`] if texts or vocabularies differ, nothing is left, or a logit is not a number.
    pub fn between(reference: &LogitTable, candidate: &LogitTable, skip: usize) -> Result<Self, EngineError> {
        let not = |why: String| Err(EngineError::NotComparable { why });
        if reference.vocabulary != candidate.vocabulary {
            return not(format!("vocabularies of {} and {}", reference.vocabulary, candidate.vocabulary));
        }
        if reference.tokens != candidate.tokens {
            return not("the texts differ".to_owned());
        }
        if skip + 1 >= reference.tokens.len() {
            return not(format!("{} tokens, the first {skip} of them skipped", reference.tokens.len()));
        }
        let (mut kl_sum, mut max_kl, mut max_kl_position) = (0.0, f64::NEG_INFINITY, skip);
        let (mut agreed, mut reference_nll, mut candidate_nll) = (0u64, 0.0, 0.0);
        let pairs = reference.rows().zip(candidate.rows()).enumerate().skip(skip);
        for (position, (p_logits, q_logits)) in pairs {
            let (p, q) = (LogProbabilities::of(p_logits), LogProbabilities::of(q_logits));
            let kl: f64 = p.iter().zip(q.iter()).map(|(p, q)| p.exp() * (p - q)).sum();
            if !kl.is_finite() {
                return not(format!("the logits at position {position} are not all numbers"));
            }
            kl_sum += kl;
            if kl > max_kl {
                (max_kl, max_kl_position) = (kl, position);
            }
            agreed += u64::from(argmax(p_logits) == argmax(q_logits));
            if let Some(&next) = reference.tokens.get(position + 1) {
                let next = usize::try_from(next).ok().filter(|&t| t < reference.vocabulary);
                let Some(next) = next else {
                    return not(format!(
                        "token {} at position {}",
                        reference.tokens[position + 1],
                        position + 1
                    ));
                };
                reference_nll -= p.at(next);
                candidate_nll -= q.at(next);
            }
        }
        let positions = reference.tokens.len() - skip;
        let scored = (positions - 1) as f64;
        Ok(Self {
            positions: positions as u64,
            mean_kl: kl_sum / positions as f64,
            max_kl,
            max_kl_position: max_kl_position as u64,
            top1_agreement: agreed as f64 / positions as f64,
            reference_perplexity: (reference_nll / scored).exp(),
            candidate_perplexity: (candidate_nll / scored).exp(),
        })
    }
}

/// A row of logits with its normaliser.
struct LogProbabilities<'a> {
    logits: &'a [f32],
    log_sum: f64,
}

impl<'a> LogProbabilities<'a> {
    fn of(logits: &'a [f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        Self { logits, log_sum: f64::from(max) + sum.ln() }
    }

    fn at(&self, token: usize) -> f64 {
        f64::from(self.logits[token]) - self.log_sum
    }

    fn iter(&self) -> impl Iterator<Item = f64> {
        self.logits.iter().map(|&l| f64::from(l) - self.log_sum)
    }
}

fn argmax(row: &[f32]) -> usize {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(tokens: &[i32], logits: &[f32]) -> LogitTable {
        LogitTable::new(tokens.to_vec(), 2, logits.to_vec()).unwrap()
    }

    #[test]
    fn against_itself_it_is_zero() {
        let a = table(&[0, 1, 0], &[0.5, -1.0, 2.0, 2.5, 0.0, 0.0]);
        let d = Divergence::between(&a, &a, 0).unwrap();
        assert_eq!((d.positions, d.mean_kl, d.max_kl, d.top1_agreement), (3, 0.0, 0.0, 1.0));
        assert_eq!(d.reference_perplexity, d.candidate_perplexity);
    }

    #[test]
    fn by_hand() {
        // P = (3/4, 1/4) and Q = (1/2, 1/2): KL = 3/4 ln 3/2 + 1/4 ln 1/2.
        let ln3 = 3f32.ln();
        let p = table(&[0, 0], &[ln3, 0.0, ln3, 0.0]);
        let q = table(&[0, 0], &[0.0, 0.0, 0.0, 1.0]);
        let d = Divergence::between(&p, &q, 0).unwrap();
        let first = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        let e = 1f64.exp();
        let second = 0.75 * (0.75 * (1.0 + e)).ln() + 0.25 * (0.25 * (1.0 + e) / e).ln();
        assert!((d.mean_kl - (first + second) / 2.0).abs() < 1e-6, "{d:?}");
        assert!((d.max_kl - second).abs() < 1e-6);
        assert_eq!(d.max_kl_position, 1);
        // Ties go to the later token, so position 0 disagrees as well.
        assert_eq!(d.top1_agreement, 0.0);
        assert!((d.reference_perplexity - 4.0 / 3.0).abs() < 1e-6);
        assert!((d.candidate_perplexity - 2.0).abs() < 1e-6);
    }

    #[test]
    fn mismatches_are_refused() {
        let a = table(&[0, 1], &[0.0; 4]);
        let other_text = table(&[0, 0], &[0.0; 4]);
        let other_vocabulary = LogitTable::new(vec![0, 1], 3, vec![0.0; 6]).unwrap();
        let bad_number = table(&[0, 1], &[0.0, f32::NAN, 0.0, 0.0]);
        for b in [other_text, other_vocabulary, bad_number] {
            assert!(matches!(Divergence::between(&a, &b, 0), Err(EngineError::NotComparable { .. })));
        }
        assert!(Divergence::between(&a, &a, 1).is_err());
        assert!(LogitTable::new(vec![0], 2, vec![0.0]).is_err());
    }
}
