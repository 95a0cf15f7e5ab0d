// SPDX-License-Identifier: MIT OR Apache-2.0
//! AVX-512 VNNI and AVX2 twins of the int8 kernel.

use std::arch::x86_64::*;

use crate::{BLOCK_CHANNELS, GROUP_KERNELS, Group, Rows, scalar};

/// Same result as `scalar::int8_group`; `sums` are the sums of the rows' bytes.
pub(crate) fn int8_group_avx512(rows: Rows<'_>, sums: &[i32], group: Group<'_>, out: &mut [i32]) {
    check(rows, group, out);
    assert_eq!(sums.len(), rows.len());
    // SAFETY: the engine selects this kernel only where the features were detected.
    unsafe { group_avx512(rows, sums, group, out) }
}

/// Same result as `scalar::int8_group`.
pub(crate) fn int8_group_avx2(rows: Rows<'_>, group: Group<'_>, out: &mut [i32]) {
    check(rows, group, out);
    // SAFETY: the engine selects this kernel only where AVX2 was detected.
    unsafe { group_avx2(rows, group, out) }
}

/// What the loads below rely on: whole rows, whole blocks, 32 outputs per row.
fn check(rows: Rows<'_>, group: Group<'_>, out: &[i32]) {
    assert_eq!(rows.k, group.k);
    assert_eq!(group.k % BLOCK_CHANNELS, 0);
    assert!(group.kernels <= GROUP_KERNELS);
    assert_eq!(group.bytes.len(), group.kernels * group.k);
    assert_eq!(out.len(), rows.len() * GROUP_KERNELS);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn group_avx512(rows: Rows<'_>, sums: &[i32], group: Group<'_>, out: &mut [i32]) {
    if group.kernels < GROUP_KERNELS {
        out.fill(0);
    }
    let mut lane = 0;
    if rows.len() <= 3 && group.kernels == GROUP_KERNELS {
        // Few rows: the weight stream decides, so it is read once and in order.
        match rows.len() {
            1 => return strip_avx512::<1, 16>(rows, sums, group, 0, 0, out),
            2 => {
                strip_avx512::<2, 8>(rows, sums, group, 0, 0, out);
                return strip_avx512::<2, 8>(rows, sums, group, 0, 16, out);
            }
            _ => {
                strip_avx512::<3, 8>(rows, sums, group, 0, 0, out);
                return strip_avx512::<3, 8>(rows, sums, group, 0, 16, out);
            }
        }
    }
    while lane + 8 <= group.kernels {
        let mut m = 0;
        while m + 6 <= rows.len() {
            strip_avx512::<6, 4>(rows, sums, group, m, lane, out);
            m += 6;
        }
        match rows.len() - m {
            0 => {}
            1 => strip_avx512::<1, 4>(rows, sums, group, m, lane, out),
            2 => strip_avx512::<2, 4>(rows, sums, group, m, lane, out),
            3 => strip_avx512::<3, 4>(rows, sums, group, m, lane, out),
            4 => strip_avx512::<4, 4>(rows, sums, group, m, lane, out),
            _ => strip_avx512::<5, 4>(rows, sums, group, m, lane, out),
        }
        lane += 8;
    }
    rest(rows, group, lane, out);
}

/// `R` rows from `m` times `2 P` kernels from `lane`. One 512-bit register holds 32 channels of two kernels.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn strip_avx512<const R: usize, const P: usize>(
    rows: Rows<'_>,
    sums: &[i32],
    group: Group<'_>,
    m: usize,
    lane: usize,
    out: &mut [i32],
) {
    assert!(m + R <= rows.len() && lane + 2 * P <= group.kernels);
    let block_bytes = group.kernels * BLOCK_CHANNELS;
    let flip = _mm512_set1_epi8(-128);
    let mut acc = [[_mm512_setzero_si512(); P]; R];
    let features: [&[u8]; R] = std::array::from_fn(|r| rows.row(m + r));
    for block in 0..group.blocks() {
        let weights = &group.bytes[block * block_bytes + lane * BLOCK_CHANNELS..][..2 * P * BLOCK_CHANNELS];
        let weights: [__m512i; P] = std::array::from_fn(|p| {
            // SAFETY: `weights` has 64 P bytes.
            let signed = unsafe { _mm512_loadu_si512(weights.as_ptr().add(64 * p).cast()) };
            _mm512_xor_si512(signed, flip)
        });
        for r in 0..R {
            // SAFETY: a row has `32 * blocks` bytes (checked at the entry).
            let row = unsafe {
                _mm512_broadcast_i64x4(_mm256_loadu_si256(
                    features[r].as_ptr().add(block * BLOCK_CHANNELS).cast(),
                ))
            };
            for p in 0..P {
                acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], weights[p], row);
            }
        }
    }
    for r in 0..R {
        let correction = _mm256_set1_epi32(sums[m + r].wrapping_mul(128));
        let out = &mut out[(m + r) * GROUP_KERNELS + lane..][..2 * P];
        for (quad, out) in out.chunks_exact_mut(8).enumerate() {
            let sum = eight_sums([
                acc[r][4 * quad],
                acc[r][4 * quad + 1],
                acc[r][4 * quad + 2],
                acc[r][4 * quad + 3],
            ]);
            // SAFETY: `out` has 8 elements.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_sub_epi32(sum, correction)) };
        }
    }
}

