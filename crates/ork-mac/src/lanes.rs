// SPDX-License-Identifier: MIT OR Apache-2.0
//! Products of 16-bit integers, one kernel of a group per lane.

/// `out[m][lane] += features[m][d] * weights[d][lane]` over `d`, for rows of `depth` 16-bit integers and `lanes` kernels,
/// in exact 64-bit sums.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_do_not_overflow() {
        let features = [i16::MIN; 70_000];
        let weights = vec![i16::MIN; 70_000];
        let mut out = [0i64];
        int_rows(&features, 70_000, &weights, 1, &mut out);
        assert_eq!(out[0], 70_000 << 30);
    }
}
