// SPDX-License-Identifier: MIT OR Apache-2.0
//! AVX-512 form of [`crate::turn_half_block`].

use std::arch::x86_64::*;

use crate::half::{HALF_BLOCK, HALF_BLOCK_BYTES, HalfKind};

#[target_feature(enable = "avx512f")]
pub(crate) fn turn(kind: HalfKind, block: &[u8; HALF_BLOCK_BYTES], out: &mut [f32; HALF_BLOCK]) {
    for half in 0..2 {
        let mut kernels = [_mm512_setzero_ps(); 16];
        for (k, kernel) in kernels.iter_mut().enumerate() {
            // SAFETY: 16 kernels of 64 bytes, of which 32 are read from 0 or 32.
            let bits = unsafe { _mm256_loadu_si256(block.as_ptr().add(64 * k + 32 * half).cast()) };
            *kernel = match kind {
                HalfKind::Fp16 => _mm512_cvtph_ps(bits),
                HalfKind::Bf16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))),
            };
        }
        for (c, channel) in turned(kernels).into_iter().enumerate() {
            // SAFETY: 32 channels of 16 numbers.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(256 * half + 16 * c), channel) };
        }
    }
}

/// The 16 x 16 matrix with rows and columns exchanged.
#[target_feature(enable = "avx512f")]
fn turned(rows: [__m512; 16]) -> [__m512; 16] {
    let zero = _mm512_setzero_ps();
    // Inside 128-bit quarters: columns 0 to 3 of four rows each become rows.
    let mut quads = [zero; 16];
    for q in 0..4 {
        let [a, b, c, d] = [rows[4 * q], rows[4 * q + 1], rows[4 * q + 2], rows[4 * q + 3]];
        let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        quads[4 * q] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
        quads[4 * q + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
        quads[4 * q + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
        quads[4 * q + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
    }
    // Quarter x of quads[4 q + j] holds column 4 x + j of rows 4 q to 4 q + 3: exchange quarters and q.
    let mut out = [zero; 16];
    for j in 0..4 {
        let [a, b, c, d] = [quads[j], quads[4 + j], quads[8 + j], quads[12 + j]];
        let (ab_even, ab_odd) =
            (_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
        let (cd_even, cd_odd) =
            (_mm512_shuffle_f32x4::<0b10_00_10_00>(c, d), _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d));
        out[j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_even, cd_even);
        out[8 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_even, cd_even);
        out[4 + j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_odd, cd_odd);
        out[12 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_odd, cd_odd);
    }
    out
}
