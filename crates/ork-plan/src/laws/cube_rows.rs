// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Law, require};
use crate::form::Form;

const NAME: &str = "cube-rows";
const STEP: u64 = 4;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "in cube form a tile and a surface have one row, or a multiple of four",
    source: "isa.md §3 and §6: recipe 1 was run with M = 1 and multiples of 4; by the address law (§5.1) others would do",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| {
        let Form::Cube { surface_rows } = g.form else { return Ok(()) };
        let step = |what, rows: u32| match rows {
            1 => Ok(()),
            rows => require(NAME, what, rows.into(), Bound::MultipleOf(STEP)),
        };
        step("rows", g.rows)?;
        step("rows of a surface", surface_rows)?;
        require(NAME, "rows of a surface", surface_rows.into(), Bound::AtLeast(g.rows.into()))
    },
};
