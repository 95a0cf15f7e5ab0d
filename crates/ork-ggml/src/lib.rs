// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ggml backend: llama.cpp's graphs on an [`Accelerator`].
//!
//! # How work gets here
//! 1. [`OrkBackend::new`] builds the tables ggml calls; someone registers them (`ork-engine`, or a plug-in).
//! 2. While a model loads, ggml asks whether the accelerator can multiply by each weight (`claim`); if so the weight
//!    is written into a buffer type of ours, and packed there (`buffer`): from the model's bytes, or from the tiles of a
//!    pack ([`OrkBackend::set_pack`]), in which case the model's bytes are not looked at.
//! 3. For each graph ggml asks again, per matmul, and hands over the claimed ones (`graph`).
//!
//! The device is of kind ACCEL with its *own* buffer type, which precedes the CPU's repacking types in ggml's list;
//! with the plain CPU type it would lose every quantised weight that the CPU can repack. Activations, however, must
//! stay in CPU buffers, and ggml puts them where the stream's device says: so streams name an unregistered *twin*
//! device, equal but for its buffer type.
//!
//! # What is guaranteed
//! Nothing is computed silently in another way: a declined matmul is counted with its reason, a failed one fails the
//! graph and leaves an error for [`OrkBackend::take_error`]. No panic crosses into ggml.

pub mod abi;
mod accelerator;
mod backend;
mod buffer;
mod census;
mod claim;
mod cost;
mod decline;
mod device;
mod error;
mod experts;
mod graph;
mod host;
mod mapping;
mod memory;
mod node;
mod npu;
mod operands;
mod options;
mod pack;
mod routing;
mod skew;
mod software;
mod survey;
mod swiglu;
mod weight;

pub use accelerator::{
    AccelError, AccelErrorKind, AccelMemory, Accelerator, CodeRows, LoadedWeight, ModelledTime, WeightRows,
};
pub use backend::{OrkBackend, PackFinder};
pub use census::{
    ClaimCensus, DeclineCount, Executed, ExpertUse, Holding, PackUse, Planning, SwigluUse, WeightUse,
};
pub use cost::{CPU_TABLE, CpuConstant};
pub use decline::{Decline, DeclineReason};
pub use error::{BackendError, InitError};
pub use host::Host;
pub use node::GraphHost;
pub use npu::NpuAccelerator;
pub use options::{
    Attention, BackendOptions, ExpertCache, ExpertCodes, ExpertOptions, ForeignWeights, MinRows, Route,
    Swiglu,
};
pub use pack::{Absent, ModelPack, PackChoice, PackMiss, PackUseError};
pub use routing::{Place, RouteKey, RouteUse, RowClass, Why};
pub use skew::{ExpertSkew, LayerSkew, SkewError};
pub use survey::{ClaimedWeight, Survey};
