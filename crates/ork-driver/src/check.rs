// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a product is the product, for a small part of its cost.
//!
//! For one random number `r[n]` for each column, the sum over `n` of `r[n] * C[m][n]` must equal the sum over `k` of
//! `A[m][k] * s[k]`, where `s[k]` is the sum over `n` of `r[n] * B[n][k]` (R. Freivalds, 1977). `s` is made once for each
//! weight, on the CPU, so a row costs K + N multiplications instead of K * N. All sums are taken modulo 2^64, in which
//! integer results are exact. A row that is wrong passes with a chance of at most 2^-32: a difference below 2^32 in some
//! column has an odd part that the random number must cancel.
//!
//! It notices whatever makes the result another one than that of the CPU's operands: a stale cache line of features,
//! weights or programs, a line of results that never came, a bit that flipped. It does not notice operands that were
//! wrong before they were given to the driver.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ork_layout::{Format, WeightLayout};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Whether products are checked on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerifyMode {
    /// No.
    #[default]
    Off,
    /// Each row of every product of int8 codes.
    Product,
}

/// What a weight needs to check its products.
#[derive(Debug)]
pub(crate) struct ProductCheck {
    /// `s[k]`.
    depth: Vec<u64>,
}

/// The random number of a column: SplitMix64.
fn random(n: usize) -> u64 {
    let mut x = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x6A09_E667_F3BC_C909);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A signed number modulo 2^64.
fn modular(value: impl Into<i64>) -> u64 {
    value.into() as u64
}

impl ProductCheck {
    /// Of a packed weight; `None` for formats whose results are not exact integers.
    pub(crate) fn of_packed(layout: &WeightLayout, packed: &[u8]) -> Option<Self> {
        if layout.format() != Format::INT8_INT32 {
            return None;
        }
        let k = layout.k() as usize;
        let sums = || (vec![0_u64; k], vec![0_i8; k]);
        let depth = (0..layout.n())
            .into_par_iter()
            .fold(sums, |(mut depth, mut channel), n| {
                layout.unpack_channel(n, packed, &mut channel);
                let r = random(n as usize);
                for (sum, code) in depth.iter_mut().zip(&channel) {
                    *sum = sum.wrapping_add(r.wrapping_mul(modular(*code)));
                }
                (depth, channel)
            })
            .map(|(depth, _)| depth)
            .reduce(
                || vec![0; k],
                |mut one, other| {
                    one.iter_mut().zip(other).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
                    one
                },
            );
        Some(Self { depth })
    }

    /// Whether a row of results is that of a row of features.
    pub(crate) fn holds<C: Into<i64> + Copy>(&self, a: &[i8], c: &[C]) -> bool {
        let expected = a
            .iter()
            .zip(&self.depth)
            .fold(0_u64, |sum, (code, depth)| sum.wrapping_add(depth.wrapping_mul(modular(*code))));
        let found = c
            .iter()
            .enumerate()
            .fold(0_u64, |sum, (n, value)| sum.wrapping_add(random(n).wrapping_mul(modular(*value))));
        expected == found
    }
}

/// The first row that is wrong, found by several threads.
#[derive(Debug)]
pub(crate) struct FirstWrong(AtomicUsize);

impl FirstWrong {
    pub(crate) fn none() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }

    pub(crate) fn note(&self, row: usize) {
        self.0.fetch_min(row, Relaxed);
    }

    pub(crate) fn row(&self) -> Option<usize> {
        Some(self.0.load(Relaxed)).filter(|row| *row != usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ork_testkit::{Case, Shape, reference};

    fn packed(case: &Case) -> (WeightLayout, Vec<u8>) {
        let (k, n) = (case.shape.k, case.shape.n);
        let layout = WeightLayout::one_slice(Format::INT8_INT32, k, n).unwrap();
        let mut bytes = vec![0; layout.bytes() as usize];
        for (channel, row) in case.weights().chunks_exact(k as usize).enumerate() {
            layout.pack_channel(channel as u32, row, &mut bytes);
        }
        (layout, bytes)
    }

    #[test]
    fn right_rows_hold_and_every_single_error_is_found() {
        for (m, k, n) in [(1, 1, 1), (3, 65, 33), (5, 512, 100)] {
            let case = Case::new(Shape::new(m, k, n), u64::from(k));
            let (layout, bytes) = packed(&case);
            let check = ProductCheck::of_packed(&layout, &bytes).unwrap();
            let (a, c) = (case.features(), reference::fast_i8(&case.features(), &case.weights(), case.shape));
            let (k, n) = (k as usize, n as usize);
            for (row, (a, c)) in a.chunks_exact(k).zip(c.chunks_exact(n)).enumerate() {
                assert!(check.holds(a, c), "row {row}");
                for column in 0..n {
                    for difference in [1, -1, 1 << 20, i32::MIN] {
                        let mut wrong = c.to_vec();
                        wrong[column] = wrong[column].wrapping_add(difference);
                        assert!(!check.holds(a, &wrong), "row {row}, column {column}, {difference}");
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_operands_and_swapped_results_are_found() {
        let case = Case::new(Shape::new(2, 128, 64), 3);
        let (layout, mut bytes) = packed(&case);
        let (a, c) = (case.features(), reference::fast_i8(&case.features(), &case.weights(), case.shape));
        let check = ProductCheck::of_packed(&layout, &bytes).unwrap();
        let mut swapped = c[..64].to_vec();
        swapped.swap(3, 40);
        assert!(c[3] != c[40] && !check.holds(&a[..128], &swapped));
        assert!(!check.holds(&a[128..], &c[..64]), "another row's features");
        // A stale line of zeros in the weight.
        bytes[64..128].fill(0);
        let stale = ProductCheck::of_packed(&layout, &bytes).unwrap();
        assert!(!stale.holds(&a[..128], &c[..64]));
    }

    #[test]
    fn formats_without_exact_integers_have_no_check() {
        let layout = WeightLayout::one_slice(Format::FP16_FP32, 64, 64).unwrap();
        assert!(ProductCheck::of_packed(&layout, &vec![0; layout.bytes() as usize]).is_none());
    }

    #[test]
    fn the_first_wrong_row_is_kept() {
        let first = FirstWrong::none();
        assert_eq!(first.row(), None);
        for row in [7, 3, 9] {
            first.note(row);
        }
        assert_eq!(first.row(), Some(3));
    }
}
