// SPDX-License-Identifier: MIT OR Apache-2.0
//! NEON twins of the scalar kernels; the walk over a row is the one described in the AVX-512 module.

use std::arch::aarch64::{
    float32x4_t, float64x2_t, int8x16_t, uint8x8_t, vaddq_s16, vaddq_u16, vandq_u8, vandq_u16, vandq_u32,
    vcombine_s8, vcombine_s16, vcvt_f32_f64, vcvt_f64_f32, vcvt_high_f32_f64, vcvt_high_f64_f32,
    vcvtnq_s32_f32, vcvtq_f64_s64, vdup_n_u8, vdupq_n_f64, vdupq_n_s8, vdupq_n_s16, vdupq_n_u8, vdupq_n_u16,
    vdupq_n_u32, vget_high_u8, vget_low_f32, vget_low_s32, vget_low_u8, vld1q_f32, vld1q_s32, vld1q_s64,
    vld1q_u8, vmaxq_s8, vmaxq_u32, vmaxvq_u32, vmovl_high_s32, vmovl_s32, vmovn_s16, vmovn_s32, vmull_u8,
    vmulq_f64, vmulq_n_f32, vqmovn_s16, vqtbl1q_s8, vreinterpretq_s16_u16, vreinterpretq_u32_f32, vshrq_n_u8,
    vshrq_n_u16, vst1q_f32, vst1q_s8, vzip1q_u8, vzip2q_u8,
};

use crate::Scale;
use crate::group::{GROUP, Levels, StoredGroup};
use crate::scalar::{self, MAGNITUDE_MASK};

#[target_feature(enable = "neon")]
pub(crate) fn abs_max_bits(row: &[f32]) -> u32 {
    let Some(last) = row.last_chunk() else { return scalar::abs_max_bits(row) };
    let mask = vdupq_n_u32(MAGNITUDE_MASK);
    let magnitude = |x: &[f32; 4]| vandq_u32(vreinterpretq_u32_f32(load(x)), mask);

    // Four maxima in flight: one would wait for itself on every step.
    let mut max = [vdupq_n_u32(0); 4];
    let (vectors, _) = row.as_chunks::<4>();
    let (groups, rest) = vectors.as_chunks::<4>();
    for group in groups {
        for (max, x) in max.iter_mut().zip(group) {
            *max = vmaxq_u32(*max, magnitude(x));
        }
    }
    for x in rest {
        max[0] = vmaxq_u32(max[0], magnitude(x));
    }
    max[1] = vmaxq_u32(max[1], magnitude(last));
    vmaxvq_u32(vmaxq_u32(vmaxq_u32(max[0], max[1]), vmaxq_u32(max[2], max[3])))
}

#[target_feature(enable = "neon")]
pub(crate) fn encode(row: &[f32], inverse: f32, codes: &mut [i8]) {
    let Some(last) = row.last_chunk() else { return scalar::encode(row, inverse, codes) };
    for (x, code) in row.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
        store_codes(code, encode16(x, inverse));
    }
    if let Some(code) = codes.last_chunk_mut() {
        store_codes(code, encode16(last, inverse));
    }
}

#[target_feature(enable = "neon")]
pub(crate) fn dequantise(acc: &[i32], row: Scale, columns: &[Scale], out: &mut [f32]) {
    let (Some(acc_last), Some(column_last)) = (acc.last_chunk(), columns.last_chunk()) else {
        return scalar::dequantise(acc, row, columns, out);
    };
    let row = vdupq_n_f64(f64::from(row.get()));
    let vectors = acc.as_chunks().0.iter().zip(columns.as_chunks().0).zip(out.as_chunks_mut().0);
    for ((acc, column), out) in vectors {
        store(out, rescale(load_i32(acc), row, column));
    }
    if let Some(out) = out.last_chunk_mut() {
        store(out, rescale(load_i32(acc_last), row, column_last));
    }
}

#[target_feature(enable = "neon")]
pub(crate) fn dequantise_i64(acc: &[i64], row: Scale, columns: &[Scale], out: &mut [f32]) {
    let (Some(acc_last), Some(column_last)) = (acc.last_chunk(), columns.last_chunk()) else {
        return scalar::dequantise_i64(acc, row, columns, out);
    };
    let row = vdupq_n_f64(f64::from(row.get()));
    let vectors = acc.as_chunks().0.iter().zip(columns.as_chunks().0).zip(out.as_chunks_mut().0);
    for ((acc, column), out) in vectors {
        store(out, rescale(load_i64(acc), row, column));
    }
    if let Some(out) = out.last_chunk_mut() {
        store(out, rescale(load_i64(acc_last), row, column_last));
    }
}

