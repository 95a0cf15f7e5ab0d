// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fold's tiles.

use super::{Bound, Confidence, Law, require};
use crate::form::Form;

const NAME: &str = "fold";

/// Rows that a tile may have, largest first.
pub const TILES: [u32; 14] = [36, 32, 28, 24, 20, 16, 14, 12, 10, 8, 6, 4, 2, 1];
/// Most rows of all tiles together.
pub const ROWS_MAX: u32 = 128;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "a fold tile has 1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32 or 36 rows; all tiles together at most 128",
    source: "isa.md §11: the sizes of the vendor's prefill tiles, 119 thousand of them decoded; measured batches have at \
             most 128 rows, at K = 3584",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| {
        let Form::Fold { surface_rows } = g.form else { return Ok(()) };
        require(NAME, "rows of all tiles", surface_rows.into(), Bound::AtMost(ROWS_MAX.into()))?;
        require(NAME, "rows of all tiles", surface_rows.into(), Bound::AtLeast(g.rows.into()))?;
        // The next smaller size, for the message.
        let size = TILES.iter().copied().find(|size| *size <= g.rows).unwrap_or(1);
        require(NAME, "rows of a tile", g.rows.into(), Bound::Exactly(size.into()))
    },
};
