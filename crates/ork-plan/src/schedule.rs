// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the convolution buffer is split for one tile, and how many rows are buffered ahead.
//!
//! These are formulas, not judgements: they answer for any size, also for one that no law would pass, because tests
//! and probes need "the program that the same schedule gives for one row more".

use ork_isa::soc::Soc;
use ork_layout::Format;

use crate::BankSplit;
use crate::form::Form;
use crate::laws::feature_banks;

/// The scheduling fields of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// Split of the convolution buffer.
    pub split: BankSplit,
    /// `FEATURE_GRAINS`: rows to buffer before computing. Neutral to result and speed where it was measured
    /// (`isa.md` §10.8).
    pub grains: u32,
}

/// The split moves by whole groups of so many rows (measured elsewhere: rounding the group count down broke rows).
const GROUP_ROWS: u32 = 64;
/// Bytes of K that make one step of schedule 1: 512 int8 or 256 fp16 channels, i.e. 64 rows fill one bank.
const STEP_BYTES: i64 = 512;
/// Moves one bank from weights to features in `CBUF_CON0`: minus 1 in the weight field (bit 4), plus 1 in the
/// feature field (bit 0).
const ONE_BANK: i64 = 16 - 1;
/// `FEATURE_GRAINS` has 10 bits.
const GRAINS_MAX: u64 = 1023;

/// Schedule 1 (`isa.md` §10.3, measured elsewhere): the split follows the number of 64-row groups, starting from
/// what 64 rows of this K need and giving one more step for each further group; the clamp keeps one weight bank.
///
/// The result is legal only where the laws say so: outside multiples of the step the banks no longer add up, and
/// beyond the row caps the clamp gives too few of one kind.
#[must_use]
pub fn schedule_1(format: Format, k: u32, rows: u32, soc: &Soc) -> Schedule {
    let line_bytes = format.input_bytes(k.into()).cast_signed();
    let all_weights = word(1, soc.cbuf_banks - 1);
    let fewest_weights = word(soc.cbuf_banks - 1, 1);
    // base = int(177 - 15 * (scale - 1)), slope = int(15 * scale), with scale = K bytes / 512.
    let base = (all_weights * STEP_BYTES - ONE_BANK * (line_bytes - STEP_BYTES)) / STEP_BYTES;
    let slope = ONE_BANK * line_bytes / STEP_BYTES;
    let further_groups = i64::from(rows.div_ceil(GROUP_ROWS)) - 1;
    let word = base.saturating_sub(slope.saturating_mul(further_groups)).max(fewest_weights);
    let split = BankSplit { data: (word & 15) as u32, weight: ((word >> 4) & 15) as u32 };
    Schedule { split, grains: buffered_rows(rows, resident_rows(line_bytes, soc)) }
}

/// The split that just holds the rows, all other banks for weights: recipe 1 and the fold use it (`isa.md` §6, §11),
/// with lines rounded to 64 bytes (§10.2). `None` when the rows leave no weight bank.
#[must_use]
pub fn by_capacity(format: Format, form: Form, k: u32, rows: u32, soc: &Soc) -> Option<Schedule> {
    let data = u32::try_from(feature_banks(format, form, k, rows, soc)).ok()?;
    let weight = soc.cbuf_banks.checked_sub(data).filter(|&banks| banks > 0)?;
    Some(Schedule { split: BankSplit { data, weight }, grains: grains(form, rows) })
}

/// Schedule 0 (`isa.md` §10.3): one feature bank however many rows; it holds 16384 / K rows of fp16.
#[must_use]
pub fn one_bank(form: Form, rows: u32, soc: &Soc) -> Schedule {
    let split = BankSplit { data: 1, weight: soc.cbuf_banks - 1 };
    Schedule { split, grains: grains(form, rows) }
}

/// One row: one feature bank, two grains (`isa.md` §10.4, measured elsewhere for K up to 10752).
#[must_use]
pub fn single_row(soc: &Soc) -> Schedule {
    one_bank(Form::Rows, 1, soc)
}

/// Lines to buffer before computing: one more than the input has (`isa.md` §10.8). A fold tile has one line.
fn grains(form: Form, rows: u32) -> u32 {
    buffered_rows(form.height_and_width(rows).0, GRAINS_MAX)
}

/// R of `isa.md` §10.3: the largest power of two of rows that two banks of int8 features hold.
fn resident_rows(line_bytes: i64, soc: &Soc) -> u64 {
    let rows = 2 * u64::from(soc.bank_bytes) / line_bytes.unsigned_abs().max(1);
    if rows == 0 { 1 } else { 1 << rows.ilog2() }
}

fn buffered_rows(rows: u32, most: u64) -> u32 {
    (u64::from(rows) + 1).min(most).min(GRAINS_MAX) as u32
}

/// The bank fields of `CBUF_CON0`.
fn word(data: u32, weight: u32) -> i64 {
    i64::from(weight << 4 | data)
}

