// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a set of runs says, and what the same arm differs from itself by.

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// A set of numbers in short.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the sample (divisor: count - 1); 0 for one number.
    pub deviation: f64,
    /// Median.
    pub median: f64,
    /// Smallest.
    pub least: f64,
    /// Largest.
    pub most: f64,
}

impl Spread {
    /// Of these numbers; `None` of none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let median = median(values)?;
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self {
            count,
            mean,
            deviation: if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 },
            median,
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

/// The middle number, or the mean of the two in the middle; `None` of none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some(0.5 * (sorted[middle - 1] + sorted[middle])),
    }
}

/// The A/A null of an arm: how much halves of its own runs differ. A difference to another arm says nothing unless it is
/// larger.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Null {
    /// The larger of the twins' difference and of what 95 % of all even splits of the runs stay within: the logarithm of
    /// a ratio of medians, so 0.02 is about 2 %.
    pub spread: f64,
    /// Ratio of the twins' medians, A to B.
    pub twins: f64,
}

/// Runs of a twin from which a null can be told: two single runs are often alike by chance.
const RUNS_MIN: usize = 2;
/// Share of the splits that stay within the spread.
const WITHIN: f64 = 0.95;
/// Halves of at most this size are split in every way; for more there are too many.
const ALL_SPLITS_MAX: usize = 7;
/// Splits drawn at random instead.
const DRAWN: usize = 4096;

impl Null {
    /// From the times of both twins, in any one unit; `None` if one has fewer than two or a time is not positive.
    #[must_use]
    pub fn of(a: &[f64], b: &[f64]) -> Option<Self> {
        let logs = |times: &[f64]| -> Option<Vec<f64>> {
            times.iter().map(|time| (*time > 0.0 && time.is_finite()).then(|| time.ln())).collect()
        };
        let (a, b) = (logs(a)?, logs(b)?);
        if a.len().min(b.len()) < RUNS_MIN {
            return None;
        }
        let twins = median(&a)? - median(&b)?;
        let half = a.len();
        let all: Vec<f64> = a.into_iter().chain(b).collect();
        let mut differences =
            if all.len() / 2 <= ALL_SPLITS_MAX { every_split(&all, half) } else { drawn_splits(&all, half) };
        differences.sort_by(f64::total_cmp);
        let within = (WITHIN * differences.len() as f64).ceil() as usize;
        let split = within.checked_sub(1).and_then(|at| differences.get(at)).copied().unwrap_or(0.0);
        Some(Self { spread: split.max(twins.abs()), twins: twins.exp() })
    }
}

fn difference(one: &[f64], other: &[f64]) -> f64 {
    match (median(one), median(other)) {
        (Some(one), Some(other)) => (one - other).abs(),
        _ => 0.0,
    }
}

/// Differences of the medians of all ways to take `half` of the numbers.
fn every_split(all: &[f64], half: usize) -> Vec<f64> {
    let masks = 0_u32..1 << all.len();
    let split = |mask: u32| {
        let taken = |wanted: bool| -> Vec<f64> {
            let of = |(index, value): (usize, &f64)| (wanted == (mask >> index & 1 == 1)).then_some(*value);
            all.iter().enumerate().filter_map(of).collect()
        };
        difference(&taken(true), &taken(false))
    };
    masks.filter(|mask| mask.count_ones() as usize == half).map(split).collect()
}

/// The same of some ways, drawn from a fixed seed so that a report can be computed again.
fn drawn_splits(all: &[f64], half: usize) -> Vec<f64> {
    let mut random = Xoshiro256StarStar::seed_from_u64(all.len() as u64);
    let mut shuffled = all.to_vec();
    let draw = |_| {
        for index in (1..shuffled.len()).rev() {
            shuffled.swap(index, (random.next_u64() % (index as u64 + 1)) as usize);
        }
        let (one, other) = shuffled.split_at(half);
        difference(one, other)
    };
    (0..DRAWN).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((spread.count, spread.mean, spread.median), (4, 2.5, 2.5));
        assert_eq!((spread.least, spread.most), (1.0, 4.0));
        assert!((spread.deviation - (5.0_f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(Spread::of(&[7.0]).unwrap().deviation, 0.0);
        assert_eq!((Spread::of(&[]), median(&[3.0, 1.0, 2.0])), (None, Some(2.0)));
    }

    #[test]
    fn the_null_is_the_widest_split_of_few_runs() {
        // Ten splits of three and three: 95 % of them are all of them.
        let (a, b) = ([1.0, 1.1, 1.2], [1.05, 1.15, 1.3]);
        let null = Null::of(&a, &b).unwrap();
        // The lower half, 1, 1.05, 1.1, against the upper, 1.15, 1.2, 1.3.
        assert!((null.spread - (1.2_f64 / 1.05).ln()).abs() < 1e-12, "{null:?}");
        assert!((null.twins - 1.1 / 1.15).abs() < 1e-12);
        assert_eq!(Null::of(&[2.0, 2.0], &[2.0, 2.0]).unwrap().spread, 0.0);
        assert_eq!(Null::of(&[1.0, 1.0], &[]), None);
        assert_eq!(Null::of(&[1.0, 1.0], &[1.0, 0.0]), None);
        assert_eq!(Null::of(&[1.0], &[1.0]), None, "one run of each says nothing");
    }

    #[test]
    fn twins_that_differ_widen_the_null_of_many_runs() {
        // What comes second is slower: no random split is as uneven as the twins are.
        let twin = |base: f64| -> Vec<f64> { (0..20).map(|i| base + 1e-3 * f64::from(i % 7)).collect() };
        let null = Null::of(&twin(1.0), &twin(1.1)).unwrap();
        assert!((null.spread - (1.103_f64 / 1.003).ln()).abs() < 1e-9, "{null:?}");
        // More runs without such a bias narrow it.
        let noise = |count: u32, seed: u64| -> Vec<f64> {
            let mut random = Xoshiro256StarStar::seed_from_u64(seed);
            (0..count).map(|_| 1.0 + (random.next_u64() % 1000) as f64 * 1e-4).collect()
        };
        let at = |count| -> f64 {
            (0..5)
                .map(|seed| Null::of(&noise(count, 2 * seed), &noise(count, 2 * seed + 1)).unwrap().spread)
                .sum()
        };
        assert!(at(200) < 0.5 * at(4), "{} {}", at(200), at(4));
    }
}
