// SPDX-License-Identifier: MIT OR Apache-2.0
//! Columns of an int4 batch.

use super::{Bound, COLUMNS, Confidence, Geometry, Law, require};
use crate::form::Form;

pub(super) const NAME: &str = "int4-columns";

/// Weights of a program, in elements.
const ELEMENTS: u32 = 131_072;
const BLOCK: u32 = 64;
/// The one wider point that was measured with its cores: K, feature banks, columns, cores.
const WIDE: (u32, u32, u32, u8) = (2048, 2, 320, 3);

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "an int4 batch has at most max(64, 131072 / K rounded down to 64) columns; at K = 2048 with two feature banks \
                and exactly three cores, 320",
    source: "isa-int4-sdp.md §1.6: the shipped width, and the point that is right on three cores and degenerates on one, so \
             that no rule keyed on K alone is sound; the boundary is that of stale weights in the buffer",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| {
        if g.form != Form::Int4Batch {
            return Ok(());
        }
        require(NAME, COLUMNS, g.n.into(), Bound::AtMost(widest(g).into()))
    },
};

fn widest(g: &Geometry) -> u32 {
    let (k, banks, columns, cores) = WIDE;
    if (g.k, g.split.data, g.cores) == (k, banks, cores) { columns } else { batch_columns(g.k) }
}

/// Wb(K), good for any number of cores.
#[must_use]
pub const fn batch_columns(k: u32) -> u32 {
    let columns = match ELEMENTS.checked_div(k) {
        Some(columns) => columns / BLOCK * BLOCK,
        None => BLOCK,
    };
    if columns < BLOCK { BLOCK } else { columns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_widths() {
        let widths = [256, 512, 768, 1024, 1536, 2048, 8192].map(batch_columns);
        assert_eq!(widths, [512, 256, 128, 128, 64, 64, 64]);
    }
}
