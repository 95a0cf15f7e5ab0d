// SPDX-License-Identifier: MIT OR Apache-2.0
//! int8 results.

use ork_isa::Precision;

use super::{Bound, COLUMNS, Confidence, Law, require};

pub(super) const NAME: &str = "requantised";

/// Shortest K that was exact; shorter ones are padded with zeros, which is exact too.
pub const DEPTH_MIN: u32 = 512;
/// Deepest K that was exact.
pub const DEPTH_MAX: u32 = 4096;
const COLUMNS_MAX: u64 = 4096;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "a task with int8 results sees all of a K of 512 to 4096 channels, and has at most 4096 columns",
    source: "isa.md §7.3 and isa-int4-sdp.md §4.1: bit-exact for M = 1 and 32, K = 512 to 4096, N up to 4096; smaller K \
             miscompute in the original's schedules. Results of K slices cannot be added: each is rounded and clamped",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| {
        if g.format.output() != Precision::Int8 {
            return Ok(());
        }
        require(NAME, "K slices", g.k_slices.into(), Bound::Exactly(1))?;
        require(NAME, "channels", g.k.into(), Bound::AtLeast(DEPTH_MIN.into()))?;
        require(NAME, "channels", g.k.into(), Bound::AtMost(DEPTH_MAX.into()))?;
        require(NAME, COLUMNS, g.n.into(), Bound::AtMost(COLUMNS_MAX))
    },
};
