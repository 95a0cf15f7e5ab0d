// SPDX-License-Identifier: MIT OR Apache-2.0
//! SmoothQuant: moves part of an activation channel's size into the weights (`isa-int4-sdp.md` §7.3 step 1).
//!
//! Only together with a rotation: without one it is worse than nothing at four bits, because the outliers it takes from
//! the activations end up in the weights. It helped a 0.6B model and hurt a 1.7B one, so a recipe decides per model.
#![forbid(unsafe_code)]

use crate::BasisError;

/// The balance between both operands. Both neighbours (0.25 and 0.75) measured worse.
pub const SMOOTH_ALPHA: f64 = 0.5;

/// The channel factors s: weights are multiplied by them, activations divided.
///
/// `mean_squares[k]` is the mean square of activation channel k over the calibration rows; `weight_max[k]` the largest
/// `|W[n][k]|` over the output channels: of all weights that share these activations, if they are to share the basis.
/// s = mean_square^(alpha/2) / weight_max^(1 − alpha), 1 where either is 0, then divided by the geometric mean of all.
///
/// # Errors
/// [`BasisError::Length`] if the two differ in length, [`BasisError::Smoothing`] at the first factor that is not a
/// positive `f32`.
pub fn smoothing(mean_squares: &[f64], weight_max: &[f32], alpha: f64) -> Result<Vec<f32>, BasisError> {
    if mean_squares.len() != weight_max.len() {
        return Err(BasisError::Length { k: mean_squares.len(), found: weight_max.len() });
    }
    let raw: Vec<f64> = mean_squares
        .iter()
        .zip(weight_max)
        .map(|(square, weight)| {
            if *square == 0.0 || *weight == 0.0 {
                return 1.0;
            }
            square.powf(alpha / 2.0) / f64::from(*weight).powf(1.0 - alpha)
        })
        .collect();
    let log_mean = raw.iter().map(|s| s.ln()).sum::<f64>() / raw.len().max(1) as f64;
    raw.iter()
        .enumerate()
        .map(|(channel, s)| {
            let factor = (s / log_mean.exp()) as f32;
            if factor.is_normal() && factor > 0.0 {
                Ok(factor)
            } else {
                Err(BasisError::Smoothing { channel, factor })
            }
        })
        .collect()
}
