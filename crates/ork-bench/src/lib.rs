// SPDX-License-Identifier: MIT OR Apache-2.0
//! How speeds are compared so that people can trust the numbers (docs/benchmarks.md).
//!
//! - [`Schedule`]: in which order the arms of a benchmark run. Each arm runs as two twins that differ in nothing.
//! - [`Null`]: what the twins differ by, and so what a difference must exceed; [`Comparison`]: the verdict.
//! - [`BoardState`]: clocks, governors and temperatures from sysfs, and what is wrong with them.
//! - [`Placement`]: the fast CPUs.
//! - [`Report`]: all of it, in formats that programs read.
//! - [`published`]: speeds that others measured.
//!
//! Nothing here runs a model.
#![forbid(unsafe_code)]

mod board;
mod compare;
mod formats;
mod placement;
pub mod published;
mod report;
mod schedule;
mod statistics;
mod sysfs;

pub use board::{BoardState, Clock, ClockKind, Objection, Temperature, Units};
pub use compare::{Comparison, Verdict};
pub use formats::{FormatError, TABLE, csv, json, jsonl, sql};
pub use placement::{Placement, PlacementBasis, PlacementError};
pub use report::{
    Against, AgainstError, Host, NpuPart, Provenance, ReadError, Report, Row, SCHEMA, SCHEMA_VERSION, Test,
    TestKind,
};
pub use schedule::{Schedule, Slot, Twin};
pub use statistics::{Null, Spread, median};
pub use sysfs::Sysfs;
