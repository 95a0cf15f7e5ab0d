// SPDX-License-Identifier: MIT OR Apache-2.0
//! int4 stored, int8 computed (`isa-int4-sdp.md` §7.2): half the bytes on disk and in a cache, the int8 program on the
//! NPU. A row becomes nibbles and one scale; inflating turns nibbles into the int8 codes that are multiplied.
#![forbid(unsafe_code)]

use crate::codebook::{Codebook, Rounding};
use crate::kernels::finite_abs_max;
use crate::stored_product::StoredKernels;
use crate::{QuantError, Scale};

/// Fractions of absmax that the importance-weighted search tries, in this order.
pub const IMPORTANCE_CLIPS: [f32; 7] = [1.0, 0.92, 0.85, 0.78, 0.70, 0.62, 0.55];

/// Where a stored row clips.
#[derive(Clone, Copy, Debug)]
pub enum StoredClip<'a> {
    /// At its largest magnitude.
    AbsMax,
    /// At the one of [`IMPORTANCE_CLIPS`] with the least Σ importance · (w − ŵ)², the first of equals. One
    /// importance per element of the row, that is per input channel: the mean square of its activations.
    Importance(&'a [f32]),
}

/// What the search found for one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredRow {
    /// Scale of the int8 codes.
    pub scale: Scale,
    /// Clipping point over the largest magnitude.
    pub clip: f32,
}

/// Quantises one row (the K weights of one output channel) to nibbles, one per byte of `nibbles`.
///
/// # Errors
/// [`QuantError::NonFinite`] at the first NaN or infinity; `nibbles` is then untouched.
///
/// # Panics
/// If `row`, `nibbles` and an importance differ in length.
pub fn quantise_stored_row(
    row: &[f32],
    codebook: Codebook,
    clip: StoredClip<'_>,
    rounding: &mut Rounding<'_>,
    nibbles: &mut [u8],
) -> Result<StoredRow, QuantError> {
    let abs_max = finite_abs_max(row)?;
    let clip = match clip {
        StoredClip::AbsMax => 1.0,
        StoredClip::Importance(importance) => {
            let errors = importance_errors(row, abs_max, importance, codebook, nibbles);
            let mut best = 0;
            for (index, error) in errors.iter().enumerate() {
                if *error < errors[best] {
                    best = index;
                }
            }
            IMPORTANCE_CLIPS[best]
        }
    };
    let limit = abs_max * clip;
    let scale = codebook.scale(limit);
    codebook.encode(row, limit, scale, rounding, nibbles);
    Ok(StoredRow { scale, clip })
}

/// Σ importance · (w − ŵ)² of every candidate, rounded to nearest. `nibbles` is scratch.
fn importance_errors(
    row: &[f32],
    abs_max: f32,
    importance: &[f32],
    codebook: Codebook,
    nibbles: &mut [u8],
) -> [f64; IMPORTANCE_CLIPS.len()] {
    assert_eq!(row.len(), importance.len(), "one importance per element of the row");
    IMPORTANCE_CLIPS.map(|clip| {
        let limit = abs_max * clip;
        let scale = codebook.scale(limit);
        codebook.encode(row, limit, scale, &mut Rounding::Nearest, nibbles);
        let levels = codebook.int8().map(|code| f32::from(code) * scale.get());
        row.iter()
            .zip(nibbles.iter())
            .zip(importance)
            .map(|((w, nibble), importance)| {
                let miss = f64::from(*w) - f64::from(levels[usize::from(*nibble)]);
                f64::from(*importance) * miss * miss
            })
            .sum()
    })
}

/// Two nibbles per byte, the even element in the low half. With an odd count the last high half is zero.
///
/// # Panics
/// If `bytes` does not hold half as many bytes, rounded up.
pub fn pack_nibbles(nibbles: &[u8], bytes: &mut [u8]) {
    assert_eq!(bytes.len(), nibbles.len().div_ceil(2), "one byte per two nibbles");
    for (byte, pair) in bytes.iter_mut().zip(nibbles.chunks(2)) {
        *byte = (pair[0] & 15) | pair.get(1).map_or(0, |high| high << 4);
    }
}

/// Turns packed nibbles into int8 codes. Works on any order of elements: a stored tensor keeps the order of the int8
/// tiles, so this one linear pass makes the tiles.
///
/// # Panics
/// If `codes` does not hold two codes per byte.
pub fn inflate(bytes: &[u8], codebook: Codebook, codes: &mut [i8]) {
    assert_eq!(codes.len(), bytes.len() * 2, "two codes per byte");
    StoredKernels::detect().inflate(bytes, codebook.int8(), codes);
}
