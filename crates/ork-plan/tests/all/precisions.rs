// SPDX-License-Identifier: MIT OR Apache-2.0
//! What default plans of the other precisions look like.

use crate::common;
use common::{check, decide_with, naming, problem_of, programs};
use ork_isa::soc::RK3588;
use ork_layout::{FeatureForm, Format};
use ork_plan::laws::row_caps;
use ork_plan::{
    Datapath, Form, Outcome, Plan, PlanOptions, Reuse, explain, weight_layout, weight_layout_with,
};

fn on_cores(format: Format, (m, k, n): (u32, u32, u32), cores: u8) -> Plan {
    let problem = problem_of(format, m, k, n);
    let options = PlanOptions { cores, ..PlanOptions::default() };
    let plan = decide_with(&problem, &options).unwrap_or_else(|decline| panic!("{decline}"));
    check(&problem, &plan, &options);
    plan
}

fn lens(format: Format, k: u32, rules: &[&str]) -> Vec<u32> {
    let layout = weight_layout_with(format, k, 64, &RK3588, &naming(rules)).expect("a layout");
    layout.slices().iter().map(|slice| slice.len).collect()
}

#[test]
fn k_is_cut_as_each_precision_wants() {
    assert_eq!(lens(Format::FP16_FP32, 1024, &[]), [1024]);
    assert_eq!(lens(Format::FP16_FP32, 2600, &[]), [1024, 1024, 576]);
    assert_eq!(lens(Format::BF16_FP32, 1025, &[]), [1024, 32]);
    assert_eq!(lens(Format::TF32_FP32, 1030, &[]), [1024, 16]);
    assert_eq!(lens(Format::INT8_INT8, 7, &[]), [512]);
    assert_eq!(lens(Format::INT8_INT8, 513, &[]), [544]);
    assert_eq!(lens(Format::INT8_INT8, 4096, &[]), [4096]);
    // isa-int4-sdp.md §1.6: K = 18944 = 2 * 8192 + 2560; where the rest would run row by row it is cut again.
    assert_eq!(lens(Format::INT4_INT16, 18_944, &[]), [8192, 8192, 2560]);
    assert_eq!(lens(Format::INT4_INT16, 6144, &[]), [6144]);
    assert_eq!(lens(Format::INT4_INT16, 8192, &[]), [8192]);
    assert_eq!(lens(Format::INT4_INT16, 7168, &[]), [4096, 3072]);
    assert_eq!(lens(Format::INT4_INT16, 8192 + 6176, &[]), [8192, 4096, 2080]);
    assert_eq!(lens(Format::INT4_INT16, 5000, &["int4-slices-of-2048"]), [2048, 2048, 928]);
}

/// isa.md §10.5: the caller narrows, here by taking another split.
#[test]
fn the_hole_at_k_128_is_planned_around() {
    for (m, n, cores) in
        [(64, 2048, 1), (63, 2048, 1), (144, 2048, 3), (448, 2048, 3), (192, 1024, 1), (1472, 1024, 1)]
    {
        let plan = on_cores(Format::FP16_FP32, (m, 128, n), cores);
        assert!(programs(&plan).all(|tile| tile.split.data + tile.split.weight == 12), "{plan}");
    }
    let problem = problem_of(Format::FP16_FP32, 64, 128, 2048);
    let refused = explain(&problem, &RK3588, &naming(&["schedule-1", "one-core"]));
    let outcome = |rule| refused.notes.iter().find(|note| note.rule == rule).map(|note| note.outcome);
    // 128 rows a tile would be right; 64 are not, nor any fewer.
    let Some(Outcome::Refused(violation)) = outcome("schedule-1") else { panic!("{refused}") };
    assert_eq!(violation.law, "float-envelope");
}

#[test]
fn fp16_takes_the_measured_heights() {
    for (k, rows) in [(256, 704), (512, 352), (1024, 176)] {
        let plan = on_cores(Format::FP16_FP32, (rows, k, 512), 1);
        // At 1024 the last bank of weights leaves no room to load ahead, and two tiles are faster.
        let expected = if k == 1024 { vec![88, 88] } else { vec![rows] };
        assert_eq!(programs(&plan).map(|tile| tile.rows).collect::<Vec<_>>(), expected, "K = {k}");
        let plan = on_cores(Format::FP16_FP32, (rows + 1, k, 512), 1);
        assert_eq!(programs(&plan).count(), 2, "K = {k}");
    }
    // Deep K in one slice, by request: one bank.
    let options = naming(&["full-k-one-row"]);
    let weight = weight_layout_with(Format::FP16_FP32, 3584, 64, &RK3588, &options).expect("a layout");
    let problem = ork_plan::Problem { m: 9, weight };
    let plan = decide_with(&problem, &options).expect("a plan");
    check(&problem, &plan, &options);
    assert!(programs(&plan).all(|tile| tile.rows <= 4 && tile.split.data == 1), "{plan}");
}

