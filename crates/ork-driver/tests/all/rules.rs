// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules that default plans seldom or never follow give the same results: candidates and the fold.

use crate::support;
use ork_driver::MatmulGroup;
use ork_isa::soc::RK3588;
use ork_layout::Format;
use ork_plan::{
    Decision, Plan, PlanOptions, Problem, Product, Reuse, TileProgram, decide, weight_layout_with,
};
use ork_testkit::{Case, Shape, Stream};
use support::precisions;

fn naming(rules: &[&str]) -> PlanOptions {
    PlanOptions { rules: rules.iter().map(ToString::to_string).collect(), ..PlanOptions::default() }
}

fn cases(shapes: &[(u32, u32, u32)]) -> Vec<Case> {
    shapes.iter().zip(7..).map(|(&(m, k, n), seed)| Case::new(Shape::new(m, k, n), seed)).collect()
}

fn plan(format: Format, (m, k, n): (u32, u32, u32), options: &PlanOptions) -> Plan {
    let weight = weight_layout_with(format, k, n, &RK3588, options).unwrap();
    match decide(&Problem { m, weight }, &RK3588, options) {
        Decision::Accept(plan) => plan,
        Decision::Decline(decline) => panic!("{decline}"),
    }
}

fn programs(plan: &Plan) -> impl Iterator<Item = &TileProgram> {
    plan.shapes().iter().flat_map(|shape| &shape.chains).flat_map(|chain| &chain.programs)
}

/// Every shape is planned by the rules that are asked for, and comes out right.
fn follow(product: Product, rules: &[&str], shapes: &[(u32, u32, u32)]) {
    let options = naming(rules);
    for shape in shapes {
        let plan = plan(product.lower(shape.1).format, *shape, &options);
        for rule in rules {
            // Rules of the weight do not show in a plan.
            if !rule.contains("slices") && !rule.starts_with("full-k") {
                assert!(plan.rules().any(|used| used == *rule), "{product} {shape:?} without {rule}: {plan}");
            }
        }
    }
    precisions::sweep_with(product, &cases(shapes), &options);
}

#[test]
fn the_fold_is_the_default_where_it_was_measured_to_win() {
    let shapes = [(17, 3584, 500), (35, 3584, 700), (36, 3584, 961), (70, 3584, 1216), (100, 3584, 1500)];
    for shape in shapes {
        let folded = plan(Format::INT8_INT32, shape, &PlanOptions::default());
        assert!(folded.rules().any(|rule| rule == "fold"), "{folded}");
    }
    // 37 rows would stream the weights twice for one row more, and one column group per core has nothing to overlap with.
    for shape in [(1, 3584, 700), (37, 3584, 1233), (36, 3584, 64), (101, 3584, 700), (36, 3552, 700)] {
        let plan = plan(Format::INT8_INT32, shape, &PlanOptions::default());
        assert!(plan.rules().all(|rule| rule != "fold"), "{plan}");
    }
    precisions::sweep(Product::Int8, &cases(&shapes));
    // isa.md §12.3, three cores: how many times as fast as rows.
    for (m, measured) in [(36, 1.35), (72, 1.31), (100, 1.09), (128, 0.89)] {
        let us = |rule| plan(Format::INT8_INT32, (m, 3584, 3584), &naming(&[rule])).modelled().us;
        let modelled = us("rows") / us("fold-everywhere");
        assert!((modelled / measured - 1.0).abs() < 0.06, "{m} rows: {modelled:.2}, measured {measured}");
    }
}

