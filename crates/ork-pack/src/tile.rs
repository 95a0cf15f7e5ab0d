// SPDX-License-Identifier: MIT OR Apache-2.0
//! From rows of weights to the bytes of a tensor. Kernel groups in parallel, on rayon's pool.

use ork_layout::{Element, WeightLayout};
use ork_quant::{
    Codebook, GROUP, GROUP_BYTES, Method, QuantError, Rounding, Scale, StoredClip, StoredGroup, XorShift32,
    pack_nibbles, quantise_grouped_row, quantise_row, quantise_stored_row,
};
use rayon::prelude::*;

use crate::TensorLayout;

/// A tensor ready for a pack.
#[derive(Clone, Debug, PartialEq)]
pub struct TiledWeight {
    /// Its bytes.
    pub data: Vec<u8>,
    /// One per output channel.
    pub scales: Vec<Scale>,
    /// How it is cut and padded.
    pub layout: TensorLayout,
}

/// Why a weight could not be tiled.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TileError {
    /// A weight that has no code.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// A method that the scheme does not have.
    #[error("stored int4 weights are rounded to nearest or by chance, not by {method:?}")]
    Method {
        /// The method.
        method: Method,
    },
}

/// Gives the K weights of output channel `n`.
type Rows<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// Quantises and tiles an int8 weight.
///
/// # Errors
/// [`TileError::Quant`] at a weight that is not finite, with its row.
///
/// # Panics
/// If the layout is not one of int8.
pub fn tile_w8a8(layout: &WeightLayout, rows: Rows<'_>) -> Result<TiledWeight, TileError> {
    let k = layout.k() as usize;
    let (data, scales) = tile(layout, || {
        let mut floats = vec![0f32; k];
        move |channel, codes: &mut [i8]| {
            rows(channel, &mut floats);
            Ok(quantise_row(&floats, codes).map_err(|error| error.in_row(channel))?)
        }
    })?;
    Ok(TiledWeight { data, scales, layout: layout.into() })
}

/// Quantises a weight to stored int4 in the order of the int8 tiles (`layout` is that of int8), so that one linear
/// [`ork_quant::inflate`] of the result gives the tiles.
///
/// `importance`, one per input channel, turns the clip search on. Padding is the nibble of zero.
///
/// # Errors
/// [`TileError`] for a weight that is not finite, or a method other than nearest and stochastic.
///
/// # Panics
/// If the layout is not one of int8, or the importance has another length than K.
pub fn tile_i4a8(
    layout: &WeightLayout,
    codebook: Codebook,
    method: Method,
    importance: Option<&[f32]>,
    rows: Rows<'_>,
) -> Result<TiledWeight, TileError> {
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    // The generator runs through the tensor in the order of rows; where each row starts is found by running it once.
    let starts: Vec<XorShift32> = match method {
        Method::Nearest => Vec::new(),
        Method::Stochastic => {
            let mut draws = XorShift32::new();
            (0..n)
                .map(|_| {
                    let start = draws.clone();
                    (0..k).for_each(|_| _ = draws.next_state());
                    start
                })
                .collect()
        }
        Method::Gptq => return Err(TileError::Method { method }),
    };
    let (tiles, scales) = tile(layout, || {
        let (mut floats, mut nibbles) = (vec![0f32; k], vec![0u8; k]);
        let starts = &starts;
        move |channel, codes: &mut [i8]| {
            rows(channel, &mut floats);
            let clip = importance.map_or(StoredClip::AbsMax, StoredClip::Importance);
            let mut draws = starts.get(channel).cloned();
            let mut rounding = draws.as_mut().map_or(Rounding::Nearest, Rounding::Stochastic);
            let found = quantise_stored_row(&floats, codebook, clip, &mut rounding, &mut nibbles)
                .map_err(|error| error.in_row(channel))?;
            for (code, nibble) in codes.iter_mut().zip(&nibbles) {
                // Relative to the nibble of zero: tiles are padded with zero bytes.
                *code = (nibble ^ codebook.zero()).cast_signed();
            }
            Ok(found.scale)
        }
    })?;
    Ok(TiledWeight { data: stored(&tiles, codebook.zero()), scales, layout: layout.into() })
}

/// Quantises a weight to stored int4 with levels per group, in the order of the int8 tiles (`layout` is that of int8), so
/// that one linear [`ork_quant::inflate_groups`] of the result gives the tiles. `importance`, one per input channel,
/// weighs the search of levels.
///
/// # Errors
/// [`TileError::Quant`] at a weight that is not finite, with its row.
///
/// # Panics
/// If the layout is not one of int8, or the importance has another length than K.
pub fn tile_grouped(
    layout: &WeightLayout,
    importance: Option<&[f32]>,
    rows: Rows<'_>,
) -> Result<TiledWeight, TileError> {
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    let per_row = k.div_ceil(GROUP);
    let mut groups = vec![[0; GROUP_BYTES]; per_row * n];
    let scales: Vec<Scale> = groups
        .par_chunks_mut(per_row)
        .enumerate()
        .map_init(
            || vec![0f32; k],
            |floats, (channel, groups)| {
                rows(channel, floats);
                Ok(quantise_grouped_row(floats, importance, groups).map_err(|error| error.in_row(channel))?)
            },
        )
        .collect::<Result<_, TileError>>()?;
    Ok(TiledWeight { data: tile_groups(layout, &groups), scales, layout: layout.into() })
}

