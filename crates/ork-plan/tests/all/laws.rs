// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each law just inside and just outside its boundary, and all laws over the whole shape space.

use std::collections::BTreeSet;

use ork_isa::soc::RK3588;
use ork_layout::Format;
use ork_plan::laws::reuse::{self, Placed};
use ork_plan::laws::{self, Bound, TASK_LAWS, address_window, chain_length, row_caps};
use ork_plan::{BankSplit, Form, Geometry, Violation, schedule};
use proptest::prelude::*;

/// A legal task: 64 rows of K = 1024, one segment of 1216 columns.
const LEGAL: Geometry = Geometry {
    format: Format::INT8_INT32,
    form: Form::Rows,
    rows: 64,
    k: 1024,
    n: 1216,
    row_stride: 1216,
    split: BankSplit { data: 2, weight: 10 },
    grains: 64,
    k_slices: 1,
    cores: 3,
};

/// Legal tasks of the other precisions and forms.
const INT8_OUT: Geometry = Geometry { format: Format::INT8_INT8, ..LEGAL };
const FP16: Geometry =
    Geometry { format: Format::FP16_FP32, rows: 8, split: BankSplit { data: 1, weight: 11 }, ..LEGAL };
const BF16: Geometry = Geometry { format: Format::BF16_FP32, form: Form::Cube { surface_rows: 8 }, ..FP16 };
const FOLD: Geometry = Geometry {
    form: Form::Fold { surface_rows: 128 },
    rows: 36,
    k: 3584,
    split: BankSplit { data: 4, weight: 8 },
    grains: 2,
    ..LEGAL
};
const INT4: Geometry = Geometry {
    format: Format::INT4_INT16,
    form: Form::Int4Batch,
    rows: 8,
    k: 2048,
    n: 64,
    row_stride: 64,
    split: BankSplit { data: 1, weight: 11 },
    ..LEGAL
};
const INT4_ROW: Geometry = Geometry { form: Form::Int4Row, rows: 1, n: 8192, row_stride: 8192, ..INT4 };
const INT4_CUBE: Geometry = Geometry { form: Form::Cube { surface_rows: 8 }, ..INT4 };

fn split(data: u32, weight: u32) -> BankSplit {
    BankSplit { data, weight }
}

fn columns(n: u32) -> Geometry {
    Geometry { n, row_stride: n, ..LEGAL }
}

fn wide(geometry: Geometry, n: u32) -> Geometry {
    Geometry { n, row_stride: n, ..geometry }
}

fn narrowed(rows: u32) -> Geometry {
    Geometry { format: Format::FP16_FP16, rows, k: 128, ..FP16 }
}

fn halves(k: u32, rows: u32, data: u32) -> Geometry {
    Geometry { k, rows, split: split(data, 12 - data), ..FP16 }
}

/// fp16 schedule 1 at K = 128.
fn hole(rows: u32, n: u32) -> Geometry {
    wide(scheduled(Format::FP16_FP32, 128, rows), n)
}

