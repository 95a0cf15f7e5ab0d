// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the NPU's surfaces to rows of the result.

use std::ops::AddAssign;

use ork_layout::{Element, OutputForm, OutputLayout, OutputPiece};
use ork_quant::{Scale, dequantise_row, dequantise_row_i64};
use zerocopy::FromBytes;

use crate::share::{ROWS, share};

/// The 32-bit accumulators of a piece in one K slice. Surfaces start at page borders and pieces at whole atoms, so
/// the bytes are aligned.
fn words<'a>(piece: &OutputPiece<'_>, surfaces: &'a [u8], k_slice: u32) -> &'a [i32] {
    <[i32]>::ref_from_bytes(piece.bytes(surfaces, k_slice))
        .expect("a piece holds whole, aligned 32-bit words")
}

/// Writes row `m` of the product as f32: `acc * row scale * column scale`, K slices added first.
pub(crate) fn dequantise_output_row(
    layout: &OutputLayout,
    surfaces: &[u8],
    m: u32,
    row: Scale,
    columns: &[Scale],
    sums: &mut Vec<i64>,
    out: &mut [f32],
) {
    for piece in layout.row_pieces(m) {
        let columns = &columns[piece.n.start as usize..piece.n.end as usize];
        let target = piece.target(out);
        if piece.k_slices == 1 {
            dequantise_row(words(&piece, surfaces, 0), row, columns, target);
        } else {
            sums.clear();
            sums.resize(columns.len(), 0);
            for k_slice in 0..piece.k_slices {
                for (sum, word) in sums.iter_mut().zip(words(&piece, surfaces, k_slice)) {
                    *sum += i64::from(*word);
                }
            }
            dequantise_row_i64(sums, row, columns, target);
        }
    }
}

/// Writes row `m` of the product as the exact integer sum; the caller has checked that 32 bits hold it.
pub(crate) fn sum_output_row(layout: &OutputLayout, surfaces: &[u8], m: u32, out: &mut [i32]) {
    for piece in layout.row_pieces(m) {
        let target = piece.target(out);
        target.copy_from_slice(words(&piece, surfaces, 0));
        for k_slice in 1..piece.k_slices {
            for (sum, word) in target.iter_mut().zip(words(&piece, surfaces, k_slice)) {
                *sum += *word;
            }
        }
    }
}

/// Results from which on their rows are shared (half a megabyte): fewer are copied sooner than a thread is awake.
const SHARED_FROM: usize = 1 << 17;

/// Rows of a piece that comes out of a cube, where the atoms of as many rows follow each other.
const CUBE_ROWS: usize = 32;

/// [`sum_output_row`] of all rows of a pass.
pub(crate) fn sum_output_rows(layout: &OutputLayout, surfaces: &[u8], out: &mut [i32]) {
    let n = layout.n() as usize;
    let rows = if matches!(layout.form(), OutputForm::Cube { .. }) { CUBE_ROWS } else { ROWS };
    let sum = |(piece, out): (usize, &mut [i32])| {
        if layout.k_slices() == 1 {
            return layout.load_rows((piece * rows) as u32, 0, surfaces, out);
        }
        for (row, out) in (piece * rows..).zip(out.chunks_exact_mut(n)) {
            sum_output_row(layout, surfaces, row as u32, out);
        }
    };
    if out.len() < SHARED_FROM {
        sum((0, out));
    } else {
        share(out.chunks_mut(rows * n).enumerate(), sum);
    }
}

/// Row `m` of the product with its K slices added in a wider type.
pub(crate) fn widened_row<S: Element, W: Copy + Default + AddAssign + From<S>>(
    layout: &OutputLayout,
    surfaces: &[u8],
    m: u32,
) -> Vec<W> {
    let mut sums = vec![W::default(); layout.n() as usize];
    widen_row::<S, W>(layout, surfaces, m, &mut sums);
    sums
}

/// Writes row `m` of the product with its K slices added in a wider type.
pub(crate) fn widen_row<S: Element, W: Copy + AddAssign + From<S>>(
    layout: &OutputLayout,
    surfaces: &[u8],
    m: u32,
    out: &mut [W],
) {
    let mut partial = vec![S::default(); out.len()];
    layout.load_row(m, 0, surfaces, &mut partial);
    out.iter_mut().zip(&partial).for_each(|(sum, first)| *sum = W::from(*first));
    for k_slice in 1..layout.k_slices() {
        layout.load_row(m, k_slice, surfaces, &mut partial);
        out.iter_mut().zip(&partial).for_each(|(sum, partial)| *sum += W::from(*partial));
    }
}

/// Copies the rows of a product of one K slice.
pub(crate) fn copy_rows<R: Element>(layout: &OutputLayout, surfaces: &[u8], out: &mut [R]) {
    debug_assert_eq!(layout.k_slices(), 1, "rounded results are not added");
    layout.load_rows(0, 0, surfaces, out);
}

/// All rows of a pass, one by one.
pub(crate) fn each_row<R>(
    read_row: impl Fn(&OutputLayout, &[u8], u32, &mut [R]),
) -> impl Fn(&OutputLayout, &[u8], &mut [R]) {
    move |layout, surfaces, out| {
        for (row, target) in (0..).zip(out.chunks_exact_mut(layout.n() as usize)) {
            read_row(layout, surfaces, row, target);
        }
    }
}

