// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Law, require};

const NAME: &str = "weight-group";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "one kernel group fits the weight banks; the groups of a task stream through them one by one",
    source: "isa.md §10.2 and §13 row 2: fp16 hangs; int8 was measured at K = 1536 with W = 1 only, every element wrong",
    confidence: Confidence::Assumed,
    check: |g, soc| {
        let room = u64::from(g.split.weight) * u64::from(soc.bank_bytes);
        require(NAME, "bytes of one kernel group", g.group_bytes(), Bound::AtMost(room))
    },
};
