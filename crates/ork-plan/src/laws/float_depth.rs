// SPDX-License-Identifier: MIT OR Apache-2.0
use super::{BankSplit, Bound, Confidence, Geometry, Law, require};

const NAME: &str = "float-depth";
/// Deepest K of schedule 1.
const SEVERAL_BANKS_MAX: u64 = 1024;
/// Vendor programs of deeper K: K, most rows, split (isa.md §10.2).
const CAPTURED: [(u32, u32, BankSplit); 3] = [
    (2048, 32, BankSplit { data: 10, weight: 2 }),
    (4096, 24, BankSplit { data: 8, weight: 4 }),
    (8192, 8, BankSplit { data: 4, weight: 8 }),
];

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "a float task with more than one feature bank reduces at most 1024 channels, but for three captured splits",
    source: "isa.md §10.4 and §10.5: schedule 1 was measured up to 1024; at K = 3584 with 7 or 8 feature banks almost 1 % of \
             the results are wrong, with one bank none. §10.2: vendor programs at 2048, 4096 and 8192",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| {
        if !g.format.is_float() || g.split.data <= 1 || captured(g) {
            return Ok(());
        }
        let what = "channels with several feature banks";
        // tf32 was run with all banks up to 8192 channels (isa-notes C.2).
        let most = if g.format.input_bytes(1) == 4 { 8192 } else { SEVERAL_BANKS_MAX };
        require(NAME, what, g.k.into(), Bound::AtMost(most))
    },
};

fn captured(g: &Geometry) -> bool {
    CAPTURED.iter().any(|(k, rows, split)| *k == g.k && g.rows <= *rows && *split == g.split)
}
