// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layouts of the other precisions and forms against the formulas of the hardware notes.

use std::collections::BTreeSet;

use half::{bf16, f16};
use ork_isa::Precision;
use ork_layout::{
    ColumnSegment, Element, FeatureForm, FeatureLayout, Format, Int4, OutputForm, OutputLayout, WeightLayout,
    stored_bytes,
};
use proptest::prelude::*;

const INT4: Format = Format::INT4_INT16;

/// A value without a short period in k or n.
fn mixed(k: u32, n: u32) -> u32 {
    let x = u64::from(k).wrapping_mul(0x9E37_79B9).wrapping_add(u64::from(n).wrapping_mul(0x85EB_CA6B));
    (x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 29) as u32
}

fn int4(k: u32, n: u32) -> Int4 {
    Int4::from_low_nibble(mixed(k, n) as u8)
}

fn nibble(bytes: &[u8], index: u64) -> Int4 {
    Int4::from_low_nibble(bytes[(index / 2) as usize] >> (4 * (index % 2)))
}

/// isa-int4-sdp.md §1.3: `(((n/64)*(K/32) + k/32)*64 + n%64)*32 + k%32`, in nibbles.
fn int4_weight(k: u64, n: u64, depth: u64) -> u64 {
    (((n / 64) * (depth / 32) + k / 32) * 64 + n % 64) * 32 + k % 32
}

#[test]
fn the_published_int4_element() {
    // K = 64, N = 128: B[37][70] has index 6341, byte 3170, high nibble.
    assert_eq!(int4_weight(37, 70, 64), 6341);
    let layout = WeightLayout::one_slice(INT4, 64, 128).unwrap();
    assert_eq!((layout.offset(37, 70), layout.bytes()), (3170, 64 * 128 / 2));
    let mut packed = vec![0; layout.bytes() as usize];
    let mut row = [Int4::default(); 64];
    row[37] = Int4::new(-3).unwrap();
    layout.pack_channel(70, &row, &mut packed);
    assert_eq!(packed[3170], 0xD0);
    // A chunk of columns begins at (n0/64)*K*32 bytes.
    assert_eq!(layout.segment_offset(0, 64), 64 * 32);
}

#[test]
fn tf32_weights_have_blocks_of_16_channels() {
    // isa-notes NS-17: [N/16, K/16, 16, 16] fp32.
    let layout = WeightLayout::one_slice(Format::TF32_FP32, 80, 48).unwrap();
    for (k, n) in [(0, 0), (15, 1), (16, 0), (79, 47), (33, 17)] {
        let element = (((n / 16) * 5 + k / 16) * 16 + n % 16) * 16 + k % 16;
        assert_eq!(layout.offset(k, n), u64::from(element * 4));
    }
    // 16-bit types: the fp16 tile.
    for format in [Format::BF16_FP32, Format::INT16_INT32] {
        let (own, fp16) = (
            WeightLayout::one_slice(format, 100, 40).unwrap(),
            WeightLayout::one_slice(Format::FP16_FP16, 100, 40).unwrap(),
        );
        assert!((0..100).all(|k| (0..40).all(|n| own.offset(k, n) == fp16.offset(k, n))));
    }
}

/// Writes every row and reads it back; gives the buffer.
fn through_features<T: Element>(layout: &FeatureLayout, rows: &[Vec<T>]) -> Vec<u8> {
    let mut features = vec![0xEE; layout.bytes() as usize];
    for (m, row) in rows.iter().enumerate() {
        layout.write_row(m as u32, row, &mut features);
    }
    for (m, row) in rows.iter().enumerate() {
        let mut back = vec![T::default(); row.len()];
        layout.read_row(m as u32, &features, &mut back);
        assert_eq!(&back, row);
    }
    features
}

fn lens(k: u32, len: u32, block: u32) -> Vec<u32> {
    let padded = k.next_multiple_of(block);
    let mut lens = vec![len; (padded / len) as usize];
    lens.extend((!padded.is_multiple_of(len)).then_some(padded % len));
    lens
}

#[test]
fn float_features_keep_their_bits() {
    fn check<T: Element>(format: Format, value: impl Fn(u32, u32) -> T) {
        let weight = WeightLayout::new(format, 75, 16, &lens(75, 32, format.channel_block())).unwrap();
        let rows: Vec<Vec<T>> = (0..5).map(|m| (0..75).map(|k| value(k, m)).collect()).collect();
        for form in [FeatureForm::Rows, FeatureForm::Cube { surface_rows: 7 }] {
            let layout = FeatureLayout::in_form(&weight, 5, form);
            let features = through_features(&layout, &rows);
            for (m, row) in rows.iter().enumerate() {
                for (k, value) in row.iter().enumerate() {
                    let mut bytes = vec![0; stored_bytes::<T>(1)];
                    T::store(&[*value], &mut bytes);
                    let at = layout.offset(m as u32, k as u32) as usize;
                    assert_eq!(features[at..at + bytes.len()], bytes);
                }
            }
        }
    }
    check(Format::FP16_FP32, |k, m| f16::from_f32(mixed(k, m) as f32 / 1e6));
    check(Format::BF16_FP32, |k, m| bf16::from_f32(mixed(k, m) as f32));
    check(Format::TF32_FP32, |k, m| mixed(k, m) as f32);
    check(Format::INT16_INT32, |k, m| mixed(k, m) as i16);
}

