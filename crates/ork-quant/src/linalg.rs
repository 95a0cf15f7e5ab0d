// SPDX-License-Identifier: MIT OR Apache-2.0
//! Double-precision products, the blocked Cholesky factor and the inverse of a triangular matrix, all in place and
//! row-major. The products come from `matrixmultiply`; what is here is the order in which blocks are visited.

use rayon::prelude::*;

/// Columns of a panel.
const PANEL: usize = 128;
/// Rows that one thread updates at a time.
const ROWS: usize = 128;

/// A matrix inside a slice: element (i, j) at `i · row + j · column`.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) data: &'a [f64],
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl<'a> View<'a> {
    pub(crate) fn rows(data: &'a [f64], row: usize) -> Self {
        Self { data, row, column: 1 }
    }

    /// The transpose of a row-major matrix.
    pub(crate) fn transposed(data: &'a [f64], row: usize) -> Self {
        Self { data, row: 1, column: row }
    }

    fn holds(&self, m: usize, n: usize) -> bool {
        m == 0 || n == 0 || (m - 1) * self.row + (n - 1) * self.column < self.data.len()
    }
}

/// `c = beta · c + alpha · a · b`, with c: m × n at row stride `stride`, a: m × k, b: k × n.
///
/// # Panics
/// If a matrix does not lie inside its slice.
pub(crate) fn gemm(
    (m, k, n): (usize, usize, usize),
    alpha: f64,
    a: View<'_>,
    b: View<'_>,
    beta: f64,
    c: &mut [f64],
    stride: usize,
) {
    assert!(a.holds(m, k) && b.holds(k, n), "operands lie inside their slices");
    assert!(n <= stride || m <= 1, "rows of the result do not overlap");
    assert!(View::rows(c, stride).holds(m, n), "the result lies inside its slice");
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: every element the product touches lies inside its slice (asserted above, strides are not negative), the
    // elements of `c` are distinct, and `c` is borrowed uniquely, so it overlaps no operand.
    unsafe {
        matrixmultiply::dgemm(
            m,
            k,
            n,
            alpha,
            a.data.as_ptr(),
            a.row as isize,
            a.column as isize,
            b.data.as_ptr(),
            b.row as isize,
            b.column as isize,
            beta,
            c.as_mut_ptr(),
            stride as isize,
            1,
        );
    }
}

/// Σ x·y with a fixed order of additions that vectorises.
fn dot(x: &[f64], y: &[f64]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0f64; LANES];
    let ((x, x_tail), (y, y_tail)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter().zip(y) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let tail: f64 = x_tail.iter().zip(y_tail).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f64>() + tail
}

/// A pivot that is not positive, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NotPositive {
    pub(crate) index: usize,
    pub(crate) pivot: f64,
}

/// Replaces the lower triangle of a symmetric k × k matrix by L with A = L·Lᵀ: right-looking, a panel at a time. The
/// strict upper triangle is neither read nor kept.
pub(crate) fn cholesky(a: &mut [f64], k: usize) -> Result<(), NotPositive> {
    assert_eq!(a.len(), k * k, "a square matrix");
    for k0 in (0..k).step_by(PANEL) {
        let k1 = k.min(k0 + PANEL);
        let width = k1 - k0;
        let (above, below) = a.split_at_mut(k1 * k);
        let top = &mut above[k0 * k..];
        for j in 0..width {
            for i in 0..=j {
                let sum = dot(&top[j * k + k0..j * k + k0 + i], &top[i * k + k0..i * k + k0 + i]);
                let value = top[j * k + k0 + i] - sum;
                top[j * k + k0 + i] = if i < j {
                    value / top[i * k + k0 + i]
                } else if value > 0.0 && value.is_finite() {
                    value.sqrt()
                } else {
                    return Err(NotPositive { index: k0 + j, pivot: value });
                };
            }
        }
        if k1 == k {
            break;
        }
        // The panel, solved row by row, and a copy of it that all rows of the trailing update can read.
        let mut panel = vec![0f64; (k - k1) * width];
        let top = &*top;
        below.par_chunks_mut(ROWS * k).zip(panel.par_chunks_mut(ROWS * width)).for_each(|(rows, panel)| {
            for (row, solved) in rows.chunks_exact_mut(k).zip(panel.chunks_exact_mut(width)) {
                for j in 0..width {
                    let factor = &top[j * k + k0..j * k + k0 + j + 1];
                    let value = (row[k0 + j] - dot(&solved[..j], &factor[..j])) / factor[j];
                    solved[j] = value;
                }
                row[k0..k1].copy_from_slice(solved);
            }
        });
        below.par_chunks_mut(ROWS * k).enumerate().for_each(|(index, rows)| {
            let m = rows.len() / k;
            let first = index * ROWS;
            let left = View::rows(&panel[first * width..], width);
            let right = View::transposed(&panel, width);
            gemm((m, width, first + m), -1.0, left, right, 1.0, &mut rows[k1..], k);
        });
    }
    Ok(())
}

/// Replaces a lower triangular k × k matrix (the strict upper triangle is not read) by its inverse, and zeroes the
/// strict upper triangle.
pub(crate) fn invert_lower(a: &mut [f64], k: usize) {
    assert_eq!(a.len(), k * k, "a square matrix");
    for k0 in (0..k).step_by(PANEL) {
        let k1 = k.min(k0 + PANEL);
        let width = k1 - k0;
        let (done, rest) = a.split_at_mut(k0 * k);
        let own = &mut rest[..width * k];
        let corner = invert_corner(own, k, k0, width);
        // product = L[own, ..k0] · inverse[..k0, ..k0], column block by column block: block c needs rows from c on.
        let left = View::rows(own, k);
        let columns: Vec<Vec<f64>> = (0..k0)
            .into_par_iter()
            .step_by(ROWS)
            .map(|c0| {
                let n = ROWS.min(k0 - c0);
                let mut product = vec![0f64; width * n];
                let left = View { data: &left.data[c0..], ..left };
                gemm(
                    (width, k0 - c0, n),
                    1.0,
                    left,
                    View::rows(&done[c0 * k + c0..], k),
                    0.0,
                    &mut product,
                    n,
                );
                let mut solved = vec![0f64; width * n];
                gemm(
                    (width, width, n),
                    -1.0,
                    View::rows(&corner, width),
                    View::rows(&product, n),
                    0.0,
                    &mut solved,
                    n,
                );
                solved
            })
            .collect();
        for (block, c0) in columns.iter().zip((0..k0).step_by(ROWS)) {
            let n = block.len() / width;
            for (row, values) in own.chunks_exact_mut(k).zip(block.chunks_exact(n)) {
                row[c0..c0 + n].copy_from_slice(values);
            }
        }
        for (row, values) in own.chunks_exact_mut(k).zip(corner.chunks_exact(width)) {
            row[k0..k1].copy_from_slice(values);
            row[k1..].fill(0.0);
        }
    }
}

/// The inverse of the lower triangular block at column `k0` of `rows`.
fn invert_corner(rows: &[f64], k: usize, k0: usize, width: usize) -> Vec<f64> {
    let mut inverse = vec![0f64; width * width];
    for i in 0..width {
        let factor = &rows[i * k + k0..i * k + k0 + width];
        let (above, own) = inverse.split_at_mut(i * width);
        let own = &mut own[..width];
        for (j, value) in factor[..i].iter().enumerate() {
            for (sum, x) in own[..=j].iter_mut().zip(&above[j * width..]) {
                *sum -= value * x;
            }
        }
        own[i] = 1.0;
        own[..=i].iter_mut().for_each(|x| *x /= factor[i]);
    }
    inverse
}
