// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a product costs the host, with an NPU that takes no time: `cargo run --release -p ork-driver --example host_cost`.
//!
//! Every phase as a share of the modelled call; a product of one row with kept programs; and the throughput of tiling,
//! de-tiling and quantising beside that of memcpy, in turns, on one thread. All times are of the host it runs on, which
//! is as a rule no RK3588; the modelled call is that of an RK3588 with three cores. Cache maintenance is calls only:
//! the emulated board here has no caches. Its kernel runs a job inside the call that submits it, so that no time holds a
//! hand-over to the emulation, nor to an interrupt.
//!
//! What a phase cannot fall below is printed too: operands and results are read and written once, at the speed of a
//! copy of as many bytes on one thread.
#![allow(clippy::print_stdout, reason = "an example talks")]
#![allow(clippy::unwrap_used, reason = "an example may stop")]

mod idle;

use std::hint::black_box;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use ork_device::{Coherency, Device, DeviceOptions, EmuOptions};
use ork_driver::{Driver, DriverCounters, DriverOptions, MatmulGroup, Requantise, Weight, Work};
use ork_isa::soc::RK3588;
use ork_layout::{Element, FeatureForm, FeatureLayout, Format, Int4};
use ork_plan::{Decision, PlanOptions, Problem, decide, weight_layout};

fn driver(cores: u8) -> Driver {
    let board = idle::board(&EmuOptions { coherency: Coherency::Shared, ..EmuOptions::default() });
    let device = Device::on_board(&board, &DeviceOptions { cores, ..DeviceOptions::default() }).unwrap();
    Driver::new(device, DriverOptions::default()).unwrap()
}

const ROUNDS: usize = 301;

/// Median and least of many times.
#[derive(Clone, Copy)]
struct Times {
    median: Duration,
    least: Duration,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { median: times[times.len() / 2], least: times[0] }
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn bound(value: f64, limit: f64) -> &'static str {
    if value <= limit { "within" } else { "BEYOND" }
}

/// Operands and results of an int8 product.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Codes, requantised by the NPU.
    Codes,
    /// Codes, with 32-bit sums.
    Sums,
    /// Floats, as a model's layers have them: quantised, and scaled back.
    Floats,
}

fn call(kind: Call, cores: u8, (m, k, n): (usize, usize, usize)) {
    let driver = driver(cores);
    let weight = match kind {
        Call::Codes => {
            driver.load_elements::<i8>("w", Format::INT8_INT8, k, n, &|_, out| out.fill(1)).unwrap()
        }
        Call::Sums | Call::Floats => driver.load("w", k, n, &|_, out| out.fill(1.0)).unwrap(),
    };
    let x: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.7).sin()).collect();
    let (a, mut narrow, mut sums) = (vec![1_i8; m * k], vec![0_i8; m * n], vec![0_i32; m * n]);
    let mut out = vec![0.0; m * n];
    let by = Requantise { multiplier: 3, shift: 12, offset: 0 };
    let mut phases: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let before = driver.counters();
        match kind {
            Call::Codes => {
                driver.work(&weight, m, &mut Work::Int8ToInt8 { a: &a, by, out: &mut narrow }).unwrap();
            }
            Call::Sums => driver.matmul_codes(&weight, m, &a, &mut sums).unwrap(),
            Call::Floats => {
                driver.matmul(&mut MatmulGroup { m, x: &x, parts: vec![(&weight, &mut out)] }).unwrap();
            }
        }
        let after = driver.counters();
        let phase = |of: fn(&DriverCounters) -> Duration| of(&after) - of(&before);
        phases[0].push(phase(|counters| counters.synthesise));
        phases[1].push(phase(|counters| counters.quantise + counters.dequantise + counters.sync));
        phases[2].push(phase(|counters| counters.quantise));
        phases[3].push(phase(|counters| counters.dequantise));
    }
    let format = if matches!(kind, Call::Codes) { Format::INT8_INT8 } else { Format::INT8_INT32 };
    let layout = weight_layout(format, k as u32, n as u32, &RK3588).unwrap();
    let problem = Problem { m: m as u32, weight: layout };
    let options = PlanOptions { cores, ..PlanOptions::default() };
    let Decision::Accept(plan) = decide(&problem, &RK3588, &options) else { return };
    let modelled = plan.modelled().us;
    println!("int8 {m} x {k} x {n}, {kind:?}, {cores} core(s): {}", plan.modelled());
    let [synthesis, tiles, quantise, dequantise] = phases.map(Times::of);
    for (name, times, limit) in
        [("synthesis", synthesis, 2.0), ("tiling + de-tiling + sync calls", tiles, 8.0)]
    {
        let share = |time| 100.0 * us(time) / modelled;
        println!(
            "  {name:32} median {:7.1} us, least {:7.1} us, measured: {:5.2} % and {:5.2} % of the modelled call; {} {limit} %",
            us(times.median),
            us(times.least),
            share(times.median),
            share(times.least),
            bound(share(times.median), limit),
        );
    }
    println!(
        "    of that quantising and tiling {:.1} us, scaling and de-tiling {:.1} us (medians, measured)",
        us(quantise.median),
        us(dequantise.median)
    );
    let (a, c) = (m * k, m * n);
    let bytes = match kind {
        Call::Codes => 2 * a + 2 * c,
        Call::Sums => 2 * a + 8 * c,
        Call::Floats => 5 * a + 8 * c,
    };
    let copied = us(copy(bytes).median);
    println!(
        "    a copy that reads and writes the same {:.1} MB takes {copied:.1} us: {:.2} % of the modelled call",
        bytes as f64 / 1e6,
        100.0 * copied / modelled
    );
}

