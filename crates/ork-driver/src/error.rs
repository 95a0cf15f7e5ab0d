// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_device::{DeviceError, Finding, SubmitError};
use ork_isa::Precision;
use ork_layout::{Format, LayoutError};
use ork_plan::{Datapath, Decline};
use ork_quant::QuantError;
use ork_synth::SynthError;

use crate::transitions::NoWay;

/// A weight could not be held, or a product not computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// No plan exists; the caller keeps the product for itself.
    #[error("{0}")]
    Declined(Decline),
    /// The weight has no layout.
    #[error("weight {name}")]
    Layout {
        /// The weight.
        name: String,
        /// Why.
        source: LayoutError,
    },
    /// A weight contains something that cannot be quantised.
    #[error("weight {name} cannot be quantised")]
    Weight {
        /// The weight.
        name: String,
        /// Which element.
        source: QuantError,
    },
    /// An activation contains something that cannot be quantised.
    #[error("the input of {name} cannot be quantised")]
    Activation {
        /// The weight that it was to be multiplied with.
        name: String,
        /// Which element.
        source: QuantError,
    },
    /// Device memory for a weight could not be had.
    #[error("cannot hold weight {name} ({k} x {n}, {bytes} bytes packed)")]
    Hold {
        /// The weight.
        name: String,
        /// Its rows' length.
        k: usize,
        /// Its rows.
        n: usize,
        /// Packed size.
        bytes: u64,
        /// Why.
        source: DeviceError,
    },
    /// A buffer operation of a product failed.
    #[error("matmul {m}x{k}x{n} with {name}: {doing}")]
    Buffer {
        /// The weight.
        name: String,
        /// Rows.
        m: usize,
        /// Channels.
        k: usize,
        /// Columns.
        n: usize,
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: DeviceError,
    },
    /// The programs could not be written: a defect of the planner or the emitter.
    #[error("matmul with {name}: no program (this is a defect of ork)")]
    Synth {
        /// The weight.
        name: String,
        /// What does not fit.
        source: SynthError,
    },
    /// The device did not complete the work. No result was read.
    #[error("matmul {m}x{k}x{n} with {name}")]
    Submit {
        /// The weight.
        name: String,
        /// Rows.
        m: usize,
        /// Channels.
        k: usize,
        /// Columns.
        n: usize,
        /// What happened.
        source: Box<SubmitError>,
    },
    /// The check on the CPU says that the result is not the product of the operands.
    #[error("matmul {m}x{k}x{n} with {name}: row {row} is wrong, computed {attempt} times")]
    WrongProduct {
        /// The weight.
        name: String,
        /// Rows.
        m: usize,
        /// Channels.
        k: usize,
        /// Columns.
        n: usize,
        /// The first row that is wrong.
        row: usize,
        /// How often it was computed.
        attempt: u32,
    },
    /// The simulated NPU completed the work but says that silicon would have got it wrong: a defect of the planner.
    #[error("matmul {m}x{k}x{n} with {name}: the simulator objects (this is a defect of ork): {finding}")]
    Objection {
        /// The weight.
        name: String,
        /// Rows.
        m: usize,
        /// Channels.
        k: usize,
        /// Columns.
        n: usize,
        /// The first objection.
        finding: Box<Finding>,
    },
    /// A slice of the caller does not have the size of the product.
    #[error("{what} has {found} elements, the product needs {needed}")]
    Shape {
        /// Which slice.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that it must have.
        needed: usize,
    },
    /// The sum of a product may not fit the 32 bits that were asked for.
    #[error("k = {k} can overflow a 32-bit sum of int8 products (131071 is the most)")]
    WideSum {
        /// Channels.
        k: usize,
    },
    /// Elements of one precision for a weight of another.
    #[error("weight {name} is for {format}, and was given {found} elements")]
    Precision {
        /// The weight.
        name: String,
        /// What the weight is for.
        format: Format,
        /// What came.
        found: Precision,
    },
    /// A weight of one format where one of another is needed.
    #[error("weight {name} is for {format}, and this product needs one for {needed}")]
    Format {
        /// The weight.
        name: String,
        /// What the weight is for.
        format: Format,
        /// What the call needs.
        needed: Format,
    },
    /// The NPU could not be reset, which a change of the datapath needs.
    #[error("changing the NPU to {datapath} programs")]
    Datapath {
        /// The datapath to be entered.
        datapath: Datapath,
        /// Why it failed.
        source: DeviceError,
    },
    /// The NPU was reset under every submit of a pass, and the first results behind a reset may be stale.
    #[error("matmul with {name}: the NPU was reset under each of {submits} submits of {datapath} programs")]
    ResetAgain {
        /// The weight.
        name: String,
        /// The datapath of the programs.
        datapath: Datapath,
        /// How often they were submitted.
        submits: u32,
    },
    /// The sums of an int16 product may not fit the 32 bits of the int16 datapath.
    #[error(
        "int16 sums of {k} products of up to {largest} can leave the 32 bits in which the int16 datapath saturates"
    )]
    Int16Sum {
        /// Channels.
        k: usize,
        /// The largest magnitude of a product.
        largest: u64,
    },
    /// Tiles that lay ready do not fit together.
    #[error("weight {name}: its tiles do not fit together: {what}")]
    Tiles {
        /// The weight.
        name: String,
        /// What does not fit.
        what: String,
    },
    /// A product that is to be written once does not fit one pass.
    #[error(
        "a product of {passes} passes cannot be kept as programs: its buffers would be larger than they may"
    )]
    NotOnePass {
        /// Passes that it needs.
        passes: u32,
    },
    /// A weight or a buffer does not fit programs that are there.
    #[error("{name} does not fit the programs: {what}")]
    Misfit {
        /// The weight.
        name: String,
        /// What does not fit.
        what: String,
    },
    /// Two operations of a queue must not follow each other.
    #[error(transparent)]
    NoWay(NoWay),
    /// A buffer operation of several products in one chain failed.
    #[error("products in one chain: {doing}")]
    Batch {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: DeviceError,
    },
    /// The device did not complete several products in one chain. No result was read.
    #[error("{operations} products in one chain")]
    BatchSubmit {
        /// How many.
        operations: usize,
        /// What happened.
        source: Box<SubmitError>,
    },
    /// The device cannot hold weights as the options ask for.
    #[error("option driver.residency cannot be met")]
    Residency {
        /// Why.
        source: DeviceError,
    },
    /// The worker threads could not be started.
    #[error("cannot start a thread for each NPU core: {0}")]
    Threads(String),
}

