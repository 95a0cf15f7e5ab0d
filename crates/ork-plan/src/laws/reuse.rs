// SPDX-License-Identifier: MIT OR Apache-2.0
//! A task that takes an operand from the convolution buffer as the task before left it.

use ork_isa::soc::Soc;

use super::{Bound, Geometry, Violation, require};

/// Name of the law of `WEIGHT_REUSE`.
pub const WEIGHTS: &str = "weight-reuse";
/// Name of the law of `DATA_REUSE`.
pub const FEATURES: &str = "data-reuse";

/// A task and where its operands lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The task.
    pub geometry: Geometry,
    /// Where its features begin.
    pub a_offset: u64,
    /// Where its weights begin.
    pub b_offset: u64,
}

/// May `task` take its weights from the buffer? All of them fit the weight banks, the task before on this core had the
/// same weights, and the same split. Source: `isa.md` §10.6, measured elsewhere: exact if and only if.
///
/// # Errors
/// The violation.
pub fn check_weights(before: &Placed, task: &Placed, soc: &Soc) -> Result<(), Violation> {
    let (old, new) = (&before.geometry, &task.geometry);
    let room = u64::from(new.split.weight) * u64::from(soc.bank_bytes);
    require(WEIGHTS, "bytes of the weights", new.weight_bytes(), Bound::AtMost(room))?;
    let same = (before.b_offset, old.format, old.k, old.n) == (task.b_offset, new.format, new.k, new.n);
    require(WEIGHTS, "operands that differ from the task before", u64::from(!same), Bound::Exactly(0))?;
    require(WEIGHTS, "feature banks", new.split.data.into(), Bound::Exactly(old.split.data.into()))?;
    require(WEIGHTS, "weight banks", new.split.weight.into(), Bound::Exactly(old.split.weight.into()))
}

/// May `task` take its features from the buffer? The task before on this core had the same features and the same
/// split. Source: `isa.md` §10.7, measured elsewhere: bit-exact then, nearly all results wrong otherwise.
///
/// # Errors
/// The violation.
pub fn check_features(before: &Placed, task: &Placed) -> Result<(), Violation> {
    let (old, new) = (&before.geometry, &task.geometry);
    let of =
        |placed: &Placed| (placed.a_offset, placed.geometry.form, placed.geometry.rows, placed.geometry.k);
    let same = of(before) == of(task) && old.format == new.format;
    require(FEATURES, "operands that differ from the task before", u64::from(!same), Bound::Exactly(0))?;
    require(FEATURES, "feature banks", new.split.data.into(), Bound::Exactly(old.split.data.into()))?;
    require(FEATURES, "weight banks", new.split.weight.into(), Bound::Exactly(old.split.weight.into()))
}