/// The sums of the lower and the upper eight lanes of each register, in kernel order.
#[target_feature(enable = "avx512f,avx512bw")]
fn eight_sums(acc: [__m512i; 4]) -> __m256i {
    let [a, b, c, d] = acc;
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    // Each 128-bit quarter: one partial sum of a, b, c, d.
    let quarters = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let halves = _mm512_add_epi32(quarters, _mm512_shuffle_i32x4::<0b10_11_00_01>(quarters, quarters));
    let even = _mm512_castsi512_si128(halves);
    let odd = _mm512_extracti32x4_epi32::<2>(halves);
    _mm256_set_m128i(_mm_unpackhi_epi32(even, odd), _mm_unpacklo_epi32(even, odd))
}

#[target_feature(enable = "avx2")]
fn group_avx2(rows: Rows<'_>, group: Group<'_>, out: &mut [i32]) {
    if group.kernels < GROUP_KERNELS {
        out.fill(0);
    }
    let mut lane = 0;
    while lane + 4 <= group.kernels {
        let mut m = 0;
        while m + 2 <= rows.len() {
            strip_avx2::<2>(rows, group, m, lane, out);
            m += 2;
        }
        if m < rows.len() {
            strip_avx2::<1>(rows, group, m, lane, out);
        }
        lane += 4;
    }
    rest(rows, group, lane, out);
}

/// `R` rows from `m` times 4 kernels from `lane`, in 16-bit products.
#[target_feature(enable = "avx2")]
fn strip_avx2<const R: usize>(rows: Rows<'_>, group: Group<'_>, m: usize, lane: usize, out: &mut [i32]) {
    const C: usize = 4;
    assert!(m + R <= rows.len() && lane + C <= group.kernels);
    let block_bytes = group.kernels * BLOCK_CHANNELS;
    let mut acc = [[_mm256_setzero_si256(); C]; R];
    let features: [&[u8]; R] = std::array::from_fn(|r| rows.row(m + r));
    for block in 0..group.blocks() {
        let weights = &group.bytes[block * block_bytes + lane * BLOCK_CHANNELS..][..C * BLOCK_CHANNELS];
        for half in 0..2 {
            let row: [__m256i; R] = std::array::from_fn(|r| {
                // SAFETY: a row has `32 * blocks` bytes (checked at the entry).
                unsafe { widen(features[r].as_ptr().add(block * BLOCK_CHANNELS + 16 * half)) }
            });
            let weight: [__m256i; C] = std::array::from_fn(|c| {
                // SAFETY: `weights` has 32 C bytes.
                unsafe { widen(weights.as_ptr().add(c * BLOCK_CHANNELS + 16 * half)) }
            });
            for (acc, row) in acc.iter_mut().zip(row) {
                for (acc, weight) in acc.iter_mut().zip(weight) {
                    *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(row, weight));
                }
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            out[(m + r) * GROUP_KERNELS + lane + c] = lane_sum(acc[r][c]);
        }
    }
}

/// 16 signed bytes at `bytes` as 16-bit lanes.
///
/// # Safety
/// 16 bytes are readable at `bytes`.
#[target_feature(enable = "avx2")]
unsafe fn widen(bytes: *const u8) -> __m256i {
    // SAFETY: the caller's.
    _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(bytes.cast()) })
}

#[target_feature(enable = "avx2")]
fn lane_sum(acc: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(acc), _mm256_extracti128_si256::<1>(acc));
    let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    _mm_cvtsi128_si32(two).wrapping_add(_mm_extract_epi32::<1>(two))
}

/// The kernels from `lane` on, which do not fill a strip.
fn rest(rows: Rows<'_>, group: Group<'_>, lane: usize, out: &mut [i32]) {
    for lane in lane..group.kernels {
        for m in 0..rows.len() {
            out[m * GROUP_KERNELS + lane] = scalar::int8_one(rows.row(m), group, lane);
        }
    }
}
