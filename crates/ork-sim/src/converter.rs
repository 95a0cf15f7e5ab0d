// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output converter of the DPU (`isa.md` §7.3, `isa-notes.md` D.6, NS-5, NS-21).

use half::f16;
use ork_isa::Precision;
use ork_isa::regs::dpu;

use crate::core::round_shift;
use crate::options::{AffineZero, Overflow, Silicon, WideConverter};
use crate::regs::View;
use crate::stages::Staged;

/// Scale, shift, offset and target of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Converter {
    pub(crate) out: Precision,
    scale: i64,
    shift: u32,
    offset: i64,
    half_up: bool,
    /// `CVT_TYPE`: the offset is added before the multiplication.
    pub(crate) offset_first: bool,
    pub(crate) to_fp16: bool,
    minus_exp: u32,
    silicon: Silicon,
}

impl Converter {
    pub(crate) fn decode(view: View<'_>, out: Precision, silicon: Silicon) -> Self {
        let scale: dpu::OutCvtScale = view.get();
        let shift: dpu::OutCvtShift = view.get();
        Self {
            out,
            scale: i64::from((scale.out_cvt_scale() as u16).cast_signed()),
            shift: shift.out_cvt_shift(),
            offset: i64::from(view.get::<dpu::OutCvtOffset>().out_cvt_offset().cast_signed()),
            half_up: shift.cvt_round() == 1,
            offset_first: shift.cvt_type() == 1,
            to_fp16: scale.fp32tofp16_en() == 1,
            minus_exp: shift.minus_exp(),
            silicon,
        }
    }

    /// Integer data: half to even and a clamp for narrow outputs, floor for 32-bit ones.
    pub(crate) fn int(self, value: i64) -> i64 {
        if self.out.bits() == 32 || self.out == Precision::Fp16 {
            // CVT_TYPE and MINUS_EXP have no effect here (NS-21).
            let product = value.saturating_mul(self.scale);
            let scaled = match self.silicon.wide_converter {
                WideConverter::Floor => product >> self.shift.min(63),
                WideConverter::HalfEven => round_shift(product, self.shift, self.half_up),
            };
            return scaled.saturating_add(self.offset).clamp(i64::from(i32::MIN), i64::from(i32::MAX));
        }
        let scaled = if self.offset_first {
            let sum = value.saturating_add(self.offset);
            round_shift(sum.saturating_mul(self.scale), self.shift, self.half_up)
        } else {
            let product = value.saturating_mul(self.scale);
            round_shift(product, self.shift, self.half_up).saturating_add(self.offset)
        };
        let limit = 1i64 << (self.out.bits() - 1);
        scaled.clamp(-limit, limit - 1)
    }

