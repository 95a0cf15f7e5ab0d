// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that keep one kernel of a group per vector lane, for everything that is not int8.
//!
//! Each lane adds its products in the order of the depth, so the result does not depend on the instructions:
//! products of 11-bit mantissas are exact in f64, and a fused multiply-add then rounds as an addition does.

/// Kernels of a group at two and four bytes per element.
pub const FLOAT_LANES: usize = 16;

/// `out[m][lane] += features[m][d] * weights[d][lane]` over `d`, in f64, for rows of `depth` features.
///
/// Features and weights must have at most 24 bits of mantissa between them and the other (true for fp16, bf16
/// and truncated tf32), so that no product rounds.
///
/// # Panics
/// When the lengths do not fit together.
pub fn float_rows(features: &[f32], depth: usize, weights: &[f32], out: &mut [f64]) {
    check(features.len(), depth, weights.len(), out.len());
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
            // SAFETY: the features were detected just now.
            return unsafe { float_avx512(features, depth, weights, out) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the features were detected just now.
            return unsafe { float_avx2(features, depth, weights, out) };
        }
    }
    // Fused multiply-adds are part of every aarch64.
    #[cfg(target_arch = "aarch64")]
    return float_fused(features, depth, weights, out);
    #[cfg(not(target_arch = "aarch64"))]
    float_plain(features, depth, weights, out);
}

/// The definition of [`float_rows`].
///
/// # Panics
/// When the lengths do not fit together.
#[cfg_attr(target_arch = "aarch64", allow(dead_code, reason = "the oracle of the fused form"))]
fn float_plain(features: &[f32], depth: usize, weights: &[f32], out: &mut [f64]) {
    check(features.len(), depth, weights.len(), out.len());
    for (row, out) in features.chunks_exact(depth).zip(out.as_chunks_mut::<FLOAT_LANES>().0) {
        let mut sums = *out;
        for (feature, weights) in row.iter().zip(weights.as_chunks::<FLOAT_LANES>().0) {
            let feature = f64::from(*feature);
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += feature * f64::from(*weight);
            }
        }
        *out = sums;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,fma")]
fn float_avx512(features: &[f32], depth: usize, weights: &[f32], out: &mut [f64]) {
    float_fused(features, depth, weights, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn float_avx2(features: &[f32], depth: usize, weights: &[f32], out: &mut [f64]) {
    float_fused(features, depth, weights, out);
}

/// Four rows at a time with fused multiply-adds; equal to the plain loops because no product rounds.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn float_fused(features: &[f32], depth: usize, weights: &[f32], out: &mut [f64]) {
    const R: usize = 4;
    let mut rows = features.chunks_exact(R * depth);
    let mut outs = out.chunks_exact_mut(R * FLOAT_LANES);
    for (rows, out) in rows.by_ref().zip(outs.by_ref()) {
        let mut sums = [[0f64; FLOAT_LANES]; R];
        for (sum, out) in sums.iter_mut().zip(out.as_chunks::<FLOAT_LANES>().0) {
            *sum = *out;
        }
        let (a, rest) = rows.split_at(depth);
        let (b, rest) = rest.split_at(depth);
        let (c, d) = rest.split_at(depth);
        for ((((weights, a), b), c), d) in
            weights.as_chunks::<FLOAT_LANES>().0.iter().zip(a).zip(b).zip(c).zip(d)
        {
            let wide = weights.map(f64::from);
            for (sums, feature) in sums.iter_mut().zip([*a, *b, *c, *d].map(f64::from)) {
                for (sum, weight) in sums.iter_mut().zip(wide) {
                    *sum = feature.mul_add(weight, *sum);
                }
            }
        }
        for (sum, out) in sums.iter().zip(out.as_chunks_mut::<FLOAT_LANES>().0) {
            *out = *sum;
        }
    }
    let done = features.len() / depth / R * R;
    for (row, out) in features.chunks_exact(depth).zip(out.as_chunks_mut::<FLOAT_LANES>().0).skip(done) {
        let mut sums = *out;
        for (feature, weights) in row.iter().zip(weights.as_chunks::<FLOAT_LANES>().0) {
            let feature = f64::from(*feature);
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = feature.mul_add(f64::from(*weight), *sum);
            }
        }
        *out = sums;
    }
}

/// As [`float_rows`] for 16-bit integers, `lanes` kernels, exact 64-bit sums.
///
/// # Panics
/// When the lengths do not fit together.
pub fn int_rows(features: &[i16], depth: usize, weights: &[i16], lanes: usize, out: &mut [i64]) {
    assert!(depth > 0 && lanes > 0, "an empty product");
    assert_eq!(weights.len(), depth * lanes, "weights");
    assert_eq!(out.len(), features.len() / depth * lanes, "sums");
    for (row, out) in features.chunks_exact(depth).zip(out.chunks_exact_mut(lanes)) {
        for (feature, weights) in row.iter().zip(weights.chunks_exact(lanes)) {
            for (sum, weight) in out.iter_mut().zip(weights) {
                *sum += i64::from(i32::from(*feature) * i32::from(*weight));
            }
        }
    }
}

fn check(features: usize, depth: usize, weights: usize, out: usize) {
    assert!(depth > 0, "an empty product");
    assert_eq!(weights, depth * FLOAT_LANES, "weights");
    assert_eq!(out, features / depth * FLOAT_LANES, "sums");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fused_form_equals_the_plain_loops() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // 11 bits of mantissa, exponents over 24 powers of two.
            let mantissa = (state >> 40 & 0x7FF) as f32 - 1024.0;
            mantissa * 2f32.powi((state >> 52 & 0xF) as i32 - 12)
        };
        for rows in [1, 3, 4, 9] {
            for depth in [1, 7, 64, 513] {
                let features: Vec<f32> = (0..rows * depth).map(|_| next()).collect();
                let weights: Vec<f32> = (0..depth * FLOAT_LANES).map(|_| next()).collect();
                let mut plain = vec![0.5; rows * FLOAT_LANES];
                let mut fast = plain.clone();
                float_plain(&features, depth, &weights, &mut plain);
                float_rows(&features, depth, &weights, &mut fast);
                assert!(plain == fast, "{rows} rows of {depth}");
            }
        }
    }

    #[test]
    fn integers_do_not_overflow() {
        let features = [i16::MIN; 70_000];
        let weights = vec![i16::MIN; 70_000];
        let mut out = [0i64];
        int_rows(&features, 70_000, &weights, 1, &mut out);
        assert_eq!(out[0], 70_000 << 30);
    }
}
