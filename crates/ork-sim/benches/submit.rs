// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole simulated submit against f32 matrix products of the same shape: arms interleaved in one run, in rotating
//! order, the submit twice (A/A) as the null.
//!
//! Host time of the model, not silicon time. `cargo bench -p ork-sim`.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs, reason = "a bench prints its table")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::*;
use ork_isa::Link;
use ork_sim::{Core, SimOptions};

/// Median, fastest and slowest of `times`, in seconds.
fn summary(times: &mut [f64]) -> (f64, f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0], times[times.len() - 1])
}

/// Times `arms` `rounds` times in rotating order; prints a row per arm and returns the medians and the minima.
fn race(
    names: &[&str],
    arms: &mut [&mut dyn FnMut()],
    rounds: usize,
    macs: f64,
    weights: f64,
) -> Vec<(f64, f64)> {
    let mut times = vec![Vec::new(); arms.len()];
    for round in 0..rounds + 2 {
        for i in 0..arms.len() {
            let arm = (i + round) % arms.len();
            let start = Instant::now();
            arms[arm]();
            let time = start.elapsed().as_secs_f64();
            if round >= 2 {
                times[arm].push(time);
            }
        }
    }
    names
        .iter()
        .zip(&mut times)
        .map(|(name, times)| {
            let (mid, low, high) = summary(times);
            println!(
                "  {name:22} median {:9.1} us ({:.1} .. {:.1})  {:6.1} GMAC/s, best {:6.1}  {:6.2} GB/s of weights",
                mid * 1e6,
                low * 1e6,
                high * 1e6,
                macs / mid / 1e9,
                macs / low / 1e9,
                weights / mid / 1e9
            );
            (mid, low)
        })
        .collect()
}

fn submit<'a>(bench: &'a Bench, options: &SimOptions, patch: Patch<'_>) -> impl FnMut() + use<'a> {
    let program = bench.mm.program(Link::Last, patch);
    bench.bus.put_program(PROGRAM, &program);
    let job = job(program.fetch_amount(), 1);
    let mut core = Core::new(0, options);
    move || assert_clean(&core.run(&bench.bus, &job), 1)
}

fn measure(recipe: Recipe, m: u32, k: u32, n: u32, rounds: usize) {
    let bench = Bench::new(Matmul::new(recipe, m, k, n), 1);
    let options = SimOptions::default();
    let mut first = submit(&bench, &options, &[]);
    let mut second = submit(&bench, &options, &[]);
    let (m, k, n) = (m as usize, k as usize, n as usize);
    let a: Vec<f32> = bench.a.iter().map(|x| f32::from(*x)).collect();
    let b: Vec<f32> = bench.b.iter().map(|x| f32::from(*x)).collect();
    let (mut c, mut d) = (vec![0f32; m * n], vec![0f32; m * n]);
    let mut gemm = || {
        // SAFETY: the slices have m*k, k*n and m*n elements, row-major.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                false,
                a.as_ptr(),
                1,
                k as isize,
                b.as_ptr(),
                1,
                n as isize,
                0.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::Rayon(0),
            );
        }
    };
    let mut sgemm = || {
        // SAFETY: as above.
        unsafe {
            matrixmultiply::sgemm(
                m,
                k,
                n,
                1.0,
                a.as_ptr(),
                k as isize,
                1,
                b.as_ptr(),
                n as isize,
                1,
                0.0,
                d.as_mut_ptr(),
                n as isize,
                1,
            );
        }
    };
    println!("{recipe:?} {m} x {k} x {n}, int8 -> int32: host time of one simulated submit, {rounds} rounds");
    let result = race(
        &["submit (A)", "submit (A')", "gemm f32", "matrixmultiply f32"],
        &mut [&mut first, &mut second, &mut gemm, &mut sgemm],
        rounds,
        (m * k * n) as f64,
        (k * n) as f64,
    );
    println!(
        "  best f32 crate / submit: medians {:.2}, minima {:.2}; null A'/A: medians {:.2}, minima {:.2}",
        result[2].0.min(result[3].0) / result[0].0,
        result[2].1.min(result[3].1) / result[0].1,
        result[1].0 / result[0].0,
        result[1].1 / result[0].1
    );
}

