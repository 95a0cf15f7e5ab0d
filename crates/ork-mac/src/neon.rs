// SPDX-License-Identifier: MIT OR Apache-2.0
//! The int8 kernel with the signed dot product of aarch64.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::{BLOCK_CHANNELS, GROUP_KERNELS, Group, Rows, scalar};

/// Same result as `scalar::int8_group`.
pub(crate) fn int8_group(rows: Rows<'_>, group: Group<'_>, out: &mut [i32]) {
    assert_eq!(rows.k, group.k);
    assert_eq!(group.k % BLOCK_CHANNELS, 0);
    assert_eq!(group.bytes.len(), group.kernels * group.k);
    assert_eq!(out.len(), rows.len() * GROUP_KERNELS);
    // SAFETY: the engine selects this kernel only where the dot product was detected.
    unsafe { group_dot(rows, group, out) }
}

#[target_feature(enable = "neon,dotprod")]
fn group_dot(rows: Rows<'_>, group: Group<'_>, out: &mut [i32]) {
    if group.kernels < GROUP_KERNELS {
        out.fill(0);
    }
    let mut lane = 0;
    while lane + 4 <= group.kernels {
        let mut m = 0;
        while m + 4 <= rows.len() {
            strip::<4>(rows, group, m, lane, out);
            m += 4;
        }
        while m < rows.len() {
            strip::<1>(rows, group, m, lane, out);
            m += 1;
        }
        lane += 4;
    }
    for lane in lane..group.kernels {
        for m in 0..rows.len() {
            out[m * GROUP_KERNELS + lane] = scalar::int8_one(rows.row(m), group, lane);
        }
    }
}

/// `R` rows from `m` times 4 kernels from `lane`.
#[target_feature(enable = "neon,dotprod")]
fn strip<const R: usize>(rows: Rows<'_>, group: Group<'_>, m: usize, lane: usize, out: &mut [i32]) {
    const C: usize = 4;
    assert!(m + R <= rows.len() && lane + C <= group.kernels);
    let block_bytes = group.kernels * BLOCK_CHANNELS;
    let mut acc = [[vdupq_n_s32(0); C]; R];
    let features: [&[u8]; R] = std::array::from_fn(|r| rows.row(m + r));
    for block in 0..group.blocks() {
        let weights = &group.bytes[block * block_bytes + lane * BLOCK_CHANNELS..][..C * BLOCK_CHANNELS];
        for half in 0..2 {
            let row: [int8x16_t; R] = std::array::from_fn(|r| {
                // SAFETY: a row has `32 * blocks` bytes (checked at the entry).
                unsafe { vld1q_s8(features[r].as_ptr().add(block * BLOCK_CHANNELS + 16 * half).cast()) }
            });
            for c in 0..C {
                // SAFETY: `weights` has 32 C bytes.
                let weight = unsafe { vld1q_s8(weights.as_ptr().add(c * BLOCK_CHANNELS + 16 * half).cast()) };
                for (acc, row) in acc.iter_mut().zip(row) {
                    acc[c] = dot(acc[c], row, weight);
                }
            }
        }
    }
    for (r, acc) in acc.iter().enumerate() {
        for (c, acc) in acc.iter().enumerate() {
            out[(m + r) * GROUP_KERNELS + lane + c] = vaddvq_s32(*acc);
        }
    }
}

/// Adds the dot products of four bytes each to the four lanes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: a register-only instruction of the enabled extension.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}
