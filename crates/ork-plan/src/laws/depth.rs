// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::Precision;

use super::{Bound, Confidence, Geometry, Law, require};
use crate::form::Form;

const NAME: &str = "depth";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "a task reduces at most 4096 int8 channels with many rows, and 10752 with one; 8192 of fp16, bf16 and \
                int16, and 10752 with one row; 10752 of int4; 8192 of tf32; 3584 in the fold",
    source: "isa.md §10.3, §10.4 and §11: int8 full K was run up to 4096 with many rows, up to 10752 with one, and in the \
             fold at 3584; §10.2: fp16 to 8192; isa-int4-sdp.md §1.2 for int4; isa-notes C.2 for tf32; bf16 and int16 \
             as fp16",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| require(NAME, "channels", g.k.into(), Bound::AtMost(deepest(g))),
};

fn deepest(g: &Geometry) -> u64 {
    const ONE_ROW: u64 = 10_752;
    match g.format.input() {
        _ if matches!(g.form, Form::Fold { .. }) => 3584,
        Precision::Int4 => 10_752,
        Precision::Tf32 => 8192,
        _ if g.rows == 1 => ONE_ROW,
        Precision::Int8 => 4096,
        _ => 8192,
    }
}