fn kept(k: usize, n: usize) {
    for cores in [1, 3] {
        let driver = driver(cores);
        let weight = driver.load_codes("w", k, n, &|_, out| out.fill(1)).unwrap();
        let mut product = driver.precompile(&weight, 1).unwrap();
        let row = vec![1_i8; k];
        let mut out = vec![0_i32; n];
        let board = driver.device().board().unwrap();
        let (mut times, mut kernel) = (Vec::new(), Vec::new());
        for _ in 0..10 * ROUNDS {
            let below = board.emulating_time();
            let start = Instant::now();
            driver.run_precompiled_codes(&mut product, &weight, &row, &mut out).unwrap();
            times.push(start.elapsed());
            kernel.push(board.emulating_time() - below);
        }
        let (times, kernel) = (Times::of(times), Times::of(kernel));
        println!(
            "int8 1 x {k} x {n} with kept programs, {cores} core(s): median {:.1} us, least {:.1} us, measured; {} 15 us; of \
             that {:.1} us (median) in calls of the emulated kernel",
            us(times.median),
            us(times.least),
            bound(us(times.median), 15.0),
            us(kernel.median)
        );
    }
}

/// A copy that reads and writes so many bytes together.
fn copy(bytes: usize) -> Times {
    let (from, mut to) = (vec![1_u8; bytes / 2], vec![2_u8; bytes / 2]);
    let copies = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        start.elapsed()
    });
    Times::of(copies.collect())
}

/// Throughput of a phase, in turns with a copy of as many bytes.
fn race(name: &str, bytes: usize, mut phase: impl FnMut() -> Duration) {
    let (from, mut to) = (vec![1_u8; bytes / 2], vec![2_u8; bytes / 2]);
    let (mut copies, mut phases) = (Vec::new(), Vec::new());
    for _ in 0..101 {
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        copies.push(start.elapsed());
        phases.push(phase());
    }
    let (copy, phase) = (Times::of(copies), Times::of(phases));
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    let ratio = copy.median.as_secs_f64() / phase.median.as_secs_f64();
    let best = copy.least.as_secs_f64() / phase.least.as_secs_f64();
    println!(
        "  {name:34} {:6.1} GB/s   {ratio:4.2} of memcpy (best against best {best:4.2}); {} 0.5",
        rate(phase.median),
        if ratio >= 0.5 { "at least" } else { "BELOW" }
    );
}

fn codes(format: Format, driver: &Driver, k: usize, n: usize) -> Weight {
    match format {
        Format::INT8_INT32 => driver.load_codes("w", k, n, &|_, out| out.fill(1)).unwrap(),
        Format::FP16_FP32 => elements::<f16>(format, driver, k, n),
        Format::BF16_FP32 => elements::<bf16>(format, driver, k, n),
        _ => elements::<f32>(format, driver, k, n),
    }
}

fn elements<T: Element>(format: Format, driver: &Driver, k: usize, n: usize) -> Weight {
    driver.load_elements::<T>("w", format, k, n, &|_, out| out.fill(T::default())).unwrap()
}

