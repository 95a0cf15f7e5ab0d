// SPDX-License-Identifier: MIT OR Apache-2.0
//! Comparison of two `m × n` results that says where they differ.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt;

use crate::Shape;

/// How two results differ. The pattern names the culprit more often than the values do: whole
/// columns point at a kernel group or a scale, whole rows at features, everything at an address.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference<T> {
    /// The matmul.
    pub shape: Shape,
    /// Row and column of the first wrong element.
    pub first: (u32, u32),
    /// What was there.
    pub got: T,
    /// What should be there.
    pub want: T,
    /// Wrong elements.
    pub count: usize,
    /// Rows with a wrong element.
    pub rows: usize,
    /// Columns with a wrong element.
    pub columns: usize,
}

impl<T: fmt::Display> fmt::Display for Difference<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, first: (m, n), got, want, count, rows, columns } = self;
        write!(
            f,
            "{shape}: {count} of {} elements differ, in {rows} of {} rows and {columns} of {} columns; \
             first at m={m} n={n}: got {got}, want {want}",
            shape.output_len(),
            shape.m,
            shape.n,
        )
    }
}

/// Compares two row-major `m × n` results exactly (floats by value: NaN differs from itself).
///
/// # Errors
/// The [`Difference`], if there is any.
///
/// # Panics
/// If a slice has not `m · n` elements.
pub fn exact<T: PartialEq + Copy>(got: &[T], want: &[T], shape: Shape) -> Result<(), Difference<T>> {
    assert_eq!(got.len(), shape.output_len(), "{shape}: the result has m·n elements");
    assert_eq!(want.len(), shape.output_len(), "{shape}: the reference has m·n elements");
    let n = shape.n as usize;
    let wrong: Vec<_> = (0..got.len()).filter(|i| got[*i] != want[*i]).collect();
    let Some(&first) = wrong.first() else { return Ok(()) };
    Err(Difference {
        shape,
        first: ((first / n) as u32, (first % n) as u32),
        got: got[first],
        want: want[first],
        count: wrong.len(),
        rows: wrong.iter().map(|i| i / n).collect::<BTreeSet<_>>().len(),
        columns: wrong.iter().map(|i| i % n).collect::<BTreeSet<_>>().len(),
    })
}

/// Compares a float result with exact sums, each with the sum of the magnitudes of its products: `|got − sum|` may be
/// `relative` times that magnitude. This is the error of *any* order of summation with a bounded number of roundings, so
/// a reference need not know the order of the hardware; it says nothing of a result that is all cancellation, which is
/// why exact inputs belong beside it.
///
/// # Errors
/// The [`Difference`], if there is any; a NaN differs.
///
/// # Panics
/// If a slice has not `m · n` elements.
pub fn within(got: &[f32], want: &[(f64, f64)], relative: f64, shape: Shape) -> Result<(), Difference<f32>> {
    assert_eq!(want.len(), got.len(), "one result per reference value");
    let near: Vec<f32> = got
        .iter()
        .zip(want)
        .map(|(got, (sum, magnitude))| {
            let off = (f64::from(*got) - sum).abs();
            if off <= relative * magnitude { *got } else { *sum as f32 }
        })
        .collect();
    exact(got, &near, shape)
}

/// Root mean square of `got − want` over that of `want`: the usual figure for quantisation error.
/// Infinite if `want` is all zero and `got` is not.
pub fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "one result per reference value");
    let square = |x: f64| x * x;
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    let power: f64 = want.iter().map(|w| square(f64::from(*w))).sum();
    if error == 0.0 { 0.0 } else { (error / power).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_results_pass_and_a_wrong_column_is_described() {
        let shape = Shape::new(3, 8, 4);
        let want: Vec<i32> = (0..12).collect();
        assert_eq!(exact(&want, &want, shape), Ok(()));
        let mut got = want.clone();
        for m in 0..3 {
            got[4 * m + 2] = -1;
        }
        let difference = exact(&got, &want, shape).expect_err("a column is wrong");
        assert_eq!(
            difference.to_string(),
            "3×8×4: 3 of 12 elements differ, in 3 of 3 rows and 1 of 4 columns; \
             first at m=0 n=2: got -1, want 2"
        );
    }

    #[test]
    fn errors_are_measured_against_the_products() {
        let shape = Shape::new(1, 9, 2);
        let want = [(1.0, 100.0), (-2.0, 2.0)];
        assert_eq!(within(&[1.09, -2.0], &want, 1e-3, shape), Ok(()));
        let far = within(&[1.0, -2.1], &want, 1e-3, shape).expect_err("the second is off");
        assert_eq!((far.first, far.want, far.count), ((0, 1), -2.0, 1));
        assert!(within(&[f32::NAN, -2.0], &want, 1e-3, shape).is_err());
        assert!(within(&[f32::INFINITY, -2.0], &want, 1e-3, shape).is_err());
    }

    #[test]
    fn nan_is_never_right() {
        assert!(exact(&[f32::NAN], &[f32::NAN], Shape::new(1, 1, 1)).is_err());
    }

    #[test]
    fn relative_rms_of_known_errors() {
        assert_eq!(relative_rms(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
        assert_eq!(relative_rms(&[3.0, 4.0 + 2.5], &[3.0, 4.0]), 0.5);
        assert_eq!(relative_rms(&[1.0], &[0.0]), f64::INFINITY);
        assert_eq!(relative_rms(&[0.0], &[0.0]), 0.0);
    }
}