fn two_banks(k: u32, rows: u32, n: u32, cores: u8) -> Geometry {
    Geometry { k, rows, cores, split: split(2, 10), ..wide(INT4, n) }
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
        ("form", BF16, Geometry { form: Form::Rows, ..BF16 }),
        ("form", INT4, Geometry { form: Form::Rows, ..INT4 }),
        ("form", FOLD, Geometry { format: Format::INT8_INT8, ..FOLD }),
        ("form", INT8_OUT, Geometry { form: Form::Cube { surface_rows: 64 }, ..INT8_OUT }),
        ("k-multiple", Geometry { format: Format::TF32_FP32, k: 16, ..BF16 }, {
            Geometry { format: Format::TF32_FP32, k: 24, ..BF16 }
        }),
        ("n-multiple", wide(INT4_CUBE, 128), wide(INT4_CUBE, 96)),
        (
            "encodable",
            Geometry { grains: 1023, ..INT4 },
            Geometry { form: Form::Int4Batch, rows: 512, ..INT4 },
        ),
        ("depth", FOLD, Geometry { k: 3616, ..FOLD }),
        ("depth", Geometry { rows: 1, k: 10_752, ..FP16 }, Geometry { rows: 1, k: 10_784, ..FP16 }),
        ("depth", Geometry { rows: 2, k: 8192, ..FP16 }, Geometry { rows: 2, k: 8224, ..FP16 }),
        ("depth", Geometry { k: 10_752, ..INT4_ROW }, Geometry { k: 10_784, ..INT4_ROW }),
        ("requantised", Geometry { k: 512, ..INT8_OUT }, Geometry { k: 480, ..INT8_OUT }),
        ("requantised", Geometry { rows: 1, k: 4096, ..INT8_OUT }, Geometry { rows: 1, k: 4128, ..INT8_OUT }),
        ("requantised", wide(INT8_OUT, 4096), wide(INT8_OUT, 4128)),
        ("requantised", INT8_OUT, Geometry { k_slices: 2, ..INT8_OUT }),
        ("narrowed", narrowed(64), narrowed(65)),
        ("narrowed", narrowed(1), Geometry { k_slices: 2, ..narrowed(1) }),
        // isa.md §10.5: 8 + min(2, 11) banks, and 8 + min(16, 11).
        ("float-envelope", hole(64, 256), hole(64, 2048)),
        ("float-envelope", hole(128, 2048), hole(64, 2048)),
        ("float-depth", halves(1024, 16, 2), halves(1056, 16, 2)),
        ("float-depth", halves(3584, 4, 1), halves(3584, 8, 2)),
        ("float-depth", halves(2048, 32, 10), halves(2048, 33, 10)),
        ("narrow-columns", wide(halves(256, 64, 11), 64), wide(halves(256, 64, 11), 48)),
        ("cube-rows", BF16, Geometry { rows: 6, ..BF16 }),
        ("cube-rows", BF16, Geometry { form: Form::Cube { surface_rows: 10 }, ..BF16 }),
        ("cube-rows", Geometry { rows: 1, form: Form::Cube { surface_rows: 1 }, ..BF16 }, {
            Geometry { form: Form::Cube { surface_rows: 4 }, ..BF16 }
        }),
        ("fold", FOLD, Geometry { rows: 35, ..FOLD }),
        ("fold", FOLD, Geometry { rows: 40, ..FOLD }),
        ("fold", FOLD, Geometry { form: Form::Fold { surface_rows: 129 }, ..FOLD }),
        ("int4-rows", INT4, Geometry { rows: 9, ..INT4 }),
        ("int4-rows", Geometry { rows: 4, k: 2560, ..INT4 }, Geometry { rows: 5, k: 2560, ..INT4 }),
        ("int4-rows", Geometry { rows: 2, k: 8192, ..INT4 }, Geometry { rows: 1, k: 8224, ..INT4 }),
        ("int4-rows", two_banks(2048, 16, 64, 1), two_banks(2048, 17, 64, 1)),
        ("int4-rows", two_banks(2048, 16, 64, 3), two_banks(2560, 8, 64, 3)),
        ("int4-rows", INT4_ROW, Geometry { rows: 2, ..INT4_ROW }),
        ("int4-columns", wide(Geometry { k: 1024, ..INT4 }, 128), wide(Geometry { k: 1024, ..INT4 }, 192)),
        ("int4-columns", wide(Geometry { k: 768, ..INT4 }, 128), wide(Geometry { k: 768, ..INT4 }, 192)),
        // The width that is right on three cores only.
        ("int4-columns", two_banks(2048, 16, 320, 3), two_banks(2048, 16, 320, 1)),
        ("int4-columns", two_banks(2048, 16, 320, 3), two_banks(2048, 16, 384, 3)),
        ("int4-cube", wide(INT4_CUBE, 256), wide(INT4_CUBE, 320)),
        ("int4-cube", Geometry { k: 3840, ..INT4_CUBE }, Geometry { k: 3872, ..INT4_CUBE }),
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

/// isa.md §10.5: the fp16 law is a predicate with holes, at K = 128 and the 688 columns of one of three cores.
#[test]
fn the_holes_at_k_128_are_where_they_were_swept() {
    for rows in [64, 144, 160, 176, 192, 288, 304, 320, 448] {
        assert!(broken(&hole(rows, 688)).contains(&"float-envelope"), "{rows} rows were wrong");
    }
    let right = [65..=128, 208..=256, 336..=384];
    assert!(right.into_iter().flatten().all(|rows| broken(&hole(rows, 688)).is_empty()));
    // All columns in one task add more of them.
    let broken_at = |rows, n| broken(&hole(rows, n)).contains(&"float-envelope");
    assert!([1, 63, 336, 384, 464, 512].iter().all(|rows| broken_at(*rows, 1024)));
    assert!([208, 256].iter().all(|rows| broken_at(*rows, 2048) && !broken_at(*rows, 1024)));
    // At K = 64 and 32 schedule 1 gives 0xBC and 0xBE, all zeros on silicon; 0xB1 is right.
    for k in [32, 64] {
        assert!(!broken(&wide(scheduled(Format::FP16_FP32, k, 8), 2048)).is_empty());
        assert_eq!(broken(&wide(halves(k, 8, 1), 2048)), Vec::<&str>::new());
    }
}

/// isa.md §10.4: the fp16 caps of both schedules.
#[test]
fn measured_fp16_caps() {
    for (k, rows) in [(256, 704), (512, 352), (1024, 176)] {
        let at = |rows| broken(&scheduled(Format::FP16_FP32, k, rows));
        assert_eq!(at(rows), Vec::<&str>::new(), "K = {k}");
        assert!(!at(rows + 1).is_empty(), "K = {k}");
    }
    for (k, rows) in [(64, 256), (384, 42), (640, 25), (768, 21), (1536, 10), (2048, 8), (3584, 4)] {
        assert_eq!(broken(&halves(k, rows, 1)), Vec::<&str>::new(), "K = {k}");
        assert_eq!(broken(&halves(k, rows + 1, 1)), ["feature-capacity"], "K = {k}");
    }
}

/// isa.md §10.6 and §10.7.
#[test]
fn reuse_wants_the_same_operand_in_the_same_split() {
    let placed = |geometry| Placed { geometry, a_offset: 0, b_offset: 4096 };
    let narrow = wide(Geometry { k: 512, split: split(1, 11), ..LEGAL }, 704);
    let first = placed(narrow);
    let weights =
        |task: Placed| reuse::check_weights(&first, &task, &RK3588).map_err(|violation| violation.law);
    // 352 KiB fill the 11 banks; one group more does not fit.
    assert_eq!(weights(first), Ok(()));
    assert_eq!(weights(placed(Geometry { rows: 3, ..narrow })), Ok(()));
    let wider = placed(wide(narrow, 736));
    assert_eq!(reuse::check_weights(&wider, &wider, &RK3588).unwrap_err().law, "weight-reuse");
    assert_eq!(weights(placed(Geometry { split: split(2, 10), ..narrow })), Err("weight-reuse"));
    assert_eq!(weights(Placed { b_offset: 8192, ..first }), Err("weight-reuse"));

    let features = |task: Placed| reuse::check_features(&first, &task).map_err(|violation| violation.law);
    assert_eq!(features(Placed { b_offset: 8192, ..placed(wide(narrow, 64)) }), Ok(()));
    assert_eq!(features(Placed { a_offset: 512, ..first }), Err("data-reuse"));
    assert_eq!(features(placed(Geometry { rows: 63, ..narrow })), Err("data-reuse"));
    assert_eq!(features(placed(Geometry { split: split(2, 10), ..narrow })), Err("data-reuse"));
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
    assert!(TASK_LAWS.iter().all(|law| law.source.contains("isa") && !law.statement.is_empty()));
}

proptest! {
    /// Laws answer for any geometry whatsoever.
    #[test]
    fn laws_are_total(
        format in 0usize..Format::ALL.len(),
        form in 0usize..5,
        sizes in proptest::array::uniform7(prop_oneof![any::<u32>(), 0u32..40, (0u32..32).prop_map(|bit| 1 << bit)]),
        (k_slices, surface_rows) in any::<(u32, u32)>(),
        cores in any::<u8>(),
    ) {
        let forms = [
            Form::Rows,
            Form::Cube { surface_rows },
            Form::Fold { surface_rows },
            Form::Int4Batch,
            Form::Int4Row,
        ];
        let [rows, k, n, row_stride, data, weight, grains] = sizes;
        let split = BankSplit { data, weight };
        let (format, form) = (Format::ALL[format], forms[form]);
        let geometry = Geometry { format, form, rows, k, n, row_stride, split, grains, k_slices, cores };
        let all = laws::violations(&geometry, &RK3588);
        prop_assert_eq!(laws::check(&geometry, &RK3588).err(), all.first().copied());
    }
}
