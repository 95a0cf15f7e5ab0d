// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPTQ: rounds weights one input channel after another and lets the channels to come make up for the error
//! (`isa-int4-sdp.md` §7.4). All in `f64`: factoring in `f32` cost 7.2 % of perplexity.
//!
//! The work splits in two. [`Factor`] is made once per tensor from its Hessian, O(K³). With it, output channels
//! are independent: [`Factor::quantise`] takes any rows of the weight, so a caller may hand out pieces to threads.

use crate::clip::{ClipReport, search_clip};
use crate::group::{GROUP, GROUP_BYTES, Levels, Search, StoredGroup, nibble_of, store_group};
use crate::linalg::{NotPositive, View, cholesky, gemm, invert_lower};
use crate::statistics::Hessian;
use crate::{QuantError, Scale};

/// Rows of activations beyond which more calibration was not seen to pay.
pub const CALIBRATION_ROWS: u64 = 3072;

/// Damping over the mean diagonal of H.
pub const DAMPING: f64 = 0.01;

/// Columns whose mutual corrections are applied at once; the codes do not depend on it.
const BLOCK: usize = 128;

/// Why a factor could not be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GptqError {
    /// H, damped, is not positive definite.
    #[error("the Hessian of {k} channels is not positive definite: pivot {pivot} at channel {channel}")]
    NotPositive {
        /// Channels.
        k: usize,
        /// Where the factorisation stopped.
        channel: usize,
        /// The pivot found.
        pivot: f64,
    },
    /// The weight does not belong to this factor.
    #[error("{values} weights are not whole rows of {k} channels")]
    Shape {
        /// Channels.
        k: usize,
        /// Values given.
        values: usize,
    },
    /// A group size that does not divide K.
    #[error("groups of {group} do not divide {k} channels")]
    Group {
        /// Group size.
        group: usize,
        /// Channels.
        k: usize,
    },
    /// A weight that is not finite.
    #[error(transparent)]
    Quant(#[from] QuantError),
}

impl GptqError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotPositive { .. } => {
                "the statistics hold NaN or come from a damaged file: calibrate again, or use rounding to nearest"
            }
            Self::Shape { .. } => "statistics and weight belong to different tensors",
            Self::Group { .. } => "use the default group, the whole row",
            Self::Quant(error) => error.hint(),
        }
    }
}

/// Where a group of weights clips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NativeClip {
    /// The self-tuning search.
    #[default]
    Search,
    /// At the largest magnitude.
    AbsMax,
}

/// The upper Cholesky factor U of H⁻¹ (H⁻¹ = Uᵀ·U), damped.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    k: usize,
    u: Vec<f64>,
    /// Channels that no calibration row has used: their weights become 0.
    dead: Vec<usize>,
}

/// int4 codes of some rows, their scales and what the clip searches found.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeRows {
    /// −8…7, row by row.
    pub codes: Vec<i8>,
    /// One scale per row and group, row by row.
    pub scales: Vec<Scale>,
    /// Of all groups.
    pub report: ClipReport,
}

/// Stored groups of some rows, and their scales.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedRows {
    /// ⌈K / 32⌉ for each row, row by row.
    pub groups: Vec<StoredGroup>,
    /// One per row.
    pub scales: Vec<Scale>,
}

/// How weights become codes, as they come up to date.
trait Grid {
    /// A group starts at this channel of a row; its weights have the corrections of all channels before it.
    fn start(&mut self, row: usize, channel: usize, weights: &[f64]);
    /// Rounds a weight, keeps its code and gives the value of the code.
    fn round(&mut self, row: usize, channel: usize, weight: f64) -> f64;
}

impl Factor {
    /// Bytes that making a factor of K channels takes at most, the Hessian itself included: 8·K² for the matrix, in which
    /// all happens in place, and one panel. 0.97 GB for K = 11008.
    pub const fn bytes_max(k: u64) -> u64 {
        8 * k * k + 3 * 8 * k * 128
    }

    /// Damps and factors a Hessian, in its own memory.
    ///
    /// H = J·L·Lᵀ·J with the order of channels reversed (J), so U = (J·L·J)⁻¹ = J·L⁻¹·J: one factorisation
    /// and one triangular inverse instead of an inverse between two factorisations.
    ///
    /// # Errors
    /// [`GptqError::NotPositive`] at the first pivot that is not positive.
    pub fn new(hessian: Hessian) -> Result<Self, GptqError> {
        let Hessian { k, mut h } = hessian;
        let mean = (0..k).map(|i| h[i * k + i]).sum::<f64>() / k.max(1) as f64;
        let damping = if mean == 0.0 { 1e-6 } else { DAMPING * mean };
        let mut dead = Vec::new();
        for i in 0..k {
            if h[i * k + i] > 0.0 {
                h[i * k + i] += damping;
            } else {
                for j in 0..k {
                    h[i * k + j] = 0.0;
                    h[j * k + i] = 0.0;
                }
                h[i * k + i] = 1.0;
                dead.push(i);
            }
        }
        h.reverse();
        cholesky(&mut h, k).map_err(|NotPositive { index, pivot }| GptqError::NotPositive {
            k,
            channel: k - 1 - index,
            pivot,
        })?;
        invert_lower(&mut h, k);
        h.reverse();
        Ok(Self { k, u: h, dead })
    }

