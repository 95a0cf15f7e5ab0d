// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of an int4 batch.

use super::{Bound, Confidence, Geometry, Law, require};
use crate::form::Form;

const NAME: &str = "int4-rows";

/// Rows H of a batch by K. Measured on one board; the envelope moves with the memory clock and has a lower bound too, so
/// all batches of a matmul but the last have exactly H rows.
const TABLE: [(std::ops::RangeInclusive<u32>, u32); 12] = [
    (0..=128, 128),
    (129..=256, 64),
    (512..=512, 32),
    (768..=768, 22),
    (1024..=1024, 16),
    (1536..=1536, 11),
    (2048..=2048, 8),
    (2560..=2560, 4),
    (2816..=4096, 4),
    (5120..=5120, 3),
    (6144..=6144, 3),
    (8192..=8192, 2),
];
/// Most rows where nothing was measured.
const UNMEASURED_MAX: u32 = 64;
/// Channels times rows where nothing was measured.
const UNMEASURED_ELEMENTS: u32 = 12_288;
/// Channels times rows that one feature bank holds.
const BANK_ELEMENTS: u32 = 16_384;
/// Deepest K at which more feature banks than one were right.
const SPLIT_DEPTH_MAX: u64 = 2048;

pub(super) const LAW: Law = Law {
    name: NAME,
    statement: "an int4 batch has at most H(K) rows, H by table and min(64, 12288 / K) elsewhere, if that is at least 2; \
                with n > 1 feature banks, n * 16384 / K and K at most 2048. An int4 row program has one row",
    source: "isa-int4-sdp.md §1.6 and §1.7: the newest values of the table, a race that depends on the memory clock",
    confidence: Confidence::MeasuredElsewhere,
    check: |g, _| match g.form {
        Form::Int4Batch => batch(g),
        Form::Int4Row => {
            require(NAME, "rows", g.rows.into(), Bound::Exactly(1))?;
            require(NAME, "feature banks", g.split.data.into(), Bound::Exactly(1))
        }
        _ => Ok(()),
    },
};

fn batch(g: &Geometry) -> Result<(), super::Violation> {
    let most = match g.split.data {
        1 => match batch_rows(g.k) {
            Some(rows) => rows.into(),
            None => return require(NAME, "rows of a batch at this K", 0, Bound::AtLeast(2)),
        },
        banks => {
            require(NAME, "channels with several feature banks", g.k.into(), Bound::AtMost(SPLIT_DEPTH_MAX))?;
            u64::from(banks) * u64::from(BANK_ELEMENTS) / u64::from(g.k.max(1))
        }
    };
    require(NAME, "rows", g.rows.into(), Bound::AtMost(most))
}

/// H(K) with one feature bank; `None` where batches are refused.
#[must_use]
pub fn batch_rows(k: u32) -> Option<u32> {
    let rows = match TABLE.iter().find(|(depths, _)| depths.contains(&k)) {
        Some((_, rows)) => *rows,
        None => UNMEASURED_MAX.min(UNMEASURED_ELEMENTS / k),
    };
    (rows >= 2).then_some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_notes() {
        for (k, rows) in [
            (32, 128),
            (128, 128),
            (160, 64),
            (256, 64),
            (512, 32),
            (768, 22),
            (1024, 16),
            (1536, 11),
            (2048, 8),
            (2560, 4),
            (2816, 4),
            (3072, 4),
            (3584, 4),
            (4096, 4),
            (5120, 3),
            (6144, 3),
            (8192, 2),
        ] {
            assert_eq!(batch_rows(k), Some(rows), "K = {k}");
        }
        // Between the measured points: three quarters of a bank, at most 64, and at least 2 or none.
        assert_eq!([288, 896, 2592, 4128, 6112].map(batch_rows), [42, 13, 4, 2, 2].map(Some));
        assert_eq!([6176, 7168, 8160, 8224, 10_752].map(batch_rows), [None; 5]);
    }
}