/// Rows of fp32 sums that are added together, where they lie in atoms.
const ROWS_AT_ONCE: usize = 16;
/// Columns of a row that are added together: their f64 sums stay in a first-level cache.
const COLUMNS_AT_ONCE: usize = 256;

/// Writes the rows of a product of fp32 sums: those of K slices added in f64 and rounded once. A sum that is alone is its
/// own.
pub(crate) fn float_rows(layout: &OutputLayout, surfaces: &[u8], out: &mut [f32]) {
    let n = layout.n() as usize;
    if layout.k_slices() == 1 {
        layout.load_rows(0, 0, surfaces, out);
    } else if matches!(layout.form(), OutputForm::Rows) {
        for (row, out) in (0..).zip(out.chunks_exact_mut(n)) {
            for piece in layout.row_pieces(row) {
                add_piece(&piece, surfaces, piece.target(out));
            }
        }
    } else {
        let mut partial = vec![0_f32; ROWS_AT_ONCE.min(layout.rows() as usize) * n];
        let mut sums = vec![0_f64; partial.len()];
        for (m0, out) in (0..).step_by(ROWS_AT_ONCE).zip(out.chunks_mut(ROWS_AT_ONCE * n)) {
            let (partial, sums) = (&mut partial[..out.len()], &mut sums[..out.len()]);
            for k_slice in 0..layout.k_slices() {
                layout.load_rows(m0, k_slice, surfaces, partial);
                accumulate(sums, partial, k_slice == 0);
            }
            out.iter_mut().zip(&*sums).for_each(|(out, sum)| *out = *sum as f32);
        }
    }
}

/// Sums, or those of a first slice.
fn accumulate(sums: &mut [f64], partial: &[f32], is_first: bool) {
    let pairs = sums.iter_mut().zip(partial);
    if is_first {
        pairs.for_each(|(sum, partial)| *sum = f64::from(*partial));
    } else {
        pairs.for_each(|(sum, partial)| *sum += f64::from(*partial));
    }
}

/// The K slices of a piece added in f64.
fn add_piece(piece: &OutputPiece<'_>, surfaces: &[u8], out: &mut [f32]) {
    let slice = |k_slice| {
        <[f32]>::ref_from_bytes(piece.bytes(surfaces, k_slice))
            .expect("a piece holds whole, aligned 32-bit words")
    };
    if piece.k_slices == 2 {
        // An f64 sum of two f32 that is rounded to f32 is the f32 sum: 53 bits are more than twice 24 and 2.
        let (first, second) = (slice(0), slice(1));
        out.iter_mut().zip(first).zip(second).for_each(|((out, first), second)| *out = first + second);
        return;
    }
    let mut sums = [0_f64; COLUMNS_AT_ONCE];
    for (index, out) in out.chunks_mut(COLUMNS_AT_ONCE).enumerate() {
        let sums = &mut sums[..out.len()];
        for k_slice in 0..piece.k_slices {
            let partial = &slice(k_slice)[index * COLUMNS_AT_ONCE..][..out.len()];
            accumulate(sums, partial, k_slice == 0);
        }
        out.iter_mut().zip(&*sums).for_each(|(out, sum)| *out = *sum as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ork_layout::{ColumnSegment, Format};

    #[test]
    fn fp32_sums_are_those_of_single_cells_in_every_form() {
        let segments = vec![ColumnSegment { n0: 0, cols: 288 }, ColumnSegment { n0: 288, cols: 64 }];
        for k_slices in 1..4 {
            for (rows, n) in [(1, 352), (5, 323), (37, 341), (16, 352)] {
                for form in [OutputForm::Rows, OutputForm::Cube { surface_rows: rows + 3 }] {
                    let layout = OutputLayout::in_form(
                        Format::FP16_FP32,
                        rows,
                        n,
                        k_slices,
                        segments.clone(),
                        form.clone(),
                    );
                    // Sums of which the order and the width matter: large ones that cancel, and small ones.
                    let mut surfaces = vec![0_u8; layout.bytes() as usize];
                    for (index, word) in (0_u32..).zip(surfaces.as_chunks_mut::<4>().0) {
                        let small = (index.wrapping_mul(2_654_435_761) >> 8) as f32 * 1e-7 - 0.8;
                        let value = if index % 3 == 0 { small * 3e9 } else { small };
                        *word = value.to_le_bytes();
                    }
                    let cell = |m: u32, column: u32, k_slice: u32| {
                        let at = layout.offset(m, column, k_slice) as usize;
                        f32::from_le_bytes(std::array::from_fn(|byte| surfaces[at + byte]))
                    };
                    let mut out = vec![f32::NAN; (rows * n) as usize];
                    float_rows(&layout, &surfaces, &mut out);
                    for (index, found) in (0..).zip(&out) {
                        let (m, column) = (index / n, index % n);
                        let wide: f64 = (0..k_slices).map(|slice| f64::from(cell(m, column, slice))).sum();
                        assert_eq!(found.to_bits(), (wide as f32).to_bits(), "{form:?} {m} {column}");
                    }
                }
            }
        }
    }
}
