// SPDX-License-Identifier: MIT OR Apache-2.0
//! One weight: rows in, tiles out.

use ork_layout::{Int4, WeightLayout};
use ork_pack::{
    TensorLayout, TiledWeight, tile_codes, tile_grouped, tile_groups, tile_i4a8, tile_stored_codes, tile_w8a8,
};
use ork_quant::{
    Basis, ClipReport, ClipRule, Factor, GroupedRows, Method, NativeClip, NativeRows, Scale, Scheme,
    StoredGroup, TensorStatistics, Tier, quantise_native_rows,
};
use rayon::prelude::*;

use crate::RecipeError;

/// Output channels that one thread quantises at once: enough for the products inside GPTQ, few enough to share out.
const ROWS_AT_ONCE: usize = 64;

/// Gives the K weights of an output channel, in the basis.
pub(crate) type Rows<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// Memory that GPTQ takes for a weight of K input channels beside the weight itself, at most: the sums as they are
/// read, and the matrix that becomes the factor in place. 0.46 GB for K = 6144, 1.5 GB for K = 11008.
pub const fn gptq_bytes_max(k: u64) -> u64 {
    TensorStatistics::bytes_max(k, ork_quant::Collect::Hessian) + Factor::bytes_max(k)
}

/// What the scheme needs beside the weights.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Aids<'a> {
    /// For GPTQ.
    pub(crate) factor: Option<&'a Factor>,
    /// For the importance-weighted clip search, in the basis.
    pub(crate) importance: Option<&'a [f32]>,
}

/// Quantises and tiles a weight.
pub(crate) fn pack_tensor(
    name: &str,
    layout: &WeightLayout,
    scheme: &Scheme,
    aids: Aids<'_>,
    rows: Rows<'_>,
) -> Result<(TiledWeight, ClipReport), RecipeError> {
    let tile = |source| RecipeError::Tile { weight: name.to_owned(), source };
    let codes_of_its_own = scheme.method == Method::Gptq || scheme.clip == ClipRule::SelfTuning;
    match scheme.tier {
        Tier::W8A8 => Ok((tile_w8a8(layout, rows).map_err(tile)?, ClipReport::default())),
        Tier::I4A8 { codebook } if !codes_of_its_own => {
            let tiled = tile_i4a8(layout, codebook, scheme.method, aids.importance, rows);
            Ok((tiled.map_err(tile)?, ClipReport::default()))
        }
        Tier::I4A8Group if scheme.method == Method::Gptq => {
            let (groups, scales) = grouped_codes(name, layout, aids.factor, rows)?;
            let data = tile_groups(layout, &groups);
            Ok((TiledWeight { data, scales, layout: TensorLayout::from(layout) }, ClipReport::default()))
        }
        Tier::I4A8Group => {
            let tiled = tile_grouped(layout, aids.importance, rows).map_err(tile)?;
            Ok((tiled, ClipReport::default()))
        }
        Tier::I4A8 { .. } => {
            let (codes, scales, report) = native_codes(name, layout, scheme, aids.factor, rows)?;
            let data = tile_stored_codes(layout, &codes);
            Ok((TiledWeight { data, scales, layout: TensorLayout::from(layout) }, report))
        }
        Tier::W4A4 => {
            let (codes, scales, report) = native_codes(name, layout, scheme, aids.factor, rows)?;
            // In place: both have one byte.
            let codes: Vec<Int4> =
                codes.into_iter().map(|code| Int4::from_low_nibble(code.cast_unsigned())).collect();
            let data = tile_codes(layout, &codes);
            Ok((TiledWeight { data, scales, layout: TensorLayout::from(layout) }, report))
        }
    }
}

