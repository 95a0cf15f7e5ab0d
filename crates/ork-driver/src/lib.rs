// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matrix products on the NPU: weights that stay, activations that come and go.
//!
//! A [`Weight`] is quantised to int8 per output channel, tiled once and kept in device memory. A product quantises
//! its activation rows straight into the feature buffer, takes its plan, writes the register programs, submits one
//! chain per core, and turns the int32 surfaces into f32 rows in one pass:
//!
//! ```text
//! f32 rows ─ ork-quant ─▶ i8 rows ─ ork-layout ─▶ feature buffer ─ flush ─▶ ┐
//!                        ork-plan ─▶ ork-synth ─▶ programs ─ flush ─▶ submit ┤ NPU
//! f32 rows ◀─ scales ◀─ sum of K slices ◀─ ork-layout ◀─ output ◀─ invalidate ┘
//! ```
//!
//! Weights also come with their tiles ready ([`Driver::load_tiles`]): int8, int4 stored and inflated to int8, or native int4,
//! each in a basis that activations are brought into first.
//!
//! [`Driver::product`] multiplies operands as they are, in every precision of [`Product`](ork_plan::Product); the int8
//! product underneath [`Driver::matmul`] is one of them.
//!
//! Nothing is computed some other way: a shape that cannot be computed is declined by [`Driver::check`] with the law
//! that forbids it, and whatever fails later is an error.
#![forbid(unsafe_code)]

mod accumulate;
mod check;
mod codes;
mod counters;
mod datapath;
mod driver;
mod error;
mod estimate;
mod execution;
mod fault_run;
mod fault_tally;
mod matmul;
mod memory_run;
mod order;
mod precompiled;
mod product;
mod queue;
mod residency;
mod scratch;
mod share;
mod tiles;
mod timeline;
mod transitions;
mod weight;
mod work;

pub use check::VerifyMode;
pub use counters::DriverCounters;
pub use driver::{Driver, DriverOptions, MatmulGroup, SOC};
pub use error::DriverError;
pub use estimate::ModelledProduct;
pub use execution::CompletionMode;
pub use fault_run::{DeadCores, FaultRun, FaultRunError, Length, fault_run};
pub use fault_tally::{FaultTally, is_accounted_for};
pub use memory_run::{MemoryTally, memory_run};
pub use precompiled::{InPlace, Precompiled};
pub use product::{Operands, Requantise, Values};
pub use queue::{OpId, Queue, QueueReport};
pub use residency::{ResidencyCounters, ResidencyOptions, StreamBacking, StreamMode, TilePlace};
pub use tiles::{FileRange, TileBytes, Tiles};
pub use timeline::{Listener, Phase, Span};
pub use transitions::{Join, Known, NoWay, Operation, Pair, join, known};
pub use weight::{Weight, check_shape};
pub use work::Work;
