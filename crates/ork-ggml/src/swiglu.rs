// SPDX-License-Identifier: MIT OR Apache-2.0
//! SwiGLU, `silu(gate) * up`, and its overlap with the product that makes `up`.
//!
//! # What exact means here
//! The values are those of ggml's CPU backend with f32: the same polynomial for `exp` with the same fused steps, the same
//! scalar function at the end of a row that is no whole vector. They are equal to the last bit where ggml was built for
//! AVX2 with FMA, or for NEON; ggml's AVX-512 and SVE builds round differently in the last bit. When `silu` is computed, before,
//! beside or after `up`, changes nothing: it is the same function of the same numbers, and the product with `up` comes last.

use rayon::prelude::*;

/// Numbers of one vector of the ggml build that is matched.
const LANES: usize = if cfg!(target_arch = "aarch64") { 4 } else { 8 };
/// Numbers for one thread at a time.
const CHUNK_ROWS_MIN: usize = 8;

/// `exp`, as ggml's vectors compute it: at most 1.95 units in the last place off (their comment).
#[inline(always)]
fn exp(x: f32) -> f32 {
    let shift = 12_582_912.0_f32; // 1.5 * 2^23
    let z = x.mul_add(f32::from_bits(0x3fb8_aa3b), shift);
    let n = z - shift;
    let b = (-n).mul_add(f32::from_bits(0x35bf_be8e), (-n).mul_add(f32::from_bits(0x3f31_7200), x));
    let e = z.to_bits() << 23;
    let k = f32::from_bits(e.wrapping_add(1.0_f32.to_bits()));
    let u = b * b;
    let high = f32::from_bits(0x3c07_2010).mul_add(b, f32::from_bits(0x3d2b_9f17));
    let low = f32::from_bits(0x3e2a_af33).mul_add(b, f32::from_bits(0x3eff_fedb));
    let j = high.mul_add(u, low).mul_add(u, f32::from_bits(0x3f7f_fff6) * b);
    let plain = j.mul_add(k, k);
    // Powers of two that one factor cannot hold.
    let g = if n <= 0.0 { 0x8200_0000_u32 } else { 0 };
    let s1 = f32::from_bits(g.wrapping_add(0x7f00_0000));
    let s2 = f32::from_bits(e.wrapping_sub(g));
    let two_factors = s2.mul_add(j, s2) * s1;
    let beyond = s1 * s1;
    if n.abs() > 192.0 {
        beyond
    } else if n.abs() > 126.0 {
        two_factors
    } else {
        plain
    }
}

#[inline(always)]
fn silu_rows(gate: &[f32], out: &mut [f32], width: usize) {
    for (gate, out) in gate.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let (vectors, tail) = gate.as_chunks::<LANES>();
        let (out_vectors, out_tail) = out.as_chunks_mut::<LANES>();
        for (x, out) in vectors.iter().zip(out_vectors) {
            for (x, out) in x.iter().zip(out) {
                *out = x / (1.0 + exp(0.0 - x));
            }
        }
        for (x, out) in tail.iter().zip(out_tail) {
            *out = x / (1.0 + (-x).exp());
        }
    }
}

/// The same, compiled for processors whose vectors have fused steps.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn silu_rows_fma(gate: &[f32], out: &mut [f32], width: usize) {
    silu_rows(gate, out, width);
}

/// `silu` of rows of `width` numbers.
fn silu(gate: &[f32], out: &mut [f32], width: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: both features were just detected.
        return unsafe { silu_rows_fma(gate, out, width) };
    }
    silu_rows(gate, out, width);
}

/// Rows that one thread takes.
fn chunk(width: usize) -> usize {
    width * CHUNK_ROWS_MIN
}

/// `out = silu(gate)`, with the threads of the pool. All slices hold whole rows of `width` numbers.
pub(crate) fn silu_parallel(gate: &[f32], out: &mut [f32], width: usize) {
    let size = chunk(width);
    out.par_chunks_mut(size).zip(gate.par_chunks(size)).for_each(|(out, gate)| silu(gate, out, width));
}

/// `out = silu * up`.
pub(crate) fn multiply(silu: &[f32], up: &[f32], out: &mut [f32], width: usize) {
    let size = chunk(width);
    let rows = out.par_chunks_mut(size).zip(silu.par_chunks(size)).zip(up.par_chunks(size));
    rows.for_each(|((out, silu), up)| {
        for ((out, silu), up) in out.iter_mut().zip(silu).zip(up) {
            *out = silu * up;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything from far below to far above, and what is no number.
    fn inputs() -> Vec<f32> {
        let mut all: Vec<f32> = (-4000..4000).map(|i| i as f32 * 0.037).collect();
        all.extend([0.0, -0.0, 1e-30, -1e-30, 88.3, -88.3, 103.9, -103.9, 1e10, -1e10, f32::MAX, f32::MIN]);
        all
    }

    #[test]
    fn silu_is_near_that_of_f64() {
        let x = inputs();
        let mut out = vec![0.0; x.len()];
        silu_parallel(&x, &mut out, x.len());
        for (x, out) in x.iter().zip(out) {
            let want = f64::from(*x) / (1.0 + (-f64::from(*x)).exp());
            let error = (f64::from(out) - want).abs();
            // Where f32's exponential overflows the result is 0, as ggml's.
            assert!(error <= want.abs() * 4e-7 + 1e-36, "silu({x}) = {out}, and it is {want}");
        }
    }

    #[test]
    fn chunks_and_instructions_do_not_change_a_bit() {
        let x = inputs();
        for width in [5, 8, 24, 37] {
            let rows = x.len() / width;
            let x = &x[..rows * width];
            let (mut parallel, mut plain) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            silu_parallel(x, &mut parallel, width);
            silu_rows(x, &mut plain, width);
            let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&parallel), bits(&plain), "{width}");
            let up: Vec<f32> = x.iter().rev().copied().collect();
            let mut product = vec![0.0; x.len()];
            multiply(&parallel, &up, &mut product, width);
            assert!(
                product
                    .iter()
                    .zip(parallel.iter().zip(&up))
                    .all(|(p, (a, b))| p.to_bits() == (a * b).to_bits())
            );
        }
    }
}
