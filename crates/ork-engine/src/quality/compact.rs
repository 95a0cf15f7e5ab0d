// SPDX-License-Identifier: MIT OR Apache-2.0
//! A distribution in 16 bits per token.
//!
//! A log-probability lies between the row's largest, `top`, and its smallest, some tens of nats lower. What counts in a
//! divergence is weighted by the probability, so the code is finer near the top: it is linear in the *root* of the
//! distance from it, `log p = top − (code × step)²` with `step = sqrt(range) / 65535`. The error of one value is at most
//! `step × sqrt(distance)`: for a range of 36 nats 9e-5 at 1 nat, 3e-4 at 10 nats and 5e-4 at the bottom, without the
//! bound of 16 nats of llama.cpp's files. Errors of the tokens of a row are independent and rows are normalised again when
//! they are read, so what remains in a mean KL is below 1e-6 (a test measures it).

use rayon::prelude::*;

use super::score::{Row, Table, summary};
use crate::error::EngineError;

/// Bytes before the codes of a row: `top` (f32), `step` (f32), the likeliest token (u32), the log-probability of the
/// token that follows (f64), all little-endian.
const HEAD: usize = 20;
/// Largest code.
const CODE_MAX: f32 = 65535.0;

/// Bytes of a row.
pub(crate) fn row_bytes(vocabulary: usize) -> usize {
    HEAD + 2 * vocabulary
}

/// All rows, one after the other.
pub(crate) fn encode(table: &Table) -> Vec<u8> {
    let size = row_bytes(table.vocabulary);
    let mut bytes = vec![0u8; size * table.rows.len()];
    bytes.par_chunks_exact_mut(size).zip(&table.rows).enumerate().for_each(|(position, (out, row))| {
        let logits = table.row(position);
        let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
        for &logit in logits {
            (low, high) = (low.min(logit), high.max(logit));
        }
        let step = (high - low).sqrt() / CODE_MAX;
        let top = (f64::from(high) - row.log_sum) as f32;
        let (head, codes) = out.split_at_mut(HEAD);
        head[0..4].copy_from_slice(&top.to_le_bytes());
        head[4..8].copy_from_slice(&step.to_le_bytes());
        head[8..12].copy_from_slice(&row.top.to_le_bytes());
        head[12..20].copy_from_slice(&row.target.to_le_bytes());
        let per_code = if step > 0.0 { 1.0 / step } else { 0.0 };
        for (code, &logit) in codes.as_chunks_mut::<2>().0.iter_mut().zip(logits) {
            let value = ((high - logit).sqrt() * per_code).round().min(CODE_MAX);
            *code = (value as u16).to_le_bytes();
        }
    });
    bytes
}

/// Log-probability of the token that follows, from an encoded row.
pub(crate) fn target(row: &[u8]) -> f64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(&row[12..HEAD]);
    f64::from_le_bytes(word)
}

/// The rows again, normalised.
pub(crate) fn decode(bytes: &[u8], vocabulary: usize) -> Result<Table, EngineError> {
    let size = row_bytes(vocabulary);
    let mut logits = vec![0f32; bytes.len() / size * vocabulary];
    let rows = logits.par_chunks_exact_mut(vocabulary.max(1)).zip(bytes.par_chunks_exact(size)).map(
        |(logits, bytes)| {
            let number = |at: usize| {
                let mut word = [0u8; 4];
                word.copy_from_slice(&bytes[at..at + 4]);
                word
            };
            let (top, step) = (f32::from_le_bytes(number(0)), f32::from_le_bytes(number(4)));
            for (logit, &code) in logits.iter_mut().zip(bytes[HEAD..].as_chunks::<2>().0) {
                let root = f32::from(u16::from_le_bytes(code)) * step;
                *logit = top - root * root;
            }
            let (log_sum, _) = summary(logits);
            if !log_sum.is_finite() {
                let why = "a distribution of the reference file is no distribution".to_owned();
                return Err(EngineError::NotComparable { why });
            }
            Ok(Row { log_sum, top: u32::from_le_bytes(number(8)), target: target(bytes) })
        },
    );
    let rows = rows.collect::<Result<_, _>>()?;
    Ok(Table { vocabulary, logits, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows like a language model's: normal logits with a few tall ones, in 36 nats.
    fn table(seed: u64, vocabulary: usize, positions: usize, shift: f32) -> Table {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        let logits: Vec<f32> = (0..vocabulary * positions)
            .map(|_| {
                let normal = (0..4).map(|_| uniform() - 0.5).sum::<f32>() * 6.0;
                let tall = if uniform() < 0.001 { 18.0 * uniform() } else { 0.0 };
                normal + tall + shift
            })
            .collect();
        let targets: Vec<i32> = (0..positions).map(|p| (p * 37 % vocabulary) as i32).collect();
        Table::of(vocabulary, logits, &targets).unwrap()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn every_value_is_within_its_bound() {
        let table = table(1, 4999, 7, -3.0);
        let back = decode(&encode(&table), 4999).unwrap();
        for position in 0..7 {
            let high = table.row(position).iter().copied().fold(f32::MIN, f32::max);
            let low = table.row(position).iter().copied().fold(f32::MAX, f32::min);
            let step = f64::from(high - low).sqrt() / 65535.0;
            for (&before, &after) in table.row(position).iter().zip(back.row(position)) {
                let exact = f64::from(before) - table.rows[position].log_sum;
                let distance = f64::from(high - before);
                // Half a step of the root, and the rounding of f32.
                let bound = step * distance.sqrt() + step * step + 4e-6 * (1.0 + exact.abs());
                assert!((f64::from(after) - exact).abs() <= bound, "{exact} became {after}, bound {bound}");
            }
            assert_eq!(back.rows[position].top, table.rows[position].top);
            assert_eq!(back.rows[position].target, table.rows[position].target);
            assert!(back.rows[position].log_sum.abs() < 1e-4, "already normalised but for the codes");
        }
    }

    /// What the code adds to a divergence: against itself, and to one as small as that of eight good bits.
    #[test]
    fn the_error_of_a_mean_divergence_is_below_a_millionth() {
        let reference = table(2, 20_011, 40, 0.0);
        let mut noisy = reference.clone();
        let noise = table(3, 20_011, 40, 0.0);
        for (logit, noise) in noisy.logits.iter_mut().zip(&noise.logits) {
            *logit += 0.03 * noise;
        }
        let targets: Vec<i32> = (0..40).map(|p| p * 37).collect();
        let noisy = Table::of(20_011, noisy.logits, &targets).unwrap();
        let kept = decode(&encode(&reference), 20_011).unwrap();
        let itself = mean(&kept.divergences(&reference));
        assert!((0.0..1e-7).contains(&itself), "{itself}");
        let (exact, coded) = (mean(&reference.divergences(&noisy)), mean(&kept.divergences(&noisy)));
        assert!(exact > 1e-4, "{exact}");
        assert!((exact - coded).abs() < 1e-6, "{exact} became {coded}");
    }

    #[test]
    fn flat_rows_and_damaged_ones() {
        let flat = Table::of(5, vec![2.5; 10], &[0, 4]).unwrap();
        let back = decode(&encode(&flat), 5).unwrap();
        assert!(back.logits.iter().all(|&l| (f64::from(l) + 5f64.ln()).abs() < 1e-6), "{:?}", back.logits);
        let mut bytes = encode(&flat);
        bytes[0..4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(matches!(decode(&bytes, 5), Err(EngineError::NotComparable { .. })));
    }
}