#[cfg(test)]
mod tests {
    use ork_isa::soc::RK3588;

    use super::*;

    fn words(format: Format, k: u32, groups: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let word = |g: u32| schedule_1(format, k, g * 64, &RK3588).split;
        groups.into_iter().map(word).map(|s| s.weight << 4 | s.data).collect()
    }

    #[test]
    fn schedule_1_gives_the_captured_fp16_splits() {
        // isa.md §10.3, M = 64, 128, 192, 256.
        assert_eq!(words(Format::FP16_FP32, 256, 1..=4), [0xB1, 0xA2, 0x93, 0x84]);
        assert_eq!(words(Format::FP16_FP32, 512, 1..=4), [0xA2, 0x84, 0x66, 0x48]);
        assert_eq!(words(Format::FP16_FP32, 1024, 1..=4), [0x84, 0x48, 0x1B, 0x1B]);
        // isa.md §10.5: half steps at K = 128, and the two smaller depths.
        let half = [0xB8, 0xB1, 0xAA, 0xA3, 0x9C, 0x95, 0x8E, 0x87];
        assert_eq!(words(Format::FP16_FP32, 128, 1..=8), half);
        assert_eq!(words(Format::FP16_FP32, 64, 1..=1), [0xBC]);
        assert_eq!(words(Format::FP16_FP32, 32, 1..=1), [0xBE]);
    }

    #[test]
    fn schedule_1_rounds_the_group_count_up() {
        let at = |rows| schedule_1(Format::INT8_INT32, 1024, rows, &RK3588).split;
        assert_eq!(at(1), at(64));
        assert_eq!(at(65), at(128));
        assert_ne!(at(64), at(65));
        // The case that broke: 65..127 rows need the split of 128.
        assert_eq!(at(65), BankSplit { data: 4, weight: 8 });
    }

    #[test]
    fn schedule_1_at_the_measured_int8_caps() {
        // One row beyond each cap falls to the clamp, except where the step is one bank.
        for (k, rows, inside, outside) in [
            (512, 704, 0x1B, 0x1B),
            (1024, 320, 0x2A, 0x1B),
            (1536, 192, 0x39, 0x1B),
            (2048, 128, 0x48, 0x1B),
            (3072, 64, 0x66, 0x1B),
            (3584, 64, 0x57, 0x1B),
            (4096, 64, 0x48, 0x1B),
        ] {
            let word = |rows| {
                let split = schedule_1(Format::INT8_INT32, k, rows, &RK3588).split;
                split.weight << 4 | split.data
            };
            assert_eq!((word(rows), word(rows + 1)), (inside, outside), "K = {k}");
        }
    }

    #[test]
    fn grains_follow_the_formula() {
        let grains = |format, k, rows| schedule_1(format, k, rows, &RK3588).grains;
        // Captured for fp16 (isa.md §10.3): 0x1010 = 0x410 and 0x400 at M = 64.
        assert_eq!(grains(Format::FP16_FP32, 256, 64), 0x41);
        assert_eq!(grains(Format::FP16_FP32, 512, 64), 0x40);
        assert_eq!(grains(Format::FP16_FP32, 256, 128), 0x80);
        assert_eq!(grains(Format::INT8_INT32, 4096, 64), 16);
        assert_eq!(grains(Format::INT8_INT32, 4096, 3), 4);
    }

    #[test]
    fn capacity_split_of_the_fold() {
        // isa.md §11 at K = 3584: 0xB1 for m <= 8 (by 10.2 up to 9), 0xA2 to 16, 0x93 to 24, 0x84 for 28..36.
        let fold = Form::Fold { surface_rows: 101 };
        let at = |rows| by_capacity(Format::INT8_INT32, fold, 3584, rows, &RK3588).map(|s| s.split.data);
        assert_eq!([8, 16, 24, 28, 32, 36].map(at), [1, 2, 3, 4, 4, 4].map(Some));
        assert_eq!(at(100), Some(11));
        assert_eq!(at(101), None);
        // 0x1010 = 0x20 for all sizes.
        let tall = by_capacity(Format::INT8_INT32, fold, 3584, 36, &RK3588);
        assert_eq!(tall.map(|schedule| schedule.grains), Some(2));
    }

    #[test]
    fn formulas_answer_for_any_size() {
        for format in Format::ALL {
            for k in [0, 1, 31, 4097, u32::MAX] {
                for rows in [0, 1, 64, 65, u32::MAX] {
                    let schedule = schedule_1(format, k, rows, &RK3588);
                    assert!(
                        schedule.split.data <= 15 && schedule.split.weight <= 15 && schedule.grains <= 1023
                    );
                    for form in [Form::Rows, Form::Int4Batch, Form::Fold { surface_rows: rows }] {
                        let _ = by_capacity(format, form, k, rows, &RK3588);
                        assert!(one_bank(form, rows, &RK3588).grains <= 1023);
                    }
                }
            }
        }
    }
}
