// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every plan must be: complete, legal, bounded, deterministic.

use crate::common;
use common::{check, check_shape, decide_with, naming, plan, problem, problem_of};
use ork_isa::soc::RK3588;
use ork_layout::{Format, WeightLayout};
use ork_plan::laws::row_caps;
use ork_plan::rules::{self, Status};
use ork_plan::{
    Decision, Decline, PlanOptions, Problem, Product, Reason, TileProgram, decide, explain, explain_product,
    weight_layout, weight_layout_with,
};
use proptest::prelude::*;

/// The checks of this file see what they are meant to see.
#[test]
fn a_damaged_plan_does_not_pass() {
    let problem = problem(150, 5000, 3000);
    let shape = plan(150, 5000, 3000).shapes()[0].clone();
    check_shape(&problem.weight, &shape);
    type Damage = fn(&mut Vec<TileProgram>);
    let damages: [(&str, Damage); 9] = [
        ("a program is missing", |programs| programs.truncate(programs.len() - 1)),
        ("a program runs twice", |programs| programs.push(programs[0])),
        ("rows are left out", |programs| programs[0].rows -= 1),
        ("rows are computed twice", |programs| programs[0].rows += 1),
        ("columns are left out", |programs| programs[0].n -= 32),
        ("features of another row", |programs| programs[1].a_offset += u64::from(programs[1].k)),
        ("weights of another group", |programs| programs[1].b_offset += 1024),
        ("results in another place", |programs| programs[1].c_offset += 128),
        ("a split that breaks a law", |programs| programs[1].split.weight = 0),
    ];
    for (what, damage) in damages {
        let mut damaged = shape.clone();
        damage(&mut damaged.chains[1].programs);
        let outcome = std::panic::catch_unwind(|| check_shape(&problem.weight, &damaged));
        assert!(outcome.is_err(), "{what}, and nobody noticed");
    }
}

#[test]
fn odd_prime_and_large_shapes() {
    let mut shapes = vec![];
    for m in [1, 2, 3, 31, 63, 64, 65, 127, 193, 257, 321, 353, 509, 705, 997, 1999, 2000] {
        for (k, n) in
            [(32, 32), (96, 1), (512, 64), (896, 4864), (1024, 33), (1536, 8960), (2048, 2048), (2560, 2047)]
        {
            shapes.push((m, k, n));
        }
    }
    for m in [1, 67, 512] {
        for (k, n) in [
            (3072, 8192),
            (3584, 18944),
            (4096, 14336),
            (4095, 4097),
            (4097, 64),
            (18944, 3584),
            (8960, 1536),
        ] {
            shapes.push((m, k, n));
        }
    }
    for m in [1, 7, 200] {
        shapes.extend([(m, 1024, 248_320), (m, 248_320, 1024), (m, 2048, 151_936), (m, 896, 151_936)]);
    }
    for (m, k, n) in shapes {
        let problem = problem(m, k, n);
        for cores in 1..=3 {
            let options = PlanOptions { cores, ..PlanOptions::default() };
            let plan = decide_with(&problem, &options).unwrap_or_else(|decline| panic!("{decline}"));
            check(&problem, &plan, &options);
            assert!(plan.extents().tasks.len() <= usize::from(cores));
        }
    }
}

#[test]
fn default_plans_stay_below_the_measured_caps() {
    for (k, cap) in row_caps::MEASURED {
        for m in [cap - 1, cap, cap + 1, 2 * cap + 1, 1999] {
            let plan = plan(m, k, 2048);
            let tiles = plan.shapes().iter().flat_map(|s| &s.chains).flat_map(|c| &c.programs);
            assert!(tiles.map(|tile| tile.rows).max().is_some_and(|rows| rows <= cap), "K = {k}, M = {m}");
        }
    }
}

