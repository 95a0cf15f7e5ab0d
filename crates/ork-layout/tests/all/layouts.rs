// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layouts against the formulas of `isa.md` §4, and packing against unpacking.

use std::collections::BTreeSet;

use half::f16;
use ork_layout::{ColumnSegment, FeatureLayout, Format, LayoutError, OutputLayout, WeightLayout};
use proptest::prelude::*;

const INT8: Format = Format::INT8_INT32;

/// isa.md §4.1: `((n/32)*(K/32) + k/32) * 1024 + (n%32)*32 + k%32`.
fn int8_weight(k: u64, n: u64, depth: u64) -> u64 {
    ((n / 32) * (depth / 32) + k / 32) * 1024 + (n % 32) * 32 + k % 32
}

/// isa.md §4.1: `(((n/16)*(K/32) + k/32) * 512 + (n%16)*32 + k%32) * 2`.
fn fp16_weight(k: u64, n: u64, depth: u64) -> u64 {
    (((n / 16) * (depth / 32) + k / 32) * 512 + (n % 16) * 32 + k % 32) * 2
}

/// A weight cut into slices of `len` channels.
fn sliced(format: Format, k: u32, n: u32, len: u32) -> WeightLayout {
    let padded = k.next_multiple_of(32);
    let mut lens = vec![len; (padded / len) as usize];
    lens.extend((!padded.is_multiple_of(len)).then_some(padded % len));
    WeightLayout::new(format, k, n, &lens).expect("a layout")
}

/// A value that differs from its neighbours in k and n and has no short period.
fn element(k: u32, n: u32) -> i8 {
    (u64::from(k).wrapping_mul(0x9E37_79B9).wrapping_add(u64::from(n).wrapping_mul(0x85EB_CA6B)) >> 13) as i8
}

fn channel(n: u32, k: u32) -> Vec<i8> {
    (0..k).map(|k| element(k, n)).collect()
}

#[test]
fn weights_follow_the_reference_formula() {
    for (k, n) in [(32, 32), (64, 96), (100, 70), (1024, 64), (33, 1)] {
        let layout = WeightLayout::one_slice(INT8, k, n).unwrap();
        let halves = WeightLayout::one_slice(Format::FP16_FP32, k, n).unwrap();
        for kk in 0..layout.k_padded() {
            for nn in 0..layout.n_padded() {
                let depth = layout.k_padded().into();
                assert_eq!(layout.offset(kk, nn), int8_weight(kk.into(), nn.into(), depth));
                if nn < halves.n_padded() {
                    assert_eq!(halves.offset(kk, nn), fp16_weight(kk.into(), nn.into(), depth));
                }
            }
        }
        assert_eq!(layout.bytes(), u64::from(layout.k_padded()) * u64::from(layout.n_padded()));
        assert_eq!(halves.bytes(), u64::from(halves.k_padded()) * u64::from(halves.n_padded()) * 2);
    }
}

#[test]
fn slices_are_whole_weights_behind_each_other() {
    let layout = sliced(INT8, 2500, 70, 1024);
    assert_eq!(
        layout.slices().iter().map(|s| (s.k0, s.len, s.real)).collect::<Vec<_>>(),
        [(0, 1024, 1024), (1024, 1024, 1024), (2048, 480, 452)]
    );
    let n_padded = 96;
    for slice in layout.slices() {
        for (k, n) in [(0, 0), (1, 33), (47, 69), (slice.len - 1, 95)] {
            let base = u64::from(slice.k0) * n_padded;
            let expected = base + int8_weight(k.into(), n.into(), slice.len.into());
            assert_eq!(layout.offset(slice.k0 + k, n), expected);
        }
    }
    assert_eq!(layout.bytes(), 2528 * n_padded);
}

/// Columns [n0, n1) of a slice are one run of bytes, laid out as a weight of their own.
#[test]
fn any_segment_of_whole_groups_is_a_weight_of_its_own() {
    let layout = sliced(INT8, 200, 256, 96);
    for (index, slice) in layout.slices().iter().enumerate() {
        for (n0, n1) in [(0, 32), (32, 128), (64, 256)] {
            for (k, n) in [(0, n0), (95.min(slice.len - 1), n1 - 1), (33.min(slice.len - 1), n0 + 17)] {
                let inside = int8_weight(k.into(), (n - n0).into(), slice.len.into());
                assert_eq!(layout.segment_offset(index, n0) + inside, layout.offset(slice.k0 + k, n));
            }
        }
    }
}

