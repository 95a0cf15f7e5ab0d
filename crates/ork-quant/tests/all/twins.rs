// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every SIMD kernel against the plain loops, bit for bit, for every kind of input.

use ork_quant::{Kernels, QuantError, Scale, quantise_row};
use ork_testkit::Stream;

/// Around every vector and group length, and some rows of real size.
fn lengths() -> impl Iterator<Item = usize> {
    (0..140).chain([255, 256, 257, 1000, 2048, 4095, 8193])
}

fn simd() -> Vec<Kernels> {
    let mut all = Kernels::available();
    assert_eq!(all.remove(0), Kernels::scalar());
    all
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Rows of one length: every exponent, one exponent, ties, tiny, huge, mostly zero, outliers.
fn rows(stream: &mut Stream, len: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![stream.f32s(len), stream.f32s_unit(len), stream.f32s_activation(len)];
    // Exact halves once the largest is 127: both directions of the tie.
    let mut ties: Vec<_> = (0..len).map(|_| stream.below(254) as f32 - 126.5).collect();
    if let Some(last) = ties.last_mut() {
        *last = 127.0;
    }
    rows.push(ties);
    rows.push(vec![-0.0; len]);
    for factor in [1e-45, 1e-40, 1e-38, 1.5e-36, 3e38] {
        rows.push(stream.f32s_unit(len).iter().map(|x| x * factor).collect());
    }
    // One value alone, in every position in turn over the run.
    let mut single = vec![0.0; len];
    if len > 0 {
        single[stream.below(len as u64) as usize] = -f32::MAX;
    }
    rows.push(single);
    rows
}

#[test]
fn quantised_rows_are_the_same_bits() {
    let mut stream = Stream::new(1);
    for len in lengths() {
        for row in rows(&mut stream, len) {
            let mut want = vec![99; len];
            let want_scale = Kernels::scalar().quantise_row(&row, &mut want).unwrap();
            for kernels in simd() {
                let mut got = vec![-99; len];
                let scale = kernels.quantise_row(&row, &mut got).unwrap();
                assert_eq!(scale.get().to_bits(), want_scale.get().to_bits(), "{kernels:?} {len}");
                assert_eq!(got, want, "{kernels:?} {len}");
            }
        }
    }
}

#[test]
fn slices_need_no_alignment_and_are_not_overrun() {
    let mut stream = Stream::new(2);
    let data = stream.f32s_activation(300);
    for start in 0..17 {
        for len in [1, 7, 8, 16, 31, 33, 64, 100, 255] {
            let row = &data[start..start + len];
            let mut want = vec![0; len];
            Kernels::scalar().quantise_row(row, &mut want).unwrap();
            for kernels in simd() {
                let mut codes = [111_i8; 300];
                kernels.quantise_row(row, &mut codes[start..start + len]).unwrap();
                assert_eq!(codes[start..start + len], want, "{kernels:?} {start} {len}");
                let outside = codes[..start].iter().chain(&codes[start + len..]);
                assert!(outside.copied().all(|code| code == 111), "{kernels:?} {start} {len}");
            }
        }
    }
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    let mut stream = Stream::new(3);
    for len in lengths().skip(1) {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
            let mut row = stream.f32s(len);
            let index = stream.below(len as u64) as usize;
            row[index] = bad;
            *row.last_mut().unwrap() = bad;
            for kernels in Kernels::available() {
                let mut codes = vec![55; len];
                match kernels.quantise_row(&row, &mut codes).unwrap_err() {
                    QuantError::NonFinite { row: None, index: at, value } => {
                        assert_eq!((at, value.to_bits()), (index, bad.to_bits()), "{kernels:?} {len}");
                    }
                    other => panic!("{other}"),
                }
                assert!(codes.iter().all(|code| *code == 55), "nothing is written on an error");
            }
        }
    }
}

/// Scales of every size, zero included.
fn scales(stream: &mut Stream, len: usize) -> Vec<Scale> {
    let any = stream.f32s(len).into_iter().map(|x| Scale::new(x.abs()).expect("finite"));
    any.map(|scale| if stream.below(16) == 0 { Scale::ZERO } else { scale }).collect()
}

