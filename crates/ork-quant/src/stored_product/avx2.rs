// SPDX-License-Identifier: MIT OR Apache-2.0
//! AVX2 twins of the plain loops.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_shuffle_epi8, _mm_srli_epi16,
    _mm_storeu_si128, _mm_unpackhi_epi8, _mm_unpacklo_epi8, _mm256_add_epi32, _mm256_cvtepi8_epi16,
    _mm256_madd_epi16, _mm256_setzero_si256, _mm256_storeu_si256,
};

use super::{BLOCK, scalar};

#[target_feature(enable = "avx2")]
pub(super) fn inflate(bytes: &[u8], table: &[i8; 16], codes: &mut [i8]) {
    let (low_half, table_vector) = (_mm_set1_epi8(15), load(table));
    let (vectors, rest) = codes.as_chunks_mut::<32>();
    let whole = vectors.len();
    for (codes, bytes) in vectors.iter_mut().zip(bytes.as_chunks::<16>().0) {
        // SAFETY: reads the array's 16 bytes, unaligned.
        let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        let low = _mm_and_si128(bytes, low_half);
        let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), low_half);
        let first = _mm_shuffle_epi8(table_vector, _mm_unpacklo_epi8(low, high));
        let second = _mm_shuffle_epi8(table_vector, _mm_unpackhi_epi8(low, high));
        let (halves, _) = codes.as_chunks_mut::<16>();
        store(&mut halves[0], first);
        store(&mut halves[1], second);
    }
    scalar::inflate(&bytes[whole * 16..], table, rest);
}

#[target_feature(enable = "avx2")]
pub(super) fn block(w: [&[i8]; BLOCK], x: [&[i8]; BLOCK]) -> [[i32; BLOCK]; BLOCK] {
    let [x0, x1, x2, x3] = x;
    // Eight sums in flight, which leaves registers for the operands.
    let [a, b] = two_rows(w, [x0, x1]);
    let [c, d] = two_rows(w, [x2, x3]);
    [a, b, c, d]
}

#[inline]
#[target_feature(enable = "avx2")]
fn two_rows(w: [&[i8]; BLOCK], x: [&[i8]; 2]) -> [[i32; BLOCK]; 2] {
    let (w_parts, x_parts) = (w.map(<[i8]>::as_chunks::<16>), x.map(<[i8]>::as_chunks::<16>));
    let steps = x_parts[0].0.len();
    let w_vectors = w_parts.map(|(vectors, _)| &vectors[..steps]);
    let x_vectors = x_parts.map(|(vectors, _)| &vectors[..steps]);
    let mut sums = [[_mm256_setzero_si256(); BLOCK]; 2];
    for step in 0..steps {
        let x = [widen(&x_vectors[0][step]), widen(&x_vectors[1][step])];
        for j in 0..BLOCK {
            let w = widen(&w_vectors[j][step]);
            // Pairs of products: at most 2 x 128 x 128, far inside 32 bits.
            for i in 0..2 {
                sums[i][j] = _mm256_add_epi32(sums[i][j], _mm256_madd_epi16(x[i], w));
            }
        }
    }
    let mut out = [[0; BLOCK]; 2];
    for i in 0..2 {
        for j in 0..BLOCK {
            out[i][j] = total(sums[i][j]) + scalar::dot(w_parts[j].1, x_parts[i].1);
        }
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn widen(codes: &[i8; 16]) -> __m256i {
    _mm256_cvtepi8_epi16(load(codes))
}

#[inline]
#[target_feature(enable = "avx2")]
fn total(sums: __m256i) -> i32 {
    let mut lanes = [0_i32; 8];
    // SAFETY: writes the array's 32 bytes, unaligned.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums) };
    lanes.iter().sum()
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(codes: &[i8; 16]) -> __m128i {
    // SAFETY: reads the array's 16 bytes, unaligned.
    unsafe { _mm_loadu_si128(codes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(codes: &mut [i8; 16], value: __m128i) {
    // SAFETY: writes the array's 16 bytes, unaligned.
    unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), value) }
}
