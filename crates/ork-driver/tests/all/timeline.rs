// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a listener is told, against the plan and the counters.

use crate::support;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ork_driver::{Listener, MatmulGroup, Phase, Span};
use ork_isa::soc::RK3588;
use ork_layout::Format;
use ork_plan::{Decision, PlanOptions, Problem, decide, weight_layout};

/// Phase, start, end, weight, modelled microseconds.
type Told = (Phase, Instant, Instant, String, Option<f64>);

#[derive(Debug, Default)]
struct Ear(Mutex<Vec<Told>>);

impl Listener for Ear {
    fn span(&self, span: &Span<'_>) {
        let modelled = span.pass.map(|(plan, shape)| plan.shapes()[shape].modelled.us);
        assert_eq!(modelled.is_some(), span.phase == Phase::Submit);
        assert_eq!(span.duration(), span.end - span.start);
        self.0.lock().unwrap().push((span.phase, span.start, span.end, span.weight.to_owned(), modelled));
    }
}

#[test]
fn phases_lie_in_products_and_products_in_calls() {
    let (m, k, names) = (700, 1500, [("one", 96), ("two", 160)]);
    let (driver, _board) = support::driver(3);
    let value = |index: usize| (index % 251) as f32 - 125.0;
    let weights = names.map(|(name, n)| {
        let fill = |row: usize, out: &mut [f32]| {
            out.iter_mut().enumerate().for_each(|(at, out)| *out = value(row * k + at));
        };
        driver.load(name, k, n, &fill).unwrap()
    });
    let x: Vec<f32> = (0..m * k).map(value).collect();
    let mut outs = names.map(|(_, n)| vec![0.0; m * n]);
    let multiply = |outs: &mut [Vec<f32>; 2]| {
        let parts = weights.iter().zip(outs.iter_mut().map(Vec::as_mut_slice)).collect();
        driver.matmul(&mut MatmulGroup { m, x: &x, parts }).unwrap();
    };
    multiply(&mut outs);
    let quiet = outs.clone();

    let ear = Arc::new(Ear::default());
    driver.listen(Some(Arc::clone(&ear) as _));
    let before = driver.counters();
    multiply(&mut outs);
    let after = driver.counters();
    assert_eq!(outs, quiet, "listening changes nothing");
    let told = std::mem::take(&mut *ear.0.lock().unwrap());
    driver.listen(None);
    multiply(&mut outs);
    assert!(ear.0.lock().unwrap().is_empty(), "nobody listens any more");

    let plans = names.map(|(_, n)| {
        let weight = weight_layout(Format::INT8_INT32, k as u32, n as u32, &RK3588).unwrap();
        let options = PlanOptions { cores: 3, ..PlanOptions::default() };
        match decide(&Problem { m: m as u32, weight }, &RK3588, &options) {
            Decision::Accept(plan) => plan,
            Decision::Decline(decline) => panic!("{decline}"),
        }
    });
    let of = |phase| told.iter().filter(move |span| span.0 == phase);
    let modelled: f64 = of(Phase::Submit).map(|span| span.4.unwrap()).sum();
    let planned: f64 = plans.iter().map(|plan| plan.modelled().us).sum();
    assert!((modelled - planned).abs() < 1e-9 * planned, "{modelled} {planned}");
    assert!((after.modelled_ns - before.modelled_ns).abs_diff((planned * 1e3) as u64) <= 2);
    let passes: u32 = plans.iter().map(ork_plan::Plan::pass_count).sum();
    assert_eq!(of(Phase::Submit).count(), passes as usize);
    assert_eq!((of(Phase::Call).count(), of(Phase::Product).count(), of(Phase::Turn).count()), (1, 2, 0));

    let inside = |outer: Phase, inner: Phase| {
        for span in of(inner) {
            assert!(of(outer).any(|outer| outer.1 <= span.1 && span.2 <= outer.2), "{inner:?} in {outer:?}");
        }
    };
    inside(Phase::Call, Phase::Product);
    let mut last = told[0].1;
    for span in told.iter().filter(|span| span.0.is_leaf()) {
        inside(Phase::Product, span.0);
        assert!(last <= span.1 && names.iter().any(|(name, _)| *name == span.3), "phases follow each other");
        last = span.2;
    }
    // The counters add up the same laps.
    let time = |phase| of(phase).map(|span| span.2 - span.1).sum::<Duration>();
    assert_eq!(after.submit - before.submit, time(Phase::Submit));
    assert_eq!(after.quantise - before.quantise, time(Phase::Quantise));
    assert_eq!(after.synthesise - before.synthesise, time(Phase::Plan) + time(Phase::Synthesise));
    assert_eq!(after.dequantise - before.dequantise, time(Phase::Dequantise));
    assert_eq!(after.sync - before.sync, time(Phase::Flush));
    // Each pass flushes its programs, and some an activation before.
    assert_eq!(of(Phase::Flush).count(), of(Phase::Synthesise).count() + of(Phase::Quantise).count());
}
