// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a matmul to the list of programs that compute it, or to the law that forbids it.
//!
//! - [`laws`]: what the hardware completes correctly, one predicate per file, with its source;
//! - [`schedule`]: how the convolution buffer is split for a tile;
//! - [`Form`]: the kinds of program, and how operands lie for each;
//! - [`rules`]: the table of tiling ideas. Rules hold no limits; whatever they propose goes through the laws;
//! - [`cost`]: modelled time, which chooses between legal proposals;
//! - [`decide`]: problem to [`Plan`] or [`Decline`]; [`explain`] says why;
//! - [`Product`]: what a caller can ask for, and how it is brought down to one such problem and work for the host;
//! - [`Datapath`]: the mode that a plan's programs run in, and what changing it takes.
//!
//! A plan holds no address and no byte of data. It is worth printing, caching and arguing about.
//! Equal inputs give equal plans.
#![forbid(unsafe_code)]

mod admission;
pub mod cost;
mod datapath;
mod decide;
mod display;
mod explain;
mod form;
pub mod laws;
mod plan;
mod problem;
mod product;
mod rule;
pub mod rules;
pub mod schedule;
mod tiling;
mod timeline;

pub use admission::{Refusal, admit};
pub use cost::Modelled;
pub use datapath::{Datapath, DatapathState, Transition};
pub use decide::{Decision, Decline, Reason, decide};
pub use explain::{Explanation, Note, Outcome, ProductExplanation, Scope, explain, explain_product};
pub use form::{Form, LINES_PER_INT4_ROW, Reuse};
pub use laws::{BankSplit, Geometry, Violation};
pub use plan::{
    Chain, Extents, PROGRAM_BODY_WORDS, Pass, PassShape, Plan, TileProgram, program_fetch_words,
    program_pitch_bytes,
};
pub use problem::{PlanOptions, Problem, weight_layout, weight_layout_with};
pub use product::{HostWork, Lowered, Product, UnknownProduct};
pub use timeline::{ChainTime, TaskTime};
