// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::Precision;

use super::{Bound, Confidence, Law, require};

const NAME: &str = "depth";
const ONE_ROW_MAX: u64 = 10_752;
const ROWS_MAX: u64 = 4096;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "an int8 task reduces at most 4096 channels, or 10752 when it has one row",
    source: "isa.md §10.3 and §10.4: full K was run up to 4096 with many rows and up to 10752 with one; nothing \
             deeper was measured for int8",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| match g.format.input() {
        Precision::Int8 if g.rows == 1 => require(NAME, "channels", g.k.into(), Bound::AtMost(ONE_ROW_MAX)),
        Precision::Int8 => require(NAME, "channels", g.k.into(), Bound::AtMost(ROWS_MAX)),
        _ => Ok(()),
    },
};
