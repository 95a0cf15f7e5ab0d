// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plain loops, which define the result.
#![forbid(unsafe_code)]

use super::BLOCK;

/// One code for each nibble, the low half first.
pub(super) fn inflate(bytes: &[u8], table: &[i8; 16], codes: &mut [i8]) {
    for (pair, byte) in codes.chunks_mut(2).zip(bytes) {
        pair[0] = table[usize::from(byte & 15)];
        if let Some(high) = pair.get_mut(1) {
            *high = table[usize::from(byte >> 4)];
        }
    }
}

/// The sum of the products of two rows.
pub(super) fn dot(w: &[i8], x: &[i8]) -> i32 {
    w.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum()
}

/// All pairs of rows.
pub(super) fn block(w: [&[i8]; BLOCK], x: [&[i8]; BLOCK]) -> [[i32; BLOCK]; BLOCK] {
    x.map(|x| w.map(|w| dot(w, x)))
}
