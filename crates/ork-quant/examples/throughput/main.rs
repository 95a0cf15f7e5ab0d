// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host throughput of the row kernels beside memcpy, in one run:
//! `cargo run --release -p ork-quant --example throughput`.
//!
//! Arms are interleaved, round by round; the figure is the median over rounds. memcpy runs twice per round:
//! the spread between its two arms (A/A) is what a ratio has to exceed to mean anything. Throughput
//! counts bytes read plus bytes written; column scales, which stay in cache, are not counted.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;

use ork_quant::{Kernels, Scale};

mod ladder;
mod race;

use race::{Arm, copies, race};

fn main() {
    // With a K, only GPTQ at that size.
    if std::env::args().len() > 1 {
        ladder::gptq();
        return;
    }
    // Model-sized rows; once from memory, once from cache.
    for (title, m, k) in [("from memory", 16 * 1024, 2048), ("from L2", 64, 2048)] {
        println!("\n{title}: {m} rows of {k}");
        quantise(m, k);
        dequantise(m, k);
        ladder::rows(m, k);
    }
    for k in [3072, 3584, 10752] {
        println!("\nmixed radix, from L2: 64 rows of {k}");
        ladder::rotation(64, k);
    }
    ladder::gptq();
}

fn quantise(m: usize, k: usize) {
    let input: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut arms = copies(m * k * 4);
    for kernels in Kernels::available() {
        let mut codes = vec![0_i8; m * k];
        let input = &input;
        arms.push(Arm {
            name: format!("quantise {}", kernels.name()),
            bytes: m * k * 5,
            work: Box::new(move || {
                for (row, codes) in input.chunks_exact(k).zip(codes.chunks_exact_mut(k)) {
                    black_box(kernels.quantise_row(row, codes)).expect("finite");
                }
                black_box(&codes);
            }),
        });
    }
    race(arms);
}

fn dequantise(m: usize, n: usize) {
    let narrow: Vec<i32> = (0_i32..).take(m * n).map(|i| i.wrapping_mul(2_654_435)).collect();
    let wide: Vec<i64> = narrow.iter().map(|x| i64::from(*x)).collect();
    let columns: Vec<Scale> = (1..=n).map(|i| Scale::new(i as f32 * 1e-4).expect("positive")).collect();
    let row = Scale::new(0.01).expect("positive");
    let mut arms = copies(m * n * 4);
    for kernels in Kernels::available() {
        let (narrow, wide, columns) = (&narrow, &wide, &columns);
        let (mut out, mut out_wide) = (vec![0.0; m * n], vec![0.0; m * n]);
        arms.push(Arm {
            name: format!("dequantise i32 {}", kernels.name()),
            bytes: m * n * 8,
            work: Box::new(move || {
                for (acc, out) in narrow.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
                    kernels.dequantise_row(acc, row, columns, out);
                }
                black_box(&out);
            }),
        });
        arms.push(Arm {
            name: format!("dequantise i64 {}", kernels.name()),
            bytes: m * n * 12,
            work: Box::new(move || {
                for (acc, out) in wide.chunks_exact(n).zip(out_wide.chunks_exact_mut(n)) {
                    kernels.dequantise_row_i64(acc, row, columns, out);
                }
                black_box(&out_wide);
            }),
        });
    }
    race(arms);
}
