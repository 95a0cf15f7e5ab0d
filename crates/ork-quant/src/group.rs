// SPDX-License-Identifier: MIT OR Apache-2.0
//! int4 stored with a multiplier and an offset per 32 input channels, int8 computed.
//!
//! A group of [`GROUP`] channels has sixteen int8 levels, `clamp(offset + rint(nibble · multiplier / 8), −127, 127)`, halves
//! to even: integers only. The one float is the scale of the output channel, so the NPU multiplies plain int8, and finer
//! steps cost storage only: 18 bytes for 32 weights, 4.5 bits each. 32 is the channel block of the int8 tiles, so a group
//! is what lies together in them, and inflating stays one linear pass: a table of sixteen bytes per group, looked up.
//!
//! The levels are equally spaced and need not be around zero. Against one scale for a whole row (`Codebook`) this halves
//! the error of rotated weights; against a scale per group in `f32` it loses what the int8 grid of the row rounds away.

use crate::kernels::finite_abs_max;
use crate::real::{code_of, rint_f32};
use crate::wide::wide;
use crate::{QuantError, Scale};

/// Input channels that share a multiplier and an offset.
pub const GROUP: usize = 32;

/// Bytes of a stored group: multiplier, offset, nibbles with the even channel low.
pub const GROUP_BYTES: usize = 2 + GROUP / 2;

/// A stored group.
pub type StoredGroup = [u8; GROUP_BYTES];

/// The sixteen levels of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Eighths of an int8 step between levels.
    pub multiplier: u8,
    /// The level of nibble 0, in int8 steps.
    pub offset: i8,
}

impl Levels {
    /// Those of a stored group.
    pub fn of(group: &StoredGroup) -> Self {
        Self { multiplier: group[0], offset: group[1].cast_signed() }
    }

    /// The int8 code of a nibble.
    pub fn code(self, nibble: u8) -> i8 {
        let product = i16::from(nibble & 15) * i16::from(self.multiplier);
        // Halves to even: an odd quotient goes up from the half, an even one from beyond it.
        let steps = (product + 3 + (product >> 3 & 1)) >> 3;
        (i16::from(self.offset) + steps).clamp(-127, 127) as i8
    }

    /// The int8 codes of all nibbles.
    pub fn table(self) -> [i8; 16] {
        std::array::from_fn(|nibble| self.code(nibble as u8))
    }
}

/// Turns one stored group into its int8 codes.
pub(crate) fn inflate_group(group: &StoredGroup, codes: &mut [i8; GROUP]) {
    let table = Levels::of(group).table();
    for (pair, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(&group[2..]) {
        *pair = [table[usize::from(byte & 15)], table[usize::from(byte >> 4)]];
    }
}

/// Stores a group: its levels and up to [`GROUP`] nibbles. What follows the last nibble is `padding`.
pub(crate) fn store_group(levels: Levels, nibbles: &[u8], padding: u8) -> StoredGroup {
    let mut group = [padding & 15 | padding << 4; GROUP_BYTES];
    (group[0], group[1]) = (levels.multiplier, levels.offset.cast_unsigned());
    for (byte, pair) in group[2..].iter_mut().zip(nibbles.chunks(2)) {
        *byte = (pair[0] & 15) | pair.get(1).unwrap_or(&padding) << 4;
    }
    group
}

/// Quantises one row (the K weights of one output channel): a scale at which the largest magnitude is 127, and per group
/// the levels with the least Σ importance · (w − ŵ)² that the search finds. One importance per element of the row, that is
/// per input channel; without any, all weigh the same. `groups` gets ⌈K / 32⌉ groups.
///
/// A group that K does not fill has zero among its levels, and its padding inflates to zero.
///
/// # Errors
/// [`QuantError::NonFinite`] at the first NaN or infinity; `groups` is then untouched.
///
/// # Panics
/// If an importance or `groups` does not fit the row.
pub fn quantise_grouped_row(
    row: &[f32],
    importance: Option<&[f32]>,
    groups: &mut [StoredGroup],
) -> Result<Scale, QuantError> {
    assert_eq!(groups.len(), row.len().div_ceil(GROUP), "one stored group for {GROUP} weights");
    if let Some(importance) = importance {
        assert_eq!(importance.len(), row.len(), "one importance per element of the row");
    }
    let scale = Scale::for_abs_max(finite_abs_max(row)?);
    if scale.is_zero() {
        groups.fill([0; GROUP_BYTES]);
        return Ok(scale);
    }
    for (index, (weights, group)) in row.chunks(GROUP).zip(groups).enumerate() {
        let start = index * GROUP;
        let found = Search::new(
            weights.iter().map(|w| w / scale.get()),
            importance.map(|importance| &importance[start..start + weights.len()]),
        );
        *group = found.store();
    }
    Ok(scale)
}

/// The values of a group, in int8 steps, and what the search has found for them.
pub(crate) struct Search {
    values: [f32; GROUP],
    weights: [f32; GROUP],
    count: usize,
    levels: Levels,
    /// The nibble whose level is zero, in a group that is not full.
    zero: u8,
    error: f32,
}

/// Spans tried, over that of the values. Below 1 the outermost values clip, which pays where most lie inside.
const SPANS: [f32; 9] = [1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.74, 0.68, 0.6];

/// Neighbours of (multiplier, offset) that the last step of the search looks at. A larger multiplier lifts the upper
/// levels, so a smaller offset goes with it.
const NEIGHBOURS: [(i16, i16); 8] = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1), (2, -1), (-2, 1)];

