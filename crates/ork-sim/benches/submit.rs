// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole simulated submit against f32 matrix products of the same shape: arms interleaved in one run, in rotating
//! order, the submit twice (A/A) as the null.
//!
//! Host time of the model, not silicon time. `cargo bench -p ork-sim`.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs, reason = "a bench prints its table")]

#[path = "../tests/all/common/mod.rs"]
mod common;

use std::time::Instant;

use common::bench::*;
use common::*;
use ork_isa::Link;
use ork_sim::{Core, FloatSums, SimOptions};

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
    let (mut gemm, mut sgemm) = f32_products(m, k, n);
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

/// A product of random numbers by both f32 crates, as two closures.
fn f32_products(m: usize, k: usize, n: usize) -> (impl FnMut(), impl FnMut()) {
    let mut random = Random(3);
    let mut numbers = |count: usize| -> Vec<f32> {
        random.bytes(count).into_iter().map(|byte| f32::from(byte.cast_signed())).collect()
    };
    let (a, b) = (numbers(m * k), numbers(k * n));
    let (a2, b2) = (a.clone(), b.clone());
    let (mut c, mut d) = (vec![0f32; m * n], vec![0f32; m * n]);
    let (rows, columns) = (k as isize, n as isize);
    let gemm = move || {
        // SAFETY: the slices have m*k, k*n and m*n elements, row-major.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                columns,
                false,
                a.as_ptr(),
                1,
                rows,
                b.as_ptr(),
                1,
                columns,
                0.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::Rayon(0),
            );
        }
    };
    let sgemm = move || {
        // SAFETY: as above.
        unsafe {
            matrixmultiply::sgemm(
                m,
                k,
                n,
                1.0,
                a2.as_ptr(),
                rows,
                1,
                b2.as_ptr(),
                columns,
                1,
                0.0,
                d.as_mut_ptr(),
                columns,
                1,
            );
        }
    };
    (gemm, sgemm)
}

/// A chain of fp16 -> fp32 tasks, `rows` rows each, as one submit.
fn float_submit(rows: u32, tiles: u32, k: u32, n: u32, float_sums: FloatSums) -> impl FnMut() {
    let mut mm = Matmul::new(Recipe::Two, rows * tiles, 2 * k, n);
    mm.split = 0x48;
    let page = |bytes: u32| bytes.next_multiple_of(4096);
    mm.a = PROGRAM + 0x1_0000;
    mm.b = mm.a + page(rows * tiles * 2 * k);
    mm.c = mm.b + page(2 * k * n);
    let bus = FlatBus::new(PROGRAM, (mm.c + page(rows * tiles * n * 4) - PROGRAM) as usize);
    let mut random = Random(2);
    // Numbers of fp16 between 1/16 and 16, both signs.
    let mut numbers = |count: u32| -> Vec<u8> {
        let bytes = random.bytes(2 * count as usize);
        bytes.as_chunks().0.iter().flat_map(|[low, high]| [*low, (high & 0x9F) | 0x20]).collect()
    };
    bus.put(mm.a, &numbers(rows * tiles * k));
    bus.put(mm.b, &numbers(k * n));
    let patch = [
        (0x100C, 0x2000_0120),
        (0x1024, (k - 1) << 16 | k),
        (0x1088, k),
        (0x3010, 0x201),
        (0x4010, 0xA800_0002),
        (0x4050, 0x36E),
        (0x40C0, 0x40),
    ];
    let place = |tile: u32| PROGRAM + tile * 0x400;
    let program = |tile: u32, link| {
        let (a, c) = (mm.a + tile * rows * 2 * k, mm.c + tile * rows * n * 4);
        Matmul { m: rows, a, c, ..mm }.program(link, &patch)
    };
    let amount = program(0, Link::Last).fetch_amount();
    for tile in 0..tiles {
        let at = ork_isa::Iova(place(tile + 1));
        let link = if tile + 1 < tiles { Link::Next { at, amount } } else { Link::Last };
        bus.put_program(place(tile), &program(tile, link));
    }
    let mut core = Core::new(0, &SimOptions { float_sums, ..SimOptions::default() });
    let job = job(amount, tiles as u16);
    move || assert_clean(&core.run(&bus, &job), tiles as u16)
}

