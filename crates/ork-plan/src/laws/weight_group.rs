// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Geometry, Law, require};

const NAME: &str = "weight-group";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "one kernel group fits the weight banks; the groups of a task stream through them one by one",
    source: "isa.md §10.2 and §13 row 2: fp16 hangs; int8 was measured at K = 1536 with W = 1 only, every element wrong",
    confidence: Confidence::Assumed,
    check: |g, soc| {
        let room = u64::from(g.split.weight) * u64::from(soc.bank_bytes);
        require(NAME, "bytes of one kernel group", group_bytes(g), Bound::AtMost(room))
    },
};

/// Bytes of the weights of one kernel group.
fn group_bytes(g: &Geometry) -> u64 {
    u64::from(g.k) * u64::from(g.format.kernel_group() * g.format.input_bytes())
}
