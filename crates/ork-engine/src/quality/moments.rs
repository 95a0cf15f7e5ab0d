// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums over positions, and what they say.

use serde::{Deserialize, Serialize};

/// A number and its standard error. The error treats positions as independent, as llama.cpp's does; neighbours in a text
/// are not quite, so it is a lower bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

/// Perplexity of a text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// Mean of the negative logarithm of each scored token's probability, in nats.
    pub nll: Estimate,
    /// Its exponential.
    pub perplexity: Estimate,
}

/// Distance from a reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    /// Perplexity of the reference on the same positions.
    pub reference: Perplexity,
    /// Perplexity over the reference's. Its error is that of the paired difference, much smaller than of either.
    pub ratio: Estimate,
    /// Mean of KL(reference ‖ model) in nats.
    pub kl: Estimate,
    /// How KL is spread.
    pub percentiles: KlPercentiles,
    /// Share of positions where both put the same token first.
    pub top1_agreement: Estimate,
}

/// KL of one position that this share of positions does not exceed (nearest rank), in nats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KlPercentiles {
    /// Half.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p99_9: f64,
    /// All.
    pub max: f64,
}

/// Mean and standard error of a sample, one value at a time (Welford).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moments {
    count: u64,
    mean: f64,
    squares: f64,
}

impl Moments {
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The error of one value alone is unknown, and given as 0.
    pub(crate) fn estimate(&self) -> Estimate {
        let n = self.count as f64;
        let error = if self.count > 1 { (self.squares / n / (n - 1.0)).sqrt() } else { 0.0 };
        Estimate { value: self.mean, error }
    }

    /// The exponential of the mean; its error to first order.
    pub(crate) fn exponential(&self) -> Estimate {
        let mean = self.estimate();
        let value = mean.value.exp();
        Estimate { value, error: value * mean.error }
    }

    pub(crate) fn perplexity(&self) -> Perplexity {
        Perplexity { nll: self.estimate(), perplexity: self.exponential() }
    }
}

impl KlPercentiles {
    /// Sorts the sample. `None` if it is empty.
    pub(crate) fn of(sample: &mut [f32]) -> Option<Self> {
        sample.sort_unstable_by(f32::total_cmp);
        let rank = |share: f64| {
            let rank = (share * sample.len() as f64).ceil() as usize;
            sample.get(rank.saturating_sub(1)).copied().map(f64::from)
        };
        Some(Self {
            p50: rank(0.5)?,
            p90: rank(0.9)?,
            p95: rank(0.95)?,
            p99: rank(0.99)?,
            p99_9: rank(0.999)?,
            max: rank(1.0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_by_hand() {
        let mut moments = Moments::default();
        [1.0, 2.0, 4.0, 9.0].into_iter().for_each(|value| moments.add(value));
        let Estimate { value, error } = moments.estimate();
        // Mean 4; squares 9 + 4 + 0 + 25 = 38; sample variance 38/3; standard error sqrt(38/3/4).
        assert_eq!((moments.count(), value), (4, 4.0));
        assert!((error - (38.0f64 / 12.0).sqrt()).abs() < 1e-12);
        let exponential = moments.exponential();
        assert!((exponential.value - 4f64.exp()).abs() < 1e-9);
        assert!((exponential.error - 4f64.exp() * error).abs() < 1e-9);
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let mut sample: Vec<f32> = (1..=1000).rev().map(|i| i as f32).collect();
        let p = KlPercentiles::of(&mut sample).unwrap();
        assert_eq!((p.p50, p.p90, p.p95, p.p99, p.p99_9, p.max), (500.0, 900.0, 950.0, 990.0, 999.0, 1000.0));
        let one = KlPercentiles::of(&mut [3.0]).unwrap();
        assert_eq!((one.p50, one.max), (3.0, 3.0));
        assert_eq!(KlPercentiles::of(&mut []), None);
    }
}
