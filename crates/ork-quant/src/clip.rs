// SPDX-License-Identifier: MIT OR Apache-2.0
//! The self-tuning clip search of native int4 weights (`isa-int4-sdp.md` §7.4).
//!
//! A fixed grid was the defect this replaces: with one scale for a whole row the best clipping point lies well below
//! the largest magnitude, a grid that ends at 0.781 pinned every row of a real weight to its end, one that ends
//! at 0.531 half of them. [`ClipReport`] counts rows at the floor, so that this cannot come back in silence.

use serde::{Deserialize, Serialize};

use crate::real::rint;
use crate::wide::wide;

/// The smallest fraction of absmax that the search may choose.
pub const CLIP_FLOOR: f64 = 0.10;

/// What the search of one row found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// Clipping point over the largest magnitude.
    pub alpha: f64,
    /// Squared error there, weighted if the search was.
    pub error: f64,
    /// Unrounded scale: alpha · absmax / 7.
    pub scale: f64,
}

/// What the clip searches of a tensor found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClipReport {
    /// Searches made: one per row and group that is not all zero.
    pub rows: u64,
    /// Searches that ended at [`CLIP_FLOOR`]'s last grid point, so wanted less than the search may give.
    pub pinned: u64,
    /// Sum of alpha over the searches.
    pub alpha_sum: f64,
}

impl ClipReport {
    pub(crate) fn count(&mut self, clip: &Clip) {
        self.rows += 1;
        self.pinned += u64::from(clip.alpha < CLIP_FLOOR + 1.0 / 128.0);
        self.alpha_sum += clip.alpha;
    }

    /// Adds the searches of other rows.
    pub fn merge(&mut self, other: &Self) {
        self.rows += other.rows;
        self.pinned += other.pinned;
        self.alpha_sum += other.alpha_sum;
    }

    /// Mean alpha; 1 where nothing was searched.
    pub fn alpha_mean(&self) -> f64 {
        if self.rows == 0 { 1.0 } else { self.alpha_sum / self.rows as f64 }
    }
}

/// Searches the clipping point of int4 codes −8…7 with the least squared error.
///
/// Start at 1; then 1 − j/32 down to the floor; then twice around the best so far, one step of 1/64 and one of 1/128 to
/// either side, lower first. Only a strict improvement is accepted. `importance` weights the error per
/// element.
///
/// # Panics
/// If an importance has another length than the row.
pub fn search_clip(row: &[f64], importance: Option<&[f64]>) -> Clip {
    if let Some(importance) = importance {
        assert_eq!(importance.len(), row.len(), "one importance per element of the row");
    }
    let abs_max = row.iter().fold(0f64, |max, w| max.max(w.abs()));
    let error_at = |alpha: f64| {
        let scale = alpha * abs_max / 7.0;
        match importance {
            None => error(row, scale),
            Some(importance) => weighted_error(row, importance, scale),
        }
    };
    if abs_max == 0.0 {
        return Clip { alpha: 1.0, error: 0.0, scale: 0.0 };
    }
    let (mut best, mut least) = (1.0, error_at(1.0));
    let mut offer = |alpha: f64, best: &mut f64| {
        let error = error_at(alpha);
        if error < least {
            (*best, least) = (alpha, error);
        }
    };
    for alpha in (1..32).map(|j| 1.0 - f64::from(j) / 32.0).take_while(|alpha| *alpha >= CLIP_FLOOR) {
        offer(alpha, &mut best);
    }
    for step in [1.0 / 64.0, 1.0 / 128.0] {
        let centre = best;
        for alpha in [centre - step, centre + step] {
            if (CLIP_FLOOR..=1.0).contains(&alpha) {
                offer(alpha, &mut best);
            }
        }
    }
    Clip { alpha: best, error: least, scale: best * abs_max / 7.0 }
}

/// Lanes of the error sums: fixed, so that the order of additions is.
const LANES: usize = 8;

#[inline(always)]
fn square(w: f64, scale: f64, inverse: f64) -> f64 {
    let miss = w - scale * rint((w * inverse).clamp(-8.0, 7.0));
    miss * miss
}

/// Apart, because the compiler would otherwise split the lanes of the loops below to suit this sum.
#[inline(never)]
fn sum_of(sums: &[f64; LANES]) -> f64 {
    sums.iter().sum()
}

wide! {
    fn error(row: &[f64], scale: f64) -> f64 {
        let inverse = 1.0 / scale;
        let mut sums = [0f64; LANES];
        let (whole, tail) = row.as_chunks::<LANES>();
        for chunk in whole {
            for (sum, w) in sums.iter_mut().zip(chunk) {
                *sum += square(*w, scale, inverse);
            }
        }
        for (sum, w) in sums.iter_mut().zip(tail) {
            *sum += square(*w, scale, inverse);
        }
        sum_of(&sums)
    }
}

wide! {
    fn weighted_error(row: &[f64], importance: &[f64], scale: f64) -> f64 {
        let inverse = 1.0 / scale;
        let mut sums = [0f64; LANES];
        let ((whole, tail), (weights, tail_weights)) = (row.as_chunks::<LANES>(), importance.as_chunks::<LANES>());
        for (chunk, weights) in whole.iter().zip(weights) {
            for ((sum, w), weight) in sums.iter_mut().zip(chunk).zip(weights) {
                *sum += weight * square(*w, scale, inverse);
            }
        }
        for ((sum, w), weight) in sums.iter_mut().zip(tail).zip(tail_weights) {
            *sum += weight * square(*w, scale, inverse);
        }
        sum_of(&sums)
    }
}
