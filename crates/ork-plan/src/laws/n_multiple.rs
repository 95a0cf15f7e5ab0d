// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Law, require};

const NAME: &str = "n-multiple";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "N and the row stride of C are multiples of the kernel group; shorter N is padded with zeros",
    source: "isa.md §3 and §5.3: the output is written kernel group by kernel group",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| {
        let group = Bound::MultipleOf(g.format.kernel_group().into());
        require(NAME, "columns", g.n.into(), group)?;
        require(NAME, "row stride of C", g.row_stride.into(), group)
    },
};