    /// Channels.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Row `i` of U; zeros below the diagonal.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.u[i * self.k..(i + 1) * self.k]
    }

    /// Quantises some output channels (`rows`: K weights each, in the basis of the Hessian) to int4. `group` is the number
    /// of channels that share a scale; K is the one that pays on this NPU.
    ///
    /// Channels are taken in their own order. Ordering by activation (act-order) cost 3.6 % of perplexity: it
    /// lives off group boundaries, and a scale per row has none.
    ///
    /// # Errors
    /// [`GptqError`] if the rows or the group do not fit, or a weight is not finite.
    pub fn quantise(&self, rows: &[f32], group: usize, clip: NativeClip) -> Result<NativeRows, GptqError> {
        self.quantise_in_blocks(rows, group, clip, BLOCK)
    }

    fn quantise_in_blocks(
        &self,
        rows: &[f32],
        group: usize,
        clip: NativeClip,
        block: usize,
    ) -> Result<NativeRows, GptqError> {
        let k = self.k;
        let m = self.rows_of(rows)?;
        if group == 0 || !k.is_multiple_of(group) {
            return Err(GptqError::Group { group, k });
        }
        let mut grid = NativeGrid {
            found: NativeRows {
                codes: vec![0; m * k],
                scales: vec![Scale::ZERO; m * (k / group)],
                report: ClipReport::default(),
            },
            k,
            group,
            clip,
        };
        self.feed_back(rows, group, block, &mut grid);
        Ok(grid.found)
    }

    /// Quantises some output channels (`rows`: K weights each, in the basis of the Hessian) to stored int4 with levels per
    /// [`GROUP`] channels. The scale of a row comes from its weights as they are, for all its groups; the levels of a group
    /// are searched when it starts, with an error that each channel's correction weighs: what is left to the channels behind
    /// it is error² / U_jj².
    ///
    /// # Errors
    /// [`GptqError`] if the rows do not fit, or a weight is not finite.
    pub fn quantise_grouped(&self, rows: &[f32]) -> Result<GroupedRows, GptqError> {
        let k = self.k;
        let m = self.rows_of(rows)?;
        let mut scales = Vec::with_capacity(m);
        for values in rows.chunks_exact(k) {
            scales.push(Scale::for_abs_max(crate::kernels::finite_abs_max(values)?));
        }
        let importance = (0..k).map(|j| self.u[j * k + j].powi(-2) as f32).collect();
        let groups = vec![[0; GROUP_BYTES]; m * k.div_ceil(GROUP)];
        let open = vec![Open::default(); m];
        let mut grid = GroupGrid { found: GroupedRows { groups, scales }, k, importance, open };
        self.feed_back(rows, GROUP, BLOCK, &mut grid);
        Ok(grid.found)
    }

    /// Checks rows, and counts them.
    fn rows_of(&self, rows: &[f32]) -> Result<usize, GptqError> {
        if self.k == 0 || !rows.len().is_multiple_of(self.k) {
            return Err(GptqError::Shape { k: self.k, values: rows.len() });
        }
        for (row, values) in rows.chunks_exact(self.k).enumerate() {
            crate::kernels::finite_abs_max(values).map_err(|error| error.in_row(row))?;
        }
        Ok(rows.len() / self.k)
    }

    /// Rounds channel after channel of checked rows, and lets the channels to come make up for the errors.
    fn feed_back(&self, rows: &[f32], group: usize, block: usize, grid: &mut impl Grid) {
        let k = self.k;
        let m = rows.len() / k;
        let mut w: Vec<f64> = rows.iter().copied().map(f64::from).collect();
        for row in w.chunks_exact_mut(k) {
            self.dead.iter().for_each(|channel| row[*channel] = 0.0);
        }
        let mut errors = vec![0f64; m * block];
        let mut start = 0;
        while start < k {
            // A block never crosses the start of a group: the scale there needs weights that are up to date.
            let next_group = k.min((start / group + 1) * group);
            let end = next_group.min(start + block);
            let width = end - start;
            for (index, row) in w.chunks_exact_mut(k).enumerate() {
                if start.is_multiple_of(group) {
                    grid.start(index, start, &row[start..next_group]);
                }
                for j in start..end {
                    let u = &self.u[j * k..j * k + end];
                    let error = (row[j] - grid.round(index, j, row[j])) / u[j];
                    errors[index * block + j - start] = error;
                    for (w, u) in row[j + 1..end].iter_mut().zip(&u[j + 1..]) {
                        *w -= error * u;
                    }
                }
            }
            if end < k {
                let factor = View::rows(&self.u[start * k + end..], k);
                gemm((m, width, k - end), -1.0, View::rows(&errors, block), factor, 1.0, &mut w[end..], k);
            }
            start = end;
        }
    }
}

