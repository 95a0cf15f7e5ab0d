// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_mac::FloatSums;
use serde::{Deserialize, Serialize};

use crate::core::round_shift;

/// How the model runs, and which silicon it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimOptions {
    /// Run the plain loops, which are the definition of the model, instead of the fast kernels.
    pub reference_kernels: bool,
    /// Host threads of the MAC kernels, shared by all cores of the process; 0 takes the available parallelism.
    pub threads: usize,
    /// In which precision the MAC array adds up fp16, bf16 and tf32 products. `exact` is the default: it does not
    /// depend on an order of summation, which is not known for silicon, and meets every recorded tolerance with room;
    /// `fast` is about twice as quick where rows are many.
    pub float_sums: FloatSums,
    /// End a job at the first finding, as [`Unmodelled`](crate::JobEnd::Unmodelled), even where silicon would complete
    /// with wrong results.
    pub strict: bool,
    /// What sources disagree about.
    pub silicon: Silicon,
}

/// Points where sources disagree or are silent (`isa-int4-sdp.md` §3.8, `isa-notes.md` M). The defaults follow
/// the rule "measured or recorded beats inferred, newer beats older".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Silicon {
    /// Where int4 sums saturate to 16 bits.
    pub int4_saturation: Int4Saturation,
    /// Rounding of the output converter for 32-bit outputs.
    pub wide_converter: WideConverter,
    /// Rounding of the shifts of BS, the EW operand and the EW result.
    pub stage_shift: StageShift,
    /// Values between two table entries.
    pub lut_between: Between,
    /// Values below the first table entry.
    pub lut_below: LutBelow,
    /// What a zero becomes in the affine output converter.
    pub affine_zero: AffineZero,
    /// Order of the operands of subtraction and division.
    pub sub_order: Order,
    /// What BS, BN and EW do before a program configures them.
    pub reset_stages: ResetStages,
    /// fp16 results beyond the largest number.
    pub fp16_overflow: Overflow,
    /// Which blocks the DPU's S_POINTER turns.
    pub pointer_scope: PointerScope,
}

macro_rules! variants {
    ($( $(#[$doc:meta])* $name:ident { $(#[$first_doc:meta])* $first:ident $(, $(#[$other_doc:meta])* $other:ident)* } )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name {
            $(#[$first_doc])*
            #[default]
            $first,
            $( $(#[$other_doc])* $other, )*
        }
    )* };
}

variants! {
    /// Where int4 sums saturate (`isa-int4-sdp.md` §1.1).
    Int4Saturation {
        /// Once, when they are stored.
        AtWriteBack,
        /// After every pass of 128 channels.
        EveryPass
    }
    /// Rounding of the output converter for 32-bit outputs.
    WideConverter {
        /// Measured by the notes (`isa-notes.md` D.6).
        Floor,
        /// The manual's rule for all outputs.
        HalfEven
    }
    /// Rounding of the stage shifts.
    StageShift {
        /// The manual's rule.
        HalfEven,
        /// Arithmetic shift.
        Floor,
        /// What NVDLA's truncators do.
        HalfAway
    }
    /// Values between two table entries (NS-2).
    Between {
        /// Linear, floored.
        Floor,
        /// Linear, to nearest.
        HalfUp,
        /// No interpolation.
        NearestEntry
    }
    /// Values below the first table entry (NS-4).
    LutBelow {
        /// The slope goes on but not below 0 when the first entry is not negative.
        NotNegative,
        /// The slope goes on.
        Plain
    }
    /// What a zero becomes in the affine converter (NS-5).
    AffineZero {
        /// 2^(17 - MINUS_EXP).
        ExponentWraps,
        /// 0.
        Zero
    }
    /// Order of the operands of subtraction and division in EW.
    Order {
        /// Main minus operand (recorded `where`).
        MainFirst,
        /// Operand minus main (one note).
        Reversed
    }
    /// BS, BN and EW after reset.
    ResetStages {
        /// Bypassed, as recorded short programs need.
        PassThrough,
        /// All registers 0, as the manual says.
        Zero
    }
    /// fp16 results beyond 65504.
    Overflow {
        /// Infinity.
        Infinity,
        /// 65504.
        Clamp
    }
    /// Which blocks the DPU's S_POINTER turns (`isa.md` §2.6, NS-32).
    PointerScope {
        /// CNA and CORE as well.
        DpuCoversAll,
        /// The DPU only.
        OwnBlock
    }
}

impl StageShift {
    pub(crate) fn apply(self, value: i64, shift: u32) -> i64 {
        match self {
            Self::HalfEven => round_shift(value, shift, false),
            Self::Floor => value >> shift.min(63),
            Self::HalfAway if value < 0 => -round_shift(value.saturating_neg(), shift, true),
            Self::HalfAway => round_shift(value, shift, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_shifts() {
        let all = |value| {
            [StageShift::HalfEven, StageShift::Floor, StageShift::HalfAway].map(|s| s.apply(value, 1))
        };
        assert_eq!(all(3), [2, 1, 2]);
        assert_eq!(all(1), [0, 0, 1]);
        assert_eq!(all(-1), [0, -1, -1]);
        assert_eq!(all(-3), [-2, -2, -2]);
    }
}