/// fp16 -> fp32 of the same program shape.
fn measure_fp16(m: u32, k: u32, n: u32, rounds: usize) {
    let mut mm = Matmul::new(Recipe::Two, m, 2 * k, n);
    mm.split = 0x84;
    let bench = Bench::new(mm, 1);
    let patch = [
        (0x100C, 0x2000_0120),
        (0x1024, (k - 1) << 16 | k),
        (0x1088, k),
        (0x3010, 0x201),
        (0x4010, 0xA800_0002),
        (0x4050, 0x36E),
        (0x40C0, 0x40),
    ];
    let mut arm = submit(&bench, &SimOptions::default(), &patch);
    println!("fp16 {m} x {k} x {n}");
    race(
        &["submit"],
        &mut [&mut arm],
        rounds,
        f64::from(m) * f64::from(k) * f64::from(n),
        f64::from(2 * k * n),
    );
}

/// int4 -> int16 as a dense cube.
fn measure_int4(m: u32, k: u32, n: u32, rounds: usize) {
    let mut mm = Matmul::new(Recipe::One, m, k / 2, n);
    mm.split = 0x84;
    let bench = Bench::new(mm, 1);
    let patch = [
        (0x100C, 0x360),
        (0x1024, (k - 1) << 16 | k),
        (0x1044, k.div_ceil(128)),
        (0x1088, k),
        (0x3010, 0x600),
        (0x4010, 0x3800_0006),
        (0x40C0, 128 * m),
    ];
    let mut arm = submit(&bench, &SimOptions::default(), &patch);
    println!("int4 {m} x {k} x {n}");
    race(
        &["submit"],
        &mut [&mut arm],
        rounds,
        f64::from(m) * f64::from(k) * f64::from(n),
        f64::from(k * n / 2),
    );
}

/// A chain of small tasks: what the model costs beside the arithmetic.
fn measure_chain(tasks: u16, rounds: usize) {
    let mm = Matmul::new(Recipe::Two, 1, 64, 64);
    let bench = Bench::new(mm, 1);
    let (a, b, c) = (bench.mm.a, bench.mm.b, bench.mm.c);
    let bus = FlatBus::new(PROGRAM, 0x10_0000 + usize::from(tasks) * 0x400);
    let place = |task: u16| PROGRAM + 0x8_0000 + u32::from(task) * 0x400;
    let program = |link| Matmul { a, b, c, ..mm }.program(link, &[]);
    let amount = program(Link::Last).fetch_amount();
    for task in 0..tasks {
        let link = if task + 1 < tasks {
            Link::Next { at: ork_isa::Iova(place(task + 1)), amount }
        } else {
            Link::Last
        };
        bus.put_program(place(task), &program(link));
    }
    let mut core = Core::new(0, &SimOptions::default());
    let job = ork_sim::PcJob { base: ork_isa::Iova(place(0)), ..job(amount, tasks) };
    let mut arm = || assert_clean(&core.run(&bus, &job), tasks);
    println!("chain of {tasks} tasks of 1 x 64 x 64");
    let tasks = f64::from(tasks);
    race(&["submit"], &mut [&mut arm], rounds, tasks * 4096.0, tasks * 4096.0);
}

/// Bandwidth of one pass over a buffer of the size of the weights, for comparison with one-row tasks.
fn stream(bytes: usize) {
    let data = vec![1u64; bytes / 8];
    let sum = |part: &[u64]| part.iter().fold(0u64, |s, x| s.wrapping_add(*x));
    let mut times: Vec<f64> = (0..20)
        .map(|_| {
            let start = Instant::now();
            let (a, b) = data.split_at(data.len() / 2);
            let total = std::thread::scope(|scope| {
                let other = scope.spawn(|| sum(a));
                sum(b).wrapping_add(other.join().unwrap())
            });
            assert_eq!(total, data.len() as u64);
            start.elapsed().as_secs_f64()
        })
        .collect();
    let (mid, low, _) = summary(&mut times);
    let rate = |time: f64| bytes as f64 / time / 1e9;
    println!("  one read of {bytes} bytes by two threads: {:.2} GB/s, best {:.2}", rate(mid), rate(low));
}

fn main() {
    // `cargo test --benches` only checks that it runs.
    if std::env::args().any(|arg| arg == "--test") {
        return measure(Recipe::Two, 4, 64, 64, 1);
    }
    measure(Recipe::Two, 128, 2048, 2048, 20);
    measure(Recipe::One, 128, 2048, 2048, 20);
    measure(Recipe::Two, 64, 4096, 1024, 20);
    measure(Recipe::Two, 1, 2048, 2048, 40);
    stream(2048 * 2048);
    measure(Recipe::Two, 1, 4096, 8192, 30);
    stream(4096 * 8192);
    measure_chain(1000, 10);
    measure_fp16(32, 1024, 1024, 10);
    measure_fp16(1, 1024, 1024, 10);
    measure_int4(64, 2048, 2048, 10);
    measure_int4(1, 2048, 2048, 10);
}