#[test]
fn impossible_layouts_are_refused() {
    let new = |k, n, lens: &[u32]| WeightLayout::new(INT8, k, n, lens).unwrap_err();
    assert_eq!(new(0, 5, &[]), LayoutError::Empty { k: 0, n: 5 });
    assert_eq!(new(5, 0, &[32]), LayoutError::Empty { k: 5, n: 0 });
    assert_eq!(new(64, 1, &[32]), LayoutError::SliceSum { found: 32, k_padded: 64 });
    assert_eq!(new(64, 1, &[64, 32]), LayoutError::SliceSum { found: 96, k_padded: 64 });
    assert_eq!(new(64, 1, &[48, 16]), LayoutError::SliceLength { index: 0, len: 48, multiple: 32 });
    assert_eq!(new(64, 1, &[64, 0]), LayoutError::SliceLength { index: 1, len: 0, multiple: 32 });
    let huge = WeightLayout::one_slice(INT8, u32::MAX, 1).unwrap_err();
    assert_eq!(huge, LayoutError::TooLarge { value: u32::MAX, multiple: 32 });
    assert_eq!(new(32, u32::MAX, &[32]), LayoutError::TooLarge { value: u32::MAX, multiple: 32 });
}

#[test]
fn a_slice_may_be_longer_than_k_needs() {
    let layout = WeightLayout::new(INT8, 70, 32, &[512]).unwrap();
    assert_eq!((layout.k(), layout.k_padded(), layout.bytes()), (70, 512, 512 * 32));
    let mut packed = vec![0xAA; layout.bytes() as usize];
    layout.pack_channel(3, &channel(3, 70), &mut packed);
    for k in 0..512 {
        let expected = if k < 70 { element(k, 3).cast_unsigned() } else { 0 };
        assert_eq!(packed[layout.offset(k, 3) as usize], expected);
    }
}

#[test]
fn fp16_channels_are_packed_little_endian() {
    let layout = WeightLayout::one_slice(Format::FP16_FP32, 40, 3).unwrap();
    let mut packed = vec![0u8; layout.bytes() as usize];
    let row: Vec<f16> = (0..40).map(|k| f16::from_bits(0x1200 + k)).collect();
    layout.pack_channel(2, &row, &mut packed);
    let at = layout.offset(33, 2) as usize;
    assert_eq!(packed[at..at + 2], [0x21, 0x12]);
    let mut back = vec![f16::ZERO; 40];
    layout.unpack_channel(2, &packed, &mut back);
    assert_eq!(back, row);
}

#[test]
#[should_panic(expected = "one channel has K elements")]
fn a_short_channel_is_a_bug() {
    let layout = WeightLayout::one_slice(INT8, 64, 32).unwrap();
    layout.pack_channel(0, &[0i8; 63], &mut vec![0; layout.bytes() as usize]);
}

#[test]
#[should_panic(expected = "elements of bf16")]
fn an_element_of_another_precision_is_a_bug() {
    let layout = WeightLayout::one_slice(Format::BF16_FP32, 64, 32).unwrap();
    layout.pack_channel(0, &[f16::ZERO; 64], &mut vec![0; layout.bytes() as usize]);
}