/// Codes −8…7 around zero, one scale per group.
struct NativeGrid {
    found: NativeRows,
    k: usize,
    group: usize,
    clip: NativeClip,
}

impl NativeGrid {
    fn place(&self, row: usize, channel: usize) -> usize {
        row * (self.k / self.group) + channel / self.group
    }
}

impl Grid for NativeGrid {
    fn start(&mut self, row: usize, channel: usize, weights: &[f64]) {
        let place = self.place(row, channel);
        self.found.scales[place] = group_scale(weights, self.clip, &mut self.found.report);
    }

    fn round(&mut self, row: usize, channel: usize, weight: f64) -> f64 {
        let scale = f64::from(self.found.scales[self.place(row, channel)].get());
        let q = (weight / scale).round().clamp(-8.0, 7.0);
        self.found.codes[row * self.k + channel] = q as i8;
        q * scale
    }
}

/// Levels per group, one scale per row.
struct GroupGrid {
    found: GroupedRows,
    k: usize,
    importance: Vec<f32>,
    /// The group of each row that is not complete.
    open: Vec<Open>,
}

#[derive(Clone, Default)]
struct Open {
    levels: Levels,
    padding: u8,
    nibbles: Vec<u8>,
}

impl Grid for GroupGrid {
    fn start(&mut self, row: usize, channel: usize, weights: &[f64]) {
        let scale = f64::from(self.found.scales[row].get());
        let open = &mut self.open[row];
        open.nibbles.clear();
        if scale > 0.0 {
            let importance = &self.importance[channel..channel + weights.len()];
            // Corrections can drive a weight far beyond the row's largest; nothing outside can be said.
            let values = weights.iter().map(|w| (w / scale).clamp(-255.0, 255.0) as f32);
            let found = Search::new(values, Some(importance));
            (open.levels, open.padding) = (found.levels(), found.padding());
        }
    }

    fn round(&mut self, row: usize, channel: usize, weight: f64) -> f64 {
        let scale = f64::from(self.found.scales[row].get());
        if scale == 0.0 {
            return 0.0;
        }
        let open = &mut self.open[row];
        let nibble = nibble_of((weight / scale).clamp(-1e4, 1e4) as f32, open.levels);
        open.nibbles.push(nibble);
        let last = channel + 1 == self.k || (channel + 1).is_multiple_of(GROUP);
        if last {
            let place = row * self.k.div_ceil(GROUP) + channel / GROUP;
            self.found.groups[place] = store_group(open.levels, &open.nibbles, open.padding);
        }
        f64::from(open.levels.code(nibble)) * scale
    }
}

/// The stored scale of a group. Zero groups get a scale that is not zero, so that the division above is defined.
fn group_scale(weights: &[f64], clip: NativeClip, report: &mut ClipReport) -> Scale {
    let scale = match clip {
        NativeClip::AbsMax => weights.iter().fold(0f64, |max, w| max.max(w.abs())) / 7.0,
        NativeClip::Search => {
            let found = search_clip(weights, None);
            if found.scale > 0.0 {
                report.count(&found);
            }
            found.scale
        }
    };
    let scale = if scale == 0.0 { 1e-12 } else { scale };
    // Corrected weights far beyond f32 would need a Hessian far beyond f64; the clamp keeps the scale a scale.
    Scale::for_limit((scale as f32).clamp(f32::MIN_POSITIVE, f32::MAX), 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ork_testkit::Stream;

    #[test]
    fn codes_do_not_depend_on_the_block() {
        let (k, rows) = (150, 9);
        let mut stream = Stream::new(41);
        let x = stream.f32s_activation(400 * k);
        let mut statistics = crate::TensorStatistics::new(k, crate::Collect::Hessian);
        statistics.add_rows(&x).unwrap();
        let factor = Factor::new(statistics.hessian().unwrap()).unwrap();
        let weights = stream.f32s_unit(rows * k);
        for group in [k, 50, 10] {
            let whole = factor.quantise_in_blocks(&weights, group, NativeClip::Search, k).unwrap();
            for block in [1, 7, 32, 128] {
                let codes =
                    factor.quantise_in_blocks(&weights, group, NativeClip::Search, block).unwrap().codes;
                assert_eq!(codes, whole.codes, "block {block}, group {group}");
            }
        }
    }
}