impl Search {
    /// Searches the levels of up to [`GROUP`] values.
    pub(crate) fn new(values: impl ExactSizeIterator<Item = f32>, importance: Option<&[f32]>) -> Self {
        let count = values.len();
        let mut search = Self {
            values: [0.0; GROUP],
            weights: [0.0; GROUP],
            count,
            levels: Levels::default(),
            zero: 0,
            error: f32::INFINITY,
        };
        search.values.iter_mut().zip(values).for_each(|(place, value)| *place = value);
        // Only their ratios count; the largest becomes 1, so that nothing overflows or vanishes.
        let largest = importance.map_or(0.0, |importance| importance.iter().fold(0f32, |a, b| a.max(*b)));
        let known = importance.filter(|_| largest > 0.0 && largest.is_finite());
        search.weights[..count].fill(1.0);
        if let Some(importance) = known {
            // A channel that nothing is known of still prefers the nearer level.
            let weights = search.weights.iter_mut().zip(importance);
            weights.for_each(|(weight, importance)| *weight = (importance / largest).max(1e-6));
        }
        search.run();
        search
    }

    fn run(&mut self) {
        let used = &self.values[..self.count];
        let (low, high) =
            used.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
        let middle = (low + high) / 2.0;
        for span in SPANS {
            let step = span * (high - low) / 15.0;
            let (step, offset) = fit(&self.values, &self.weights, step.max(0.125), middle - 7.5 * step);
            self.offer(rint_f32(step * 8.0) as i16, rint_f32(offset) as i16);
        }
        loop {
            let from = self.levels;
            for (multiplier, offset) in NEIGHBOURS {
                let (m, o) = (i16::from(from.multiplier), i16::from(from.offset));
                self.offer(m + multiplier, o + offset);
            }
            if self.levels == from {
                break;
            }
        }
    }

    /// Takes levels if they are better than the best so far.
    fn offer(&mut self, multiplier: i16, offset: i16) {
        let multiplier = multiplier.clamp(1, 255) as u8;
        let mut levels = Levels { multiplier, offset: offset.clamp(-127, 127) as i8 };
        let mut zero = 0;
        if self.count < GROUP {
            // Zero must be among the levels: the offset becomes the negative of one of them without it.
            zero = nibble_of(0.0, levels);
            let bare = Levels { multiplier, offset: 0 };
            levels.offset = -bare.code(zero);
            if levels.code(zero) != 0 {
                return;
            }
        }
        let error = error(&self.values, &self.weights, levels);
        if error < self.error {
            (self.levels, self.zero, self.error) = (levels, zero, error);
        }
    }

