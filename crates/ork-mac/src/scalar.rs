// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plain loops: the definition of what every vector kernel computes.

use crate::{BLOCK_CHANNELS, GROUP_KERNELS, Group, Kernels, Rows};

/// `out[(g * rows + m) * 32 + lane]` = sum over k of feature row m times kernel `32 g + lane`, modulo 2^32.
///
/// Lanes beyond the last kernel are set to 0. With `k` below 2^17 no sum of int8 products leaves int32, so the
/// result is exact.
///
/// # Panics
/// When `out` does not hold `groups * rows * 32` elements or the depths differ.
pub fn int8(rows: Rows<'_>, kernels: Kernels<'_>, out: &mut [i32]) {
    assert_eq!(out.len(), kernels.groups() * rows.len() * GROUP_KERNELS, "size of the accumulator");
    for (g, out) in out.chunks_exact_mut((rows.len() * GROUP_KERNELS).max(1)).enumerate() {
        int8_group(rows, kernels.group(g), out);
    }
}

pub(crate) fn int8_group(rows: Rows<'_>, group: Group<'_>, out: &mut [i32]) {
    for (m, out) in out.chunks_exact_mut(GROUP_KERNELS).enumerate() {
        let row = rows.row(m);
        out.fill(0);
        for (lane, sum) in out.iter_mut().enumerate().take(group.kernels) {
            *sum = int8_one(row, group, lane);
        }
    }
}

pub(crate) fn int8_one(row: &[u8], group: Group<'_>, lane: usize) -> i32 {
    let mut sum = 0i32;
    for (features, block) in
        row.chunks_exact(BLOCK_CHANNELS).zip(group.bytes.chunks_exact(group.kernels * BLOCK_CHANNELS))
    {
        let weights = &block[lane * BLOCK_CHANNELS..(lane + 1) * BLOCK_CHANNELS];
        for (feature, weight) in features.iter().zip(weights) {
            sum = sum.wrapping_add(i32::from(feature.cast_signed()) * i32::from(weight.cast_signed()));
        }
    }
    sum
}
