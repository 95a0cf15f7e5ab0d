// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the output converter makes of float data: the affine form (`isa-int4-sdp.md` §3.4), and int16.

use crate::common;
use common::pass::*;
use common::*;
use half::f16;
use ork_sim::{AffineZero, Silicon};

/// An fp16 sum with the affine converter.
fn affine(offset: i32, scale: u32, minus_exp: u32) -> Words {
    fp16(
        2,
        &[
            (0x4080, offset.cast_unsigned()),
            (0x4084, 0x1_0000 | scale),
            (0x4088, 0x8000_0000 | minus_exp << 12),
        ],
    )
}

#[test]
fn a_sum_is_halved_by_minus_exp() {
    let silicon = Silicon::default();
    for (a, b) in [(6.0, 3.0), (-1.5, 0.25), (1000.0, 24.0), (-4096.0, -1.0)] {
        let sum = f16::from_f32(a + b).to_f32();
        assert_eq!(fp16_pass(&affine(0, 1, 1), a, b, silicon), sum / 2.0, "{a} {b}");
        assert_eq!(fp16_pass(&affine(3, 2, 4), a, b, silicon), {
            let scaled = f16::from_f32((a + b + 3.0) * 2.0).to_f32();
            scaled / 16.0
        });
    }
    // A sum of 0 wraps the exponent: 2^(17 - MINUS_EXP).
    assert_eq!(fp16_pass(&affine(0, 1, 10), 2.0, -2.0, silicon), 128.0);
    assert_eq!(fp16_pass(&affine(-1, 1, 11), 2.0, -1.0, silicon), 64.0);
    let zero = Silicon { affine_zero: AffineZero::Zero, ..silicon };
    assert_eq!(fp16_pass(&affine(0, 1, 10), 2.0, -2.0, zero), 0.0);
}

#[test]
fn without_cvt_type_scale_and_offset_do_nothing() {
    let body = patched(&affine(3, 2, 4), &[(0x4088, 4 << 12 | 3)]);
    assert_eq!(fp16_pass(&body, 6.0, 3.0, Silicon::default()), 9.0);
}

/// 1 where the input is above 2^-24, else 0: BS subtracts and doubles, BN multiplies by infinity and clamps to 1
/// (allbilly/rk3588, docs/assumptions.md S-85).
fn compare() -> Words {
    fp16(
        2,
        &[
            (0x4010, 1 << 29 | 2 << 26 | 2),
            (0x4040, 0x4_0040),
            (0x4044, 0x3380_0000),
            (0x4048, 0x4000_0000),
            (0x4060, 0x4_0082),
            (0x4068, 0x7C00_0000),
            (0x406C, 1f32.to_bits()),
            (0x4070, 0x1080_02C1),
            (0x4080, 0),
            (0x4084, 1),
            (0x4088, 0),
            (0x40C0, 64),
        ],
    )
}

#[test]
fn a_comparison_is_stored_as_int16() {
    let values = [-2.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0];
    let input = halves(&values.repeat(4));
    let (got, outcome) = bytes_pass(&compare(), &input, &input, Silicon::default());
    assert_clean(&outcome, 1);
    for (i, got) in got.as_chunks::<2>().0.iter().enumerate() {
        assert_eq!(i16::from_le_bytes(*got), i16::from(values[i % 8] > 0.0), "{}", values[i % 8]);
    }
}

#[test]
fn other_numbers_saturate_in_int16() {
    let body = patched(&compare(), &[(0x4040, 0x53), (0x4060, 0x53)]);
    let values = [-65_504.0, -32_768.0, -1.5, 0.5, 1.5, f32::NAN, 32_768.0, f32::INFINITY];
    let (got, outcome) = bytes_pass(&body, &halves(&values.repeat(4)), &[0; 64], Silicon::default());
    assert_clean(&outcome, 1);
    let got: Vec<i16> = got.as_chunks::<2>().0.iter().map(|b| i16::from_le_bytes(*b)).collect();
    assert_eq!(got[..8], [i16::MIN, i16::MIN, -2, 0, 2, 0, i16::MAX, i16::MAX]);
}

#[test]
fn what_is_refused() {
    // A scale, an offset, a shift, FP32TOFP16_EN or CVT_TYPE on the way to int16; int8 and int32 from float.
    for patch in [
        (0x4084, 2),
        (0x4080, 1),
        (0x4088, 1),
        (0x4084, 0x1_0001),
        (0x4088, 0x8000_0000),
        (0x4010, 2 << 26 | 2),
        (0x4010, 4 << 29 | 2 << 26 | 2),
    ] {
        let (_, outcome) = bytes_pass(&patched(&compare(), &[patch]), &[0; 64], &[0; 64], Silicon::default());
        assert_unmodelled(&outcome, "output-format");
    }
}