    /// What was found.
    pub(crate) fn levels(&self) -> Levels {
        self.levels
    }

    fn store(&self) -> StoredGroup {
        let mut nibbles = [0; GROUP];
        nibbles.iter_mut().zip(&self.values).for_each(|(nibble, x)| *nibble = nibble_of(*x, self.levels));
        store_group(self.levels, &nibbles[..self.count], self.padding())
    }

    /// The nibble of zero, where there must be one.
    pub(crate) fn padding(&self) -> u8 {
        self.zero
    }
}

/// The nibble whose level, before it is rounded to int8, is nearest to a value in int8 steps. The multiplier is not 0.
#[inline(always)]
pub(crate) fn nibble_of(x: f32, levels: Levels) -> u8 {
    let inverse = 8.0 / f32::from(levels.multiplier);
    code_of(((x - f32::from(levels.offset)) * inverse).clamp(0.0, 15.0)).cast_unsigned()
}

/// Step and offset of the line through weighted values, given the nibbles that a first step and offset assign.
fn fit(values: &[f32; GROUP], weights: &[f32; GROUP], step: f32, offset: f32) -> (f32, f32) {
    let [w, n, x, nn, nx] = moments(values, weights, step, offset);
    let determinant = w * nn - n * n;
    // One nibble for all values, or nearly.
    if determinant <= 1e-6 * w * nn {
        return (step, offset);
    }
    let fitted = (w * nx - n * x) / determinant;
    if fitted > 0.0 { (fitted, (x - fitted * n) / w) } else { (step, offset) }
}

/// Lanes of the sums: fixed, so that the order of additions is.
const LANES: usize = 8;

wide! {
    /// Weighted sums of 1, nibble, value, nibble², nibble · value.
    fn moments(values: &[f32; GROUP], weights: &[f32; GROUP], step: f32, offset: f32) -> [f32; 5] {
        let inverse = 1.0 / step;
        let mut sums = [[0f32; LANES]; 5];
        let (values, weights) = (values.as_chunks::<LANES>().0, weights.as_chunks::<LANES>().0);
        for (x, w) in values.iter().zip(weights) {
            #[allow(clippy::needless_range_loop, reason = "five sums of a lane")]
            for lane in 0..LANES {
                let nibble = rint_f32(((x[lane] - offset) * inverse).clamp(0.0, 15.0));
                let (wn, wx) = (w[lane] * nibble, w[lane] * x[lane]);
                sums[0][lane] += w[lane];
                sums[1][lane] += wn;
                sums[2][lane] += wx;
                sums[3][lane] += wn * nibble;
                sums[4][lane] += wn * x[lane];
            }
        }
        sums.map(|lanes| sum_of(&lanes))
    }
}

wide! {
    /// Weighted sum of squared differences to the level of the nearest nibble.
    fn error(values: &[f32; GROUP], weights: &[f32; GROUP], levels: Levels) -> f32 {
        let (step, offset) = (f32::from(levels.multiplier) / 8.0, f32::from(levels.offset));
        let inverse = 8.0 / f32::from(levels.multiplier);
        let mut sums = [0f32; LANES];
        let (values, weights) = (values.as_chunks::<LANES>().0, weights.as_chunks::<LANES>().0);
        for (x, w) in values.iter().zip(weights) {
            for ((sum, x), w) in sums.iter_mut().zip(x).zip(w) {
                let nibble = rint_f32(((x - offset) * inverse).clamp(0.0, 15.0));
                // Exact: both factors are small integers, one of them over 8.
                let level = (offset + rint_f32(nibble * step)).clamp(-127.0, 127.0);
                let miss = x - level;
                *sum += w * miss * miss;
            }
        }
        sum_of(&sums)
    }
}

/// Apart, because the compiler would otherwise split the lanes of the loops above to suit this sum.
#[inline(never)]
fn sum_of(sums: &[f32; LANES]) -> f32 {
    sums.iter().sum()
}