/// The quantising product writes cubes as well as rows.
#[test]
fn a_folded_product_of_floats_is_the_product_in_rows() {
    let (m, k, n) = (50usize, 3584usize, 70usize);
    let mut stream = Stream::new(11);
    let (x, w) = (stream.f32s_activation(m * k), stream.f32s_unit(n * k));
    let results = [naming(&[]), naming(&["rows"])].map(|options| {
        let (driver, _board) = support::driver_with(3, options);
        let weight =
            driver.load("w", k, n, &|row, out| out.copy_from_slice(&w[row * k..(row + 1) * k])).unwrap();
        let mut out = vec![f32::NAN; m * n];
        driver.matmul(&mut MatmulGroup { m, x: &x, parts: vec![(&weight, &mut out)] }).unwrap();
        out
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn folds_of_every_size() {
    let shapes: Vec<_> = (2..=128).step_by(7).map(|m| (m, 64 + 32 * (m % 5), 40)).collect();
    follow(Product::Int8, &["fold-everywhere"], &shapes);
}

#[test]
fn cubes() {
    let shapes = [(1, 96, 40), (3, 576, 96), (70, 1056, 200), (333, 64, 64)];
    follow(Product::Int8, &["cube-everywhere"], &shapes);
    follow(Product::Fp16, &["cube-everywhere"], &shapes);
}

#[test]
fn the_dense_int4_form() {
    follow(
        Product::Int4,
        &["cube-everywhere"],
        &[(1, 96, 64), (64, 1024, 300), (200, 512, 128), (5, 3000, 640)],
    );
}

#[test]
fn splits_and_columns() {
    follow(Product::Int8, &["capacity-everywhere"], &[(36, 3584, 3648), (200, 1024, 96)]);
    let one_core = naming(&["one-core"]);
    assert_eq!(plan(Format::INT8_INT32, (9, 512, 512), &one_core).extents().tasks.len(), 1);
    follow(Product::Int8, &["one-core"], &[(9, 512, 512)]);
    follow(
        Product::Fp16,
        &["vendor-splits", "full-k-one-row"],
        &[(32, 2048, 64), (24, 4096, 96), (8, 8192, 64)],
    );
    follow(Product::Int8, &["full-k-one-row"], &[(2, 10_752, 64)]);
}

#[test]
fn int4_candidates() {
    follow(Product::Int4, &["int4-slices-of-2048"], &[(9, 5000, 130), (1, 4096, 64)]);
    // 320 columns on three cores, 64 on one.
    let options = naming(&["int4-two-banks", "int4-slices-of-2048"]);
    let widest = |cores| {
        let plan = plan(Format::INT4_INT16, (40, 4096, 1920), &PlanOptions { cores, ..options.clone() });
        programs(&plan).map(|tile| (tile.n, tile.rows, tile.split.data)).max().unwrap()
    };
    assert_eq!((widest(3), widest(1), widest(2)), ((320, 16, 2), (64, 16, 2), (64, 16, 2)));
    follow(Product::Int4, &["int4-two-banks", "int4-slices-of-2048"], &[(40, 4096, 1920), (17, 2048, 64)]);
}

/// The transposed loop: a candidate that stays off.
#[test]
fn kept_operands_give_the_same_results() {
    let kept = |rules: &[&str], shape| {
        let plan = plan(Format::INT8_INT32, shape, &naming(rules));
        let count = |reuse| programs(&plan).filter(|tile| tile.reuse == reuse).count();
        (count(Reuse::Weights), count(Reuse::Features), programs(&plan).count())
    };
    let shape = (700, 512, 1200);
    assert_eq!(kept(&[], shape).0, 0);
    let (weights, features, _) =
        kept(&["keep-weights", "four-segments", "capacity-everywhere"], (1500, 512, 1200));
    assert!(weights > 0 && features == 0, "{weights} {features}");
    let (weights, features, all) = kept(&["keep-features", "four-segments"], shape);
    // Every segment but the first of each row tile.
    assert!(weights == 0 && features * 4 == all * 3, "{features} of {all}");

    follow(Product::Int8, &["keep-features", "four-segments"], &[shape, (1, 2048, 2048), (70, 5000, 500)]);
    follow(Product::Fp16, &["keep-features", "four-segments"], &[(70, 256, 400)]);
    follow(Product::Int8, &["keep-weights", "four-segments", "capacity-everywhere"], &[(1500, 512, 1200)]);
    follow(Product::Fp16, &["keep-weights"], &[(200, 2000, 48)]);
}
