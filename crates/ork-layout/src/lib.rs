// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where every byte of a matmul operand lies in host memory.
//!
//! `A` is M x K (features), `B` is K x N (weights), `C` is M x N.
//!
//! - [`Format`]: operand and result precision, and the tile shape that follows from it;
//! - [`WeightLayout`]: `B`, cut into K slices, each slice tiled by kernel groups and channel blocks;
//! - [`FeatureLayout`]: `A`, inside each K slice row-major, spaced or as a cube;
//! - [`OutputLayout`]: `C` as the NPU leaves it, one surface for each column segment and K slice: row-major, a cube, or
//!   the blocks of int4 batches;
//! - [`Element`]: an operand or a result as the host holds it, nibbles included.
//!
//! A layout is a value: equal inputs give equal bytes, and it never looks at memory. Packers take the
//! destination as an argument. Nothing here knows an address, a register or a hardware limit.
#![forbid(unsafe_code)]

mod atoms;
mod element;
mod feature;
mod format;
mod output;
mod weight;

pub use element::{Element, Int4, stored_bytes};
pub use feature::{FeatureForm, FeatureLayout, FeaturePiece, FeatureSlice};
pub use format::{Format, UnsupportedFormat};
pub use output::{ColumnSegment, OutputForm, OutputLayout, OutputPiece};
pub use weight::{KSlice, KernelGroupMut, LayoutError, WeightLayout};
