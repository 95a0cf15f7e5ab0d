// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a call costs the host besides the NPU's work, in three ways to give eight small products with one row each: one by
//! one, with kept programs, in one queue. `cargo run --release -p ork-driver --example call_cost`.
//!
//! The simulated NPU is in all three; a board whose cores do nothing takes it out. So the ratios are of this host, and
//! results are not looked at.
#![allow(clippy::print_stdout, reason = "an example talks")]
#![allow(clippy::unwrap_used, reason = "an example may stop")]

mod idle;

use std::time::{Duration, Instant};

use ork_device::{Device, DeviceOptions, EmuOptions};
use ork_driver::{Driver, DriverOptions, Queue, Work};

/// The best of some repetitions: noise only adds.
fn best(mut call: impl FnMut()) -> Duration {
    (0..200)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed()
        })
        .min()
        .unwrap_or_default()
}

fn main() {
    const K: usize = 2048;
    const N: usize = 256;
    let board = idle::board(&EmuOptions::default());
    let device = Device::on_board(&board, &DeviceOptions { cores: 1, ..DeviceOptions::default() }).unwrap();
    let driver = Driver::new(device, DriverOptions::default()).unwrap();
    let weights: Vec<_> =
        (0..8).map(|_| driver.load_codes("w", K, N, &|_, out| out.fill(1)).unwrap()).collect();
    let row = vec![1_i8; K];
    let mut out = vec![vec![0_i32; N]; 8];

    let one_by_one = best(|| {
        for (weight, out) in weights.iter().zip(&mut out) {
            driver.matmul_codes(weight, 1, &row, out).unwrap();
        }
    });
    let mut products: Vec<_> = weights.iter().map(|weight| driver.precompile(weight, 1).unwrap()).collect();
    let kept = best(|| {
        for ((product, weight), out) in products.iter_mut().zip(&weights).zip(&mut out) {
            driver.run_precompiled_codes(product, weight, &row, out).unwrap();
        }
    });
    let queued = best(|| {
        let mut queue = Queue::new();
        for (weight, out) in weights.iter().zip(&mut out) {
            queue.push(weight, 1, Work::Int8 { a: &row, out }, &[]);
        }
        driver.run_queue(queue).unwrap();
    });
    println!("eight products of 1x{K}x{N}, host time without the NPU, measured, best of 200:");
    for (name, time) in [("one by one", one_by_one), ("kept programs", kept), ("one queue", queued)] {
        let ratio = one_by_one.as_secs_f64() / time.as_secs_f64();
        println!("  {name:14} {:8.1} us   {ratio:.2} x", time.as_secs_f64() * 1e6);
    }
}
