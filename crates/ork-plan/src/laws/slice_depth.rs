// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::Precision;

use super::{Bound, Confidence, Law, require};

const NAME: &str = "slice-depth";
const HANGS: u64 = 2048;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "a K slice whose partial result the host adds is not 2048 channels deep (int8)",
    source: "isa.md §12.3 and §13 row 29: at K = 18944 slices of 512, 896, 1024, 1184 and 4736 complete, 2048 hangs; \
             the cause is not known, and 2048 is correct as a full K",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| match g.format.input() {
        Precision::Int8 if g.k_slices > 1 => {
            require(NAME, "channels of a slice", g.k.into(), Bound::NotEqual(HANGS))
        }
        _ => Ok(()),
    },
};
