// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_timing::FeatureOrder;
use serde::Serialize;

/// Which kind of program computes a tile, and so how its operands lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Form {
    /// Recipe 2 (`isa.md` §7): row-major operands, rows on the height axis.
    Rows,
    /// Recipe 1 (`isa.md` §6): operands as cubes, rows on the height axis.
    Cube {
        /// Rows of a surface of both cubes.
        surface_rows: u32,
    },
    /// The fold (`isa.md` §11): operands as cubes, rows on the width axis.
    Fold {
        /// Rows of a surface of both cubes.
        surface_rows: u32,
    },
    /// Several int4 rows (`isa-int4-sdp.md` §1.5): four register lines for each row, of which one counts.
    Int4Batch,
    /// One int4 row (`isa-int4-sdp.md` §1.4).
    Int4Row,
}

/// Register lines of an int4 batch for each of its rows.
pub const LINES_PER_INT4_ROW: u32 = 4;

impl Form {
    /// Input lines and pixels per line of a tile with so many rows, as the registers have them.
    #[must_use]
    pub const fn height_and_width(self, rows: u32) -> (u32, u32) {
        match self {
            Self::Rows | Self::Cube { .. } | Self::Int4Row => (rows, 1),
            Self::Int4Batch => (rows.saturating_mul(LINES_PER_INT4_ROW), 1),
            Self::Fold { .. } => (1, rows),
        }
    }

    /// How well the features feed the MAC array.
    #[must_use]
    pub const fn order(self) -> FeatureOrder {
        match self {
            Self::Cube { .. } | Self::Fold { .. } => FeatureOrder::Cube,
            Self::Rows | Self::Int4Batch | Self::Int4Row => FeatureOrder::RowMajor,
        }
    }

    /// Rows of a surface, for the forms that have surfaces of rows.
    #[must_use]
    pub const fn surface_rows(self) -> Option<u32> {
        match self {
            Self::Cube { surface_rows } | Self::Fold { surface_rows } => Some(surface_rows),
            Self::Rows | Self::Int4Batch | Self::Int4Row => None,
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows => f.write_str("rows"),
            Self::Cube { surface_rows } => write!(f, "cube of {surface_rows} rows"),
            Self::Fold { surface_rows } => write!(f, "fold of {surface_rows} rows"),
            Self::Int4Batch => f.write_str("int4 batches"),
            Self::Int4Row => f.write_str("int4 rows"),
        }
    }
}

/// What a program takes from the convolution buffer as the program before left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Reuse {
    /// Nothing: both operands are loaded.
    #[default]
    Nothing,
    /// The weights: `WEIGHT_REUSE` (`isa.md` §10.6).
    Weights,
    /// The features: `DATA_REUSE` (`isa.md` §10.7).
    Features,
}