#[target_feature(enable = "neon")]
pub(crate) fn inflate_groups(groups: &[StoredGroup], codes: &mut [[i8; GROUP]]) {
    const NIBBLES: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    // SAFETY: reads the array's 16 bytes.
    let nibbles = unsafe { vld1q_u8(NIBBLES.as_ptr()) };
    for (group, codes) in groups.iter().zip(codes) {
        let Levels { multiplier, offset } = Levels::of(group);
        let levels = |nibbles: uint8x8_t| {
            let product = vmull_u8(nibbles, vdup_n_u8(multiplier));
            let odd = vandq_u16(vshrq_n_u16::<3>(product), vdupq_n_u16(1));
            let steps = vshrq_n_u16::<3>(vaddq_u16(vaddq_u16(product, vdupq_n_u16(3)), odd));
            // Narrowing saturates at 127; only the offset alone reaches −128.
            vqmovn_s16(vaddq_s16(vreinterpretq_s16_u16(steps), vdupq_n_s16(offset.into())))
        };
        let table = vcombine_s8(levels(vget_low_u8(nibbles)), levels(vget_high_u8(nibbles)));
        let table = vmaxq_s8(table, vdupq_n_s8(-127));
        // SAFETY: reads the last 16 bytes of the group; an element's alignment suffices.
        let bytes = unsafe { vld1q_u8(group[2..].as_ptr()) };
        let (even, odd) = (vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes));
        let (first, second) = codes.split_at_mut(16);
        for (half, order) in [(first, vzip1q_u8(even, odd)), (second, vzip2q_u8(even, odd))] {
            if let Some(half) = half.first_chunk_mut() {
                store_codes(half, vqtbl1q_s8(table, order));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn encode16(x: &[f32; 16], inverse: f32) -> int8x16_t {
    let (quarters, _) = x.as_chunks::<4>();
    // The conversion rounds halves to even; 127 fits, so narrowing loses nothing.
    let encode = |i: usize| vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(load(&quarters[i]), inverse)));
    let low = vmovn_s16(vcombine_s16(encode(0), encode(1)));
    let high = vmovn_s16(vcombine_s16(encode(2), encode(3)));
    vcombine_s8(low, high)
}

#[inline]
#[target_feature(enable = "neon")]
fn rescale(acc: [float64x2_t; 2], row: float64x2_t, columns: &[Scale; 4]) -> float32x4_t {
    // SAFETY: reads the array's 16 bytes, unaligned; `Scale` is a transparent `f32`.
    let columns = unsafe { vld1q_f32(columns.as_ptr().cast()) };
    let low = vmulq_f64(acc[0], vmulq_f64(row, vcvt_f64_f32(vget_low_f32(columns))));
    let high = vmulq_f64(acc[1], vmulq_f64(row, vcvt_high_f64_f32(columns)));
    vcvt_high_f32_f64(vcvt_f32_f64(low), high)
}

#[inline]
#[target_feature(enable = "neon")]
fn load(x: &[f32; 4]) -> float32x4_t {
    // SAFETY: reads the array's 16 bytes; an element's alignment suffices.
    unsafe { vld1q_f32(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_i32(acc: &[i32; 4]) -> [float64x2_t; 2] {
    // SAFETY: reads the array's 16 bytes; an element's alignment suffices.
    let acc = unsafe { vld1q_s32(acc.as_ptr()) };
    [vcvtq_f64_s64(vmovl_s32(vget_low_s32(acc))), vcvtq_f64_s64(vmovl_high_s32(acc))]
}

#[inline]
#[target_feature(enable = "neon")]
fn load_i64(acc: &[i64; 4]) -> [float64x2_t; 2] {
    // SAFETY: reads the first half of the array; an element's alignment suffices.
    let low = unsafe { vld1q_s64(acc[..2].as_ptr()) };
    // SAFETY: reads the second half of the array.
    let high = unsafe { vld1q_s64(acc[2..].as_ptr()) };
    [vcvtq_f64_s64(low), vcvtq_f64_s64(high)]
}

#[inline]
#[target_feature(enable = "neon")]
fn store_codes(codes: &mut [i8; 16], value: int8x16_t) {
    // SAFETY: writes the array's 16 bytes, unaligned.
    unsafe { vst1q_s8(codes.as_mut_ptr(), value) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(out: &mut [f32; 4], value: float32x4_t) {
    // SAFETY: writes the array's 16 bytes; an element's alignment suffices.
    unsafe { vst1q_f32(out.as_mut_ptr(), value) }
}
