// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::soc::Soc;
use ork_layout::Format;

use super::{Bound, Confidence, Law, require};
use crate::form::Form;

const NAME: &str = "feature-capacity";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "all lines of a task fit the feature banks, each line rounded up to 64 bytes; a line is a row, or all rows of \
                a fold tile. int4 batches have a table instead",
    source: "isa.md §10.2: measured for rows that are multiples of 64 bytes; the rounding is inferred (notes G-9a) \
             and fits all 21 failing int8 points",
    confidence: Confidence::Assumed,
    check: |g, soc| {
        if g.form == Form::Int4Batch {
            return Ok(());
        }
        let banks = feature_banks(g.format, g.form, g.k, g.rows, soc);
        require(NAME, "feature banks needed", banks, Bound::AtMost(g.split.data.into()))
    },
};

/// Feature banks that a tile of `rows` rows of `k` channels occupies.
#[must_use]
pub fn feature_banks(format: Format, form: Form, k: u32, rows: u32, soc: &Soc) -> u64 {
    let (height, width) = form.height_and_width(rows);
    let line = u128::from(format.input_bytes(k.into())) * u128::from(width);
    let bytes = line.next_multiple_of(soc.line_granule_bytes.into()) * u128::from(height);
    u64::try_from(bytes.div_ceil(soc.bank_bytes.into())).unwrap_or(u64::MAX)
}
