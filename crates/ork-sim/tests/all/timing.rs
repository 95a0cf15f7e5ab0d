// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled time of jobs: the registers say the same work to the timing model as the shapes behind them.

use crate::common;
use common::bench::*;
use common::pass::int8_mul;
use common::tensor::{Case, Kind, Out as Format, Spec, banks, to};
use common::*;
use ork_isa::regs::cna;
use ork_isa::{Iova, Link, Precision};
use ork_sim::{Core, SimOptions};
use ork_timing::{Arithmetic, FeatureOrder, Model, TaskWork};

/// Bytes of so many banks.
fn bank_bytes(banks: u32) -> u64 {
    u64::from(banks) * 32_768
}

fn int8(mm: &Matmul, order: FeatureOrder) -> TaskWork {
    let precisions = (Precision::Int8, Precision::Int32);
    TaskWork::matmul((mm.m, mm.k, mm.n), precisions, order, bank_bytes(mm.split >> 4))
}

fn near(got: f64, expected: f64) {
    assert!((got / expected - 1.0).abs() < 1e-12, "{got} instead of {expected}");
}

#[test]
fn a_matmul_takes_what_its_shape_takes() {
    for (recipe, m, k, n, split, order) in [
        (Recipe::Two, 64, 512, 256, banks(1, 11), FeatureOrder::RowMajor),
        (Recipe::Two, 36, 3584, 64, banks(7, 5), FeatureOrder::RowMajor),
        (Recipe::Two, 1, 2048, 96, banks(1, 11), FeatureOrder::RowMajor),
        (Recipe::One, 64, 512, 256, banks(1, 11), FeatureOrder::Cube),
        (Recipe::One, 4, 96, 64, banks(1, 11), FeatureOrder::Cube),
        // One row is a row in both recipes.
        (Recipe::One, 1, 2048, 96, banks(1, 11), FeatureOrder::RowMajor),
    ] {
        let bench = Bench::new(Matmul { split, ..Matmul::new(recipe, m, k, n) }, 91);
        let outcome = bench.run(&mut core(), &[]);
        assert_clean(&outcome, 1);
        near(outcome.modelled_us, Model::default().task(&int8(&bench.mm, order)).total.us);
    }
}

#[test]
fn a_chain_takes_its_tasks_and_what_lies_between() {
    let bench = Bench::new(Matmul::new(Recipe::Two, 32, 1024, 64), 92);
    // 64 KB of weights: the second task may keep them.
    for reuse in [0, 1 << 13, 1 << 12] {
        let tile = |index: u32, split: u32| Matmul {
            m: 16,
            a: if reuse == 1 << 12 { bench.mm.a } else { bench.mm.a + index * 16 * 1024 },
            c: bench.mm.c + index * 16 * 64 * 4,
            split,
            ..bench.mm
        };
        let amount = tile(0, banks(1, 11)).program(Link::Last, &[]).fetch_amount();
        let next = Link::Next { at: Iova(PROGRAM + 0x400), amount };
        bench.bus.put_program(PROGRAM, &tile(0, banks(1, 11)).program(next, &[]));
        bench.bus.put_program(PROGRAM + 0x400, &tile(1, banks(1, 11) | reuse).program(Link::Last, &[]));
        let outcome = core().run(&bench.bus, &job(amount, 2));
        assert_clean(&outcome, 2);
        let first = int8(&tile(0, banks(1, 11)), FeatureOrder::RowMajor);
        let second = match reuse {
            0 => first,
            4096 => TaskWork { feature_bytes: 0, ..first },
            _ => first.weights_kept(),
        };
        near(outcome.modelled_us, Model::default().chain(&[first, second]).us);
    }
}

#[test]
fn other_precisions_and_convolutions_take_their_cycles() {
    let model = Model::default();
    for (kind, out, precision, stored) in [
        (Kind::Fp16, Format::Fp32, Precision::Fp16, Precision::Fp32),
        (Kind::Fp16, Format::Fp16, Precision::Fp16, Precision::Fp16),
        (Kind::Int4, Format::Int16, Precision::Int4, Precision::Int16),
        (Kind::Tf32, Format::Fp32, Precision::Tf32, Precision::Fp32),
    ] {
        let case = Case::new(Spec { split: banks(1, 11), ..Spec::matmul(kind, out, 16, 64, 64) }, 93);
        let outcome = case.run(&SimOptions::default(), &[]);
        assert_clean(&outcome, 1);
        let work = TaskWork::matmul((16, 64, 64), (precision, stored), FeatureOrder::Cube, bank_bytes(11));
        near(outcome.modelled_us, model.task(&work).total.us);
    }
    let direct = Spec {
        w: 12,
        k: (3, 3),
        pad: (1, 1),
        split: banks(1, 11),
        ..Spec::matmul(Kind::Int8, Format::Int32, 12, 64, 64)
    };
    let work = TaskWork {
        arithmetic: Arithmetic::Direct { pixels: 144, channels: 64, kernels: 64, taps: 9 },
        precision: Precision::Int8,
        order: FeatureOrder::Cube,
        weight_bytes: 9 * 64 * 64,
        feature_bytes: 144 * 64,
        output_elements: 144 * 64,
        output_element_bytes: 4,
        weight_buffer_bytes: bank_bytes(11),
    };
    near(Case::new(direct, 94).run(&SimOptions::default(), &[]).modelled_us, model.task(&work).total.us);
    let depthwise = Spec { depthwise: true, kind: Kind::Fp16, out: Format::Fp16, oc: 1, ..direct };
    let work = TaskWork {
        arithmetic: Arithmetic::Depthwise { pixels: 144, channels: 64, taps: 9 },
        precision: Precision::Fp16,
        weight_bytes: 9 * 64 * 2,
        feature_bytes: 144 * 64 * 2,
        output_element_bytes: 2,
        ..work
    };
    near(Case::new(depthwise, 94).run(&SimOptions::default(), &[]).modelled_us, model.task(&work).total.us);
}

#[test]
fn an_element_wise_pass_moves_bytes() {
    let bus = common::pass::bus();
    let outcome = run_words(&mut Core::new(0, &SimOptions::default()), &bus, &int8_mul(64, 64), 0x18);
    assert_clean(&outcome, 1);
    let work = TaskWork {
        arithmetic: Arithmetic::None,
        precision: Precision::Int8,
        order: FeatureOrder::Cube,
        weight_bytes: 0,
        feature_bytes: 2 * 64 * 64,
        output_elements: 64 * 64,
        output_element_bytes: 1,
        weight_buffer_bytes: 0,
    };
    near(outcome.modelled_us, Model::default().task(&work).total.us);
}

#[test]
fn a_wider_line_is_still_a_cube() {
    // The fold of a batch: surfaces as far apart as the batch has rows.
    let case = Case::new(Spec::matmul(Kind::Int8, Format::Int32, 8, 64, 32), 95);
    let apart = to(cna::DmaCon2(0).with_surf_stride(60).expect("fits"));
    let dense = case.run(&SimOptions::default(), &[]).modelled_us;
    near(case.run(&SimOptions::default(), &[apart]).modelled_us, dense);
}
