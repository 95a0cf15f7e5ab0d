// SPDX-License-Identifier: MIT OR Apache-2.0
//! The int4 schemes and the steps of the ladder.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;
use std::time::Instant;

use ork_quant::{
    Basis, ClipReport, Codebook, Factor, Hessian, NativeClip, Rounding, Step, StoredClip, TensorStatistics,
    inflate, quantise_native_activation, quantise_native_weight, quantise_stored_row,
};

use crate::race::{Arm, copies, race};

/// Everything that works on rows. Bytes are those read plus those written.
pub(crate) fn rows(m: usize, k: usize) {
    // A weight of the slow steps: fewer rows, the rate is the same.
    let slow = m.min(256);
    let input: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.7).sin()).collect();
    let input = &input;
    let mut arms = copies(m * k * 4);
    let mut rotated = input.clone();
    let basis = Basis::new(k, vec![Step::Rotate]).expect("k is not 0");
    arms.push(Arm {
        name: "rotate".into(),
        bytes: m * k * 8,
        work: Box::new(move || {
            rotated.chunks_exact_mut(k).for_each(|row| basis.activation_row(row));
            black_box(&rotated);
        }),
    });
    let nibbles: Vec<u8> = (0..m * k / 2).map(|i| (i * 37 % 251) as u8).collect();
    let mut inflated = vec![0i8; m * k];
    arms.push(Arm {
        name: "inflate nf4".into(),
        bytes: m * k * 3 / 2,
        work: Box::new(move || {
            inflate(&nibbles, Codebook::Nf4, &mut inflated);
            black_box(&inflated);
        }),
    });
    let mut codes = vec![0i8; m * k];
    arms.push(Arm {
        name: "w4a4 activations".into(),
        bytes: m * k * 5,
        work: Box::new(move || {
            for (row, codes) in input.chunks_exact(k).zip(codes.chunks_exact_mut(k)) {
                _ = black_box(quantise_native_activation(row, codes));
            }
        }),
    });
    let mut codes = vec![0i8; k];
    arms.push(Arm {
        name: "w4a4 weights, search".into(),
        bytes: slow * k * 5,
        work: Box::new(move || {
            let mut report = ClipReport::default();
            for row in input.chunks_exact(k).take(slow) {
                _ = black_box(quantise_native_weight(row, &mut codes, NativeClip::Search, &mut report));
            }
        }),
    });
    for codebook in [Codebook::Uniform, Codebook::Nf4] {
        let mut nibbles = vec![0u8; k];
        arms.push(Arm {
            name: format!("i4a8 weights {codebook:?}"),
            bytes: slow * k * 5,
            work: Box::new(move || {
                for row in input.chunks_exact(k).take(slow) {
                    let clip = StoredClip::AbsMax;
                    _ = black_box(quantise_stored_row(
                        row,
                        codebook,
                        clip,
                        &mut Rounding::Nearest,
                        &mut nibbles,
                    ));
                }
            }),
        });
    }
    race(arms);
}

/// The rotation alone, for K that is no power of two.
pub(crate) fn rotation(m: usize, k: usize) {
    let mut arms = copies(m * k * 4);
    let mut rows: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.7).sin()).collect();
    let basis = Basis::new(k, vec![Step::Rotate]).expect("k is not 0");
    arms.push(Arm {
        name: "rotate".into(),
        bytes: m * k * 8,
        work: Box::new(move || {
            rows.chunks_exact_mut(k).for_each(|row| basis.activation_row(row));
            black_box(&rows);
        }),
    });
    race(arms);
}

/// Once, whole: statistics, factor, rows. Threads of rayon's pool.
pub(crate) fn gptq() {
    let k: usize = std::env::args().nth(1).and_then(|k| k.parse().ok()).unwrap_or(2048);
    let n = 512;
    println!("\ngptq: K = {k}, 1024 calibration rows, {n} output channels");
    let x: Vec<f32> = (0..1024 * k).map(|i| (i as f32 * 0.7).sin() + (i % 13) as f32 * 0.05).collect();
    let gflops = |name: &str, flops: f64, start: Instant| {
        let seconds = start.elapsed().as_secs_f64();
        println!("  {name:24} {seconds:7.2} s   {:6.1} GFLOP/s", flops / seconds / 1e9);
    };
    let kk = (k * k) as f64;
    let mut statistics = TensorStatistics::new(k, ork_quant::Collect::Hessian);
    let start = Instant::now();
    statistics.add_rows(&x).expect("finite");
    gflops("add rows", 1024.0 * kk, start);
    let hessian: Hessian = statistics.hessian().expect("collected");
    drop(statistics);
    let start = Instant::now();
    let factor = Factor::new(hessian).expect("positive definite");
    gflops("factor", kk * k as f64 * 2.0 / 3.0, start);
    let start = Instant::now();
    let found = factor.quantise(&x[..n * k], k, NativeClip::Search).expect("finite");
    gflops("quantise (one thread)", n as f64 * kk, start);
    black_box(found);
}
