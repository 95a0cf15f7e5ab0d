// SPDX-License-Identifier: MIT OR Apache-2.0
//! AVX2 twins of the scalar kernels; the walk over a row is the one described in the AVX-512 module.

use std::arch::x86_64::{
    __m128, __m256, __m256d, __m256i, _mm_and_si128, _mm_loadu_ps, _mm_loadu_si128, _mm_max_epi8,
    _mm_packs_epi16, _mm_set1_epi8, _mm_srli_epi16, _mm_storeu_ps, _mm_unpackhi_epi8, _mm_unpacklo_epi8,
    _mm256_add_epi16, _mm256_add_pd, _mm256_and_si256, _mm256_blend_epi32, _mm256_broadcastsi128_si256,
    _mm256_castpd_si256, _mm256_castps_si256, _mm256_castsi256_pd, _mm256_castsi256_si128,
    _mm256_cvtepi32_pd, _mm256_cvtpd_ps, _mm256_cvtps_epi32, _mm256_cvtps_pd, _mm256_extracti128_si256,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_epi32, _mm256_mul_pd, _mm256_mul_ps, _mm256_mullo_epi16,
    _mm256_packs_epi16, _mm256_packs_epi32, _mm256_permutevar8x32_epi32, _mm256_set_m128i, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_pd, _mm256_set1_ps, _mm256_setr_epi16, _mm256_setr_epi32,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_srli_epi64, _mm256_storeu_si256,
    _mm256_sub_pd, _mm256_xor_si256,
};

use crate::Scale;
use crate::group::{GROUP, Levels, StoredGroup};
use crate::scalar::{self, MAGNITUDE_MASK};

#[target_feature(enable = "avx2")]
pub(crate) fn abs_max_bits(row: &[f32]) -> u32 {
    let Some(last) = row.last_chunk() else { return scalar::abs_max_bits(row) };
    let mask = _mm256_set1_epi32(MAGNITUDE_MASK.cast_signed());
    let magnitude = |x: &[f32; 8]| _mm256_and_si256(_mm256_castps_si256(load(x)), mask);

    // Four maxima in flight: one would wait for itself on every step.
    let mut max = [_mm256_setzero_si256(); 4];
    let (vectors, _) = row.as_chunks::<8>();
    let (groups, rest) = vectors.as_chunks::<4>();
    for group in groups {
        for (max, x) in max.iter_mut().zip(group) {
            *max = _mm256_max_epi32(*max, magnitude(x));
        }
    }
    for x in rest {
        max[0] = _mm256_max_epi32(max[0], magnitude(x));
    }
    max[1] = _mm256_max_epi32(max[1], magnitude(last));
    let max = _mm256_max_epi32(_mm256_max_epi32(max[0], max[1]), _mm256_max_epi32(max[2], max[3]));

    let mut lanes = [0_u32; 8];
    // SAFETY: writes the array's 32 bytes, unaligned.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), max) };
    lanes.into_iter().fold(0, u32::max)
}

#[target_feature(enable = "avx2")]
pub(crate) fn encode(row: &[f32], inverse: f32, codes: &mut [i8]) {
    let Some(last) = row.last_chunk() else { return scalar::encode(row, inverse, codes) };
    let inverse = _mm256_set1_ps(inverse);
    for (x, code) in row.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
        store_codes(code, encode32(x, inverse));
    }
    if let Some(code) = codes.last_chunk_mut() {
        store_codes(code, encode32(last, inverse));
    }
}

#[target_feature(enable = "avx2")]
pub(crate) fn dequantise(acc: &[i32], row: Scale, columns: &[Scale], out: &mut [f32]) {
    let (Some(acc_last), Some(column_last)) = (acc.last_chunk(), columns.last_chunk()) else {
        return scalar::dequantise(acc, row, columns, out);
    };
    let row = _mm256_set1_pd(f64::from(row.get()));
    let vectors = acc.as_chunks().0.iter().zip(columns.as_chunks().0).zip(out.as_chunks_mut().0);
    for ((acc, column), out) in vectors {
        store(out, rescale(load_i32(acc), row, column));
    }
    if let Some(out) = out.last_chunk_mut() {
        store(out, rescale(load_i32(acc_last), row, column_last));
    }
}

#[target_feature(enable = "avx2")]
pub(crate) fn dequantise_i64(acc: &[i64], row: Scale, columns: &[Scale], out: &mut [f32]) {
    let (Some(acc_last), Some(column_last)) = (acc.last_chunk(), columns.last_chunk()) else {
        return scalar::dequantise_i64(acc, row, columns, out);
    };
    let row = _mm256_set1_pd(f64::from(row.get()));
    let vectors = acc.as_chunks().0.iter().zip(columns.as_chunks().0).zip(out.as_chunks_mut().0);
    for ((acc, column), out) in vectors {
        store(out, rescale(load_i64(acc), row, column));
    }
    if let Some(out) = out.last_chunk_mut() {
        store(out, rescale(load_i64(acc_last), row, column_last));
    }
}

