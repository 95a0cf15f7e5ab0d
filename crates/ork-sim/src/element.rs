// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements of memory as numbers.

use std::ops::Range;

use half::{bf16, f16};
use ork_isa::Precision;
use ork_mac::HalfKind;

/// Element `index` of `bytes`, for the integer precisions; 0 beyond the end.
pub(crate) fn int(precision: Precision, bytes: &[u8], index: usize) -> i32 {
    match precision {
        Precision::Int4 => {
            let byte = bytes.get(index / 2).copied().unwrap_or(0);
            // Even elements in the low nibble (`isa-int4-sdp.md` §1.3).
            let nibble = if index.is_multiple_of(2) { byte << 4 } else { byte & 0xF0 };
            i32::from(nibble.cast_signed() >> 4)
        }
        Precision::Int16 => i32::from(u16_at(bytes, index).cast_signed()),
        Precision::Int32 => u32_at(bytes, index).cast_signed(),
        _ => i32::from(bytes.get(index).copied().unwrap_or(0).cast_signed()),
    }
}

/// Element `index` of `bytes`, for the float precisions; 0 beyond the end.
pub(crate) fn float(precision: Precision, bytes: &[u8], index: usize) -> f32 {
    match precision {
        Precision::Bf16 => bf16::from_bits(u16_at(bytes, index)).to_f32(),
        // The array truncates each operand to 10 bits of mantissa (NS-16).
        Precision::Tf32 => f32::from_bits(u32_at(bytes, index) & !0x1FFF),
        Precision::Fp32 => f32::from_bits(u32_at(bytes, index)),
        _ => f16::from_bits(u16_at(bytes, index)).to_f32(),
    }
}

/// Float elements from the start of `bytes`; 0 beyond the end.
pub(crate) fn floats_into(precision: Precision, bytes: &[u8], out: &mut [f32]) {
    match precision {
        Precision::Fp16 => HalfKind::Fp16.widen_all(bytes, out),
        Precision::Bf16 => HalfKind::Bf16.widen_all(bytes, out),
        _ => out.iter_mut().enumerate().for_each(|(index, out)| *out = float(precision, bytes, index)),
    }
}

/// A run of integer elements of at most 16 bits; 0 beyond the end.
pub(crate) fn ints(precision: Precision, bytes: &[u8], run: Range<usize>) -> Vec<i16> {
    run.map(|index| int(precision, bytes, index) as i16).collect()
}

/// int4 elements from `start` on as signed bytes; 0 beyond the end.
pub(crate) fn unpack_nibbles(bytes: &[u8], start: usize, out: &mut [u8]) {
    let packed = bytes.get(start / 2..).unwrap_or(&[]);
    if start.is_multiple_of(2) && out.len().is_multiple_of(2) && packed.len() >= out.len() / 2 {
        for (pair, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
            *pair =
                [((byte << 4).cast_signed() >> 4).cast_unsigned(), (byte.cast_signed() >> 4).cast_unsigned()];
        }
        return;
    }
    for (out, index) in out.iter_mut().zip(start..) {
        *out = int(Precision::Int4, bytes, index) as u8;
    }
}

pub(crate) fn is_float(precision: Precision) -> bool {
    matches!(precision, Precision::Fp16 | Precision::Bf16 | Precision::Tf32 | Precision::Fp32)
}

fn u16_at(bytes: &[u8], index: usize) -> u16 {
    bytes.as_chunks::<2>().0.get(index).map_or(0, |b| u16::from_le_bytes(*b))
}

fn u32_at(bytes: &[u8], index: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(index).map_or(0, |b| u32::from_le_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_are_signed_and_low_first() {
        let bytes = [0x7F, 0x81];
        let values: Vec<i32> = (0..4).map(|i| int(Precision::Int4, &bytes, i)).collect();
        assert_eq!(values, [-1, 7, 1, -8]);
    }

    #[test]
    fn runs_equal_single_elements() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for precision in [Precision::Fp16, Precision::Bf16, Precision::Tf32] {
            let count = bytes.len() * 8 / precision.bits() as usize;
            let mut run = vec![9.0; count + 3];
            floats_into(precision, &bytes, &mut run);
            for (index, value) in run.iter().enumerate() {
                let single = float(precision, &bytes, index);
                assert!(
                    value.to_bits() == single.to_bits() || (value.is_nan() && single.is_nan()),
                    "{precision} {index}: {value} {single}"
                );
            }
        }
    }

    #[test]
    fn unpacking_equals_single_nibbles() {
        let bytes: Vec<u8> = (0..=255).collect();
        for (start, len) in [(0, 512), (0, 31), (7, 20), (500, 40), (510, 2)] {
            let mut out = vec![0x55; len];
            unpack_nibbles(&bytes, start, &mut out);
            for (i, out) in out.iter().enumerate() {
                assert_eq!(
                    i32::from(out.cast_signed()),
                    int(Precision::Int4, &bytes, start + i),
                    "{start} + {i}"
                );
            }
        }
    }

    #[test]
    fn tf32_truncates() {
        let x = 1.0f32 + 1023.9 / 1024.0 / 1024.0;
        assert_eq!(float(Precision::Tf32, &x.to_le_bytes(), 0), 1.0);
        assert_eq!(float(Precision::Tf32, &(-x).to_le_bytes(), 0), -1.0);
    }
}
