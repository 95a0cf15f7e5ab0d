// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a matmul should give: `out[m][n] = Σ_k features[m][k] · weights[n][k]`, row-major.
//!
//! The naive functions are for reading. [`fast_i8`] is for large shapes; it goes through
//! floating point and another project's kernels, so it shares nothing with the naive loops
//! it is tested against, nor with anything of ours.

use crate::Shape;

/// The longest dot product of full-range int8 values that an `i32` always holds:
/// `131071 · 2¹⁴ < 2³¹`.
pub const K_MAX_I32: u32 = 131_071;

/// Products of full-range int8 values that an `f32` sums without rounding: `1024 · 2¹⁴ = 2²⁴`.
const K_MAX_F32: usize = 1024;

/// int8 matmul with 32-bit sums.
///
/// # Panics
/// If a slice has the wrong length, or `k` exceeds [`K_MAX_I32`].
pub fn matmul_i8(features: &[i8], weights: &[i8], shape: Shape) -> Vec<i32> {
    assert!(shape.k <= K_MAX_I32, "{shape}: sums may not fit 32 bits");
    dots(features, weights, shape, |a, w| {
        let mut sum = 0;
        for (a, w) in a.iter().zip(w) {
            sum += i32::from(*a) * i32::from(*w);
        }
        sum
    })
}

/// int8 matmul with 64-bit sums.
///
/// # Panics
/// If a slice has the wrong length.
pub fn matmul_i8_i64(features: &[i8], weights: &[i8], shape: Shape) -> Vec<i64> {
    dots(features, weights, shape, |a, w| {
        let mut sum = 0;
        for (a, w) in a.iter().zip(w) {
            sum += i64::from(*a) * i64::from(*w);
        }
        sum
    })
}

/// `clamp(round(sum · multiplier / 2^shift) + offset)` to int8, halves rounded to even.
pub fn requantise(sum: i64, multiplier: i16, shift: u32, offset: i32) -> i8 {
    let product = i128::from(sum) * i128::from(multiplier);
    let one = 1i128 << shift.min(120);
    let (floor, rest) = (product.div_euclid(one), product.rem_euclid(one));
    let up = match (2 * rest).cmp(&one) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => floor.rem_euclid(2),
        std::cmp::Ordering::Greater => 1,
    };
    (floor + up + i128::from(offset)).clamp(-128, 127) as i8
}

/// int16 matmul with 64-bit sums, exact for every `k`.
///
/// # Panics
/// If a slice has the wrong length.
pub fn matmul_i16(features: &[i16], weights: &[i16], shape: Shape) -> Vec<i64> {
    dots(features, weights, shape, |a, w| {
        let mut sum = 0;
        for (a, w) in a.iter().zip(w) {
            sum += i64::from(i32::from(*a) * i32::from(*w));
        }
        sum
    })
}

/// int4 matmul (values of −8 to 7): the dot products of slices of `slice_lens` elements, each limited to 16 bits, added
/// in 32 bits. The last slice may be longer than what is left of `k`.
///
/// # Panics
/// If a slice has the wrong length, or `slice_lens` do not hold `k`.
pub fn matmul_i4(features: &[i8], weights: &[i8], shape: Shape, slice_lens: &[u32]) -> Vec<i32> {
    assert!(slice_lens.iter().sum::<u32>() >= shape.k, "{slice_lens:?} hold {shape}");
    dots(features, weights, shape, |a, w| {
        let mut start = 0;
        let mut total = 0;
        for len in slice_lens {
            let end = a.len().min(start + *len as usize);
            let mut sum = 0i32;
            for (a, w) in a[start..end].iter().zip(&w[start..end]) {
                sum += i32::from(*a) * i32::from(*w);
            }
            total += sum.clamp(i16::MIN.into(), i16::MAX.into());
            start = end;
        }
        total
    })
}

/// Float matmul as [`matmul_f32`], unrounded, with the sum of the magnitudes of the products: the measure of what an
/// order of summation can change.
///
/// # Panics
/// If a slice has the wrong length.
pub fn matmul_with_magnitude(features: &[f32], weights: &[f32], shape: Shape) -> Vec<(f64, f64)> {
    dots(features, weights, shape, |a, w| {
        let (mut sum, mut magnitude) = (0.0, 0.0);
        for (a, w) in a.iter().zip(w) {
            let product = f64::from(*a) * f64::from(*w);
            sum += product;
            magnitude += product.abs();
        }
        (sum, magnitude)
    })
}

/// Float matmul, summed in `f64` and rounded once at the end.
///
/// Products of two `f32` are exact in `f64`. With `s = Σ |features · weights|` the result is
/// within `k · 2⁻⁵³ · s` of the exact sum, plus half a unit in the last place of the `f32`.
///
/// # Panics
/// If a slice has the wrong length.
pub fn matmul_f32(features: &[f32], weights: &[f32], shape: Shape) -> Vec<f32> {
    dots(features, weights, shape, |a, w| {
        let mut sum = 0.0;
        for (a, w) in a.iter().zip(w) {
            sum += f64::from(*a) * f64::from(*w);
        }
        sum as f32
    })
}

