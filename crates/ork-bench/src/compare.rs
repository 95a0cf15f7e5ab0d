// SPDX-License-Identifier: MIT OR Apache-2.0
//! Verdicts on two arms.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Null, median};

/// What a comparison shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The first arm is faster than the second.
    Faster,
    /// It is slower.
    Slower,
    /// The difference is within what the arms differ from themselves by.
    NoDifferenceShown,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifferenceShown => "no difference shown",
        })
    }
}

/// One arm against another in the same test: ratios of the host's wall time, whatever that contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The test: `pp512`.
    pub test: String,
    /// The arm that is judged.
    pub arm: String,
    /// The arm that it is judged against.
    pub baseline: String,
    /// Median speed of the arm over that of the baseline.
    pub ratio: f64,
    /// Differences from 1 that show nothing, as a share: from 1 / (1 + null) to 1 + null.
    pub null: f64,
    /// What it shows.
    pub verdict: Verdict,
}

impl Comparison {
    /// Compares the times of two arms, each with those of its twins; `None` if one has no null.
    #[must_use]
    pub fn of(test: &str, arm: (&str, [&[f64]; 2]), baseline: (&str, [&[f64]; 2])) -> Option<Self> {
        let null = |twins: [&[f64]; 2]| Null::of(twins[0], twins[1]);
        let spread = null(arm.1)?.spread.max(null(baseline.1)?.spread);
        let time = |twins: [&[f64]; 2]| median(&twins.concat()).map(f64::ln);
        let gain = time(baseline.1)? - time(arm.1)?;
        let verdict = if gain.abs() <= spread {
            Verdict::NoDifferenceShown
        } else if gain > 0.0 {
            Verdict::Faster
        } else {
            Verdict::Slower
        };
        Some(Self {
            test: test.to_owned(),
            arm: arm.0.to_owned(),
            baseline: baseline.0.to_owned(),
            ratio: gain.exp(),
            null: spread.exp_m1(),
            verdict,
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} is {:.3} x {} (A/A null {:.1} %): {}",
            self.test,
            self.arm,
            self.ratio,
            self.baseline,
            self.null * 100.0,
            self.verdict
        )
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro256StarStar;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;

    fn compare(arm: [&[f64]; 2], baseline: [&[f64]; 2]) -> Comparison {
        Comparison::of("pp8", ("new", arm), ("old", baseline)).unwrap()
    }

    #[test]
    fn a_verdict_only_outside_the_null() {
        let old: [&[f64]; 2] = [&[1.0, 1.04, 1.02], &[1.01, 1.05, 1.03]];
        // The null of the old arm: 1.04 / 1.01.
        let shifted = |factor: f64| -> Vec<Vec<f64>> {
            old.iter().map(|twin| twin.iter().map(|time| time * factor).collect()).collect()
        };
        for (factor, verdict) in [
            (1.0, Verdict::NoDifferenceShown),
            (1.028, Verdict::NoDifferenceShown),
            (0.973, Verdict::NoDifferenceShown),
            (1.031, Verdict::Slower),
            (0.969, Verdict::Faster),
            (0.5, Verdict::Faster),
        ] {
            let new = shifted(factor);
            let comparison = compare([&new[0], &new[1]], old);
            assert_eq!(comparison.verdict, verdict, "{comparison}");
            assert!((comparison.ratio * factor - 1.0).abs() < 1e-12);
            assert!((comparison.null - (1.04 / 1.01 - 1.0)).abs() < 1e-12);
        }
    }

    #[test]
    fn the_noisier_arm_sets_the_null() {
        let quiet: [&[f64]; 2] = [&[1.0, 1.001], &[1.0, 1.001]];
        let noisy: [&[f64]; 2] = [&[1.1, 1.4], &[1.15, 1.35]];
        assert_eq!(compare(noisy, quiet).verdict, Verdict::Slower);
        let noisy: [&[f64]; 2] = [&[0.9, 1.4], &[0.95, 1.35]];
        assert_eq!(compare(noisy, quiet).verdict, Verdict::NoDifferenceShown);
        assert_eq!(compare(quiet, noisy).verdict, Verdict::NoDifferenceShown);
    }

    /// Arms that are the same are rarely told apart, though the noise has outliers.
    #[test]
    fn false_alarms_are_rare() {
        let mut random = Xoshiro256StarStar::seed_from_u64(7);
        let mut twin = |count: usize| -> Vec<f64> {
            let noise = |_| {
                let draw = random.next_u64();
                1.0 + (draw % 997) as f64 * 1e-4 + if draw >> 60 == 0 { 1.0 } else { 0.0 }
            };
            (0..count).map(noise).collect()
        };
        for count in [2, 3, 5] {
            let mut alarms = 0;
            for _ in 0..400 {
                let (a, b, c, d) = (twin(count), twin(count), twin(count), twin(count));
                alarms += u32::from(compare([&a, &b], [&c, &d]).verdict != Verdict::NoDifferenceShown);
            }
            assert!(alarms <= 40, "{alarms} of 400 with {count} runs of each twin");
        }
    }
}