/// fp16 -> fp32 in both ways of summing, against f32 products.
fn measure_fp16(rows: u32, tiles: u32, k: u32, n: u32, rounds: usize) {
    let mut exact = float_submit(rows, tiles, k, n, FloatSums::Exact);
    let mut again = float_submit(rows, tiles, k, n, FloatSums::Exact);
    let mut fast = float_submit(rows, tiles, k, n, FloatSums::Fast);
    let (mut gemm, mut sgemm) = f32_products((rows * tiles) as usize, k as usize, n as usize);
    let m = rows * tiles;
    println!(
        "fp16 -> fp32, {m} x {k} x {n} in {tiles} tasks: host time of one simulated submit, {rounds} rounds"
    );
    let result = race(
        &["submit exact (A)", "submit exact (A')", "submit fast", "gemm f32", "matrixmultiply f32"],
        &mut [&mut exact, &mut again, &mut fast, &mut gemm, &mut sgemm],
        rounds,
        f64::from(m) * f64::from(k) * f64::from(n),
        f64::from(2 * k * n),
    );
    let (mid, low) = (result[3].0.min(result[4].0), result[3].1.min(result[4].1));
    for (name, (submit_mid, submit_low)) in [("exact (default)", result[0]), ("fast", result[2])] {
        println!(
            "  best f32 crate / submit, float_sums {name}: medians {:.2}, minima {:.2}",
            mid / submit_mid,
            low / submit_low
        );
    }
    println!(
        "  null A'/A: medians {:.2}, minima {:.2}",
        result[1].0 / result[0].0,
        result[1].1 / result[0].1
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

/// One row by a matrix in column segments: as one chain, and as a job per segment. What the ring of the convolution
/// buffer keeps is copied once per job, and within a job only where a task could tell.
fn measure_segments(k: u32, n: u32, segments: u32, rounds: usize) {
    let mm = Matmul::new(Recipe::Two, 1, k, n / segments);
    let (a, b) = (PROGRAM + 0x1_0000, PROGRAM + 0x1_0000 + k.next_multiple_of(4096));
    let c = b + k * n;
    let bus = FlatBus::new(PROGRAM, (c + 4 * n - PROGRAM) as usize);
    bus.put(b, &Random(1).bytes((k * n) as usize));
    let place = |segment: u32| PROGRAM + segment * 0x400;
    let program = |segment: u32, link| {
        let at = segment * (n / segments);
        Matmul { a, b: b + k * at, c: c + 4 * at, ..mm }.program(link, &[])
    };
    let amount = program(0, Link::Last).fetch_amount();
    for segment in 0..segments {
        let at = ork_isa::Iova(place(segment + 1));
        let link = if segment + 1 < segments { Link::Next { at, amount } } else { Link::Last };
        bus.put_program(place(segment), &program(segment, link));
    }
    let mut core = Core::new(0, &SimOptions::default());
    let mut chain = || assert_clean(&core.run(&bus, &job(amount, segments as u16)), segments as u16);
    let mut other = Core::new(0, &SimOptions::default());
    let mut jobs = || {
        for segment in 0..segments {
            let job = ork_sim::PcJob { base: ork_isa::Iova(place(segment)), ..job(amount, 1) };
            assert_clean(&other.run(&bus, &job), 1);
        }
    };
    println!("Two 1 x {k} x {n} in {segments} column segments, int8 -> int32, {rounds} rounds");
    let size = f64::from(k) * f64::from(n);
    let result = race(&["one job", "a job each"], &mut [&mut chain, &mut jobs], rounds, size, size);
    println!(
        "  a job each / one job: medians {:.2}, minima {:.2}",
        result[1].0 / result[0].0,
        result[1].1 / result[0].1
    );
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
        measure(Recipe::Two, 4, 64, 64, 1);
        measure_segments(64, 128, 2, 1);
        return measure_fp16(2, 2, 64, 64, 1);
    }
    measure(Recipe::Two, 128, 2048, 2048, 20);
    measure(Recipe::One, 128, 2048, 2048, 20);
    measure(Recipe::Two, 64, 4096, 1024, 20);
    measure(Recipe::Two, 1, 2048, 2048, 40);
    stream(2048 * 2048);
    measure(Recipe::Two, 1, 4096, 8192, 30);
    stream(4096 * 8192);
    measure_segments(2048, 2048, 8, 40);
    measure_segments(4096, 8192, 32, 30);
    measure_chain(1000, 10);
    measure_fp16(64, 2, 2048, 2048, 20);
    measure_fp16(32, 1, 1024, 1024, 20);
    measure_fp16(1, 1, 2048, 2048, 20);
    measure_int4(64, 2048, 2048, 10);
    measure_int4(1, 2048, 2048, 10);
}