#[test]
fn work_is_dealt_evenly_over_the_cores() {
    let plan = plan(8, 2048, 3000);
    let shape = &plan.shapes()[0];
    let columns: Vec<u32> =
        shape.chains.iter().map(|chain| chain.programs.iter().map(|tile| tile.n).sum()).collect();
    // 94 kernel groups.
    assert_eq!(columns, [32 * 32, 31 * 32, 31 * 32]);
    assert_eq!(shape.chain(2).map(|chain| chain.core), Some(2));
    // Fewer groups than cores.
    let narrow = decide_with(&problem(8, 2048, 40), &PlanOptions::default()).expect("accepted");
    assert_eq!(narrow.extents().tasks.len(), 2);
}

#[test]
fn wide_outputs_are_cut_into_legal_segments() {
    let plan = plan(1, 2048, 151_936);
    for chain in &plan.shapes()[0].chains {
        assert_eq!(chain.programs.len(), 7);
        assert!(chain.programs.iter().all(|tile| tile.n <= 8192));
    }
}

fn rules_of(plan: &ork_plan::Plan) -> Vec<&'static str> {
    plan.rules().collect()
}

#[test]
fn decode_uses_the_one_row_schedule() {
    let plan = plan(1, 4096, 4096);
    assert_eq!(rules_of(&plan), ["even-columns", "one-row", "rows", "rows-innermost"]);
    for tile in plan.shapes()[0].chains.iter().flat_map(|chain| &chain.programs) {
        // 0x1040 = 0xB1 and 0x1010 = 0x20 (isa.md §10.4).
        assert_eq!((tile.split.weight, tile.split.data, tile.grains), (11, 1, 2));
    }
}

#[test]
fn a_deep_weight_in_one_slice_is_served_row_by_row() {
    let options = PlanOptions { rules: vec!["full-k-one-row".into()], ..PlanOptions::default() };
    let weight = weight_layout_with(Format::INT8_INT32, 10_752, 640, &RK3588, &options).expect("a weight");
    assert_eq!(weight.slices().len(), 1);
    for m in [1, 2, 7] {
        let problem = Problem { m, weight: weight.clone() };
        let plan = decide_with(&problem, &options).expect("a plan");
        check(&problem, &plan, &options);
        let tiles = plan.shapes()[0].chains.iter().flat_map(|chain| &chain.programs);
        assert!(tiles.map(|tile| tile.rows).all(|rows| rows == 1));
    }
}

#[test]
fn deep_weights_are_cut_into_slices_of_1024() {
    let lens = |k| -> Vec<u32> {
        let layout = weight_layout(Format::INT8_INT32, k, 64, &RK3588).expect("accepted");
        layout.slices().iter().map(|slice| slice.len).collect()
    };
    assert_eq!(lens(1), [32]);
    assert_eq!(lens(4096), [4096]);
    assert_eq!(lens(4097), [1024, 1024, 1024, 1024, 32]);
    assert_eq!(lens(18944), [vec![1024; 18], vec![512]].concat());
    assert!(weight_layout(Format::INT8_INT32, 0, 1, &RK3588).is_err());
    assert!(weight_layout(Format::INT8_INT32, u32::MAX, 1, &RK3588).is_err());
}

/// The order inside a chain: segments, then K slices, then rows.
#[test]
fn weights_stay_while_rows_go_by() {
    let plan = plan(700, 5000, 30_000);
    for chain in &plan.shapes()[0].chains {
        let order: Vec<_> = chain.programs.iter().map(|tile| (tile.n0, tile.k_slice, tile.m0)).collect();
        assert!(order.is_sorted());
        let offsets: Vec<_> = chain.programs.iter().map(|tile| (tile.n0, tile.b_offset)).collect();
        assert!(offsets.is_sorted(), "each segment's weights are walked once, upwards");
    }
}

