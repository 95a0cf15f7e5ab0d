// SPDX-License-Identifier: MIT OR Apache-2.0
//! Native int4: both operands in four bits, −8…7, one scale per row (`isa-int4-sdp.md` §7.3 step 5).
//!
//! Both rows must have gone through the same [`crate::Basis`] before, each through its own side.

use crate::clip::{ClipReport, search_clip};
use crate::gptq::{NativeClip, NativeRows};
use crate::kernels::finite_abs_max;
use crate::real::{code_of, rint, rint_f32};
use crate::wide::wide;
use crate::{QuantError, Scale};

/// Fractions of absmax tried for an activation row: 1 − j/16. Finer or deeper grids measured a null (within 0.7 %
/// of perplexity): four-bit activation noise is not outlier-driven once the basis has spread the outliers.
pub const ACTIVATION_CLIPS: [f32; 8] = [1.0, 0.9375, 0.875, 0.8125, 0.75, 0.6875, 0.625, 0.5625];

/// Quantises one weight row by rounding to nearest at the clipping point that `clip` asks for, and counts a search in
/// `report`.
///
/// # Errors
/// [`QuantError::NonFinite`] at the first NaN or infinity; `codes` is then untouched.
///
/// # Panics
/// If `row` and `codes` differ in length.
pub fn quantise_native_weight(
    row: &[f32],
    codes: &mut [i8],
    clip: NativeClip,
    report: &mut ClipReport,
) -> Result<Scale, QuantError> {
    assert_eq!(row.len(), codes.len(), "one code per element of the row");
    let abs_max = finite_abs_max(row)?;
    let scale = match clip {
        NativeClip::AbsMax => Scale::for_limit(abs_max, 7.0),
        NativeClip::Search => {
            let row: Vec<f64> = row.iter().copied().map(f64::from).collect();
            let clip = search_clip(&row, None);
            let scale = Scale::for_limit((clip.scale * 7.0) as f32, 7.0);
            if !scale.is_zero() {
                report.count(&clip);
            }
            scale
        }
    };
    if scale.is_zero() {
        codes.fill(0);
        return Ok(scale);
    }
    for (code, w) in codes.iter_mut().zip(row) {
        *code = rint((f64::from(*w) / f64::from(scale.get())).clamp(-8.0, 7.0)) as i8;
    }
    Ok(scale)
}

/// [`quantise_native_weight`] for some output channels: what [`crate::Factor::quantise`] gives without a Hessian. `rows`
/// holds K weights each; one scale per row.
///
/// # Errors
/// [`QuantError::NonFinite`] at the first NaN or infinity, with its row.
///
/// # Panics
/// If K is 0 or the weights are not whole rows.
pub fn quantise_native_rows(rows: &[f32], k: usize, clip: NativeClip) -> Result<NativeRows, QuantError> {
    assert!(k > 0 && rows.len().is_multiple_of(k), "whole rows of {k} weights");
    let mut found =
        NativeRows { codes: vec![0; rows.len()], scales: Vec::new(), report: ClipReport::default() };
    for (row, (weights, codes)) in rows.chunks_exact(k).zip(found.codes.chunks_exact_mut(k)).enumerate() {
        let scale = quantise_native_weight(weights, codes, clip, &mut found.report);
        found.scales.push(scale.map_err(|error| error.in_row(row))?);
    }
    Ok(found)
}

/// Quantises one activation row at the best of [`ACTIVATION_CLIPS`]: least squared error, the first of equals.
///
/// Errors of elements are `f32`, summed in `f32` over at most 256 elements and in `f64` beyond, so two
/// candidates whose errors agree to about 1e-6 may be taken for each other.
///
/// # Errors
/// [`QuantError::NonFinite`] at the first NaN or infinity; `codes` is then untouched.
///
/// # Panics
/// If `row` and `codes` differ in length.
pub fn quantise_native_activation(row: &[f32], codes: &mut [i8]) -> Result<Scale, QuantError> {
    assert_eq!(row.len(), codes.len(), "one code per element of the row");
    let abs_max = finite_abs_max(row)?;
    if Scale::for_limit(abs_max, 7.0).is_zero() {
        codes.fill(0);
        return Ok(Scale::ZERO);
    }
    let mut best: Option<(f64, Scale)> = None;
    for clip in ACTIVATION_CLIPS {
        let scale = Scale::for_limit(abs_max * clip, 7.0);
        let error = activation_error(row, scale.get());
        if !scale.is_zero() && best.is_none_or(|(least, _)| error < least) {
            best = Some((error, scale));
        }
    }
    let scale = best.map_or(Scale::ZERO, |(_, scale)| scale);
    encode(row, scale.get(), codes);
    Ok(scale)
}

wide! {
    fn activation_error(row: &[f32], scale: f32) -> f64 {
        let inverse = 1.0 / scale;
        let square = |a: &f32| {
            let miss = a - scale * rint_f32((a * inverse).clamp(-8.0, 7.0));
            miss * miss
        };
        let mut total = 0f64;
        for block in row.chunks(256) {
            let mut sums = [0f32; LANES];
            let (whole, tail) = block.as_chunks::<LANES>();
            for chunk in whole {
                for (sum, a) in sums.iter_mut().zip(chunk) {
                    *sum += square(a);
                }
            }
            for (sum, a) in sums.iter_mut().zip(tail) {
                *sum += square(a);
            }
            total += f64::from(sum_of(&sums));
        }
        total
    }
}

const LANES: usize = 16;

/// Apart, because the compiler would otherwise split the lanes of the loop above to suit this sum.
#[inline(never)]
fn sum_of(sums: &[f32; LANES]) -> f32 {
    sums.iter().sum()
}

wide! {
    fn encode(row: &[f32], scale: f32, codes: &mut [i8]) {
        for (code, a) in codes.iter_mut().zip(row) {
            *code = code_of((a / scale).clamp(-8.0, 7.0));
        }
    }
}
