// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each law just inside and just outside its boundary, and all laws over the whole shape space.

use std::collections::BTreeSet;

use ork_isa::soc::RK3588;
use ork_layout::Format;
use ork_plan::laws::{self, Bound, TASK_LAWS, address_window, chain_length, row_caps};
use ork_plan::{BankSplit, Geometry, Violation, schedule};
use proptest::prelude::*;

/// A legal task: 64 rows of K = 1024, one segment of 1216 columns.
const LEGAL: Geometry = Geometry {
    format: Format::INT8_INT32,
    rows: 64,
    k: 1024,
    n: 1216,
    row_stride: 1216,
    split: BankSplit { data: 2, weight: 10 },
    grains: 64,
    k_slices: 1,
};

fn split(data: u32, weight: u32) -> BankSplit {
    BankSplit { data, weight }
}

fn columns(n: u32) -> Geometry {
    Geometry { n, row_stride: n, ..LEGAL }
}

/// What schedule 1 makes of so many rows.
fn scheduled(format: Format, k: u32, rows: u32) -> Geometry {
    let schedule = schedule::schedule_1(format, k, rows, &RK3588);
    Geometry { format, k, rows, split: schedule.split, grains: schedule.grains, ..LEGAL }
}

fn broken(geometry: &Geometry) -> Vec<&'static str> {
    laws::violations(geometry, &RK3588).iter().map(|violation| violation.law).collect()
}

/// Inside: no law is broken. Outside: this law is, whatever else is.
fn boundary(law: &'static str, inside: Geometry, outside: Geometry) {
    assert_eq!(broken(&inside), Vec::<&str>::new(), "{law}: {inside:?}");
    assert!(
        broken(&outside).contains(&law),
        "{law} does not fire: {outside:?} breaks {:?}",
        broken(&outside)
    );
    assert!(laws::check(&outside, &RK3588).is_err());
}

#[test]
fn every_law_at_its_boundary() {
    let capacity = |rows, k, data| Geometry { rows, k, split: split(data, 12 - data), ..LEGAL };
    let cases = [
        ("non-empty", Geometry { rows: 1, ..LEGAL }, Geometry { rows: 0, ..LEGAL }),
        ("non-empty", LEGAL, Geometry { k: 0, ..LEGAL }),
        ("non-empty", LEGAL, columns(0)),
        ("non-empty", LEGAL, Geometry { row_stride: 1215, ..LEGAL }),
        ("k-multiple", Geometry { k: 992, ..LEGAL }, Geometry { k: 993, ..LEGAL }),
        ("k-multiple", LEGAL, Geometry { k: 1008, ..LEGAL }),
        ("n-multiple", columns(1248), columns(1249)),
        ("n-multiple", columns(1248), columns(1232)),
        ("n-multiple", LEGAL, Geometry { row_stride: 1217, ..LEGAL }),
        ("columns", columns(8192), columns(8224)),
        ("columns", columns(8192), columns(16384)),
        ("encodable", capacity(2047, 32, 4), capacity(2048, 32, 4)),
        ("encodable", Geometry { grains: 1023, ..LEGAL }, Geometry { grains: 1024, ..LEGAL }),
        ("encodable", Geometry { row_stride: 8192, ..LEGAL }, Geometry { row_stride: 8224, ..LEGAL }),
        ("encodable", LEGAL, Geometry { split: split(2, 16), ..LEGAL }),
        ("depth", capacity(8, 4096, 1), capacity(8, 4128, 2)),
        ("depth", capacity(1, 10752, 1), capacity(1, 10784, 1)),
        ("slice-depth", capacity(4, 2016, 1), Geometry { k_slices: 2, ..capacity(4, 2048, 1) }),
        ("slice-depth", capacity(4, 2048, 1), Geometry { k_slices: 19, ..capacity(4, 2048, 1) }),
        ("bank-sum", LEGAL, Geometry { split: split(2, 9), ..LEGAL }),
        ("bank-sum", LEGAL, Geometry { split: split(2, 11), ..LEGAL }),
        ("bank-sum", LEGAL, Geometry { split: split(12, 0), ..LEGAL }),
        ("bank-sum", LEGAL, Geometry { split: split(0, 12), ..LEGAL }),
        ("weight-group", capacity(64, 2048, 10), capacity(64, 2080, 10)),
        ("weight-group", capacity(64, 992, 11), capacity(64, 1056, 11)),
        ("feature-capacity", capacity(64, 512, 1), capacity(65, 512, 1)),
        ("feature-capacity", capacity(32, 1024, 1), capacity(33, 1024, 1)),
        // A row of 96 bytes occupies 128.
        ("feature-capacity", capacity(256, 96, 1), capacity(257, 96, 1)),
        ("feature-capacity", capacity(340, 64, 1), capacity(340, 96, 1)),
        ("narrow-columns", Geometry { n: 96, row_stride: 96, ..capacity(64, 1024, 11) }, {
            Geometry { n: 64, row_stride: 64, ..capacity(64, 1024, 11) }
        }),
        ("narrow-columns", Geometry { n: 64, row_stride: 64, ..capacity(64, 992, 11) }, {
            Geometry { n: 32, row_stride: 32, ..capacity(64, 1024, 11) }
        }),
        ("row-caps", scheduled(Format::INT8_INT32, 1024, 320), scheduled(Format::INT8_INT32, 1024, 321)),
    ];
    for (law, inside, outside) in cases {
        boundary(law, inside, outside);
    }
    let covered: BTreeSet<_> = cases.iter().map(|(law, ..)| *law).collect();
    assert_eq!(covered, TASK_LAWS.iter().map(|law| law.name).collect(), "a law without a boundary case");
}

