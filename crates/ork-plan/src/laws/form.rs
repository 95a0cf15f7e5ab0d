// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::Precision;

use super::{Bound, Confidence, Geometry, Law, require};
use crate::form::Form;

const NAME: &str = "form";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "a precision runs in the forms of program that somebody ran with it: rows for int8, fp16 and int16, the \
                cube for all but int8 and int16 results, the fold for int8 with int32 results, batches and rows of its \
                own for int4",
    source: "isa.md §6, §7 and §11; isa-int4-sdp.md §1.4, §1.8b and §2.1; isa-notes NS-17 to NS-19",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| {
        let found = u64::from(!runs(g));
        require(NAME, "forms of program that nobody ran with this precision", found, Bound::Exactly(0))
    },
};

fn runs(g: &Geometry) -> bool {
    let (input, output) = (g.format.input(), g.format.output());
    match g.form {
        Form::Rows => matches!(input, Precision::Int8 | Precision::Fp16 | Precision::Int16),
        Form::Cube { .. } => input != Precision::Int16 && output != Precision::Int8,
        Form::Fold { .. } => input == Precision::Int8 && output == Precision::Int32,
        Form::Int4Batch | Form::Int4Row => input == Precision::Int4,
    }
}
