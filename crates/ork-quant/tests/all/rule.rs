// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rule of the crate documentation: its worked examples, its edges, and its bounds as properties.

use ork_quant::{CODE_MAX, QuantError, Scale, dequantise_row, dequantise_row_i64, quantise_row};
use ork_testkit::{Shape, Stream, compare, reference};
use proptest::prelude::*;

fn quantise(row: &[f32]) -> (Vec<i8>, f32) {
    let mut codes = vec![0; row.len()];
    let scale = quantise_row(row, &mut codes).expect("the row is finite");
    (codes, scale.get())
}

fn finite() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite())
}

/// Rows of every magnitude: all exponents mixed, and all values near one exponent.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let one_exponent = (0_i32..=254, prop::collection::vec(-1.0_f32..1.0, 1..100)).prop_map(|(e, row)| {
        let unit = f32::from_bits((e as u32) << 23).max(f32::from_bits(1));
        row.into_iter().map(|x| x * unit).collect()
    });
    prop_oneof![prop::collection::vec(finite(), 1..100), one_exponent]
}

#[test]
fn a_worked_example() {
    // The largest magnitude is 127, so the scale is 1 and codes are the rounded values: ties to even.
    let row = [127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 0.49, -0.0];
    assert_eq!(quantise(&row), (vec![127, -127, 0, 2, 2, 0, -2, 126, 0, 0], 1.0));
}

#[test]
fn zero_rows_have_scale_zero() {
    assert_eq!(quantise(&[]), (vec![], 0.0));
    assert_eq!(quantise(&[0.0]), (vec![0], 0.0));
    assert_eq!(quantise(&[0.0, -0.0, 0.0]), (vec![0; 3], 0.0));
}

#[test]
fn a_single_value_takes_the_whole_range() {
    for x in [1.0, 3.0e-36, 1e-20, 0.1, 7.0, 1e30, f32::MAX] {
        for (x, code) in [(x, CODE_MAX), (-x, -CODE_MAX)] {
            let (codes, scale) = quantise(&[x]);
            assert_eq!((codes, scale), (vec![code], x.abs() / 127.0), "{x}");
        }
    }
}

#[test]
fn tiny_rows_get_the_smallest_normal_scale() {
    let step = f32::MIN_POSITIVE;
    let subnormal = f32::from_bits(1);
    // Just too small for any code, and just large enough for one.
    assert_eq!(quantise(&[step / 2.0, subnormal]), (vec![0, 0], 0.0));
    assert_eq!(quantise(&[(step / 2.0).next_up(), -subnormal]), (vec![1, 0], step));
    assert_eq!(quantise(&[-3.0 * step, step, 0.4 * step]), (vec![-3, 1, 0], step));
    // Where absmax / 127 takes over.
    assert_eq!(quantise(&[127.0 * step, step]), (vec![127, 1], step));
    let (codes, scale) = quantise(&[254.0 * step, 2.0 * step]);
    assert_eq!((codes, scale), (vec![127, 1], 2.0 * step));
}

#[test]
fn huge_rows_do_not_overflow() {
    let (codes, scale) = quantise(&[f32::MAX, f32::MIN, f32::MAX / 4.0, 1.0, f32::MIN_POSITIVE]);
    assert_eq!(codes, [127, -127, 32, 0, 0]);
    assert_eq!(scale, f32::MAX / 127.0);
}

#[test]
fn errors_say_what_and_where() {
    let mut codes = [0; 3];
    let error = quantise_row(&[1.0, f32::NEG_INFINITY, f32::NAN], &mut codes).unwrap_err();
    assert_eq!(error.to_string(), "cannot quantise a row: element 1 is -inf");
    let error = error.in_row(17);
    assert_eq!(error, QuantError::NonFinite { row: Some(17), index: 1, value: f32::NEG_INFINITY });
    assert_eq!(error.to_string(), "cannot quantise row 17: element 1 is -inf");
    assert!(error.hint().contains("overflow"));
}

#[test]
fn scales_are_finite_and_not_negative() {
    for good in [0.0, -0.0, f32::from_bits(1), 1.0, f32::MAX] {
        assert_eq!(Scale::new(good).unwrap().get().to_bits(), good.abs().to_bits());
    }
    for bad in [-1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::from_bits(1)] {
        let error = Scale::new(bad).unwrap_err();
        assert!(matches!(error, QuantError::BadScale { .. }));
        assert!(error.to_string().contains("is no scale"), "{error}");
        assert!(error.hint().contains("pack"));
    }
}

#[test]
#[should_panic(expected = "one code per element")]
fn codes_of_another_length_are_refused() {
    let _ = quantise_row(&[1.0, 2.0], &mut [0; 3]);
}

