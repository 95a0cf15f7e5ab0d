// SPDX-License-Identifier: MIT OR Apache-2.0
//! AVX-512 twins of the scalar kernels.
//!
//! Each kernel walks whole vectors and then redoes the last vector's worth of elements, which overlaps
//! what is already done: results depend only on the element, so doing one twice is harmless, and
//! there is no scalar tail. Rows shorter than a vector go to the scalar twin.

use std::arch::x86_64::{
    __m128i, __m256, __m512, __m512d, __m512i, _mm_storeu_si128, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_storeu_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_cvtepi32_epi8, _mm512_cvtepi32_pd,
    _mm512_cvtepi64_pd, _mm512_cvtpd_ps, _mm512_cvtps_epi32, _mm512_cvtps_pd, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_max_epi32, _mm512_mul_pd, _mm512_mul_ps, _mm512_reduce_max_epi32,
    _mm512_set1_epi32, _mm512_set1_pd, _mm512_set1_ps, _mm512_setzero_si512,
};

use crate::Scale;
// Every processor with AVX-512 has AVX2, and a group is one vector of it.
pub(crate) use crate::avx2::inflate_groups;
use crate::scalar::{self, MAGNITUDE_MASK};

#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn abs_max_bits(row: &[f32]) -> u32 {
    let Some(last) = row.last_chunk() else { return scalar::abs_max_bits(row) };
    let mask = _mm512_set1_epi32(MAGNITUDE_MASK.cast_signed());
    let magnitude = |x: &[f32; 16]| _mm512_and_si512(_mm512_castps_si512(load(x)), mask);

    // Four maxima in flight: one would wait for itself on every step.
    let mut max = [_mm512_setzero_si512(); 4];
    let (vectors, _) = row.as_chunks::<16>();
    let (groups, rest) = vectors.as_chunks::<4>();
    for group in groups {
        for (max, x) in max.iter_mut().zip(group) {
            *max = _mm512_max_epi32(*max, magnitude(x));
        }
    }
    for x in rest {
        max[0] = _mm512_max_epi32(max[0], magnitude(x));
    }
    max[1] = _mm512_max_epi32(max[1], magnitude(last));
    let max = _mm512_max_epi32(_mm512_max_epi32(max[0], max[1]), _mm512_max_epi32(max[2], max[3]));
    // The signed maximum serves: no sign bit is left.
    _mm512_reduce_max_epi32(max).cast_unsigned()
}

#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn encode(row: &[f32], inverse: f32, codes: &mut [i8]) {
    let Some(last) = row.last_chunk() else { return scalar::encode(row, inverse, codes) };
    let inverse = _mm512_set1_ps(inverse);
    let encode = |x: &[f32; 16]| -> __m128i {
        // The conversion rounds halves to even; 127 fits, so truncating to bytes loses nothing.
        _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(load(x), inverse)))
    };
    for (x, code) in row.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
        store_codes(code, encode(x));
    }
    if let Some(code) = codes.last_chunk_mut() {
        store_codes(code, encode(last));
    }
}

#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn dequantise(acc: &[i32], row: Scale, columns: &[Scale], out: &mut [f32]) {
    let (Some(acc_last), Some(column_last)) = (acc.last_chunk(), columns.last_chunk()) else {
        return scalar::dequantise(acc, row, columns, out);
    };
    let row = _mm512_set1_pd(f64::from(row.get()));
    let vectors = acc.as_chunks().0.iter().zip(columns.as_chunks().0).zip(out.as_chunks_mut().0);
    for ((acc, column), out) in vectors {
        store(out, rescale(load_i32(acc), row, column));
    }
    if let Some(out) = out.last_chunk_mut() {
        store(out, rescale(load_i32(acc_last), row, column_last));
    }
}

#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn dequantise_i64(acc: &[i64], row: Scale, columns: &[Scale], out: &mut [f32]) {
    let (Some(acc_last), Some(column_last)) = (acc.last_chunk(), columns.last_chunk()) else {
        return scalar::dequantise_i64(acc, row, columns, out);
    };
    let row = _mm512_set1_pd(f64::from(row.get()));
    let vectors = acc.as_chunks().0.iter().zip(columns.as_chunks().0).zip(out.as_chunks_mut().0);
    for ((acc, column), out) in vectors {
        store(out, rescale(load_i64(acc), row, column));
    }
    if let Some(out) = out.last_chunk_mut() {
        store(out, rescale(load_i64(acc_last), row, column_last));
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn rescale(acc: __m512d, row: __m512d, columns: &[Scale; 8]) -> __m256 {
    // SAFETY: reads the array's 32 bytes, unaligned; `Scale` is a transparent `f32`.
    let columns = unsafe { _mm256_loadu_ps(columns.as_ptr().cast()) };
    _mm512_cvtpd_ps(_mm512_mul_pd(acc, _mm512_mul_pd(row, _mm512_cvtps_pd(columns))))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn load(x: &[f32; 16]) -> __m512 {
    // SAFETY: reads the array's 64 bytes, unaligned.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn load_i32(acc: &[i32; 8]) -> __m512d {
    // SAFETY: reads the array's 32 bytes, unaligned.
    let acc = unsafe { _mm256_loadu_si256(acc.as_ptr().cast()) };
    _mm512_cvtepi32_pd(acc)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn load_i64(acc: &[i64; 8]) -> __m512d {
    // SAFETY: reads the array's 64 bytes, unaligned.
    let acc: __m512i = unsafe { _mm512_loadu_si512(acc.as_ptr().cast()) };
    _mm512_cvtepi64_pd(acc)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn store_codes(codes: &mut [i8; 16], value: __m128i) {
    // SAFETY: writes the array's 16 bytes, unaligned.
    unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn store(out: &mut [f32; 8], value: __m256) {
    // SAFETY: writes the array's 32 bytes, unaligned.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), value) }
}
