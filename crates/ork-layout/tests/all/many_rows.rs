// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many rows at once against the same rows one by one, in every form.

use half::{bf16, f16};
use ork_layout::{
    ColumnSegment, Element, FeatureForm, FeatureLayout, Format, Int4, OutputForm, OutputLayout, WeightLayout,
};
use proptest::prelude::*;

fn noise(index: usize, seed: u64) -> u64 {
    let x = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(0x85EB_CA6B);
    (x ^ x >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 16
}

fn features<T: Element>(
    (format, form): (Format, FeatureForm),
    (m, k, slices): (u32, u32, &[u32]),
    element: impl Fn(u64) -> T,
) {
    let weight = WeightLayout::new(format, k, 32, slices).expect("slices hold K");
    let layout = FeatureLayout::in_form(&weight, m, form);
    let rows: Vec<T> = (0..(m * k) as usize).map(|i| element(noise(i, k.into()))).collect();
    let mut together = vec![0xEE; layout.bytes() as usize];
    let mut single = together.clone();
    layout.write_rows(&rows, &mut together);
    for (row, elements) in (0..).zip(rows.chunks_exact(k as usize)) {
        layout.write_row(row, elements, &mut single);
    }
    assert_eq!(together, single, "{format} {form:?} {m}x{k} in {slices:?}");
}

fn outputs<S: Element>(
    format: Format,
    form: &OutputForm,
    (m, n, k_slices): (u32, u32, u32),
    segments: &[ColumnSegment],
    zero: S,
) {
    let layout = OutputLayout::in_form(format, m, n, k_slices, segments.to_vec(), form.clone());
    let surfaces: Vec<u8> = (0..layout.bytes() as usize).map(|i| noise(i, n.into()) as u8).collect();
    for (m0, count) in [(0, m), (m / 3, m - m / 3), (m - 1, 1), (0, 0)] {
        for k_slice in 0..k_slices {
            let mut together = vec![zero; (count * n) as usize];
            let mut single = together.clone();
            layout.load_rows(m0, k_slice, &surfaces, &mut together);
            for (row, out) in (m0..).zip(single.chunks_exact_mut(n as usize)) {
                layout.load_row(row, k_slice, &surfaces, out);
            }
            let bytes = |values: &[S]| {
                let mut bytes = vec![0; values.len() * format.output_bytes() as usize];
                S::store(values, &mut bytes);
                bytes
            };
            assert!(
                bytes(&together) == bytes(&single),
                "{format} {form:?} {m}x{n} from {m0}, slice {k_slice}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_written_together_as_alone(
        m in 1_u32..70, k in 1_u32..700, padding in 0_u32..9, cut in 1_u32..12, cube in any::<bool>(),
    ) {
        let padded = k.next_multiple_of(64);
        let first = (cut * 64).min(padded);
        let mut slices = vec![first];
        if first < padded {
            slices.push(padded - first);
        }
        // The last slice must carry something.
        if first >= k {
            slices.truncate(1);
        }
        let surface_rows = m + padding;
        let form = if cube { FeatureForm::Cube { surface_rows } } else { FeatureForm::Rows };
        let size = (m, k, &slices[..]);
        features((Format::INT8_INT32, form), size, |x| x as i8);
        features((Format::FP16_FP32, form), size, |x| f16::from_bits(x as u16));
        features((Format::INT16_INT32, form), size, |x| x as i16);
        features((Format::INT4_INT16, FeatureForm::SpacedRows), size, |x| Int4::from_low_nibble(x as u8));
        // No NaN: all are equal to themselves then.
        features((Format::BF16_FP32, form), size, |x| bf16::from_f32(x as i32 as f32));
        features((Format::TF32_FP32, form), size, |x| x as i32 as f32);
    }

    #[test]
    fn rows_are_read_together_as_alone(
        m in 1_u32..70, columns in 1_u32..12, spare in 0_u32..32, padding in 0_u32..9, parts in 1_u32..4,
    ) {
        let cols = columns * 32;
        let segments: Vec<_> =
            (0..parts).map(|part| ColumnSegment { n0: part * cols, cols }).collect();
        let n = parts * cols - spare.min(cols - 1);
        let (cube, size) = (OutputForm::Cube { surface_rows: m + padding }, (m, n, parts));
        for form in [OutputForm::Rows, cube] {
            outputs::<i32>(Format::INT8_INT32, &form, size, &segments, 0);
            outputs::<i8>(Format::INT8_INT8, &form, size, &segments, 0);
            outputs::<f32>(Format::TF32_FP32, &form, size, &segments, 0.0);
            outputs::<f16>(Format::FP16_FP16, &form, size, &segments, f16::ZERO);
        }
    }
}

/// Rows without a gap on either side, which are copied at once; and no rows.
#[test]
fn dense_rows_are_moved_together_as_alone() {
    for (m, k) in [(37, 128), (1, 64), (0, 64)] {
        features((Format::INT8_INT32, FeatureForm::Rows), (m, k, &[k]), |x| x as i8);
        features((Format::FP16_FP32, FeatureForm::Rows), (m, k, &[k]), |x| f16::from_bits(x as u16));
        features((Format::INT4_INT16, FeatureForm::SpacedRows), (m, k, &[k]), |x| {
            Int4::from_low_nibble(x as u8)
        });
    }
    for (m, n) in [(37, 96), (1, 32)] {
        let segment = [ColumnSegment { n0: 0, cols: n }];
        outputs::<i32>(Format::INT8_INT32, &OutputForm::Rows, (m, n, 2), &segment, 0);
        outputs::<i8>(Format::INT8_INT8, &OutputForm::Rows, (m, n, 1), &segment, 0);
    }
}

#[test]
fn int4_batches_are_read_together_as_alone() {
    let segments = [ColumnSegment { n0: 0, cols: 128 }, ColumnSegment { n0: 128, cols: 64 }];
    for rows in [vec![1, 1], vec![4, 3]] {
        outputs::<i16>(Format::INT4_INT16, &OutputForm::Batches { rows }, (10, 170, 2), &segments, 0);
    }
}

#[test]
#[should_panic(expected = "2 rows of 64 elements")]
fn rows_that_are_not_there_are_refused() {
    let weight = WeightLayout::one_slice(Format::INT8_INT32, 64, 32).expect("a small weight");
    let layout = FeatureLayout::for_weight(&weight, 2);
    layout.write_rows(&[0_i8; 64], &mut vec![0; layout.bytes() as usize]);
}
