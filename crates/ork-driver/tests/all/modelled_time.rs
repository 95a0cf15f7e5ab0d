// SPDX-License-Identifier: MIT OR Apache-2.0
//! The planner's estimate of a product, and what the simulator makes of the registers of its programs: both ask the one
//! timing model, from two ends.

use crate::support;
use half::f16;
use ork_driver::Work;
use ork_isa::soc::RK3588;
use ork_layout::Format;
use ork_plan::{Decision, PlanOptions, Problem, cost, decide};
use ork_testkit::{Case, Shape};

/// How far both may lie apart; the driver reports whole nanoseconds.
const RELATIVE: f64 = 1e-4;
/// The cost of a further program, which the planner puts into every task and takes off the submit.
const NEXT_US: f64 = 1.27;
/// The planner takes 1.27 us for each further program, where the model takes 11 us if that program waits for its weights.
const EXPOSED_US: f64 = 11.0 - NEXT_US;

/// The planner's estimate without the submit, the simulator's time, and the programs of the product.
fn both(shape: Shape) -> (f64, f64, u32) {
    let (driver, _board) = support::driver(1);
    let weights = Case::new(shape, 7);
    let codes = weights.weights();
    let k = shape.k as usize;
    let weight = driver
        .load_codes("case", k, shape.n as usize, &|row, out| {
            out.copy_from_slice(&codes[row * k..(row + 1) * k])
        })
        .unwrap();
    let problem = Problem {
        m: shape.m,
        weight: ork_plan::weight_layout(ork_layout::Format::INT8_INT32, shape.k, shape.n, &RK3588).unwrap(),
    };
    let options = PlanOptions { cores: 1, ..PlanOptions::default() };
    let Decision::Accept(plan) = decide(&problem, &RK3588, &options) else { panic!("{shape} is declined") };
    let passes = plan.shapes().len();
    assert_eq!(passes, 1, "{shape}");
    let programs: usize =
        plan.shapes().iter().flat_map(|pass| &pass.chains).map(|chain| chain.programs.len()).sum();

    let before = driver.device().counters().cores[0].busy_ns;
    let mut got = vec![0; shape.m as usize * shape.n as usize];
    driver.matmul_codes(&weight, shape.m as usize, &weights.features(), &mut got).unwrap();
    let counters = driver.device().counters().cores[0];
    assert_eq!(counters.tasks, programs as u64, "{shape}: the driver runs the plan");
    let simulated = (counters.busy_ns - before) as f64 / 1e3;
    (plan.modelled().us - cost::submit().us - NEXT_US, simulated, programs as u32)
}

#[test]
fn planner_and_simulator_agree_about_time() {
    // Shapes whose later programs compute longer than they load, and shapes whose programs wait for their weights.
    for (shape, waiting) in [
        (Shape::new(512, 512, 256), 0),
        (Shape::new(1500, 1024, 128), 0),
        (Shape::new(300, 2048, 512), 0),
        (Shape::new(200, 3584, 608), 0),
        (Shape::new(257, 96, 64), 0),
        (Shape::new(64, 1536, 1056), 0),
        (Shape::new(1, 2048, 1024), 0),
        (Shape::new(4, 2048, 2048), 0),
        (Shape::new(40, 4097, 224), 3),
    ] {
        let (planned, simulated, programs) = both(shape);
        assert!(waiting < programs);
        let expected = planned + EXPOSED_US * f64::from(waiting);
        assert!(
            (simulated / expected - 1.0).abs() <= RELATIVE,
            "{shape}, {programs} programs: planned {planned:.3} us, simulated {simulated:.3} us"
        );
    }
}

#[test]
fn a_pass_that_runs_twice_counts_twice() {
    let (driver, _board) = support::driver(1);
    let weight =
        driver.load_elements::<f16>("w", Format::FP16_FP32, 64, 64, &|_, out| out.fill(f16::ONE)).unwrap();
    let (a, mut out) = ([f16::ONE; 64], [0.0; 64]);
    let mut counted = || {
        let before = driver.counters().modelled_ns;
        driver.work(&weight, 1, &mut Work::Fp16 { a: &a, out: &mut out }).unwrap();
        driver.counters().modelled_ns - before
    };
    let (cold, warm) = (counted(), counted());
    assert!(warm > 0 && cold.abs_diff(2 * warm) <= 1, "{cold} ns cold, {warm} ns warm");
}