/// Codes −8…7 of all output channels, in their order.
fn native_codes(
    name: &str,
    layout: &WeightLayout,
    scheme: &Scheme,
    factor: Option<&Factor>,
    rows: Rows<'_>,
) -> Result<(Vec<i8>, Vec<Scale>, ClipReport), RecipeError> {
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    let clip = match scheme.clip {
        ClipRule::SelfTuning => NativeClip::Search,
        ClipRule::AbsMax | ClipRule::Importance => NativeClip::AbsMax,
    };
    let mut codes = vec![0i8; k * n];
    let pieces: Vec<(Vec<Scale>, ClipReport)> = codes
        .par_chunks_mut(ROWS_AT_ONCE * k)
        .enumerate()
        .map(|(piece, codes)| {
            let first = piece * ROWS_AT_ONCE;
            let mut weights = vec![0f32; codes.len()];
            weights.chunks_exact_mut(k).enumerate().for_each(|(row, out)| rows(first + row, out));
            let NativeRows { codes: found, scales, report } = match (scheme.method, factor) {
                (Method::Gptq, Some(factor)) => factor
                    .quantise(&weights, k, clip)
                    .map_err(|source| RecipeError::Gptq { weight: name.to_owned(), source })?,
                (Method::Gptq, None) => return Err(no_hessian(name)),
                _ => quantise_native_rows(&weights, k, clip)
                    .map_err(|source| RecipeError::Quant { weight: name.to_owned(), source })?,
            };
            codes.copy_from_slice(&found);
            Ok((scales, report))
        })
        .collect::<Result<_, RecipeError>>()?;
    let mut report = ClipReport::default();
    pieces.iter().for_each(|(_, piece)| report.merge(piece));
    Ok((codes, pieces.into_iter().flat_map(|(scales, _)| scales).collect(), report))
}

/// Stored groups of all output channels, in their order, with feedback of errors.
fn grouped_codes(
    name: &str,
    layout: &WeightLayout,
    factor: Option<&Factor>,
    rows: Rows<'_>,
) -> Result<(Vec<StoredGroup>, Vec<Scale>), RecipeError> {
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    let Some(factor) = factor else { return Err(no_hessian(name)) };
    let pieces: Vec<GroupedRows> = (0..n.div_ceil(ROWS_AT_ONCE))
        .into_par_iter()
        .map(|piece| {
            let rows_here = piece * ROWS_AT_ONCE..n.min((piece + 1) * ROWS_AT_ONCE);
            let mut weights = vec![0f32; rows_here.len() * k];
            rows_here.zip(weights.chunks_exact_mut(k)).for_each(|(row, out)| rows(row, out));
            factor
                .quantise_grouped(&weights)
                .map_err(|source| RecipeError::Gptq { weight: name.to_owned(), source })
        })
        .collect::<Result<_, RecipeError>>()?;
    let (groups, scales): (Vec<_>, Vec<_>) =
        pieces.into_iter().map(|piece| (piece.groups, piece.scales)).unzip();
    Ok((groups.concat(), scales.concat()))
}

fn no_hessian(name: &str) -> RecipeError {
    RecipeError::Knowledge { weight: name.to_owned(), what: "there is no Hessian for gptq".to_owned() }
}

/// The largest magnitude of every input channel over the output channels of a weight.
pub(crate) fn channel_max(k: usize, n: usize, rows: Rows<'_>) -> Vec<f32> {
    (0..n)
        .into_par_iter()
        .fold(
            || (vec![0f32; k], vec![0f32; k]),
            |(mut max, mut row), index| {
                rows(index, &mut row);
                max.iter_mut().zip(&row).for_each(|(max, w)| *max = max.max(w.abs()));
                (max, row)
            },
        )
        .map(|(max, _)| max)
        .reduce(
            || vec![0f32; k],
            |mut a, b| {
                a.iter_mut().zip(&b).for_each(|(a, b)| *a = a.max(*b));
                a
            },
        )
}

/// Mean squares of the activations of a plain basis, in a basis that only smooths.
pub(crate) fn smoothed_importance(mean_squares: &[f64], basis: &Basis) -> Vec<f32> {
    // The activation side divides by the factors: what a one-hot row becomes.
    let mut factors = vec![1f32; mean_squares.len()];
    basis.activation_row(&mut factors);
    mean_squares
        .iter()
        .zip(&factors)
        .map(|(square, f)| (square * f64::from(*f) * f64::from(*f)) as f32)
        .collect()
}
