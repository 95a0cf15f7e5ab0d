// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::Precision;

use super::{Bound, COLUMNS, Confidence, Law, require};
use crate::form::Form;

pub(super) const NAME: &str = "int4-cube";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "the dense int4 form has at most 256 rows and 256 columns and reduces at most 3840 channels",
    source: "isa-notes M-11 and NS-19, isa-int4-sdp.md §1.8b: tiles up to 256 x 1536 x 256 and 64 x 3840 x 64; not shown under \
             the vendor's kernel driver",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| {
        if !(g.format.input() == Precision::Int4 && matches!(g.form, Form::Cube { .. })) {
            return Ok(());
        }
        require(NAME, "rows", g.rows.into(), Bound::AtMost(256))?;
        require(NAME, COLUMNS, g.n.into(), Bound::AtMost(256))?;
        require(NAME, "channels", g.k.into(), Bound::AtMost(3840))
    },
};
