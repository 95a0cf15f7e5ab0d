// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the hardware completes correctly.
//!
//! A law is a predicate over one typed geometry, never a maximum: whoever needs the largest legal tile asks for
//! each size. Encodable range and completable range are different laws. Where a source only measured some points,
//! the law says so and speaks of those points only.
//!
//! | Law | File | Speaks of |
//! |---|---|---|
//! | `non-empty` | `non_empty.rs` | zero rows, channels or columns |
//! | `form` | `form.rs` | which precision was run in which form of program |
//! | `k-multiple` | `k_multiple.rs` | K and the channel block |
//! | `n-multiple` | `n_multiple.rs` | N and the kernel group |
//! | `columns` | `columns.rs` | N of one task |
//! | `encodable` | `encodable.rs` | every register field that the geometry enters |
//! | `depth` | `depth.rs` | K of one task |
//! | `slice-depth` | `slice_depth.rs` | K of one slice of several |
//! | `requantised` | `requantised.rs` | int8 results: K, N and slices |
//! | `narrowed` | `narrowed.rs` | fp16 results: rows and slices |
//! | `bank-sum` | `bank_sum.rs` | the split of the convolution buffer |
//! | `float-envelope` | `float_envelope.rs` | the same for floats: a predicate with a hole at K = 128 |
//! | `weight-group` | `weight_group.rs` | one kernel group and the weight banks |
//! | `feature-capacity` | `feature_capacity.rs` | the rows and the feature banks |
//! | `float-depth` | `float_depth.rs` | floats: K with more than one feature bank |
//! | `narrow-columns` | `narrow_columns.rs` | few kernel groups in one exactly filled bank |
//! | `row-caps` | `row_caps.rs` | the measured row caps of schedule 1 |
//! | `cube-rows` | `cube_rows.rs` | rows of a tile in cube form |
//! | `fold` | `fold.rs` | the fold's tiles |
//! | `int4-rows` | `int4_rows.rs` | rows of an int4 batch, H(K) |
//! | `int4-columns` | `int4_columns.rs` | columns of an int4 batch, by K and cores |
//! | `int4-cube` | `int4_cube.rs` | the dense int4 form |
//! | `weight-reuse`, `data-reuse` | `reuse.rs` | a task and the one before it |
//! | `chain-length` | `chain_length.rs` | tasks of one chain |
//! | `address-window` | `address_window.rs` | bytes of one buffer |

use std::fmt;

use ork_isa::soc::Soc;
use ork_layout::Format;
use serde::{Serialize, Serializer};

use crate::form::Form;

pub mod address_window;
mod bank_sum;
pub mod chain_length;
mod columns;
mod cube_rows;
mod depth;
mod encodable;
mod feature_capacity;
mod float_depth;
mod float_envelope;
pub mod fold;
mod form;
pub mod int4_columns;
mod int4_cube;
pub mod int4_rows;
mod k_multiple;
mod n_multiple;
mod narrow_columns;
pub mod narrowed;
mod non_empty;
pub mod requantised;
pub mod reuse;
pub mod row_caps;
mod slice_depth;
mod weight_group;

pub use feature_capacity::feature_banks;
pub(crate) use non_empty::no_rows;

/// Whether narrower column segments could satisfy this law.
pub(crate) fn about_columns(violation: &Violation) -> bool {
    violation.what == COLUMNS
        && [columns::NAME, int4_columns::NAME, int4_cube::NAME, requantised::NAME].contains(&violation.law)
}

/// What [`about_columns`] looks for.
const COLUMNS: &str = "columns";

/// How the banks of the convolution buffer are divided: D feature banks and W weight banks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct BankSplit {
    /// Feature banks (D).
    pub data: u32,
    /// Weight banks (W).
    pub weight: u32,
}

impl fmt::Display for BankSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "D{} W{}", self.data, self.weight)
    }
}

/// Everything of one matmul task that a law may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Precisions.
    pub format: Format,
    /// Kind of program.
    pub form: Form,
    /// Rows of `A` in the task.
    pub rows: u32,
    /// Channels of the task.
    pub k: u32,
    /// Columns of the task.
    pub n: u32,
    /// Distance of the rows of `C`, in elements.
    pub row_stride: u32,
    /// Split of the convolution buffer.
    pub split: BankSplit,
    /// `FEATURE_GRAINS`.
    pub grains: u32,
    /// K slices of the matmul that the task belongs to; 1 means that the task sees all of K.
    pub k_slices: u32,
    /// Cores that compute at the same time.
    pub cores: u8,
}

