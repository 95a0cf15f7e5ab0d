// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plain loops. They define the result; every other kernel is compared with them bit for bit.
#![forbid(unsafe_code)]

use crate::Scale;
use crate::group::{GROUP, StoredGroup, inflate_group};

/// Everything of an `f32` but its sign. On non-negative floats, the order of the bits is the
/// order of the values, with infinity and then NaN on top: one integer maximum finds both the largest
/// magnitude and whether the row is finite, in any order of evaluation.
pub(crate) const MAGNITUDE_MASK: u32 = 0x7fff_ffff;

/// The largest magnitude in the row, as bits. Zero for an empty row.
pub(crate) fn abs_max_bits(row: &[f32]) -> u32 {
    row.iter().fold(0, |max, x| max.max(x.to_bits() & MAGNITUDE_MASK))
}

/// `codes[i] = round(row[i] · inverse)`, halves to even.
pub(crate) fn encode(row: &[f32], inverse: f32, codes: &mut [i8]) {
    for (code, x) in codes.iter_mut().zip(row) {
        // In range by the choice of `inverse`: the product is at most 127 · (1 + 2⁻²²).
        *code = (x * inverse).round_ties_even() as i8;
    }
}

/// `out[i] = acc[i] · (row · columns[i])`.
pub(crate) fn dequantise(acc: &[i32], row: Scale, columns: &[Scale], out: &mut [f32]) {
    for ((out, acc), column) in out.iter_mut().zip(acc).zip(columns) {
        *out = (f64::from(*acc) * (f64::from(row.get()) * f64::from(column.get()))) as f32;
    }
}

/// `out[i] = acc[i] · (row · columns[i])`.
pub(crate) fn dequantise_i64(acc: &[i64], row: Scale, columns: &[Scale], out: &mut [f32]) {
    for ((out, acc), column) in out.iter_mut().zip(acc).zip(columns) {
        *out = (*acc as f64 * (f64::from(row.get()) * f64::from(column.get()))) as f32;
    }
}

/// The int8 codes of stored groups.
pub(crate) fn inflate_groups(groups: &[StoredGroup], codes: &mut [[i8; GROUP]]) {
    groups.iter().zip(codes).for_each(|(group, codes)| inflate_group(group, codes));
}
