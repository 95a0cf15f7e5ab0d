// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Law, require};

const NAME: &str = "float-envelope";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "fp16: the feature banks and those weight banks that the weights of the task fill are together at most all \
                banks of the buffer (12)",
    source: "isa.md §10.5: with dreq <= D (feature-capacity) it separates 126 swept cells. Schedule 1 gives 12 at every K \
             but 128, where the law has holes: 64 rows of 2048 columns are wrong and 128 rows are right. bf16 and tf32 \
             as fp16",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, soc| {
        if !g.format.is_float() {
            return Ok(());
        }
        let filled = g.weight_bytes().div_ceil(soc.bank_bytes.into()).min(g.split.weight.into());
        let banks = u64::from(g.split.data) + filled;
        require(NAME, "feature banks and filled weight banks", banks, Bound::AtMost(soc.cbuf_banks.into()))
    },
};
