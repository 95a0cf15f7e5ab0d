// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each law that the simulator's mechanism can testify to: just inside, a hand-made program is exact; just outside, it is
//! wrong, does not complete, or cannot be written. Laws that rest on measurements alone have no mechanism in the
//! simulator, which would be right outside them as well; they are listed at the end.

use crate::support;
use std::collections::BTreeSet;

use ork_isa::soc::RK3588;
use ork_layout::Format;
use ork_plan::laws::{self, TASK_LAWS, fold, int4_rows};
use ork_plan::{BankSplit, Form, Geometry, Reuse, schedule};
use support::bench::{Bench, Outcome, Tile};

/// The one program of a bench, as the laws see it.
fn geometry(bench: &Bench) -> Geometry {
    let (k, n) = bench.claims.unwrap_or((bench.k, bench.columns[0]));
    let tile = bench.tiles[0];
    Geometry {
        format: bench.format,
        form: bench.form,
        rows: tile.rows,
        k,
        n,
        row_stride: n,
        split: tile.split,
        grains: 2,
        k_slices: 1,
        cores: 1,
    }
}

fn testify(law: &str, inside: &Bench, outside: &Bench) {
    assert_eq!(laws::violations(&geometry(inside), &RK3588), [], "{law}: the inside is inside");
    assert_eq!(inside.run(), Outcome::Exact, "{law}: {inside:?}");
    let broken = laws::violations(&geometry(outside), &RK3588);
    assert!(
        broken.iter().any(|violation| violation.law == law),
        "{law} says nothing of {outside:?}: {broken:?}"
    );
    let outcome = outside.run();
    assert_ne!(outcome, Outcome::Exact, "{law}: silently right outside: {outside:?}");
}

const ROWS: Form = Form::Rows;

fn cube(rows: u32) -> Form {
    Form::Cube { surface_rows: rows }
}

fn folded(rows: u32) -> Form {
    Form::Fold { surface_rows: rows }
}

fn scheduled(format: Format, shape: (u32, u32, u32)) -> Bench {
    let split = schedule::schedule_1(format, shape.1, shape.0, &RK3588).split;
    Bench::one(format, ROWS, shape, (split.data, split.weight))
}

fn batch(k: u32, rows: u32, n: u32) -> Bench {
    Bench::one(Format::INT4_INT16, Form::Int4Batch, (rows, k, n), (1, 11))
}