proptest! {
    #[test]
    fn int4_weights_lie_where_the_formula_says(k in 1u32..300, n in 1u32..200, slice in 1u32..5) {
        let layout = WeightLayout::new(INT4, k, n, &lens(k, slice * 32, 32)).unwrap();
        let rows: Vec<Vec<Int4>> = (0..n).map(|n| (0..k).map(|k| int4(k, n)).collect()).collect();
        let mut by_group = vec![0xAA; layout.bytes() as usize];
        for mut group in layout.kernel_groups_mut(&mut by_group) {
            let columns = group.columns();
            let channels: Vec<&[Int4]> = columns.map(|n| rows[n as usize].as_slice()).collect();
            group.pack(&channels);
        }
        let mut by_channel = vec![0xAA; by_group.len()];
        layout.clear_padding(&mut by_channel);
        for n in 0..n {
            layout.pack_channel(n, &rows[n as usize], &mut by_channel);
        }
        prop_assert_eq!(&by_channel, &by_group);
        let n_padded = u64::from(n.next_multiple_of(64));
        for slice in layout.slices() {
            for nn in 0..n_padded {
                for kk in 0..u64::from(slice.len) {
                    let index = u64::from(slice.k0) * n_padded + int4_weight(kk, nn, slice.len.into());
                    let (k_all, n_all) = (slice.k0 + kk as u32, nn as u32);
                    let expected = if k_all < k && n_all < n { int4(k_all, n_all) } else { Int4::default() };
                    prop_assert_eq!(nibble(&by_group, index), expected);
                    prop_assert_eq!(layout.offset(k_all, n_all), index / 2);
                }
            }
        }
        let mut back = vec![Int4::default(); k as usize];
        layout.unpack_channel(n - 1, &by_group, &mut back);
        prop_assert_eq!(&back, &rows[n as usize - 1]);
    }

    /// isa-int4-sdp.md §1.3: row j of a batch at line 2j of K/2 bytes, odd lines zero, batch g at line g*2H: so row m of
    /// the matmul is at line 2m, whatever H is.
    #[test]
    fn int4_rows_lie_on_even_lines(rows in 1u32..9, k in 1u32..300, slice in 1u32..5) {
        let weight = WeightLayout::new(INT4, k, 64, &lens(k, slice * 32, 32)).unwrap();
        let layout = FeatureLayout::in_form(&weight, rows, FeatureForm::SpacedRows);
        let data: Vec<Vec<Int4>> = (0..rows).map(|m| (0..k).map(|k| int4(k, m)).collect()).collect();
        let features = through_features(&layout, &data);
        for slice in layout.slices() {
            let line = u64::from(slice.len) / 2;
            for m in 0..rows {
                for kk in 0..u64::from(slice.len) {
                    let index = 2 * (slice.offset + 2 * u64::from(m) * line) + kk;
                    let k_all = slice.k0 + kk as u32;
                    let expected = if k_all < k { int4(k_all, m) } else { Int4::default() };
                    prop_assert_eq!(nibble(&features, index), expected);
                    // The odd line.
                    prop_assert_eq!(nibble(&features, index + 2 * line), Int4::default());
                }
            }
            // What the last register line reads: three atoms behind the last row's line.
            let last = slice.offset + 2 * u64::from(rows - 1) * line + 3 * 16 + line;
            prop_assert!(last <= layout.bytes());
        }
    }

    /// isa.md §4.2.
    #[test]
    fn cubes_follow_the_formula(rows in 1u32..9, spare in 0u32..4, k in 1u32..300, slice in 1u32..5) {
        let weight = WeightLayout::new(Format::INT8_INT32, k, 64, &lens(k, slice * 32, 32)).unwrap();
        let surface_rows = rows + spare;
        let layout = FeatureLayout::in_form(&weight, rows, FeatureForm::Cube { surface_rows });
        let data: Vec<Vec<i8>> = (0..rows).map(|m| (0..k).map(|k| mixed(k, m) as i8).collect()).collect();
        let features = through_features(&layout, &data);
        for slice in layout.slices() {
            for m in 0..rows {
                for kk in 0..slice.len {
                    let at = slice.offset + u64::from(((kk / 16) * surface_rows + m) * 16 + kk % 16);
                    let k_all = slice.k0 + kk;
                    let expected = if k_all < k { mixed(k_all, m) as i8 } else { 0 };
                    prop_assert_eq!(features[at as usize].cast_signed(), expected);
                    prop_assert_eq!(layout.offset(m, k_all), at);
                }
            }
        }
    }

    #[test]
    fn output_cubes_follow_the_formula(rows in 1u32..9, spare in 0u32..4, groups in 1u32..4, n in 1u32..33) {
        let (surface_rows, cols) = (rows + spare, groups * 32);
        let segments = vec![ColumnSegment { n0: 0, cols }];
        let n = cols - 32 + n.min(32);
        let form = OutputForm::Cube { surface_rows };
        let layout = OutputLayout::in_form(Format::INT8_INT32, rows, n, 2, segments, form);
        for m in 0..rows {
            for column in 0..cols {
                // isa.md §4.2 for int32.
                let at = ((column / 4) * surface_rows + m) * 16 + (column % 4) * 4;
                prop_assert_eq!(layout.offset(m, column, 0), u64::from(at));
                prop_assert_eq!(layout.offset(m, column, 1), u64::from(at + cols * surface_rows * 4));
            }
        }
        check_pieces(&layout);
    }

    /// isa-int4-sdp.md §1.3: element `64*(4j + 4*Hg*b)` of the slot of `4*H*(W/64)` blocks.
    #[test]
    fn int4_blocks_follow_the_formula(
        rows in 1u32..20,
        heights in proptest::collection::vec(1u32..7, 1..4),
        widths in proptest::collection::vec(1u32..4, 1..4),
    ) {
        let mut n0 = 0;
        let segments: Vec<_> = widths.iter().map(|blocks| {
            let segment = ColumnSegment { n0, cols: blocks * 64 };
            n0 += segment.cols;
            segment
        }).collect();
        let form = OutputForm::Batches { rows: heights.clone() };
        let layout = OutputLayout::in_form(INT4, rows, n0 - 7, heights.len() as u32, segments.clone(), form);
        let mut seen = BTreeSet::new();
        for (index, segment) in segments.iter().enumerate() {
            for (slice, &height) in heights.iter().enumerate() {
                let start = layout.surface(index, slice as u32).start;
                for m in 0..rows {
                    let (batch, row) = (m / height, m % height);
                    let in_batch = height.min(rows - batch * height);
                    for column in 0..segment.cols {
                        let element = if height == 1 {
                            m * segment.cols + column
                        } else {
                            let slot = batch * 4 * height * (segment.cols / 64);
                            64 * (slot + 4 * row + 4 * in_batch * (column / 64)) + column % 64
                        };
                        let at = start + 2 * u64::from(element);
                        prop_assert_eq!(layout.offset(m, segment.n0 + column, slice as u32), at);
                        prop_assert!(seen.insert(at) && at + 2 <= layout.bytes());
                    }
                }
            }
        }
        check_pieces(&layout);
    }
}