#[target_feature(enable = "avx2")]
pub(crate) fn inflate_groups(groups: &[StoredGroup], codes: &mut [[i8; GROUP]]) {
    let nibbles = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let (one, three) = (_mm256_set1_epi16(1), _mm256_set1_epi16(3));
    for (group, codes) in groups.iter().zip(codes) {
        let Levels { multiplier, offset } = Levels::of(group);
        let product = _mm256_mullo_epi16(nibbles, _mm256_set1_epi16(multiplier.into()));
        let odd = _mm256_and_si256(_mm256_srli_epi16::<3>(product), one);
        let steps = _mm256_srli_epi16::<3>(_mm256_add_epi16(_mm256_add_epi16(product, three), odd));
        let levels = _mm256_add_epi16(steps, _mm256_set1_epi16(offset.into()));
        // The pack saturates at 127; only the offset alone reaches −128.
        let halves = (_mm256_castsi256_si128(levels), _mm256_extracti128_si256::<1>(levels));
        let table = _mm_max_epi8(_mm_packs_epi16(halves.0, halves.1), _mm_set1_epi8(-127));
        // SAFETY: reads the last 16 bytes of the group, unaligned.
        let bytes = unsafe { _mm_loadu_si128(group[2..].as_ptr().cast()) };
        let low = _mm_set1_epi8(15);
        let (even, odd) = (_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16::<4>(bytes), low));
        let order = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
        store_codes(codes, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), order));
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn encode32(x: &[f32; 32], inverse: __m256) -> __m256i {
    let (quarters, _) = x.as_chunks::<8>();
    // The conversion rounds halves to even; the packs saturate, which 127 never reaches.
    let encode = |i: usize| _mm256_cvtps_epi32(_mm256_mul_ps(load(&quarters[i]), inverse));
    let low = _mm256_packs_epi32(encode(0), encode(1));
    let high = _mm256_packs_epi32(encode(2), encode(3));
    // Packs work within 128-bit halves, which leaves groups of four codes in the order 0 2 4 6 1 3 5 7.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order)
}

#[inline]
#[target_feature(enable = "avx2")]
fn rescale(acc: __m256d, row: __m256d, columns: &[Scale; 4]) -> __m128 {
    // SAFETY: reads the array's 16 bytes, unaligned; `Scale` is a transparent `f32`.
    let columns = unsafe { _mm_loadu_ps(columns.as_ptr().cast()) };
    _mm256_cvtpd_ps(_mm256_mul_pd(acc, _mm256_mul_pd(row, _mm256_cvtps_pd(columns))))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(x: &[f32; 8]) -> __m256 {
    // SAFETY: reads the array's 32 bytes, unaligned.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_i32(acc: &[i32; 4]) -> __m256d {
    // SAFETY: reads the array's 16 bytes, unaligned.
    let acc = unsafe { _mm_loadu_si128(acc.as_ptr().cast()) };
    _mm256_cvtepi32_pd(acc)
}

/// AVX2 has no conversion from `i64`, so each half becomes a float by writing it into the mantissa
/// of a constant, and one addition joins them: the only step that rounds.
#[inline]
#[target_feature(enable = "avx2")]
fn load_i64(acc: &[i64; 4]) -> __m256d {
    const LOW: f64 = (1_u64 << 52) as f64;
    const HIGH: f64 = (1_u128 << 84) as f64;
    const SIGN: f64 = (1_u64 << 63) as f64;
    // Exact: the sum needs 33 bits of mantissa.
    const BIAS: f64 = HIGH + SIGN + LOW;

    // SAFETY: reads the array's 32 bytes, unaligned.
    let acc = unsafe { _mm256_loadu_si256(acc.as_ptr().cast()) };
    // 2^52 + low half.
    let low = _mm256_blend_epi32::<0b1010_1010>(acc, _mm256_castpd_si256(_mm256_set1_pd(LOW)));
    // 2^84 + 2^63 + 2^32 · high half, taken as signed: flipping its sign bit adds 2^31 to it.
    let exponent = _mm256_castpd_si256(_mm256_set1_pd(HIGH + SIGN));
    let high = _mm256_xor_si256(_mm256_srli_epi64::<32>(acc), exponent);
    // 2^32 · high half − 2^52, exact.
    let high = _mm256_sub_pd(_mm256_castsi256_pd(high), _mm256_set1_pd(BIAS));
    _mm256_add_pd(high, _mm256_castsi256_pd(low))
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_codes(codes: &mut [i8; 32], value: __m256i) {
    // SAFETY: writes the array's 32 bytes, unaligned.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(out: &mut [f32; 4], value: __m128) {
    // SAFETY: writes the array's 16 bytes, unaligned.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), value) }
}
