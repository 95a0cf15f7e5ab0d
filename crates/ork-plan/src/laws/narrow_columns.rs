// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Law, require};

const NAME: &str = "narrow-columns";
const GROUPS_FAILING: u32 = 2;
/// Fewest float columns that are safe with one weight bank.
const FLOAT_COLUMNS: u64 = 64;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "where one weight bank holds exactly one kernel group (K = 1024), a task has more than two kernel groups; a \
                float task with one weight bank has at least 64 columns at any K",
    source: "isa.md §10.4, §10.5 and §13 row 3: fp16 hangs at N = 16 and 32 and is to be treated as unsafe below 64; for \
             int8 the absence of caps above 320 rows at N = 64 is read the same way",
    confidence: Confidence::Assumed,
    check: |g, soc| {
        let what = "columns with one weight bank";
        if g.split.weight != 1 {
            return Ok(());
        }
        if g.format.is_float() {
            return require(NAME, what, g.n.into(), Bound::AtLeast(FLOAT_COLUMNS));
        }
        if g.group_bytes() != u64::from(soc.bank_bytes) {
            return Ok(());
        }
        let fewest = u64::from((GROUPS_FAILING + 1) * g.format.kernel_group());
        require(NAME, what, g.n.into(), Bound::AtLeast(fewest))
    },
};
