// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

/// The code of the `*_PRECISION` fields (TRM; `isa.md` §3).
///
/// CNA and CORE take the operand precisions (`Int32` and `Fp32` mean nothing there), the DPU output takes the
/// result precisions (`Int4` and `Tf32` mean nothing there).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Precision {
    /// 8-bit signed integer.
    Int8 = 0,
    /// 16-bit signed integer.
    Int16 = 1,
    /// IEEE half float.
    Fp16 = 2,
    /// bfloat16.
    Bf16 = 3,
    /// 32-bit signed integer.
    Int32 = 4,
    /// IEEE single float.
    Fp32 = 5,
    /// 4-bit signed integer.
    Int4 = 6,
    /// TensorFloat-32: stored as 32 bits, multiplied with a 10-bit mantissa.
    Tf32 = 7,
}

impl Precision {
    /// All precisions, in the order of their codes.
    pub const ALL: [Self; 8] =
        [Self::Int8, Self::Int16, Self::Fp16, Self::Bf16, Self::Int32, Self::Fp32, Self::Int4, Self::Tf32];

    /// The field value.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The precision with this field value; every 3-bit value has one.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        if code < 8 { Some(Self::ALL[code as usize]) } else { None }
    }

    /// Storage size of one element in bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Int4 => 4,
            Self::Int8 => 8,
            Self::Int16 | Self::Fp16 | Self::Bf16 => 16,
            Self::Int32 | Self::Fp32 | Self::Tf32 => 32,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Int32 => "int32",
            Self::Fp32 => "fp32",
            Self::Int4 => "int4",
            Self::Tf32 => "tf32",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for precision in Precision::ALL {
            assert_eq!(Precision::from_code(precision.code()), Some(precision));
        }
        assert_eq!(Precision::from_code(8), None);
    }
}