#[test]
fn scratch_limits_make_passes_that_share_their_programs() {
    let options = PlanOptions { scratch_bytes_max: 1 << 20, ..PlanOptions::default() };
    let problem = problem(1000, 2048, 2048);
    let plan = decide_with(&problem, &options).expect("accepted");
    check(&problem, &plan, &options);
    // 8 KiB of results a row: 128 rows at most, 8 passes, evenly.
    assert_eq!((plan.pass_count(), plan.shapes().len()), (8, 1));
    assert_eq!(plan.shapes()[0].rows, 125);
    let uneven = decide_with(&Problem { m: 1001, ..problem }, &options).expect("accepted");
    assert_eq!(uneven.shapes().iter().map(|shape| shape.rows).collect::<Vec<_>>(), [126, 119]);
    assert_eq!(uneven.passes().map(|pass| pass.shape_index).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn long_chains_are_cut_into_passes() {
    // 64 rows a tile, so 9375 tiles in all, more than two chains hold.
    let options = PlanOptions { cores: 1, scratch_bytes_max: u64::MAX, rules: vec![] };
    let problem = problem(600_000, 4096, 64);
    let plan = decide_with(&problem, &options).expect("accepted");
    check(&problem, &plan, &options);
    assert!(plan.extents().tasks[0] <= 4095 && (3..=5).contains(&plan.pass_count()));
    let tall = self::problem(u32::MAX, 32, 32);
    let plan = decide_with(&tall, &options).expect("accepted");
    assert!(plan.extents().tasks[0] <= 4095 && plan.pass_count() > 100);
}

fn decline(problem: &Problem, options: &PlanOptions) -> Decline {
    decide_with(problem, options).expect_err("a decline")
}

#[test]
fn declines_are_values_with_law_and_numbers() {
    let options = PlanOptions::default();
    let none = decline(&problem(0, 64, 64), &options);
    assert_eq!(none.law(), "non-empty");

    // A weight beyond the address window.
    let huge = decline(&problem(1, 248_320, 248_320), &options);
    assert_eq!(huge.law(), "address-window");
    assert_eq!(
        huge.to_string(),
        "matmul 1x248320x248320 int8xint8->int32 declined: address-window: bytes of the weight is 61662822400, and must \
         be at most 4294967296"
    );

    // Deeper than anybody ran one task.
    let weight = WeightLayout::one_slice(Format::INT8_INT32, 10_784, 64).expect("a weight");
    assert_eq!(decline(&Problem { m: 1, weight: weight.clone() }, &options).law(), "depth");
    assert_eq!(decline(&Problem { m: 100, weight }, &options).law(), "depth");

    // Deeper than the channel field: narrower columns would not help, and the answer comes at once.
    let weight = WeightLayout::one_slice(Format::INT8_INT32, 20_000, 200_000).expect("a weight");
    assert_eq!(decline(&Problem { m: 1, weight }, &options).law(), "encodable");

    // The slice length that hung.
    let weight = WeightLayout::new(Format::INT8_INT32, 8192, 64, &[2048; 4]).expect("accepted");
    assert_eq!(decline(&Problem { m: 64, weight }, &options).law(), "slice-depth");

    // Results that must not be added, in slices.
    let weight = WeightLayout::new(Format::INT8_INT8, 1024, 64, &[512; 2]).expect("accepted");
    let sliced = decline(&Problem { m: 4, weight }, &options);
    let Reason::Law { rule: Some(_), violation } = &sliced.reason else { panic!("{sliced}") };
    assert_eq!((sliced.law(), violation.what, violation.found), ("requantised", "K slices", 2));

    let misspelt = PlanOptions { rules: vec!["capacity-everywere".into()], ..options };
    let unknown = decline(&problem(1, 64, 64), &misspelt);
    assert_eq!(unknown.law(), "unknown-rule");
    assert!(
        unknown
            .to_string()
            .contains("there is no rule `capacity-everywere`; the rules are fused-output full-k")
    );
}

#[test]
fn more_programs_than_a_chain_holds_are_declined() {
    // 4096 slices of 32 channels: each needs a program of its own, however few the rows.
    let weight = WeightLayout::new(Format::INT8_INT32, 131_072, 32, &[32; 4096]).expect("accepted");
    assert_eq!(decline(&Problem { m: 100, weight }, &PlanOptions::default()).law(), "chain-length");
    // 2050 slices of 2 segments.
    let weight = WeightLayout::new(Format::INT8_INT32, 65_600, 8224, &[32; 2050]).expect("accepted");
    let options = PlanOptions { cores: 1, ..PlanOptions::default() };
    assert_eq!(decline(&Problem { m: 100, weight }, &options).law(), "chain-length");
}

#[test]
fn named_rules_take_the_place_of_defaults() {
    let problem = problem(36, 3584, 3648);
    let rows = decide_with(&problem, &naming(&["rows"])).expect("accepted");
    assert_eq!(rules_of(&rows), ["even-columns", "rows", "rows-innermost", "schedule-1"]);
    let options = naming(&["rows", "capacity-everywhere"]);
    let candidate = decide_with(&problem, &options).expect("accepted");
    check(&problem, &candidate, &options);
    assert_eq!(rules_of(&candidate), ["capacity-everywhere", "even-columns", "rows", "rows-innermost"]);
    // Room for two kernel groups, as in the fold: the model says 1.3 times as fast.
    assert!(candidate.modelled().us * 1.2 < rows.modelled().us);
    assert_eq!(decide_with(&problem, &naming(&["one-core"])).expect("accepted").extents().tasks.len(), 1);
}

#[test]
fn explain_speaks_of_every_rule_and_decides_the_same() {
    for problem in [problem(300, 5000, 2048), problem(1, 1024, 1024), problem(0, 32, 32)] {
        let options = PlanOptions::default();
        let explanation = explain(&problem, &RK3588, &options);
        assert_eq!(explanation.decision, decide(&problem, &RK3588, &options));
        let text = explanation.to_string();
        for rule in rules::TABLE {
            assert!(explanation.notes.iter().any(|note| note.rule == rule.name), "{}", rule.name);
            assert!(text.contains(rule.name));
        }
    }
}

#[test]
fn a_product_is_explained_from_slices_to_host_work() {
    let options = PlanOptions { cores: 1, ..PlanOptions::default() };
    let explained = |product, size| explain_product(product, size, &RK3588, &options).expect("a layout");
    let text = explained(Product::Fp16ToFp16, (9, 2048, 64)).to_string();
    for line in [
        "product 9x2048x64 fp16-fp16",
        "then the host rounds the sums to fp16",
        "matmul 9x2048x64 fp16xfp16->fp32: 1 pass(es), 2 K slices added by the host, ",
        "datapath: float",
        "  slices-of-1024       weight                     taken",
        "  full-k               weight                     does not apply: K is deeper than one task reduces well",
        "  fold                 pass of 9 rows             does not apply: only int8 with int32 results was folded",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line}\n{text}");
    }
    let text = explained(Product::Int16, (3, 64, 64)).to_string();
    assert!(text.contains("as one matmul of 2 times the rows and 2 times the columns"), "{text}");
    assert!(text.contains("matmul 6x64x128 int8xint8->int32"), "{text}");
    let refused = explained(Product::Int8, (1, 248_320, 248_320)).to_string();
    assert!(refused.contains("declined: address-window"), "{refused}");
    assert!(explain_product(Product::Int8, (1, 0, 5), &RK3588, &options).is_err());
}

#[test]
fn explanations_are_data() {
    let explained = explain_product(Product::Int4, (40, 512, 64), &RK3588, &PlanOptions::default());
    let value = serde_json::to_value(explained.expect("a layout")).expect("serialisable");
    assert_eq!(value["product"], "int4");
    assert_eq!(value["lowered"]["host"], "nothing");
    let plan = &value["decision"]["accept"];
    assert_eq!(plan["format"], "int4xint4->int16");
    let shape = &plan["shapes"][0];
    assert!(shape["modelled_us"].as_f64().is_some_and(|us| us > 0.0));
    let tile = &shape["chains"][0]["programs"][1];
    assert_eq!((&tile["reuse"], &tile["form"]), (&"Weights".into(), &"Int4Batch".into()));
    assert_eq!((&tile["rows"], &tile["split"]["weight"]), (&8.into(), &11.into()));
    let notes = value["notes"].as_array().expect("a list");
    assert!(notes.iter().any(|note| note["rule"] == "int4-batches" && note["outcome"]["legal"].is_f64()));
    let declined = explain_product(Product::Int8, (0, 32, 32), &RK3588, &PlanOptions::default());
    let value = serde_json::to_value(declined.expect("a layout")).expect("serialisable");
    assert_eq!(value["decision"]["decline"]["reason"]["law"]["violation"]["law"], "non-empty");
}

#[test]
fn the_table_has_unique_names_and_sources() {
    let mut names: Vec<_> = rules::TABLE.iter().map(|rule| rule.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), rules::TABLE.len());
    assert!(rules::TABLE.iter().all(|rule| !rule.source.is_empty() && !rule.idea.contains('\n')));
    assert!(rules::TABLE.iter().any(|rule| rule.status == Status::Candidate));
}

