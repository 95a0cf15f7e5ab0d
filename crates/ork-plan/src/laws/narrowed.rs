// SPDX-License-Identifier: MIT OR Apache-2.0
//! fp16 results.

use ork_isa::Precision;

use super::{Bound, Confidence, Law, require};

const NAME: &str = "narrowed";
const ROWS_MAX: u64 = 64;

/// Deepest K that the original gives one slice.
pub const DEPTH_MAX: u32 = 1024;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "a task with fp16 results has at most 64 rows and sees all of K",
    source: "isa-int4-sdp.md §4.4: 512 of 512 results right with M up to 64 and one K slice. Results of K slices must not be \
             added: each is rounded to 11 bits",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| {
        if g.format.output() != Precision::Fp16 {
            return Ok(());
        }
        require(NAME, "K slices", g.k_slices.into(), Bound::Exactly(1))?;
        require(NAME, "rows", g.rows.into(), Bound::AtMost(ROWS_MAX))
    },
};
