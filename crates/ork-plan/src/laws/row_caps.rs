// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measured row caps of int8 schedule 1.

use ork_isa::Precision;

use super::{Bound, Confidence, Law, require};
use crate::schedule;

const NAME: &str = "row-caps";

/// (K, most rows of a task that came out right; one row more was wrong).
pub const MEASURED: [(u32, u32); 7] =
    [(512, 704), (1024, 320), (1536, 192), (2048, 128), (3072, 64), (3584, 64), (4096, 64)];

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "an int8 task split as schedule 1 splits it has no more rows than the cap measured for its K",
    source: "isa.md §10.4: 704 rows at K = 512, 320 at 1024, 192 at 1536, 128 at 2048, 64 at 3072, 3584 and 4096",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, soc| {
        let Some(cap) = cap(g.k).filter(|_| g.format.input() == Precision::Int8) else {
            return Ok(());
        };
        if g.split != schedule::schedule_1(g.format, g.k, g.rows, soc).split {
            return Ok(());
        }
        require(NAME, "rows", g.rows.into(), Bound::AtMost(cap.into()))
    },
};

/// The cap at this K, where one was measured.
#[must_use]
pub fn cap(k: u32) -> Option<u32> {
    MEASURED.iter().find(|(depth, _)| *depth == k).map(|(_, rows)| *rows)
}