/// [`matmul_i8`], fast.
///
/// # Panics
/// As [`matmul_i8`].
pub fn fast_i8(features: &[i8], weights: &[i8], shape: Shape) -> Vec<i32> {
    assert!(shape.k <= K_MAX_I32, "{shape}: sums may not fit 32 bits");
    let wide = fast_i8_i64(features, weights, shape);
    wide.into_iter().map(|sum| i32::try_from(sum).expect("k is at most K_MAX_I32")).collect()
}

/// [`matmul_i8_i64`], fast, and exact for this reason: k is cut into slices of 1024. Each product is
/// an integer of magnitude at most 2¹⁴, so *every* sum of some of a slice's products is an integer of
/// magnitude at most 2²⁴, and `f32` holds all of those. No addition inside a slice can round, in
/// whatever order the float kernel adds, fused or not. (It must not add operands before it multiplies,
/// as Strassen's method does; this one does not.) Slices are added as `i64`.
///
/// # Panics
/// If a slice has the wrong length.
pub fn fast_i8_i64(features: &[i8], weights: &[i8], shape: Shape) -> Vec<i64> {
    check(features, weights, shape);
    let (m, k, n) = (shape.m as usize, shape.k as usize, shape.n as usize);
    let mut out = vec![0; shape.output_len()];
    let mut partial = vec![0.0; shape.output_len()];
    for start in (0..k).step_by(K_MAX_F32) {
        let slice = start..k.min(start + K_MAX_F32);
        let a = columns_as_f32(features, k, slice.clone());
        let w = columns_as_f32(weights, k, slice.clone());
        sgemm(&a, &w, m, slice.len(), n, &mut partial);
        for (sum, partial) in out.iter_mut().zip(&partial) {
            *sum += *partial as i64;
        }
    }
    out
}

/// `out = a · wᵀ`, with `a` of `m × k`, `w` of `n × k`, `out` of `m × n`.
fn sgemm(a: &[f32], w: &[f32], m: usize, k: usize, n: usize, out: &mut [f32]) {
    assert_eq!((a.len(), w.len(), out.len()), (m * k, n * k, m * n));
    let stride = |elements: usize| isize::try_from(elements).expect("a slice has fewer elements");
    // SAFETY: with the lengths just checked, element (i, j) of each matrix, at i·row + j·column
    // stride, lies inside its slice; `out` is exclusively ours; with beta = 0 it is not read.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a.as_ptr(),
            stride(k),
            1,
            w.as_ptr(),
            1,
            stride(k),
            0.0,
            out.as_mut_ptr(),
            stride(n),
            1,
        );
    }
}

fn columns_as_f32(matrix: &[i8], row_len: usize, columns: std::ops::Range<usize>) -> Vec<f32> {
    matrix.chunks_exact(row_len).flat_map(|row| &row[columns.clone()]).map(|x| f32::from(*x)).collect()
}

/// One output element per pair of rows.
fn dots<T, S>(features: &[T], weights: &[T], shape: Shape, dot: impl Fn(&[T], &[T]) -> S) -> Vec<S> {
    check(features, weights, shape);
    let k = shape.k as usize;
    let mut out = Vec::with_capacity(shape.output_len());
    for a in features.chunks_exact(k) {
        for w in weights.chunks_exact(k) {
            out.push(dot(a, w));
        }
    }
    out
}

