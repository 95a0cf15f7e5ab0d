// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Law, require};

const NAME: &str = "narrow-columns";
const GROUPS_FAILING: u32 = 2;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "where one weight bank holds exactly one kernel group (K = 1024), a task has more than two kernel groups",
    source: "isa.md §10.4, §10.5 and §13 row 3: fp16 hangs at N = 16 and 32; for int8 the absence of caps above 320 \
             rows at N = 64 is read the same way",
    confidence: Confidence::Assumed,
    check: |g, soc| {
        let group = u64::from(g.k) * u64::from(g.format.kernel_group() * g.format.input_bytes());
        if g.split.weight != 1 || group != u64::from(soc.bank_bytes) {
            return Ok(());
        }
        let fewest = u64::from((GROUPS_FAILING + 1) * g.format.kernel_group());
        require(NAME, "columns with one weight bank", g.n.into(), Bound::AtLeast(fewest))
    },
};
