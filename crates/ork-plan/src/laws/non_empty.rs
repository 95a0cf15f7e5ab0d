// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Law, Violation, require};

const NAME: &str = "non-empty";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "a task has at least one row, one channel and one column",
    source: "isa.md §3: the size fields of CORE and DPU hold the size minus 1",
    confidence: Confidence::Encoding,
    check: |g, _| {
        require(NAME, "rows", g.rows.into(), Bound::AtLeast(1))?;
        require(NAME, "channels", g.k.into(), Bound::AtLeast(1))?;
        require(NAME, "columns", g.n.into(), Bound::AtLeast(1))?;
        require(NAME, "row stride of C", g.row_stride.into(), Bound::AtLeast(g.n.into()))
    },
};

/// The violation of a matmul without rows.
pub(crate) fn no_rows() -> Violation {
    Violation { law: NAME, what: "rows", found: 0, bound: Bound::AtLeast(1) }
}
