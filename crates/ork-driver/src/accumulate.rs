// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the NPU's surfaces to rows of the result.

use std::ops::AddAssign;

use ork_layout::{Element, OutputLayout, OutputPiece};
use ork_quant::{Scale, dequantise_row, dequantise_row_i64};
use zerocopy::FromBytes;

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

/// Row `m` of the product with its K slices added in a wider type.
pub(crate) fn widened_row<S: Element, W: Copy + Default + AddAssign + From<S>>(
    layout: &OutputLayout,
    surfaces: &[u8],
    m: u32,
) -> Vec<W> {
    let mut sums = vec![W::default(); layout.n() as usize];
    widened_row_as::<S, W, W>(layout, surfaces, m, &mut sums, |sum| sum);
    sums
}

/// Writes row `m` of the product: K slices added in a wider type, of which `result` makes results.
pub(crate) fn widened_row_as<S: Element, W: Copy + Default + AddAssign + From<S>, R>(
    layout: &OutputLayout,
    surfaces: &[u8],
    m: u32,
    out: &mut [R],
    result: impl Fn(W) -> R,
) {
    let mut partial = vec![S::default(); out.len()];
    layout.load_row(m, 0, surfaces, &mut partial);
    if layout.k_slices() == 1 {
        out.iter_mut().zip(&partial).for_each(|(out, only)| *out = result(W::from(*only)));
        return;
    }
    let mut sums: Vec<W> = partial.iter().map(|first| W::from(*first)).collect();
    for k_slice in 1..layout.k_slices() {
        layout.load_row(m, k_slice, surfaces, &mut partial);
        sums.iter_mut().zip(&partial).for_each(|(sum, partial)| *sum += W::from(*partial));
    }
    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = result(sum));
}

/// Copies row `m` of a product of one K slice.
pub(crate) fn copy_row<R: Element>(layout: &OutputLayout, surfaces: &[u8], m: u32, out: &mut [R]) {
    debug_assert_eq!(layout.k_slices(), 1, "rounded results are not added");
    layout.load_row(m, 0, surfaces, out);
}
