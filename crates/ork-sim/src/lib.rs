// SPDX-License-Identifier: MIT OR Apache-2.0
//! One RK3588 NPU core, at register level: words and memory in, memory and an outcome out.
//!
//! The model implements *mechanism*: how addresses follow from registers, what the convolution buffer holds,
//! how sums are rounded. It knows nothing of tilings, layouts or packers, so that a planner's laws can be
//! tested against it. What it does not model ends a job as [`JobEnd::Unmodelled`]; it never guesses.
//!
//! - [`Bus`] is the memory behind the IOMMU. The model never keeps a [`Span`] across a [`Bus::write`], so a bus
//!   may guard its buffers with locks; it does hold several spans at once.
//! - [`Core`] persists between jobs: register groups, convolution buffer, lookup tables.
//! - A hang is a value ([`JobEnd::Hang`]): the host thread is never blocked.
#![forbid(unsafe_code)]

mod alu;
mod bus;
mod cbuf;
mod cbuf_rules;
mod cna;
mod cna_dma;
mod cna_packed;
mod conv;
mod converter;
mod core;
mod diagnosis;
mod dpu;
mod dpu_checks;
mod dpu_rdma;
mod element;
mod hazards;
mod job;
mod options;
mod pc;
mod ppu;
mod regs;
mod sdp_lut;
mod stages;
mod timing;
mod wdma;

pub use bus::{Access, Bus, BusFault, Span};
pub use diagnosis::{Category, Diagnosis, Effect, Event, Origin, RegisterValue};
pub use job::{JobEnd, JobOutcome, JobStats, PcJob, TaskTrace};
pub use options::{
    AffineZero, Between, BnShift, FeatureGrains, Int4Saturation, Int16Output, LongRows, LutBelow, LutIndex,
    LutRace, LutSelect, Order, Overflow, PointerScope, PrecisionMixing, ResetStages, Silicon, SimOptions,
    StageShift, StageWidth, WideConverter,
};
pub use ork_mac::FloatSums;
pub use pc::Core;