proptest! {
    /// Every byte of the buffer is the element that the formula puts there, or zero padding; group by group, channel
    /// by channel in reverse order, and read back.
    #[test]
    fn packing_puts_every_element_in_its_place(k in 1u32..700, n in 1u32..100, slice in 1u32..9) {
        let layout = sliced(INT8, k, n, slice * 32);
        let rows: Vec<_> = (0..n).map(|n| channel(n, k)).collect();
        let mut expected = vec![0u8; layout.bytes() as usize];
        for (n, row) in rows.iter().enumerate() {
            for (k, value) in row.iter().enumerate() {
                expected[layout.offset(k as u32, n as u32) as usize] = value.cast_unsigned();
            }
        }
        // Whatever was in the buffer before must not show through.
        let mut by_group = vec![0xAA; expected.len()];
        for mut group in layout.kernel_groups_mut(&mut by_group) {
            let columns = group.columns();
            let channels: Vec<&[i8]> = columns.map(|n| rows[n as usize].as_slice()).collect();
            group.pack(&channels);
        }
        prop_assert_eq!(&by_group, &expected);

        let mut by_channel = vec![0xAA; expected.len()];
        layout.clear_padding(&mut by_channel);
        for n in (0..n).rev() {
            layout.pack_channel(n, &rows[n as usize], &mut by_channel);
        }
        prop_assert_eq!(&by_channel, &expected);

        let mut in_group = vec![0xAA; expected.len()];
        layout.clear_padding(&mut in_group);
        for mut group in layout.kernel_groups_mut(&mut in_group) {
            for n in group.columns().rev() {
                group.pack_channel(n, &rows[n as usize]);
            }
        }
        prop_assert_eq!(&in_group, &expected);

        let mut back = vec![0i8; k as usize];
        for n in 0..n {
            layout.unpack_channel(n, &by_group, &mut back);
            prop_assert_eq!(&back, &rows[n as usize]);
        }
    }

    /// isa.md §4.3 inside each slice: `A[m][k]` at `m*K + k`.
    #[test]
    fn features_are_row_major_in_each_slice(rows in 1u32..20, k in 1u32..500, slice in 1u32..6) {
        let layout = FeatureLayout::for_weight(&sliced(INT8, k, 32, slice * 32), rows);
        let mut features = vec![0x55; layout.bytes() as usize];
        for m in 0..rows {
            layout.write_row(m, &channel(m, k), &mut features);
        }
        let mut end = 0;
        for slice in layout.slices() {
            prop_assert_eq!(slice.offset % 64, 0);
            prop_assert!(slice.offset >= end, "slices do not overlap");
            for m in 0..rows {
                for kk in 0..slice.len {
                    let at = slice.offset + u64::from(m) * u64::from(slice.len) + u64::from(kk);
                    prop_assert_eq!(layout.offset(m, slice.k0 + kk), at);
                    let expected = if slice.k0 + kk < k { element(slice.k0 + kk, m) } else { 0 };
                    prop_assert_eq!(features[at as usize].cast_signed(), expected);
                    end = at + 1;
                }
            }
        }
        prop_assert_eq!(end, layout.bytes());
        let mut back = vec![0; k as usize];
        layout.read_row(rows - 1, &features, &mut back);
        prop_assert_eq!(back, channel(rows - 1, k));
    }

    /// isa.md §4.3 inside each surface: `C[m][n]` at `(m*s + n)*4` with s the columns of the segment. Offsets of
    /// different elements and slices never meet, and the pieces of a row give exactly its elements.
    #[test]
    fn output_surfaces_are_row_major_and_disjoint(
        rows in 1u32..6,
        widths in proptest::collection::vec(1u32..4, 1..5),
        unused in 0u32..32,
        k_slices in 1u32..4,
    ) {
        let mut n0 = 0;
        let segments: Vec<_> = widths.iter().map(|groups| {
            let segment = ColumnSegment { n0, cols: groups * 32 };
            n0 += segment.cols;
            segment
        }).collect();
        let n = n0 - unused;
        let layout = OutputLayout::new(INT8, rows, n, k_slices, segments.clone());
        let mut seen = BTreeSet::new();
        for (index, segment) in segments.iter().enumerate() {
            for slice in 0..k_slices {
                let surface = layout.surface(index, slice);
                prop_assert_eq!(surface.end - surface.start, u64::from(rows * segment.cols * 4));
                for m in 0..rows {
                    for column in 0..segment.cols {
                        let at = surface.start + u64::from((m * segment.cols + column) * 4);
                        prop_assert_eq!(layout.offset(m, segment.n0 + column, slice), at);
                        prop_assert!(seen.insert(at) && at + 4 <= layout.bytes());
                    }
                }
            }
        }
        prop_assert_eq!(seen.len() as u64 * 4, layout.bytes());

        let mut surfaces = vec![0u8; layout.bytes() as usize];
        for m in 0..rows {
            for n in 0..n {
                for slice in 0..k_slices {
                    let at = layout.offset(m, n, slice) as usize;
                    let value = i32::try_from(m * 1000 + n).unwrap() * (1 << slice);
                    surfaces[at..at + 4].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        for m in 0..rows {
            let mut row = vec![0i32; n as usize];
            for piece in layout.row_pieces(m) {
                for slice in 0..k_slices {
                    let bytes = piece.bytes(&surfaces, slice).chunks_exact(4);
                    for (sum, bytes) in piece.target(&mut row).iter_mut().zip(bytes) {
                        *sum += i32::from_le_bytes(bytes.try_into().unwrap());
                    }
                }
            }
            let weight = (1 << k_slices) - 1;
            let expected: Vec<_> = (0..n).map(|n| i32::try_from(m * 1000 + n).unwrap() * weight).collect();
            prop_assert_eq!(row, expected);
        }
    }
}
