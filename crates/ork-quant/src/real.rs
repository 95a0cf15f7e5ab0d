// SPDX-License-Identifier: MIT OR Apache-2.0
#![forbid(unsafe_code)]

use std::ops::{Add, Div, Mul, Sub};

/// `f32` or `f64`: the two precisions in which a basis can be applied.
pub(crate) trait Real:
    Copy + Send + Sync + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Zero.
    const ZERO: Self;
    /// The nearest value.
    fn from_f64(value: f64) -> Self;
    /// The normalised Hadamard transform of a slice whose length is a power of two.
    fn hadamard(block: &mut [Self]);
    /// The Hartley mix across the blocks of a row.
    fn hartley(row: &mut [Self], cas: &[Self], scratch: &mut [Self]);
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    fn hadamard(block: &mut [Self]) {
        crate::hadamard::transform_f32(block);
    }
    fn hartley(row: &mut [Self], cas: &[Self], scratch: &mut [Self]) {
        crate::hartley::mix_f32(row, cas, scratch);
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
    fn hadamard(block: &mut [Self]) {
        crate::hadamard::transform_f64(block);
    }
    fn hartley(row: &mut [Self], cas: &[Self], scratch: &mut [Self]) {
        crate::hartley::mix_f64(row, cas, scratch);
    }
}

/// Nearest integer, halves to even, for |x| < 2⁵¹: two additions, which every processor has as vector instructions
/// (a rounding instruction is not in the x86-64 baseline).
#[inline(always)]
pub(crate) fn rint(x: f64) -> f64 {
    const SHIFT: f64 = 6_755_399_441_055_744.0; // 1.5 · 2⁵²
    (x + SHIFT) - SHIFT
}

/// [`rint`] for `f32` and |x| < 2²².
#[inline(always)]
pub(crate) fn rint_f32(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 · 2²³
    (x + SHIFT) - SHIFT
}

/// [`rint_f32`] as an integer, for |x| < 128: the sum with the shift holds it in its low bits. A float-to-integer cast
/// saturates, and no vector instruction does.
#[inline(always)]
pub(crate) fn code_of(x: f32) -> i8 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT).to_bits() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_rounds_as_the_instruction_does() {
        for i in -4000..=4000 {
            for offset in [0.0, 0.125, -0.49999] {
                let x = f64::from(i) * 0.25 + offset;
                assert_eq!(rint(x), x.round_ties_even(), "{x}");
                let x = x as f32;
                assert_eq!(rint_f32(x), x.round_ties_even(), "{x}");
                if x.abs() < 127.0 {
                    assert_eq!(f32::from(code_of(x)), x.round_ties_even(), "{x}");
                }
            }
        }
    }
}