#[test]
fn the_measured_row_caps_are_exact() {
    for (k, rows) in row_caps::MEASURED {
        for n in [64, 1216, 8192] {
            let at = |rows| Geometry { n, row_stride: n, ..scheduled(Format::INT8_INT32, k, rows) };
            assert_eq!(broken(&at(rows)), Vec::<&str>::new(), "K = {k}, {rows} rows");
            assert_eq!(broken(&at(rows - 1)), Vec::<&str>::new(), "K = {k}, {} rows", rows - 1);
            assert!(broken(&at(rows + 1)).contains(&"row-caps"), "K = {k}, {} rows", rows + 1);
        }
    }
}

/// isa.md §10.4: the capacity rules alone explain every cap but the one at K = 1024.
#[test]
fn capacity_rules_explain_all_caps_but_one() {
    for (k, rows) in row_caps::MEASURED {
        let beyond = scheduled(Format::INT8_INT32, k, rows + 1);
        let others: Vec<_> = broken(&beyond).into_iter().filter(|law| *law != "row-caps").collect();
        let expected: &[&str] = match k {
            512 => &["feature-capacity"],
            1024 => &[],
            // At 3072 and 3584 the clamp breaks the weight rule; the rows themselves would fit.
            _ => &["weight-group"],
        };
        assert_eq!(others, expected, "K = {k}");
    }
}

/// isa.md §13 rows 1, 2, 5 and 6, and the garbled points of notes G-9.
#[test]
fn recorded_failures_are_forbidden() {
    let fp16 = |k, rows| scheduled(Format::FP16_FP32, k, rows);
    for rows in [64, 144, 192, 288, 320, 448] {
        assert!(broken(&fp16(128, rows)).contains(&"bank-sum"), "fp16 K = 128, {rows} rows");
    }
    for rows in [65, 128] {
        assert!(!broken(&fp16(128, rows)).contains(&"bank-sum"), "fp16 K = 128, {rows} rows");
    }
    let int8 = |k, rows, data| Geometry { k, rows, split: split(data, 12 - data), ..LEGAL };
    // Exact byte fit, K/32 odd: one bank more is needed.
    for (rows, k32) in [(144, 7), (144, 21), (144, 35), (192, 5), (192, 21), (192, 37), (240, 17), (240, 29)]
    {
        let exact = (rows * k32 * 32u32).div_ceil(32768);
        assert!(
            broken(&int8(k32 * 32, rows, exact)).contains(&"feature-capacity"),
            "{rows} rows, K = {}",
            k32 * 32
        );
        assert!(!broken(&int8(k32 * 32, rows, exact + 1)).contains(&"feature-capacity"));
    }
    let narrow = |n| Geometry { n, row_stride: n, ..scheduled(Format::FP16_FP32, 1024, 176) };
    assert!(broken(&narrow(32)).contains(&"narrow-columns"));
    assert_eq!(broken(&narrow(64)), Vec::<&str>::new());
}

#[test]
fn chains_and_buffers() {
    assert_eq!(chain_length::check(4095, &RK3588), Ok(()));
    assert!(chain_length::check(4096, &RK3588).is_err());
    assert!(chain_length::check(0, &RK3588).is_err());
    assert_eq!(address_window::check("bytes", 1 << 32), Ok(()));
    assert!(address_window::check("bytes", (1 << 32) + 1).is_err());
    assert!(address_window::check("bytes", 0).is_err());
}

#[test]
fn a_violation_says_law_quantity_and_numbers() {
    let violation = laws::check(&columns(8224), &RK3588).unwrap_err();
    let expected = Violation { law: "columns", what: "columns", found: 8224, bound: Bound::AtMost(8192) };
    assert_eq!(violation, expected);
    assert_eq!(violation.to_string(), "columns: columns is 8224, and must be at most 8192");
}

#[test]
fn names_are_unique_and_sourced() {
    let names: BTreeSet<_> = TASK_LAWS.iter().map(|law| law.name).collect();
    assert_eq!(names.len(), TASK_LAWS.len());
    assert!(TASK_LAWS.iter().all(|law| law.source.contains("isa.md") && !law.statement.is_empty()));
}

proptest! {
    /// Laws answer for any geometry whatsoever.
    #[test]
    fn laws_are_total(
        format in 0usize..4,
        sizes in proptest::array::uniform7(prop_oneof![any::<u32>(), 0u32..40, (0u32..32).prop_map(|bit| 1 << bit)]),
        k_slices in any::<u32>(),
    ) {
        let [rows, k, n, row_stride, data, weight, grains] = sizes;
        let split = BankSplit { data, weight };
        let geometry = Geometry { format: Format::ALL[format], rows, k, n, row_stride, split, grains, k_slices };
        let all = laws::violations(&geometry, &RK3588);
        prop_assert_eq!(laws::check(&geometry, &RK3588).err(), all.first().copied());
    }
}
