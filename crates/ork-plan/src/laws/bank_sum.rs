// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Law, require};

const NAME: &str = "bank-sum";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "feature and weight banks are each at least 1, and together all banks of the buffer (12); for floats, see \
                float-envelope",
    source: "isa.md §10.2 and §13 rows 1 and 5: true of every correct integer program; W = 0 hangs, sums above 12 are \
             wrong",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, soc| {
        require(NAME, "feature banks", g.split.data.into(), Bound::AtLeast(1))?;
        require(NAME, "weight banks", g.split.weight.into(), Bound::AtLeast(1))?;
        if g.format.is_float() {
            return Ok(());
        }
        let sum = u64::from(g.split.data) + u64::from(g.split.weight);
        require(NAME, "feature and weight banks", sum, Bound::Exactly(soc.cbuf_banks.into()))
    },
};
