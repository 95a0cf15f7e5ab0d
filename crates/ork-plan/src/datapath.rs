// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modes of the NPU that programs leave behind, and what it takes to change between them.

use std::fmt;

use ork_isa::Precision;
use ork_layout::Format;
use serde::Serialize;

use crate::cost::{self, Modelled};

/// A mode of the datapath. Programs of different modes must not follow each other without care: on a model of mixed
/// precision the perplexity went from 10 to 3.4 million (`isa.md` §13 row 23, measured elsewhere).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Datapath {
    /// int8 operands.
    Int8,
    /// int4 operands: the chain mode.
    Int4,
    /// fp16, bf16 and tf32 operands.
    Float,
    /// int16 operands. Nobody mixed them with others; treated like floats.
    Int16,
}

/// What must happen before programs of a mode run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transition {
    /// Nothing.
    Free,
    /// The first pass runs twice, and its first results are discarded: a cold float pipeline.
    Rewarm,
    /// A soft reset of the NPU, which stops the jobs of all its users.
    Reset,
}

/// Where the NPU's datapath stands, as far as its only user can know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatapathState {
    mode: Option<Datapath>,
    /// int4 ran since the last reset.
    int4_behind: bool,
    /// Floats ran since the last reset.
    float_warm: bool,
    /// A job failed, and the kernel may have reset the NPU since.
    maybe_reset: bool,
}

impl Datapath {
    /// The mode in which programs of this format run.
    #[must_use]
    pub const fn of(format: Format) -> Self {
        match format.input() {
            Precision::Int4 => Self::Int4,
            Precision::Int8 => Self::Int8,
            Precision::Int16 | Precision::Int32 => Self::Int16,
            Precision::Fp16 | Precision::Bf16 | Precision::Fp32 | Precision::Tf32 => Self::Float,
        }
    }
}

impl Transition {
    /// What it costs on silicon; the extra pass of [`Transition::Rewarm`] is not counted here.
    #[must_use]
    pub const fn modelled(self) -> Modelled {
        match self {
            Self::Free | Self::Rewarm => Modelled::from_us(0.0),
            Self::Reset => cost::reset(),
        }
    }
}

impl DatapathState {
    /// A device about which nothing is known.
    #[must_use]
    pub const fn unknown() -> Self {
        Self { mode: None, int4_behind: false, float_warm: false, maybe_reset: false }
    }

    /// The mode of the last programs.
    #[must_use]
    pub const fn mode(&self) -> Option<Datapath> {
        self.mode
    }

    /// What it takes to run programs of `next` now (`isa-int4-sdp.md` §1.11 and §6.3, measured elsewhere): a reset on
    /// every entry into the int4 mode, and before int8 if int4 ran since the last reset, whatever ran between; floats
    /// never need one, but two passes when they are cold; int8 and fp16 keep each other warm.
    #[must_use]
    pub fn transition(&self, next: Datapath) -> Transition {
        match next {
            Datapath::Int4 if self.mode != Some(Datapath::Int4) => Transition::Reset,
            Datapath::Int8 if self.int4_behind => Transition::Reset,
            Datapath::Float if !self.float_warm => Transition::Rewarm,
            _ => Transition::Free,
        }
    }

    /// What is known after a job or a reset failed: the kernel may have reset the NPU or not, so nothing is warm, and what
    /// int4 left may still be there.
    #[must_use]
    pub const fn after_failure(self) -> Self {
        Self { mode: None, float_warm: false, maybe_reset: true, ..self }
    }

    /// Whether the first programs of `next` may be those of the fold: behind a reset they hang (`isa.md` §13 row 24,
    /// measured elsewhere), so something else runs first.
    #[must_use]
    pub fn may_fold(&self, next: Datapath) -> bool {
        !self.maybe_reset && self.transition(next) != Transition::Reset
    }

    /// Notes that the transition was carried out and programs of `next` are about to run.
    pub fn enter(&mut self, next: Datapath) {
        let kept = self.transition(next) != Transition::Reset;
        *self = Self {
            mode: Some(next),
            int4_behind: next == Datapath::Int4 || (self.int4_behind && kept),
            float_warm: next == Datapath::Float || (self.float_warm && kept),
            maybe_reset: false,
        };
    }
}

impl fmt::Display for Datapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Float => "float",
            Self::Int16 => "int16",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The transitions of a run through these modes.
    fn through(modes: &[Datapath]) -> Vec<Transition> {
        let mut state = DatapathState::unknown();
        let mut step = |mode: &Datapath| {
            let transition = state.transition(*mode);
            state.enter(*mode);
            transition
        };
        modes.iter().map(&mut step).collect()
    }

    #[test]
    fn int4_and_int8_are_kept_apart_by_resets() {
        use Datapath::{Float, Int4, Int8, Int16};
        use Transition::{Free, Reset, Rewarm};
        assert_eq!(through(&[Int8, Int8, Float, Int8, Float]), [Free, Free, Rewarm, Free, Free]);
        assert_eq!(through(&[Int4, Int4, Int8, Int8, Int4]), [Reset, Free, Reset, Free, Reset]);
        // fp16 between does not clean the int4 away, and a reset leaves it cold.
        assert_eq!(through(&[Int4, Float, Int8, Float, Int4]), [Reset, Rewarm, Reset, Rewarm, Reset]);
        assert_eq!(through(&[Int4, Int16, Int8, Int16]), [Reset, Free, Reset, Free]);
        assert_eq!(Reset.modelled().us, 105_000.0);
    }

    #[test]
    fn a_failure_forgets_what_is_warm_and_not_what_is_dirty() {
        let mut state = DatapathState::unknown();
        state.enter(Datapath::Float);
        assert_eq!(state.after_failure().transition(Datapath::Float), Transition::Rewarm);
        assert_eq!(state.after_failure().transition(Datapath::Int8), Transition::Free);
        state.enter(Datapath::Int4);
        assert_eq!(state.after_failure().transition(Datapath::Int8), Transition::Reset);
        assert_eq!(state.after_failure().transition(Datapath::Int4), Transition::Reset);
    }

    #[test]
    fn nothing_folds_right_behind_a_reset() {
        let mut state = DatapathState::unknown();
        assert!(state.may_fold(Datapath::Int8));
        state.enter(Datapath::Int4);
        assert!(!state.may_fold(Datapath::Int8));
        state.enter(Datapath::Int8);
        assert!(state.may_fold(Datapath::Int8));
        state = state.after_failure();
        assert!(!state.may_fold(Datapath::Int8));
        state.enter(Datapath::Int8);
        assert!(state.may_fold(Datapath::Int8));
    }
}
