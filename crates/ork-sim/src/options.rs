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
    /// Whether FEATURE_GRAINS changes results.
    pub feature_grains: FeatureGrains,
    /// What int16 sums leave in memory.
    pub int16_output: Int16Output,
    /// Element-wise passes of more rows than all sources call safe.
    pub long_rows: LongRows,
    /// The index of a table in float mode.
    pub lut_index: LutIndex,
    /// Which table an index reads.
    pub lut_select: LutSelect,
    /// What a pass reads of a table that an earlier task of an alternating chain loads.
    pub lut_race: LutRace,
    /// Rounding of the shift of BN.
    pub bn_shift: BnShift,
    /// Width of integer data between the output stages.
    pub stage_width: StageWidth,
    /// int4 tasks before or after tasks of another precision, without a reset.
    pub precision_mixing: PrecisionMixing,
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
    /// For which blocks the DPU's S_POINTER turns ping-pong on (`isa.md` §2.6, NS-32).
    PointerScope {
        /// CNA and CORE as well, where the driver has not done so.
        DpuCoversAll,
        /// The DPU only.
        OwnBlock
    }
    /// Whether FEATURE_GRAINS changes results (`isa.md` §10.8).
    FeatureGrains {
        /// Neither results nor speed: measured.
        Neutral,
        /// fp16 results are wrong below 80, says one generator's author.
        Fp16NeedsEighty
    }
    /// What int16 sums leave in memory as int32 (`isa-notes.md` M-22, `isa-int4-sdp.md` §2.1).
    Int16Output {
        /// The write law of all precisions; a recorded program needs it.
        Laws,
        /// Row 0, channels 0 to 15, whatever the sizes say.
        OneTile
    }
    /// Element-wise passes of more than 8176 rows (`isa-notes.md` M-10).
    LongRows {
        /// They never complete.
        Hang,
        /// fp16 is exact up to 8188 and at 8190, and 54 positions are wrong at 8189 and above 8190; int8 and int16
        /// never complete.
        Fp16Frays
    }
    /// The index of a table in float mode (NS-1).
    LutIndex {
        /// Rounded to an integer before the table is read.
        Rounded,
        /// A real number; only the value is rounded.
        Real
    }
    /// Which table an index reads (NS-3, `isa-notes.md` G-6).
    LutSelect {
        /// The sign of the index decides.
        IndexSign,
        /// The sign of what comes into BN decides.
        InputSign
    }
    /// What a pass reads of a table that an earlier task of an alternating chain loads (`isa.md` §13 row 30).
    LutRace {
        /// The new table.
        NewTable,
        /// The table that was there before the job.
        OldTable
    }
    /// Rounding of the shift of BN (`isa-int4-sdp.md` §3.8).
    BnShift {
        /// The table index relies on it.
        Floor,
        /// As the other stages.
        HalfEven,
        /// What NVDLA's truncators do.
        HalfAway
    }
    /// Width of integer data between the output stages (`isa-int4-sdp.md` §3.4, §3.8).
    StageWidth {
        /// 64 bits, no saturation.
        Wide,
        /// 32 bits behind each of BS, OW, BN and EW, with saturation, as in NVDLA.
        Saturate32
    }
    /// int4 tasks before or after tasks of another precision (`isa.md` §13 row 23, `isa-int4-sdp.md` §1.11, §6.3).
    PrecisionMixing {
        /// Nothing: daily use of small models shows no damage.
        Harmless,
        /// Between int4 and anything else a reset must lie, or the values are wrong.
        Int4NeedsReset
    }
}

impl BnShift {
    pub(crate) fn apply(self, value: i64, shift: u32) -> i64 {
        let rounding = match self {
            Self::Floor => StageShift::Floor,
            Self::HalfEven => StageShift::HalfEven,
            Self::HalfAway => StageShift::HalfAway,
        };
        rounding.apply(value, shift)
    }
}

impl StageWidth {
    pub(crate) fn apply(self, value: i64) -> i64 {
        match self {
            Self::Wide => value,
            Self::Saturate32 => value.clamp(i64::from(i32::MIN), i64::from(i32::MAX)),
        }
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
