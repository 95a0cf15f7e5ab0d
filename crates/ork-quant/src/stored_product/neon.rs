// SPDX-License-Identifier: MIT OR Apache-2.0
//! NEON twins of the plain loops. Without the dot product of later cores: a widening multiplication and a pairwise sum take
//! its place, which every aarch64 has.

use std::arch::aarch64::{
    int8x16_t, int32x4_t, uint8x16_t, vaddvq_s32, vandq_u8, vdupq_n_s32, vdupq_n_u8, vget_low_s8, vld1q_s8,
    vld1q_u8, vmull_high_s8, vmull_s8, vpadalq_s16, vqtbl1q_s8, vshrq_n_u8, vst1q_s8, vzip1q_u8, vzip2q_u8,
};

use super::{BLOCK, scalar};

#[target_feature(enable = "neon")]
pub(super) fn inflate(bytes: &[u8], table: &[i8; 16], codes: &mut [i8]) {
    let (low_half, table_vector) = (vdupq_n_u8(15), load(table));
    let (vectors, rest) = codes.as_chunks_mut::<32>();
    let whole = vectors.len();
    for (codes, bytes) in vectors.iter_mut().zip(bytes.as_chunks::<16>().0) {
        let bytes = load_bytes(bytes);
        let (low, high) = (vandq_u8(bytes, low_half), vshrq_n_u8::<4>(bytes));
        let (halves, _) = codes.as_chunks_mut::<16>();
        store(&mut halves[0], vqtbl1q_s8(table_vector, vzip1q_u8(low, high)));
        store(&mut halves[1], vqtbl1q_s8(table_vector, vzip2q_u8(low, high)));
    }
    scalar::inflate(&bytes[whole * 16..], table, rest);
}

#[target_feature(enable = "neon")]
pub(super) fn block(w: [&[i8]; BLOCK], x: [&[i8]; BLOCK]) -> [[i32; BLOCK]; BLOCK] {
    let (w_parts, x_parts) = (w.map(<[i8]>::as_chunks::<16>), x.map(<[i8]>::as_chunks::<16>));
    let steps = x_parts[0].0.len();
    let w_vectors = w_parts.map(|(vectors, _)| &vectors[..steps]);
    let x_vectors = x_parts.map(|(vectors, _)| &vectors[..steps]);
    let mut sums = [[vdupq_n_s32(0); BLOCK]; BLOCK];
    for step in 0..steps {
        let w = w_vectors.map(|vectors| load(&vectors[step]));
        for i in 0..BLOCK {
            let x = load(&x_vectors[i][step]);
            for j in 0..BLOCK {
                sums[i][j] = add_products(sums[i][j], x, w[j]);
            }
        }
    }
    let mut out = [[0; BLOCK]; BLOCK];
    for i in 0..BLOCK {
        for j in 0..BLOCK {
            out[i][j] = vaddvq_s32(sums[i][j]) + scalar::dot(w_parts[j].1, x_parts[i].1);
        }
    }
    out
}

/// Products fit 16 bits, and are added in pairs as 32.
#[inline]
#[target_feature(enable = "neon")]
fn add_products(sum: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    let sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(x), vget_low_s8(w)));
    vpadalq_s16(sum, vmull_high_s8(x, w))
}

#[inline]
#[target_feature(enable = "neon")]
fn load(codes: &[i8; 16]) -> int8x16_t {
    // SAFETY: reads the array's 16 bytes; an element's alignment suffices.
    unsafe { vld1q_s8(codes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_bytes(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: reads the array's 16 bytes; an element's alignment suffices.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(codes: &mut [i8; 16], value: int8x16_t) {
    // SAFETY: writes the array's 16 bytes; an element's alignment suffices.
    unsafe { vst1q_s8(codes.as_mut_ptr(), value) }
}
