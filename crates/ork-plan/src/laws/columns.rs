// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, COLUMNS, Confidence, Law, require};

pub(super) const NAME: &str = "columns";
const COLUMNS_MAX: u64 = 8192;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "a task has at most 8192 columns",
    source: "isa.md §3 and §13 row 6: N = 8192 works, N = 16384 is silently wrong; the DPU channel field has 13 bits",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| require(NAME, COLUMNS, g.n.into(), Bound::AtMost(COLUMNS_MAX)),
};
