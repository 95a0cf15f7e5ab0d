// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host throughput of the row kernels beside memcpy, in one run:
//! `cargo run --release -p ork-quant --example throughput`.
//!
//! Arms are interleaved, round by round; the figure is the median over rounds. memcpy runs twice per round:
//! the spread between its two arms (A/A) is what a ratio has to exceed to mean anything. Throughput
//! counts bytes read plus bytes written; column scales, which stay in cache, are not counted.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;
use std::time::Instant;

use ork_quant::{Kernels, Scale};

const ROUNDS: usize = 41;

/// One thing to time: its name, the bytes it moves, and the work.
struct Arm<'a> {
    name: String,
    bytes: usize,
    work: Box<dyn FnMut() + 'a>,
}

fn main() {
    // Model-sized rows; once from memory, once from cache.
    for (title, m, k) in [("from memory", 16 * 1024, 2048), ("from L2", 64, 2048)] {
        println!("\n{title}: {m} rows of {k}");
        quantise(m, k);
        dequantise(m, k);
    }
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

/// The yardstick, twice.
fn copies(len: usize) -> Vec<Arm<'static>> {
    ["memcpy", "memcpy again"]
        .map(|name| {
            let (from, mut to) = (vec![1_u8; len], vec![2_u8; len]);
            let work = Box::new(move || {
                to.copy_from_slice(black_box(&from));
                black_box(&to);
            });
            Arm { name: name.to_owned(), bytes: 2 * len, work }
        })
        .into()
}

fn race(mut arms: Vec<Arm<'_>>) {
    let bytes_max = arms.iter().map(|arm| arm.bytes).max().unwrap_or(1);
    // Small working sets are repeated until a round takes measurable time.
    let repeats = (64 << 20) / bytes_max + 1;
    let mut seconds = vec![Vec::new(); arms.len()];
    for round in 0..=ROUNDS {
        for (arm, seconds) in arms.iter_mut().zip(&mut seconds) {
            let start = Instant::now();
            for _ in 0..repeats {
                (arm.work)();
            }
            // The first round touches the pages.
            if round > 0 {
                seconds.push(start.elapsed().as_secs_f64() / repeats as f64);
            }
        }
    }
    let mut yardstick = None;
    for (arm, mut seconds) in arms.iter().zip(seconds) {
        seconds.sort_by(f64::total_cmp);
        let rate = arm.bytes as f64 / seconds[seconds.len() / 2] / 1e9;
        let yardstick = *yardstick.get_or_insert(rate);
        println!("  {:24} {rate:7.1} GB/s   {:5.2} of memcpy", arm.name, rate / yardstick);
    }
}