#[test]
fn rounded_results_stay_within_what_was_measured() {
    let narrow = on_cores(Format::FP16_FP16, (200, 512, 900), 3);
    assert!(programs(&narrow).all(|tile| tile.rows <= 64), "{narrow}");
    let wide = on_cores(Format::INT8_INT8, (40, 100, 10_000), 1);
    assert!(programs(&wide).all(|tile| tile.n <= 4096 && tile.k == 512), "{wide}");
    assert_eq!(programs(&wide).count(), 3);
    // The caps of int8 sums hold for int8 results.
    for (k, cap) in row_caps::MEASURED {
        let plan = on_cores(Format::INT8_INT8, (cap + 1, k, 256), 1);
        assert!(programs(&plan).all(|tile| tile.rows <= cap), "{plan}");
    }
}

#[test]
fn bf16_and_tf32_are_cubes_of_whole_fours() {
    for format in [Format::BF16_FP32, Format::TF32_FP32] {
        for (m, surface_rows) in [(1, 1), (2, 4), (5, 8), (64, 64), (333, 336)] {
            let plan = on_cores(format, (m, 96, 64), 3);
            let form = plan.shapes()[0].features.form();
            assert_eq!(form, FeatureForm::Cube { surface_rows }, "{format} {m}");
            assert!(programs(&plan).all(|tile| tile.form == Form::Cube { surface_rows }));
        }
    }
}

#[test]
fn int4_runs_in_batches_of_the_table() {
    for (k, rows, columns) in [
        (128, 128, 1024),
        (512, 32, 256),
        (768, 22, 128),
        (1024, 16, 128),
        (2048, 8, 64),
        (4096, 4, 64),
        (8192, 2, 64),
    ] {
        let plan = on_cores(Format::INT4_INT16, (2 * rows + 1, k, 1024), 3);
        let found: Vec<_> = programs(&plan).map(|tile| (tile.rows, tile.form)).collect();
        let form = Form::Int4Batch;
        assert!(
            found.chunks(3).all(|chunk| chunk == [(rows, form), (rows, form), (1, form)]),
            "K = {k}: {found:?}"
        );
        assert!(programs(&plan).all(|tile| tile.n <= columns), "{plan}");
        // Every batch but the first of a column chunk keeps the weights.
        assert!(programs(&plan).all(|tile| (tile.reuse == Reuse::Weights) == (tile.m0 > 0)), "{plan}");
    }
    // One row: as wide as a program can be.
    let decode = on_cores(Format::INT4_INT16, (1, 2048, 40_000), 1);
    assert_eq!(programs(&decode).map(|tile| tile.form).collect::<Vec<_>>(), [Form::Int4Row; 5]);
    // More batches than a chain holds are cut into passes.
    let tall = on_cores(Format::INT4_INT16, (2000, 2048, 8192), 3);
    assert!(tall.pass_count() > 1 && tall.extents().tasks.iter().all(|tasks| *tasks <= 4095));
}

#[test]
fn plans_say_their_datapath() {
    for (format, datapath) in [
        (Format::INT8_INT32, Datapath::Int8),
        (Format::INT8_INT8, Datapath::Int8),
        (Format::INT4_INT16, Datapath::Int4),
        (Format::INT16_INT32, Datapath::Int16),
        (Format::FP16_FP16, Datapath::Float),
        (Format::TF32_FP32, Datapath::Float),
    ] {
        assert_eq!(on_cores(format, (4, 64, 64), 3).datapath(), datapath);
    }
    let text = on_cores(Format::INT4_INT16, (4, 64, 64), 3).to_string();
    assert!(
        text.contains("datapath: int4, entered and left for int8 by a reset of 105000 us modelled"),
        "{text}"
    );
    assert!(weight_layout(Format::INT4_INT16, 0, 1, &RK3588).is_err());
}

#[test]
fn candidates_that_do_not_apply_change_nothing() {
    let problem = problem_of(Format::FP16_FP32, 30, 300, 300);
    let plain = decide_with(&problem, &PlanOptions::default()).expect("accepted");
    let named = decide_with(&problem, &naming(&["fold-everywhere", "int4-two-banks", "vendor-splits"]));
    assert_eq!(named.expect("accepted"), plain);
}