fn check<T>(features: &[T], weights: &[T], shape: Shape) {
    assert!(shape.macs() > 0, "{shape}: no dimension may be zero");
    assert_eq!(features.len(), shape.features_len(), "{shape}: features are m·k");
    assert_eq!(weights.len(), shape.weights_len(), "{shape}: weights are n·k");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;

    #[test]
    fn a_matmul_small_enough_to_do_by_hand() {
        let shape = Shape::new(2, 3, 2);
        let features = [1, 2, 3, -1, 0, 5];
        let weights = [1, 0, -1, 2, 2, 2];
        assert_eq!(matmul_i8(&features, &weights, shape), [-2, 12, -6, 8]);
        assert_eq!(matmul_i8_i64(&features, &weights, shape), [-2, 12, -6, 8]);
        assert_eq!(fast_i8(&features, &weights, shape), [-2, 12, -6, 8]);
        let float = |x: &[i8]| x.iter().map(|x| f32::from(*x)).collect::<Vec<_>>();
        assert_eq!(matmul_f32(&float(&features), &float(&weights), shape), [-2.0, 12.0, -6.0, 8.0]);
    }

    #[test]
    fn the_fast_reference_equals_the_naive_one() {
        let mut stream = Stream::new(11);
        for shape in [
            Shape::new(1, 1, 1),
            Shape::new(1, 8193, 3),
            Shape::new(7, 1023, 5),
            Shape::new(3, 1024, 33),
            Shape::new(33, 1025, 17),
            Shape::new(5, 4097, 31),
            Shape::new(65, 129, 67),
        ] {
            for extreme in [false, true] {
                let mut draw = |len| if extreme { stream.i8s_extreme(len) } else { stream.i8s(len) };
                let (features, weights) = (draw(shape.features_len()), draw(shape.weights_len()));
                let narrow = matmul_i8(&features, &weights, shape);
                let wide = matmul_i8_i64(&features, &weights, shape);
                assert_eq!(fast_i8(&features, &weights, shape), narrow, "{shape}");
                assert_eq!(fast_i8_i64(&features, &weights, shape), wide, "{shape}");
                assert!(narrow.iter().zip(&wide).all(|(a, b)| i64::from(*a) == *b));
            }
        }
    }

    #[test]
    fn the_largest_sums_are_exact() {
        // All −128: the sum of a full slice is 2²⁴, the last integer before `f32` skips one.
        for k in [1024, 1025, 8193, K_MAX_I32] {
            let shape = Shape::new(2, k, 3);
            let (features, weights) = (vec![i8::MIN; 2 * k as usize], vec![i8::MIN; 3 * k as usize]);
            assert_eq!(fast_i8(&features, &weights, shape), vec![(k << 14).cast_signed(); 6]);
            assert_eq!(matmul_i8(&features, &weights, shape), vec![(k << 14).cast_signed(); 6]);
        }
        // The same but for one odd product: an odd sum beyond 2²⁴ is what `f32` cannot hold.
        for k in [2048_usize, 8193] {
            let mut row = vec![i8::MIN; k];
            row[0] = -127;
            let want = 127 * 127 + (k as i32 - 1) * 128 * 128;
            assert_eq!(fast_i8(&row, &row, Shape::new(1, k as u32, 1)), [want]);
        }
        let k = 4 * K_MAX_I32;
        let ones = vec![i8::MIN; k as usize];
        assert_eq!(fast_i8_i64(&ones, &ones, Shape::new(1, k, 1)), [i64::from(k) << 14]);
    }

    #[test]
    fn int4_slices_saturate_one_by_one() {
        // 4 · 8192 = 2¹⁵ leaves 16 bits by one; −8 · −8 over 700 elements leaves them by far.
        let shape = Shape::new(1, 8192, 1);
        let row = vec![2i8; 8192];
        assert_eq!(matmul_i4(&row, &row, shape, &[8192]), [32767]);
        assert_eq!(matmul_i4(&row, &row, shape, &[4096, 4096]), [32768]);
        let (row, shape) = (vec![-8i8; 700], Shape::new(1, 700, 1));
        assert_eq!(matmul_i4(&row, &row, shape, &[352, 352]), [64 * 352 + 64 * 348]);
        let other = vec![7i8; 700];
        assert_eq!(matmul_i4(&row, &other, shape, &[704]), [-32768]);
        // What leaves the range and comes back before the end is exact.
        let back: Vec<i8> = (0..700).map(|k| if k < 350 { 7 } else { -7 }).collect();
        assert_eq!(matmul_i4(&row, &back, shape, &[704]), [0]);
    }

    #[test]
    fn halves_go_to_even() {
        let at = |sum| requantise(sum, 1, 1, 0);
        assert_eq!([1, 3, 5, -1, -3, -5, 2, 400, -400].map(at), [0, 2, 2, 0, -2, -2, 1, 127, -128]);
        assert_eq!(requantise(-7, -3, 2, 100), 105);
    }

    #[test]
    fn int16_sums_are_wide() {
        let row = vec![i16::MIN; 5];
        assert_eq!(matmul_i16(&row, &row, Shape::new(1, 5, 1)), [5 << 30]);
    }

    #[test]
    fn magnitudes_add_up_what_sums_cancel() {
        let shape = Shape::new(1, 2, 1);
        assert_eq!(matmul_with_magnitude(&[2.0, 3.0], &[5.0, -4.0], shape), [(-2.0, 22.0)]);
    }

    #[test]
    fn a_longer_slice_would_round() {
        // The control: twice the slice length breaks the argument, and the float kernel shows it.
        let k = 2 * K_MAX_F32;
        let mut a = vec![-128.0; k];
        a[0] = -127.0;
        let mut out = [0.0];
        sgemm(&a, &a, 1, k, 1, &mut out);
        let exact = 127 * 127 + (k as i64 - 1) * 128 * 128;
        assert!(exact % 2 == 1 && exact > 1 << 24);
        assert_ne!(out[0] as i64, exact);
    }

    #[test]
    #[should_panic(expected = "sums may not fit 32 bits")]
    fn a_sum_that_could_overflow_is_refused() {
        let k = K_MAX_I32 + 1;
        let row = vec![0; k as usize];
        matmul_i8(&row, &row, Shape::new(1, k, 1));
    }

    #[test]
    #[should_panic(expected = "weights are n·k")]
    fn wrong_lengths_are_refused() {
        fast_i8(&[1, 2], &[1, 2, 3], Shape::new(1, 2, 2));
    }
}
