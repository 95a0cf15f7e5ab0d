// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::soc::Soc;
use ork_layout::Format;

use super::{Bound, Confidence, Law, require};

const NAME: &str = "feature-capacity";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "all rows of a task fit the feature banks, each row rounded up to 64 bytes",
    source: "isa.md §10.2: measured for rows that are multiples of 64 bytes; the rounding is inferred (notes G-9a) \
             and fits all 21 failing int8 points",
    confidence: Confidence::Assumed,
    check: |g, soc| {
        let banks = feature_banks(g.format, g.k, g.rows, soc);
        require(NAME, "feature banks needed", banks, Bound::AtMost(g.split.data.into()))
    },
};

/// Feature banks that `rows` rows of `k` channels occupy.
#[must_use]
pub fn feature_banks(format: Format, k: u32, rows: u32, soc: &Soc) -> u64 {
    let line = u64::from(k) * u64::from(format.input_bytes());
    let bytes = u128::from(line.next_multiple_of(soc.line_granule_bytes.into())) * u128::from(rows);
    u64::try_from(bytes.div_ceil(soc.bank_bytes.into())).unwrap_or(u64::MAX)
}