/// Cases of every law that has a mechanism: name, inside, outside.
fn cases() -> Vec<(&'static str, Bench, Bench)> {
    const INT8: Format = Format::INT8_INT32;
    const FP16: Format = Format::FP16_FP32;
    const BF16: Format = Format::BF16_FP32;
    const TF32: Format = Format::TF32_FP32;
    let one = Bench::one;
    let claiming = |bench: Bench, k, n| Bench { claims: Some((k, n)), ..bench };
    let mut cases = vec![
        // The operands are laid out in whole blocks and groups; a program that claims less reads them out of step.
        ("k-multiple", one(INT8, ROWS, (4, 64, 32), (1, 11)), {
            claiming(one(INT8, ROWS, (4, 64, 32), (1, 11)), 48, 32)
        }),
        ("n-multiple", one(FP16, ROWS, (4, 64, 32), (1, 11)), {
            claiming(one(FP16, ROWS, (4, 64, 32), (1, 11)), 64, 24)
        }),
        ("columns", one(INT8, ROWS, (1, 32, 8192), (1, 11)), one(INT8, ROWS, (1, 32, 8224), (1, 11))),
        ("encodable", one(INT8, ROWS, (2047, 32, 32), (4, 8)), one(INT8, ROWS, (2048, 32, 32), (4, 8))),
        ("bank-sum", one(INT8, ROWS, (4, 64, 32), (1, 11)), one(INT8, ROWS, (4, 64, 32), (12, 0))),
        ("bank-sum", one(FP16, ROWS, (4, 64, 32), (1, 11)), one(FP16, ROWS, (4, 64, 32), (12, 0))),
        ("bank-sum", one(INT8, ROWS, (4, 512, 1024), (1, 11)), one(INT8, ROWS, (4, 512, 1024), (8, 11))),
        // isa.md §10.5: at K = 128 more rows are right where fewer are wrong.
        ("float-envelope", scheduled(FP16, (128, 128, 2048)), scheduled(FP16, (64, 128, 2048))),
        ("float-envelope", scheduled(FP16, (64, 128, 256)), scheduled(FP16, (64, 128, 2048))),
        ("float-envelope", scheduled(FP16, (65, 128, 688)), scheduled(FP16, (144, 128, 688))),
        ("weight-group", one(INT8, ROWS, (4, 2048, 64), (10, 2)), one(INT8, ROWS, (4, 2080, 64), (10, 2))),
        ("weight-group", one(FP16, ROWS, (4, 1024, 64), (11, 1)), one(FP16, ROWS, (4, 1056, 64), (11, 1))),
        (
            "weight-group",
            one(TF32, cube(4), (4, 1024, 64), (10, 2)),
            one(TF32, cube(4), (4, 1040, 64), (10, 2)),
        ),
        ("narrow-columns", one(INT8, ROWS, (8, 1024, 96), (11, 1)), one(INT8, ROWS, (8, 1024, 64), (11, 1))),
        ("narrow-columns", one(FP16, ROWS, (8, 1024, 64), (11, 1)), one(FP16, ROWS, (8, 1024, 32), (11, 1))),
        ("row-caps", scheduled(INT8, (320, 1024, 64)), scheduled(INT8, (321, 1024, 64))),
        (
            "feature-capacity",
            one(BF16, cube(80), (80, 1024, 64), (5, 7)),
            one(BF16, cube(84), (84, 1024, 64), (5, 7)),
        ),
        (
            "feature-capacity",
            one(TF32, cube(80), (80, 1024, 64), (10, 2)),
            one(TF32, cube(84), (84, 1024, 64), (10, 2)),
        ),
        (
            "feature-capacity",
            one(INT8, cube(256), (256, 96, 32), (1, 11)),
            one(INT8, cube(260), (260, 96, 32), (1, 11)),
        ),
        (
            "feature-capacity",
            one(INT8, folded(36), (36, 3584, 64), (4, 8)),
            one(INT8, folded(36), (36, 3584, 64), (3, 9)),
        ),
    ];
    // isa.md §10.4: fp16 caps of both schedules.
    for (k, rows) in [(256, 704), (512, 352), (1024, 176)] {
        cases.push(("feature-capacity", scheduled(FP16, (rows, k, 64)), scheduled(FP16, (rows + 1, k, 64))));
    }
    for (k, rows) in [(64, 256), (384, 42), (640, 25), (768, 21), (1536, 10), (2048, 8), (3584, 4)] {
        let at = |rows| one(FP16, ROWS, (rows, k, 64), (1, 11));
        cases.push(("feature-capacity", at(rows), at(rows + 1)));
    }
    // isa-int4-sdp.md §1.6. At K = 2560 to 3584 a race keeps silicon below what the buffer holds.
    for k in [64, 128, 160, 256, 512, 768, 1024, 1536, 2048, 4096, 5120, 6144, 8192] {
        let rows = int4_rows::batch_rows(k).unwrap();
        cases.push(("int4-rows", batch(k, rows, 64), batch(k, rows + 1, 64)));
    }
    let two_banks = |rows| Bench::one(Format::INT4_INT16, Form::Int4Batch, (rows, 2048, 64), (2, 10));
    cases.push(("int4-rows", two_banks(16), two_banks(17)));
    cases
}

#[test]
fn each_law_with_a_mechanism_at_its_boundary() {
    let cases = cases();
    assert!(cases.len() > 40);
    for (law, inside, outside) in &cases {
        testify(law, inside, outside);
    }
    let witnessed: BTreeSet<_> = cases.iter().map(|(law, ..)| *law).collect();
    // What only silicon can say: docs/assumptions.md has the probes.
    let measured_only = [
        "non-empty",
        "form",
        "depth",
        "slice-depth",
        "requantised",
        "narrowed",
        "float-depth",
        "cube-rows",
        "fold",
        "int4-columns",
        "int4-cube",
    ];
    let all: BTreeSet<_> = TASK_LAWS.iter().map(|law| law.name).collect();
    let spoken: BTreeSet<_> = witnessed.iter().copied().chain(measured_only).collect();
    assert_eq!(spoken, all);
    assert!(measured_only.iter().all(|law| !witnessed.contains(law)));
}

/// Every size of the fold and its neighbours of the table are exact, alone and in a batch.
#[test]
fn every_fold_tile_is_exact() {
    for rows in fold::TILES {
        for surface_rows in [rows, rows + 36] {
            let data = (rows * 256).div_ceil(32_768);
            let mut bench =
                Bench::one(Format::INT8_INT32, folded(surface_rows), (rows, 256, 64), (data, 12 - data));
            bench.m = rows;
            assert_eq!(bench.run(), Outcome::Exact, "{rows} of {surface_rows} rows");
        }
    }
}