impl Geometry {
    /// Bytes of one row of features.
    #[must_use]
    pub fn line_bytes(&self) -> u64 {
        self.format.input_bytes(self.k.into())
    }

    /// Bytes of the weights of one kernel group.
    #[must_use]
    pub fn group_bytes(&self) -> u64 {
        self.format.input_bytes(u64::from(self.k) * u64::from(self.format.kernel_group()))
    }

    /// Bytes of all weights.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.format.input_bytes(u64::from(self.k).saturating_mul(self.n.into()))
    }
}

/// How far a law is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Confidence {
    /// Follows from the width of a register field or from the size of a unit.
    Encoding,
    /// Somebody ran it on silicon and wrote the result down.
    MeasuredElsewhere,
    /// Inferred from measured points; a probe on silicon would settle it.
    Assumed,
}

/// One predicate over the geometry of a task.
#[derive(Clone, Copy)]
pub struct Law {
    /// Name, as printed in declines.
    pub name: &'static str,
    /// The law in one sentence.
    pub statement: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// How far it is to be trusted.
    pub confidence: Confidence,
    /// The predicate.
    pub check: fn(&Geometry, &Soc) -> Result<(), Violation>,
}

impl fmt::Debug for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Law({})", self.name)
    }
}

/// What a law asks of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// At most so many.
    AtMost(u64),
    /// At least so many.
    AtLeast(u64),
    /// Exactly so many.
    Exactly(u64),
    /// A multiple of this.
    MultipleOf(u64),
    /// Anything but this.
    NotEqual(u64),
}

/// A law that a proposal breaks, with the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, Serialize)]
#[error("{law}: {what} is {found}, and must be {bound}")]
pub struct Violation {
    /// Name of the law.
    pub law: &'static str,
    /// The quantity.
    pub what: &'static str,
    /// Its value.
    pub found: u64,
    /// What the law asks of it.
    pub bound: Bound,
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "at most {limit}"),
            Self::AtLeast(limit) => write!(f, "at least {limit}"),
            Self::Exactly(value) => write!(f, "{value}"),
            Self::MultipleOf(value) => write!(f, "a multiple of {value}"),
            Self::NotEqual(value) => write!(f, "anything but {value}"),
        }
    }
}

/// `Ok` when `found` is as `bound` asks.
fn require(law: &'static str, what: &'static str, found: u64, bound: Bound) -> Result<(), Violation> {
    let holds = match bound {
        Bound::AtMost(limit) => found <= limit,
        Bound::AtLeast(limit) => found >= limit,
        Bound::Exactly(value) => found == value,
        Bound::MultipleOf(value) => found.is_multiple_of(value),
        Bound::NotEqual(value) => found != value,
    };
    if holds { Ok(()) } else { Err(Violation { law, what, found, bound }) }
}

/// Every law over one task, cheap and fundamental ones first.
pub const TASK_LAWS: &[Law] = &[
    non_empty::LAW,
    form::LAW,
    k_multiple::LAW,
    n_multiple::LAW,
    columns::LAW,
    encodable::LAW,
    depth::LAW,
    slice_depth::LAW,
    requantised::LAW,
    narrowed::LAW,
    bank_sum::LAW,
    float_envelope::LAW,
    weight_group::LAW,
    feature_capacity::LAW,
    float_depth::LAW,
    narrow_columns::LAW,
    row_caps::LAW,
    cube_rows::LAW,
    fold::LAW,
    int4_rows::LAW,
    int4_columns::LAW,
    int4_cube::LAW,
];

/// Checks a task against every law.
///
/// # Errors
/// The first law that it breaks, in the order of [`TASK_LAWS`].
pub fn check(geometry: &Geometry, soc: &Soc) -> Result<(), Violation> {
    TASK_LAWS.iter().try_for_each(|law| (law.check)(geometry, soc))
}

/// Every law that a task breaks.
#[must_use]
pub fn violations(geometry: &Geometry, soc: &Soc) -> Vec<Violation> {
    TASK_LAWS.iter().filter_map(|law| (law.check)(geometry, soc).err()).collect()
}