/// Tiles stored groups that are there already, ⌈K / 32⌉ of each output channel one after the other: what GPTQ gives.
/// Padding beyond K's last group and beyond N are groups of zero bytes, which inflate to zeros.
///
/// # Panics
/// If there are not ⌈K / 32⌉ x N groups, or the layout is not one of int8.
pub fn tile_groups(layout: &WeightLayout, groups: &[StoredGroup]) -> Vec<u8> {
    let per_row = (layout.k() as usize).div_ceil(GROUP);
    assert_eq!(groups.len(), per_row * layout.n() as usize, "the groups of N output channels");
    assert_eq!(layout.format().channel_block() as usize, GROUP, "a group is a channel block of int8");
    let kernels = layout.format().kernel_group() as usize;
    let mut data = vec![0u8; usize::try_from(layout.bytes()).unwrap_or(usize::MAX) / GROUP * GROUP_BYTES];
    // Slices lie behind each other, in each of them kernel groups, in those blocks, in those kernels.
    let mut rest = data.as_mut_slice();
    for slice in layout.slices() {
        let (first, blocks) = (slice.k0 as usize / GROUP, slice.len as usize / GROUP);
        let (own, behind) = rest.split_at_mut(blocks * layout.n_padded() as usize * GROUP_BYTES);
        rest = behind;
        own.par_chunks_mut(blocks * kernels * GROUP_BYTES).enumerate().for_each(|(index, part)| {
            let tiles = part.chunks_exact_mut(kernels * GROUP_BYTES);
            for (block, tile) in (first..per_row).zip(tiles) {
                let own = groups.chunks_exact(per_row).skip(index * kernels);
                for (place, row) in tile.as_chunks_mut::<GROUP_BYTES>().0.iter_mut().zip(own) {
                    *place = row[block];
                }
            }
        });
    }
    data
}

/// Tiles four-bit codes that are there already as stored int4: [`tile_codes`] in the order of the int8 tiles, two codes
/// per byte. For codes of the uniform codebook, whose int8 code is the code itself: what GPTQ gives.
///
/// # Panics
/// If there are not K x N codes, or the layout is not one of int8.
pub fn tile_stored_codes(layout: &WeightLayout, codes: &[i8]) -> Vec<u8> {
    stored(&tile_codes(layout, codes), 0)
}

/// Two nibbles of the bytes of int8 tiles per byte, each relative to the nibble of zero.
fn stored(tiles: &[u8], zero: u8) -> Vec<u8> {
    const CHUNK: usize = 1 << 16;
    let mut data = vec![0u8; tiles.len().div_ceil(2)];
    data.par_chunks_mut(CHUNK / 2).zip(tiles.par_chunks(CHUNK)).for_each(|(bytes, tile)| {
        let nibbles: Vec<u8> = tile.iter().map(|byte| byte ^ zero).collect();
        pack_nibbles(&nibbles, bytes);
    });
    data
}

/// Tiles codes that are there already, K of each output channel one after the other: native int4 as GPTQ gives it.
///
/// # Panics
/// If there are not K x N codes, or the layout is one of other elements.
pub fn tile_codes<T: Element>(layout: &WeightLayout, codes: &[T]) -> Vec<u8> {
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    assert_eq!(codes.len(), k * n, "K codes of N output channels");
    let mut data = vec![0u8; usize::try_from(layout.bytes()).unwrap_or(usize::MAX)];
    layout.kernel_groups_mut(&mut data).into_par_iter().for_each(|mut group| {
        let columns = group.columns();
        let rows = &codes[columns.start as usize * k..columns.end as usize * k];
        let channels: Vec<&[T]> = rows.chunks_exact(k).collect();
        group.pack(&channels);
    });
    data
}

/// Tiles with one encoder per thread: it fills the codes of an output channel and gives its scale.
fn tile<T, E>(
    layout: &WeightLayout,
    encoder: impl Fn() -> E + Sync,
) -> Result<(Vec<u8>, Vec<Scale>), TileError>
where
    T: Element,
    E: FnMut(usize, &mut [T]) -> Result<Scale, TileError>,
{
    let k = layout.k() as usize;
    let width = layout.format().kernel_group() as usize;
    let mut data = vec![0u8; usize::try_from(layout.bytes()).unwrap_or(usize::MAX)];
    let scales: Vec<Vec<Scale>> = layout
        .kernel_groups_mut(&mut data)
        .into_par_iter()
        .map_init(
            || (encoder(), vec![T::default(); width * k]),
            |(encode, codes), mut group| {
                let columns = group.columns();
                let mut scales = Vec::with_capacity(width);
                for (codes, channel) in codes.chunks_exact_mut(k).zip(columns) {
                    scales.push(encode(channel as usize, codes)?);
                }
                let channels: Vec<&[T]> = codes.chunks_exact(k).take(scales.len()).collect();
                group.pack(&channels);
                Ok(scales)
            },
        )
        .collect::<Result<_, TileError>>()?;
    Ok((data, scales.concat()))
}