#[test]
fn a_plan_prints_as_a_table() {
    let text = plan(400, 4608, 3000).to_string();
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0]
            .starts_with("matmul 400x4608x3000 int8xint8->int32: 1 pass(es), 5 K slices added by the host, ")
    );
    assert!(lines[0].ends_with(" us modelled"));
    assert_eq!(lines[1], "datapath: int8");
    assert_eq!(lines[2], "rules: even-columns, rows, rows-innermost, schedule-1");
    assert_eq!(
        lines[3],
        "bytes: A 1843200, B 13860864, C 24064000, regcmd [8064, 8064, 8064]; tasks [9, 9, 9]"
    );
    assert_eq!(
        lines[6..8],
        [
            "     0  0..1024            0..=3    1024  2 x 200 (D8 W4)",
            "     0  0..1024                4     512  1 x 400 (D7 W5)",
        ]
    );
    assert_eq!(lines.len(), 12, "two lines for each core:\n{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any shape up to the largest of known models: a plan that passes every check, twice the same.
    #[test]
    fn plans_are_complete_and_legal(
        format in prop_oneof![2 => Just(0), 3 => 0..Format::ALL.len()],
        m in prop_oneof![1u32..70, 1u32..2001],
        k in prop_oneof![1u32..600, 1u32..5000, 1u32..20_000],
        n in prop_oneof![1u32..200, 1u32..5000, 1u32..40_000],
        cores in 0u8..5,
    ) {
        // Rounded results see all of K.
        let k = match Format::ALL[format] {
            Format::INT8_INT8 => k.min(4096),
            Format::FP16_FP16 => k.min(1024),
            _ => k,
        };
        let problem = problem_of(Format::ALL[format], m, k, n);
        let options = PlanOptions { cores, ..PlanOptions::default() };
        let plan = decide_with(&problem, &options).unwrap_or_else(|decline| panic!("{decline}"));
        check(&problem, &plan, &options);
        prop_assert_eq!(plan, decide_with(&problem, &options).expect("accepted"));
    }

    /// Whatever is asked, there is an answer.
    #[test]
    fn decide_is_total(
        m in prop_oneof![any::<u32>(), 0u32..3],
        k in prop_oneof![any::<u32>(), 1u32..5000],
        n in prop_oneof![any::<u32>(), 1u32..5000],
        format in 0..Format::ALL.len(),
    ) {
        if let Ok(weight) = weight_layout(Format::ALL[format], k, n, &RK3588) {
            let problem = Problem { m, weight };
            match decide(&problem, &RK3588, &PlanOptions::default()) {
                Decision::Accept(plan) => prop_assert!(plan.extents().tasks.iter().all(|&tasks| tasks <= 4095)),
                Decision::Decline(decline) => prop_assert!(!decline.law().is_empty()),
            }
        }
    }
}