/// Tiling and de-tiling of one precision.
fn precision(name: &str, format: Format, (m, k, n): (usize, usize, usize)) {
    let driver = driver(1);
    let weight = codes(format, &driver, k, n);
    let slices = weight_layout(format, k as u32, n as u32, &RK3588).unwrap().slices().len();
    let input = m * k * format.input().bits() as usize / 8;
    let result = m * n * format.output_bytes() as usize;
    let mut product = Product::new(&driver, &weight, m);
    let mut phases = || {
        let before = driver.counters();
        product.run();
        let after = driver.counters();
        (after.quantise - before.quantise, after.dequantise - before.dequantise)
    };
    race(&format!("{name}: tile"), 2 * input, || phases().0);
    race(&format!("{name}: de-tile, {slices} slice(s)"), slices * result + m * n * 4, || phases().1);
}

/// A product with its operands and results, all of whose pages are there.
struct Product<'a> {
    driver: &'a Driver,
    weight: &'a Weight,
    m: usize,
    int8: (Vec<i8>, Vec<i32>),
    fp16: Vec<f16>,
    bf16: Vec<bf16>,
    tf32: Vec<f32>,
    floats: Vec<f32>,
}

impl<'a> Product<'a> {
    fn new(driver: &'a Driver, weight: &'a Weight, m: usize) -> Self {
        let (a, c) = (m * weight.k(), m * weight.n());
        let (int8, fp16, bf16, tf32) = (vec![1; a], vec![f16::ONE; a], vec![bf16::ONE; a], vec![1.0; a]);
        Self { driver, weight, m, int8: (int8, vec![1; c]), fp16, bf16, tf32, floats: vec![1.0; c] }
    }

    fn run(&mut self) {
        let out = &mut self.floats[..];
        let mut work = match self.weight.format() {
            Format::INT8_INT32 => Work::Int8 { a: &self.int8.0, out: &mut self.int8.1 },
            Format::FP16_FP32 => Work::Fp16 { a: &self.fp16, out },
            Format::BF16_FP32 => Work::Bf16 { a: &self.bf16, out },
            _ => Work::Tf32 { a: &self.tf32, out },
        };
        self.driver.work(self.weight, self.m, &mut work).unwrap();
    }
}

/// int4 results need a proof that cells were written, which cores that do nothing cannot give: its features alone.
fn int4_tiles(m: usize, k: usize) {
    let weight = weight_layout(Format::INT4_INT16, k as u32, 64, &RK3588).unwrap();
    let layout = FeatureLayout::in_form(&weight, m as u32, FeatureForm::SpacedRows);
    let (rows, mut features) = (vec![Int4::MAX; m * k], vec![0; layout.bytes() as usize]);
    // Behind each row as many zeros are written.
    race("int4: tile", m * k + features.len(), || {
        let start = Instant::now();
        layout.write_rows(&rows, &mut features);
        black_box(&features);
        start.elapsed()
    });
}

fn quantisation(m: usize, k: usize, n: usize) {
    let driver = driver(1);
    let weight = driver.load("w", k, n, &|_, out| out.fill(1.0)).unwrap();
    let x: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut out = vec![0.0; m * n];
    let mut phases = || {
        let before = driver.counters();
        driver.matmul(&mut MatmulGroup { m, x: &x, parts: vec![(&weight, &mut out)] }).unwrap();
        let after = driver.counters();
        (after.quantise - before.quantise, after.dequantise - before.dequantise)
    };
    race("int8: quantise activation and tile", m * k * 5, || phases().0);
    race("int8: de-tile and scale", m * n * 8, || phases().1);
}

fn main() {
    for cores in [1, 3] {
        for kind in [Call::Codes, Call::Sums, Call::Floats] {
            call(kind, cores, (128, 2048, 2048));
        }
    }
    kept(2048, 2048);
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    alone.install(|| {
        for (title, m) in [("in caches", 128), ("from memory", 2048)] {
            println!("throughput on one thread, measured, {title}: {m} rows of K = N = 2048");
            quantisation(m, 2048, 2048);
            precision("int8", Format::INT8_INT32, (m, 2048, 2048));
            precision("int8, K slices", Format::INT8_INT32, (m, 6144, 2048));
            precision("fp16", Format::FP16_FP32, (m, 1024, 2048));
            precision("fp16, K slices", Format::FP16_FP32, (m, 2048, 2048));
            precision("bf16 (cubes)", Format::BF16_FP32, (m, 1024, 2048));
            precision("tf32 (cubes)", Format::TF32_FP32, (m, 1024, 2048));
            int4_tiles(m, 2048);
        }
    });
}