#[test]
fn dequantised_rows_are_the_same_bits() {
    let mut stream = Stream::new(4);
    for len in lengths() {
        for ordinary in [true, false] {
            let columns = match ordinary {
                true => stream.f32s_unit(len).iter().map(|x| Scale::new(x.abs()).unwrap()).collect(),
                false => scales(&mut stream, len),
            };
            let row = if ordinary { Scale::new(0.01).unwrap() } else { scales(&mut stream, 1)[0] };
            // Every magnitude, the extremes included.
            let narrow: Vec<_> =
                (0..len).map(|_| (stream.next_u64() as i32) >> stream.below(32)).collect::<Vec<_>>();
            let mut wide: Vec<_> = (0..len).map(|_| (stream.next_u64() as i64) >> stream.below(64)).collect();
            for (slot, extreme) in
                wide.iter_mut().zip([i64::MIN, i64::MAX, -1, 0, (1 << 53) + 1, u32::MAX.into()])
            {
                *slot = extreme;
            }

            let (mut want, mut want_wide) = (vec![0.0; len], vec![0.0; len]);
            Kernels::scalar().dequantise_row(&narrow, row, &columns, &mut want);
            Kernels::scalar().dequantise_row_i64(&wide, row, &columns, &mut want_wide);
            for kernels in simd() {
                let mut got = vec![f32::NAN; len];
                kernels.dequantise_row(&narrow, row, &columns, &mut got);
                assert_eq!(bits(&got), bits(&want), "{kernels:?} {len}");
                let mut got = vec![f32::NAN; len];
                kernels.dequantise_row_i64(&wide, row, &columns, &mut got);
                assert_eq!(bits(&got), bits(&want_wide), "{kernels:?} {len} wide");
            }
        }
    }
}

/// The order of the two multiplications shows in one result of a billion; these were searched for.
#[test]
fn the_order_of_multiplications_is_the_documented_one() {
    let cases = [
        (1_355_542_473, 16_734_861.0, 13_011_479.0, 0x667a_0346),
        (1_564_935_835, 10_483_659.0, 12_676_631.0, 0x6630_299d),
        (1_163_394_083, 13_008_135.0, 9_452_315.0, 0x65f2_54f0),
    ];
    for (acc, row, column, want) in cases {
        let other_order = (f64::from(acc) * f64::from(row) * f64::from(column)) as f32;
        assert_ne!(other_order.to_bits(), want);
        let (row, columns) = (Scale::new(row).unwrap(), [Scale::new(column).unwrap(); 33]);
        for kernels in Kernels::available() {
            let mut out = [0.0; 33];
            kernels.dequantise_row(&[acc; 33], row, &columns, &mut out);
            assert_eq!(bits(&out), [want; 33], "{kernels:?}");
            kernels.dequantise_row_i64(&[acc.into(); 33], row, &columns, &mut out);
            assert_eq!(bits(&out), [want; 33], "{kernels:?}");
        }
    }
}

#[test]
fn narrow_and_wide_accumulators_agree() {
    let mut stream = Stream::new(5);
    let narrow: Vec<_> = (0..1001).map(|_| stream.next_u64() as i32).collect();
    let wide: Vec<_> = narrow.iter().map(|x| i64::from(*x)).collect();
    let (row, columns) = (Scale::new(0.3).unwrap(), scales(&mut stream, 1001));
    for kernels in Kernels::available() {
        let (mut a, mut b) = (vec![0.0; 1001], vec![0.0; 1001]);
        kernels.dequantise_row(&narrow, row, &columns, &mut a);
        kernels.dequantise_row_i64(&wide, row, &columns, &mut b);
        assert_eq!(bits(&a), bits(&b), "{kernels:?}");
    }
}

#[test]
fn the_default_is_the_last_of_the_available() {
    assert_eq!(Kernels::available().last(), Some(&Kernels::detect()));
    // Every aarch64 processor has NEON: there the comparisons above are never empty.
    assert!(cfg!(not(target_arch = "aarch64")) || Kernels::detect().name() == "neon");
    let mut names: Vec<_> = Kernels::available().into_iter().map(Kernels::name).collect();
    names.dedup();
    assert_eq!(names.len(), Kernels::available().len());
    let (mut a, mut b) = ([0; 3], [0; 3]);
    assert_eq!(
        quantise_row(&[1.0, -2.0, 0.5], &mut a),
        Kernels::scalar().quantise_row(&[1.0, -2.0, 0.5], &mut b)
    );
    assert_eq!(a, b);
}