/// The pieces of a row give exactly its elements, in every slice; and what a program of all rows writes is exactly the
/// elements of all columns.
fn check_pieces(layout: &OutputLayout) {
    let element = u64::from(layout.format().output_bytes());
    for (index, segment) in layout.segments().iter().enumerate() {
        for slice in 0..layout.k_slices() {
            let written: BTreeSet<u64> = layout.written(index, slice, 0, layout.rows()).flatten().collect();
            let cells = (0..layout.rows()).flat_map(|m| {
                (segment.n0..segment.n0 + segment.cols).flat_map(move |n| {
                    let at = layout.offset(m, n, slice);
                    at..at + element
                })
            });
            assert_eq!(written, cells.collect());
        }
    }
    for m in 0..layout.rows() {
        let mut next = 0;
        for piece in layout.row_pieces(m) {
            assert_eq!(piece.n.start, next);
            next = piece.n.end;
            for slice in 0..layout.k_slices() {
                let all = vec![0u8; layout.bytes() as usize];
                let bytes = piece.bytes(&all, slice);
                let at = bytes.as_ptr() as u64 - all.as_ptr() as u64;
                assert_eq!(at, layout.offset(m, piece.n.start, slice));
                assert_eq!(bytes.len() as u64, element * u64::from(piece.n.end - piece.n.start));
                for n in piece.n.clone() {
                    let place = at + element * u64::from(n - piece.n.start);
                    assert_eq!(layout.offset(m, n, slice), place);
                }
            }
        }
        assert_eq!(next, layout.n());
    }
    match layout.format().output() {
        Precision::Int8 => check_rows::<i8>(layout),
        Precision::Int16 => check_rows::<i16>(layout),
        Precision::Int32 => check_rows::<i32>(layout),
        Precision::Fp16 => check_rows::<f16>(layout),
        Precision::Fp32 => check_rows::<f32>(layout),
        other => panic!("{other:?} is no result"),
    }
}

/// A row that is loaded at once has the element of every offset.
fn check_rows<S: Element>(layout: &OutputLayout) {
    let bytes: Vec<u8> = (0..layout.bytes() as u32).map(|at| (mixed(at, 7) as u8) & 0x3F).collect();
    let element = layout.format().output_bytes() as usize;
    for m in 0..layout.rows() {
        for slice in 0..layout.k_slices() {
            let mut row = vec![S::default(); layout.n() as usize];
            layout.load_row(m, slice, &bytes, &mut row);
            for (n, found) in (0..).zip(&row) {
                let at = layout.offset(m, n, slice) as usize;
                let mut expected = [S::default()];
                S::load(&bytes[at..at + element], &mut expected);
                assert_eq!(*found, expected[0], "row {m}, column {n}, slice {slice}");
            }
        }
    }
}
