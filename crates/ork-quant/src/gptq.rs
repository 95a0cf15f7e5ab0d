// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPTQ: rounds weights one input channel after another and lets the channels to come make up for the error
//! (`isa-int4-sdp.md` §7.4). All in `f64`: factoring in `f32` cost 7.2 % of perplexity.
//!
//! The work splits in two. [`Factor`] is made once per tensor from its Hessian, O(K³). With it, output channels
//! are independent: [`Factor::quantise`] takes any rows of the weight, so a caller may hand out pieces to threads.

use crate::clip::{ClipReport, search_clip};
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
        if k == 0 || !rows.len().is_multiple_of(k) {
            return Err(GptqError::Shape { k, values: rows.len() });
        }
        if group == 0 || !k.is_multiple_of(group) {
            return Err(GptqError::Group { group, k });
        }
        for (row, values) in rows.chunks_exact(k).enumerate() {
            crate::kernels::finite_abs_max(values).map_err(|error| error.in_row(row))?;
        }
        let m = rows.len() / k;
        let mut w: Vec<f64> = rows.iter().copied().map(f64::from).collect();
        for row in w.chunks_exact_mut(k) {
            self.dead.iter().for_each(|channel| row[*channel] = 0.0);
        }
        let mut result = NativeRows {
            codes: vec![0; m * k],
            scales: vec![Scale::ZERO; m * (k / group)],
            report: ClipReport::default(),
        };
        let mut errors = vec![0f64; m * block];
        let mut start = 0;
        while start < k {
            // A block never crosses the start of a group: the scale there needs weights that are up to date.
            let end = k.min(start + block).min((start / group + 1) * group);
            if start.is_multiple_of(group) {
                for (row, scales) in w.chunks_exact(k).zip(result.scales.chunks_exact_mut(k / group)) {
                    scales[start / group] = group_scale(&row[start..start + group], clip, &mut result.report);
                }
            }
            let width = end - start;
            for (index, (row, codes)) in
                w.chunks_exact_mut(k).zip(result.codes.chunks_exact_mut(k)).enumerate()
            {
                let scale = f64::from(result.scales[index * (k / group) + start / group].get());
                for j in start..end {
                    let u = &self.u[j * k..j * k + end];
                    let q = (row[j] / scale).round().clamp(-8.0, 7.0);
                    let error = (row[j] - q * scale) / u[j];
                    codes[j] = q as i8;
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
        Ok(result)
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