impl DriverError {
    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Hold { source, .. } => Some(format!(
                "keep some weights on the CPU (offload.exclude) or use a smaller model{}",
                source.hint().map(|hint| format!("; {hint}")).unwrap_or_default()
            )),
            Self::Int16Sum { .. } => {
                Some("ask for the int16 product through bytes, which is exact".to_owned())
            }
            Self::Buffer { source, .. } | Self::Datapath { source, .. } => source.hint().map(str::to_owned),
            Self::Submit { source, .. } | Self::BatchSubmit { source, .. } => {
                source.hint().map(str::to_owned)
            }
            Self::Objection { .. } | Self::Synth { .. } => Some(
                "please report it with the shape; `offload.route = \"cpu\"` avoids the NPU meanwhile"
                    .to_owned(),
            ),
            Self::WrongProduct { .. } => Some(
                "the weight in device memory may be damaged: load it again; if it comes back, the board is not reliable"
                    .to_owned(),
            ),
            Self::ResetAgain { .. } => Some(
                "jobs do not end in time, or their interrupts get lost: raise device.timeout_ms, or restart the board"
                    .to_owned(),
            ),
            Self::Tiles { .. } => Some("pack the model again".to_owned()),
            Self::Weight { .. } => Some("the model file is damaged or holds NaN weights".to_owned()),
            _ => None,
        }
    }
}
