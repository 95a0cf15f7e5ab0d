// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a matmul to the list of programs that compute it, or to the law that forbids it.
//!
//! - [`laws`]: what the hardware completes correctly, one predicate per file, with its source;
//! - [`schedule`]: how the convolution buffer is split for a tile;
//! - [`rules`]: the table of tiling ideas. Rules hold no limits; whatever they propose goes through the laws;
//! - [`cost`]: modelled time, which chooses between legal proposals;
//! - [`decide`]: problem to [`Plan`] or [`Decline`]; [`explain`] says why.
//!
//! A plan holds no address and no byte of data. It is worth printing, caching and arguing about.
//! Equal inputs give equal plans.
#![forbid(unsafe_code)]

pub mod cost;
mod decide;
mod display;
mod explain;
pub mod laws;
mod plan;
mod problem;
pub mod rules;
pub mod schedule;
mod tiling;

pub use cost::Modelled;
pub use decide::{Decision, Decline, Reason, decide};
pub use explain::{Explanation, Note, Outcome, Scope, explain};
pub use laws::{BankSplit, Geometry, Violation};
pub use plan::{Chain, Extents, PROGRAM_BODY_WORDS, PROGRAM_PITCH_BYTES, Pass, PassShape, Plan, TileProgram};
pub use problem::{PlanOptions, Problem, weight_layout, weight_layout_with};