#[test]
#[should_panic(expected = "one column scale per accumulator")]
fn columns_of_another_length_are_refused() {
    dequantise_row(&[1, 2], Scale::ZERO, &[Scale::ZERO], &mut [0.0; 2]);
}

#[test]
#[should_panic(expected = "one output per accumulator")]
fn an_output_of_another_length_is_refused() {
    dequantise_row_i64(&[1, 2], Scale::ZERO, &[Scale::ZERO; 2], &mut [0.0; 3]);
}

proptest! {
    #[test]
    fn the_error_bound_holds(row in rows()) {
        let (codes, scale) = quantise(&row);
        let scale = f64::from(scale);
        let bound = if scale == 0.0 { f64::from(f32::MIN_POSITIVE) / 2.0 } else { scale * (0.5 + 2_f64.powi(-15)) };
        for (x, code) in row.iter().zip(&codes) {
            let error = (f64::from(*x) - f64::from(*code) * scale).abs();
            prop_assert!(error <= bound, "{x} became {code} at scale {scale}");
            prop_assert!(*code != i8::MIN);
        }
    }

    #[test]
    fn codes_are_the_rule_in_exact_arithmetic(row in rows()) {
        let (codes, scale) = quantise(&row);
        prop_assert_eq!(scale == 0.0, codes.iter().all(|code| *code == 0));
        if scale > 0.0 {
            let absmax = row.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            prop_assert_eq!(scale, (absmax / 127.0).max(f32::MIN_POSITIVE));
            for (x, code) in row.iter().zip(&codes) {
                let exact = f64::from(*x) / f64::from(scale);
                // Within 2⁻¹⁵ of a half the f32 reciprocal may decide either way.
                let near_half = (exact.abs().fract() - 0.5).abs() < 2_f64.powi(-15);
                prop_assert!(near_half || exact.round_ties_even() == f64::from(*code), "{exact} became {code}");
            }
        }
    }

    #[test]
    fn the_largest_magnitude_gets_the_largest_code(row in rows()) {
        let (codes, scale) = quantise(&row);
        if scale > f32::MIN_POSITIVE {
            prop_assert_eq!(codes.iter().map(|code| code.unsigned_abs()).max(), Some(127));
        }
    }

    #[test]
    fn codes_follow_sign_and_order(row in rows()) {
        let (codes, scale) = quantise(&row);
        let negated: Vec<_> = row.iter().map(|x| -x).collect();
        let opposite: Vec<_> = codes.iter().map(|code| -code).collect();
        prop_assert_eq!(quantise(&negated), (opposite, scale));
        let mut by_value: Vec<_> = row.iter().zip(&codes).collect();
        by_value.sort_by(|a, b| a.0.total_cmp(b.0));
        prop_assert!(by_value.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }

    #[test]
    fn quantising_twice_changes_nothing(row in rows()) {
        let (codes, scale) = quantise(&row);
        let again: Vec<_> = codes.iter().map(|code| f32::from(*code) * scale).collect();
        prop_assume!(again.iter().all(|x| x.is_finite()));
        prop_assert_eq!(quantise(&again).0, codes);
    }

    #[test]
    fn padding_with_zeros_changes_nothing(row in rows(), padding in 0_usize..64) {
        let (codes, scale) = quantise(&row);
        let mut padded = row.clone();
        padded.resize(row.len() + padding, 0.0);
        let (padded_codes, padded_scale) = quantise(&padded);
        prop_assert_eq!(scale, padded_scale);
        prop_assert_eq!(&padded_codes[..row.len()], &codes[..]);
        prop_assert!(padded_codes[row.len()..].iter().all(|code| *code == 0));
    }

    /// Against integers: with scales of 24-bit integers, the product fits 128 bits exactly.
    #[test]
    fn dequantised_values_are_within_their_bound(
        acc in any::<i32>(), row in 1_u32..1 << 24, column in 1_u32..1 << 24, exponent in -90_i32..20,
    ) {
        let unit = 2_f32.powi(exponent / 2);
        let scale = |mantissa: u32| Scale::new(mantissa as f32 * unit).unwrap();
        let mut out = [0.0];
        dequantise_row(&[acc], scale(row), &[scale(column)], &mut out);
        let mut out_wide = [0.0];
        dequantise_row_i64(&[acc.into()], scale(row), &[scale(column)], &mut out_wide);
        prop_assert_eq!(out, out_wide);

        let exact = i128::from(acc) * i128::from(row) * i128::from(column);
        // Out of units, an integer again: at least as large as one unit, or zero.
        let got = f64::from(out[0]) / (f64::from(unit) * f64::from(unit));
        let error = (got as i128 - exact).abs();
        // One unit in the last place of a 24-bit mantissa, in the same units.
        let bits = 128 - exact.unsigned_abs().leading_zeros();
        let ulp = 1_i128 << bits.saturating_sub(24);
        // error ≤ ulp · (1/2 + 2⁻²⁹), without fractions.
        prop_assert!(error << 29 <= (ulp << 28) + ulp, "{acc}·{row}·{column}: off by {error} of {ulp}");
    }
}

#[test]
fn no_intermediate_overflows_or_vanishes() {
    let dequantise = |acc: i32, row: f32, column: f32| {
        let mut out = [f32::NAN];
        dequantise_row(&[acc], Scale::new(row).unwrap(), &[Scale::new(column).unwrap()], &mut out);
        out[0]
    };
    // row · column alone would be infinite, acc · row too; or zero.
    assert_eq!(dequantise(0, 1e30, 1e30), 0.0);
    assert_eq!(dequantise(i32::MIN, 3e38, 0.0), 0.0);
    assert_eq!(dequantise(1 << 30, 2_f32.powi(100), 2_f32.powi(-120)), 2_f32.powi(10));
    assert_eq!(dequantise(1 << 30, 2_f32.powi(-90), 2_f32.powi(-80)), 2_f32.powi(-140));
    // Beyond f32 the result says so.
    assert_eq!(dequantise(-1, 1e30, 1e30), f32::NEG_INFINITY);
    // An accumulator with more than 24 bits is not rounded before it is scaled.
    assert_eq!(dequantise(16_777_217, 3.0, 1.0), 50_331_652.0);
    assert_eq!((16_777_217_i32 as f32 * 3.0), 50_331_648.0);
}

#[test]
fn accumulators_beyond_32_bits() {
    let mut out = [0.0; 3];
    let half = Scale::new(0.5).unwrap();
    dequantise_row_i64(&[1 << 40, -(1 << 53), i64::MIN], half, &[half; 3], &mut out);
    assert_eq!(out, [2_f32.powi(38), -(2_f32.powi(51)), -(2_f32.powi(61))]);
}

/// The purpose of it all: a float matmul by integers. Two roundings of variance 1/12 step each give the
/// expected error; its bound below has a factor of two to spare.
#[test]
fn a_matmul_comes_out_right() {
    let mut stream = Stream::new(6);
    for shape in [Shape::new(1, 1, 1), Shape::new(3, 31, 5), Shape::new(7, 2048, 33), Shape::new(2, 8193, 9)]
    {
        let k = shape.k as usize;
        let features = stream.f32s_unit(shape.features_len());
        let weights = stream.f32s_unit(shape.weights_len());
        let quantise_rows = |matrix: &[f32]| {
            let mut codes = vec![0; matrix.len()];
            let rows = matrix.chunks_exact(k).zip(codes.chunks_exact_mut(k));
            let scales: Vec<_> = rows.map(|(row, codes)| quantise_row(row, codes).unwrap()).collect();
            (codes, scales)
        };
        let (a, row_scales) = quantise_rows(&features);
        let (w, column_scales) = quantise_rows(&weights);
        let acc = reference::matmul_i8(&a, &w, shape);

        let n = shape.n as usize;
        let mut out = vec![0.0; shape.output_len()];
        for ((acc, out), row) in acc.chunks_exact(n).zip(out.chunks_exact_mut(n)).zip(&row_scales) {
            dequantise_row(acc, *row, &column_scales, out);
        }

        let want = reference::matmul_f32(&features, &weights, shape);
        let error = compare::relative_rms(&out, &want);
        // Per factor: step 1/127, error step/√12, spread of the values 1/√3, so 0.5/127 each.
        let expected = 2_f64.sqrt() * 0.5 / 127.0;
        assert!(error < 2.0 * expected, "{shape}: {error}");
        // A wrong scale does not pass.
        out[0] *= 1.5;
        if shape.output_len() < 100 {
            assert!(compare::relative_rms(&out, &want) > 2.0 * expected, "{shape}");
        }
    }
}

/// Pins the codes themselves: another architecture or kernel must reproduce them.
#[test]
fn codes_are_pinned() {
    let row = Stream::new(7).f32s_activation(4096);
    let (codes, scale) = quantise(&row);
    let sum: i64 = codes.iter().zip(1_i64..).map(|(code, i)| i64::from(*code) * i).sum();
    assert_eq!((sum, scale.to_bits()), (-221_086, 0x3ec9_9326));
}