    /// Stores integer data at `bytes`, which has the width of the output.
    pub(crate) fn store_int(self, value: i64, bytes: &mut [u8]) {
        let value = self.int(value);
        match self.out {
            Precision::Fp32 => bytes.copy_from_slice(&(value as f32).to_le_bytes()),
            Precision::Fp16 => bytes.copy_from_slice(&f16::from_f32(value as f32).to_le_bytes()),
            _ => bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]),
        }
    }

    /// Stores float data, or a table's integer in float mode.
    pub(crate) fn store_float(self, value: Staged, bytes: &mut [u8]) {
        match self.out {
            Precision::Fp32 => {
                let value = match value {
                    Staged::Float(value) => value,
                    Staged::Table(value) => value as f32,
                };
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            Precision::Int16 => {
                // The conversion saturates, and makes 0 of NaN.
                let value = match value {
                    Staged::Float(value) => value.round_ties_even() as i16,
                    Staged::Table(value) => value.clamp(i16::MIN.into(), i16::MAX.into()) as i16,
                };
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            _ => {
                let half = match value {
                    Staged::Float(value) if self.offset_first => {
                        self.affine(f64::from((value + self.offset as f32) * self.scale as f32))
                    }
                    Staged::Table(value) if self.offset_first => {
                        self.affine(value.saturating_add(self.offset).saturating_mul(self.scale) as f64)
                    }
                    Staged::Float(value) => self.narrow(value),
                    Staged::Table(value) => f16::from_f64(value as f64),
                };
                bytes.copy_from_slice(&half.to_le_bytes());
            }
        }
    }

    /// To nearest even; what lies beyond the range of fp16 becomes infinity, or its largest number.
    fn narrow(self, value: f32) -> f16 {
        let half = f16::from_f32(value);
        if self.silicon.fp16_overflow == Overflow::Clamp && half.is_infinite() && value.is_finite() {
            return if value > 0.0 { f16::MAX } else { f16::MIN };
        }
        half
    }

    /// The affine form (NS-5): `scaled`, which is `(value + offset) * scale`, becomes fp16 first, then MINUS_EXP is
    /// subtracted from the exponent field modulo 32. A zero therefore decodes to 2^(17 - MINUS_EXP).
    fn affine(self, scaled: f64) -> f16 {
        let half = f16::from_f64(scaled);
        if self.minus_exp == 0 {
            return half;
        }
        let exponent = u32::from(half.to_bits() >> 10) & 31;
        if scaled != 0.0 && exponent <= self.minus_exp {
            // The field would underflow: no test separates the outcomes but the wrap, which is excluded (NS-8).
            let power = (-f64::from(self.minus_exp)).exp2();
            return f16::from_f64(scaled * power);
        }
        if scaled == 0.0 && self.silicon.affine_zero == AffineZero::Zero {
            return f16::ZERO;
        }
        let field = exponent.wrapping_sub(self.minus_exp) & 31;
        f16::from_bits(half.to_bits() & !(31 << 10) | (field << 10) as u16)
    }

    /// The same, storing zeros.
    pub(crate) fn zero(self) -> Self {
        Self { scale: 0, offset: 0, ..self }
    }

    /// Float data that go out as integers as they are.
    pub(crate) fn is_plain(self) -> bool {
        self.scale == 1 && self.shift == 0 && self.offset == 0 && !self.to_fp16 && !self.offset_first
    }

    /// An int32 that goes out as it is.
    pub(crate) fn is_identity(self) -> bool {
        self.out == Precision::Int32 && self.scale == 1 && self.shift == 0 && self.offset == 0
    }

    /// An int32 that saturates to int16 and is changed by nothing else.
    pub(crate) fn saturates_to_16_bits(self) -> bool {
        self.out == Precision::Int16 && self.scale == 1 && self.shift == 0 && self.offset == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(offset: i64, minus_exp: u32) -> Converter {
        Converter {
            out: Precision::Fp16,
            scale: 1,
            shift: 0,
            offset,
            half_up: false,
            offset_first: true,
            to_fp16: true,
            minus_exp,
            silicon: Silicon::default(),
        }
    }

    fn stored(offset: i64, minus_exp: u32, value: Staged) -> f32 {
        let mut bytes = [0; 2];
        of(offset, minus_exp).store_float(value, &mut bytes);
        f16::from_le_bytes(bytes).to_f32()
    }

    #[test]
    fn what_only_saturates_is_known() {
        let unit = Converter { to_fp16: false, ..of(0, 0) };
        for out in [Precision::Int8, Precision::Int32, Precision::Fp16] {
            assert!(!Converter { out, ..unit }.saturates_to_16_bits(), "{out}");
        }
        for flags in 0..8 {
            let converter = Converter {
                out: Precision::Int16,
                offset_first: flags & 1 != 0,
                half_up: flags & 2 != 0,
                minus_exp: flags & 4,
                ..unit
            };
            assert!(converter.saturates_to_16_bits());
            for value in [i32::MIN, -32_769, -32_768, -1, 0, 32_767, 32_768, i32::MAX].map(i64::from) {
                assert_eq!(converter.int(value), value.clamp(i16::MIN.into(), i16::MAX.into()));
            }
        }
        for other in [Converter { scale: 2, ..unit }, Converter { shift: 1, ..unit }, of(1, 0)] {
            assert!(!Converter { out: Precision::Int16, ..other }.saturates_to_16_bits());
        }
    }

    #[test]
    fn zero_decodes_to_a_power_of_two() {
        // isa-notes NS-5: five published magnitudes.
        for (minus_exp, value) in [(15, 4.0), (14, 8.0), (13, 16.0), (11, 64.0), (10, 128.0)] {
            assert_eq!(stored(-7, minus_exp, Staged::Table(7)), value);
            assert_eq!(stored(-7, minus_exp, Staged::Float(7.0)), value);
        }
    }

    #[test]
    fn other_results_are_scaled_by_the_power() {
        assert_eq!(stored(0, 15, Staged::Table(16384)), 0.5);
        assert_eq!(stored(-16384, 14, Staged::Table(0)), -1.0);
        assert_eq!(stored(1, 15, Staged::Table(0)), 2f32.powi(-15), "subnormal");
        assert_eq!(stored(3, 2, Staged::Float(-1.5)), 0.375);
    }
}
