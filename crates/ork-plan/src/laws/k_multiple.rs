// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{Bound, Confidence, Law, require};

const NAME: &str = "k-multiple";

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "K of a task is a multiple of the channel block (32); shorter K is padded with zeros",
    source: "isa.md §3 and §4.1: weights are stored in whole blocks of 32 channels",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| require(NAME, "channels", g.k.into(), Bound::MultipleOf(g.format.channel_block().into())),
};
