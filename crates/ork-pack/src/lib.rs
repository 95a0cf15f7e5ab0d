// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files of the quantiser.
//!
//! - [`PackWriter`] writes a `.orkpack`: weights quantised and tiled for one SoC, ready to be mapped. It can be killed
//!   at any time and continues; a half-written file never loads.
//! - [`Pack`] maps one. It refuses, naming both sides, what belongs to another version, SoC, layout or model.
//! - [`verify`], [`info`], [`diff`] and [`census`] answer questions about packs as data; nothing here prints.
//! - [`tile_w8a8`], [`tile_i4a8`] and [`tile_codes`] turn rows of weights into the bytes of a tensor.
//! - [`save_statistics`] and [`StatisticsFile`] keep calibration between runs, and say which text it read; [`Imatrix`] reads what llama.cpp's tool
//!   wrote.
//!
//! The bytes are drawn in docs/reference/orkpack.md.
//!
//! Hashes are BLAKE3: one function serves as checksum, as identity of a model and as name of a plan, it finds deliberate
//! changes as well as damage, and it runs at several GB/s. The header is JSON: self-describing, stable, and readable
//! with the tools that everyone has.

mod calibration;
mod census;
mod container;
mod diff;
mod error;
mod hash;
mod header;
mod imatrix;
mod info;
mod journal;
mod reader;
mod rows;
mod source;
mod statistics;
mod tile;
mod verify;
mod writer;

pub use calibration::Calibration;
pub use census::{Discrepancy, census};
pub use container::{PAGE, Section, Version};
pub use diff::{Difference, diff};
pub use error::PackError;
pub use hash::Hash;
pub use header::{LAYOUT, PackPlan, Request, Target, TensorEntry, TensorLayout};
pub use imatrix::{Imatrix, ImatrixEntry, ImatrixError};
pub use info::{Info, SchemeTotal, info};
pub use reader::{Expected, Pack, Tensor, VERSION};
pub use rows::stored_rows;
pub use source::{SourceId, SourceSample};
pub use statistics::{CalibrationRun, STATISTICS_VERSION, StatisticsFile, save_statistics};
pub use tile::{
    TileError, TiledWeight, tile_codes, tile_grouped, tile_groups, tile_i4a8, tile_stored_codes, tile_w8a8,
};
pub use verify::{Damage, Verification, verify};
pub use writer::{NewTensor, PackWriter, PackWritten, WriteOptions};