/// isa.md §10.6 and §10.7 as chains: two row tiles with the same columns, and two column segments with the same rows.
#[test]
fn reuse_is_exact_inside_its_laws_and_stale_outside() {
    let split = BankSplit { data: 1, weight: 11 };
    let tile = |m0, rows, segment, reuse| Tile { m0, rows, segment, split, reuse };
    let rows_of = |format: Format, form, k, columns: &[u32], tiles: &[Tile]| Bench {
        format,
        form,
        m: tiles.iter().map(|tile| tile.m0 + tile.rows).max().unwrap(),
        k,
        columns: columns.to_vec(),
        tiles: tiles.to_vec(),
        claims: None,
        patches: Vec::new(),
    };
    let kept = |format, form, k, n| {
        let tiles =
            [tile(0, 8, 0, Reuse::Nothing), tile(8, 8, 0, Reuse::Weights), tile(16, 3, 0, Reuse::Weights)];
        rows_of(format, form, k, &[n], &tiles).run()
    };
    // 11 banks are 360448 bytes: 704 int8 columns of 512, 352 of fp16.
    assert_eq!(kept(Format::INT8_INT32, ROWS, 512, 704), Outcome::Exact);
    assert!(matches!(kept(Format::INT8_INT32, ROWS, 512, 736), Outcome::Wrong(..)));
    assert_eq!(kept(Format::FP16_FP32, ROWS, 512, 352), Outcome::Exact);
    assert!(matches!(kept(Format::FP16_FP32, ROWS, 512, 368), Outcome::Wrong(..)));
    // int4: the width at which stale weights begin to show, far beyond the shipped one.
    assert_eq!(kept(Format::INT4_INT16, Form::Int4Batch, 2048, 320), Outcome::Exact);
    assert!(matches!(kept(Format::INT4_INT16, Form::Int4Batch, 2048, 384), Outcome::Wrong(..)));
    // Another split between the two.
    let mut other_split = tile(8, 40, 0, Reuse::Weights);
    other_split.split = BankSplit { data: 2, weight: 10 };
    let outcome =
        rows_of(Format::INT8_INT32, ROWS, 512, &[64], &[tile(0, 8, 0, Reuse::Nothing), other_split]).run();
    assert!(matches!(outcome, Outcome::Wrong(..)), "{outcome:?}");

    let features = |second: Tile| {
        rows_of(Format::INT8_INT32, ROWS, 512, &[64, 96], &[tile(0, 8, 0, Reuse::Nothing), second]).run()
    };
    let outcome = rows_of(
        Format::INT8_INT32,
        ROWS,
        512,
        &[64, 96],
        &[tile(0, 8, 0, Reuse::Nothing), tile(0, 8, 1, Reuse::Features)],
    )
    .run();
    assert_eq!(outcome, Outcome::Exact);
    // Other rows with the bit set: nearly everything is stale.
    let stale = features(tile(8, 8, 1, Reuse::Features));
    assert!(matches!(&stale, Outcome::Wrong(_, said) if said.contains("data-reuse")), "{stale:?}");
}

/// isa-notes G-3, D.4: integer results stride as the atoms of their kernel group say; a smaller SIZE_E leaves columns
/// unwritten.
#[test]
fn a_smaller_size_e_leaves_columns_unwritten() {
    let size_e = |value: u32| value << 8 | value << 5 | value << 2;
    let int4 = |value| {
        let mut bench = Bench::one(Format::INT4_INT16, cube(8), (8, 64, 64), (1, 11));
        bench.patches = vec![(0x4050, size_e(value) | 2)];
        bench.run()
    };
    assert_eq!(int4(7), Outcome::Exact);
    // int4, N = 64: 1, 3 and 7 write 16, 32 and 64 columns.
    for (value, written) in [(1, 16), (3, 32)] {
        let outcome = int4(value);
        let Outcome::Wrong(wrong, _) = outcome else { panic!("{outcome:?}") };
        // A few right ones by chance would be 0x5B5B.
        assert_eq!(wrong, 8 * (64 - written), "SIZE_E {value}");
    }
    let int8 = |value| {
        let mut bench = Bench::one(Format::INT8_INT32, ROWS, (8, 64, 64), (1, 11));
        bench.patches = vec![(0x4050, size_e(value))];
        bench.run()
    };
    assert_eq!(int8(7), Outcome::Exact);
    assert!(matches!(int8(3), Outcome::Wrong(wrong, _) if wrong == 8 * 32));
}
