// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host speed and memory of packing and loading, on one layer of a 1.7B model (width 2048, feed-forward 6144):
//! `cargo run --release -p ork-recipe --example one_layer [FOLDER] [gptq]`. FOLDER gets the packs; the default is the
//! temporary folder, which should be on the disk that is to be measured.
//!
//! Rates count the bytes of fp16 weights. Loading is everything between a path and tensors that can be multiplied:
//! headers with their checksums, scales, bases. The codes stay where they are, in the mapping; the second figure also
//! reads every page of them once.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use half::f16;
use half::slice::HalfFloatSliceExt;
use ork_corpus::Corpus;
use ork_isa::soc::RK3588;
use ork_pack::{
    CalibrationRun, Hash, Pack, SourceId, SourceSample, StatisticsFile, WriteOptions, save_statistics,
};
use ork_plan::PlanOptions;
use ork_quant::Collect;
use ork_recipe::{
    CalibrationInput, Collector, Knowledge, ModelPlan, Recipe, WeightInfo, WeightSource, gptq_bytes_max,
    pack_model,
};

/// A layer whose rows come from one pool of numbers, so that the source itself takes no memory to speak of.
struct Layer {
    pool: Vec<f16>,
    infos: Vec<WeightInfo>,
}

impl Layer {
    fn new(shapes: &[(&str, usize, usize)]) -> Self {
        let info = |(role, k, n): &(&str, usize, usize)| WeightInfo {
            name: format!("blk.0.{role}.weight"),
            k: *k,
            n: *n,
            type_name: "f16".to_owned(),
            bits_per_weight: 16.0,
        };
        let pool = (0..1 << 21).map(|i| f16::from_f32((i as f32 * 0.7).sin())).collect();
        Self { pool, infos: shapes.iter().map(info).collect() }
    }
}

impl WeightSource for Layer {
    fn weights(&self) -> &[WeightInfo] {
        &self.infos
    }

    fn row(&self, index: usize, row: usize, out: &mut [f32]) {
        let start = (row * 977 + index * 31) * 16 % (self.pool.len() - out.len());
        self.pool[start..start + out.len()].convert_to_f32_slice(out);
    }
}

const D: usize = 2048;
const FF: usize = 6144;
const LAYERS: usize = 28;
const SHAPES: [(&str, usize, usize); 7] = [
    ("attn_q", D, D),
    ("attn_k", D, D / 2),
    ("attn_v", D, D / 2),
    ("attn_output", D, D),
    ("ffn_gate", D, FF),
    ("ffn_up", D, FF),
    ("ffn_down", FF, D),
];

fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(f64::NAN) * 1024.0 / 1e6
}

/// Seconds that the cores have worked for this process, to 0.01 s: what remains comparable on a busy machine.
fn core_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn pack(layer: &Layer, scheme: &str, knowledge: &Knowledge, path: &Path) -> f64 {
    let recipe: Recipe = scheme.parse().expect("a scheme");
    let plan = ModelPlan::new(&recipe, layer.weights(), None, knowledge, (&RK3588, &PlanOptions::default()))
        .expect("a plan");
    let sample = SourceSample { bytes: 1, hash: Hash::of(b"layer") };
    let source = SourceId { name: "layer".into(), sample, content: Hash::of(b"layer") };
    let asked = plan.pack_plan(layer.weights(), &RK3588, source, None, "bench");
    let start = Instant::now();
    pack_model(layer, &plan, &asked, knowledge, (path, WriteOptions::default()), &mut |_| {
        ControlFlow::Continue(())
    })
    .expect("a pack");
    start.elapsed().as_secs_f64()
}

fn load(path: &Path) -> (f64, f64) {
    let start = Instant::now();
    let pack = Pack::open_any(path).expect("a pack");
    for tensor in pack.tensors() {
        black_box((tensor.scales().expect("scales"), tensor.basis().expect("a basis")));
    }
    let ready = start.elapsed().as_secs_f64();
    let touched: u64 = pack
        .tensors()
        .flat_map(|tensor| tensor.data().iter().step_by(4096))
        .map(|byte| u64::from(*byte))
        .sum();
    black_box(touched);
    (ready, start.elapsed().as_secs_f64())
}

fn main() {
    let mut folder = std::env::temp_dir();
    let mut gptq = false;
    for argument in std::env::args().skip(1) {
        if argument == "gptq" {
            gptq = true;
        } else {
            folder = PathBuf::from(argument);
        }
    }
    let path = folder.join("bench.orkpack");
    let layer = Layer::new(&SHAPES);
    let bytes: usize = layer.weights().iter().map(|info| info.k * info.n * 2).sum();
    let largest = (D * FF * 2) as f64;
    println!("{} threads, {:.1} MB of fp16 weights", rayon::current_num_threads(), bytes as f64 / 1e6);
    for scheme in ["w8a8", "w8a8-rot", "i4a8", "i4a8-nf4", "w4a4", "w4a4+rotate+clip"] {
        let before = core_seconds();
        let seconds = pack(&layer, scheme, &Knowledge::Nothing, &path);
        let work = core_seconds() - before;
        let (ready, touched) = load(&path);
        println!(
            "{scheme:<20} packs {:>6.3} GB/s ({:.3} per core-second); loads {:>7.0} times as fast, {:>6.1} with every page read; peak memory {:.0} MB, \
             bound {:.0}",
            bytes as f64 / 1e9 / seconds,
            bytes as f64 / 1e9 / work,
            seconds / ready,
            seconds / touched,
            peak_memory(),
            (2.0 * largest + (1u64 << 30) as f64) / 1e6
        );
        _ = std::fs::remove_file(&path);
    }
    bounds();
    if gptq {
        measure_gptq(&folder);
    }
}

/// What GPTQ of the whole model may take.
fn bounds() {
    let mut inputs = Vec::new();
    for layer in 0..LAYERS {
        for (role, k) in [("attn_q", D), ("attn_output", D), ("ffn_gate", D), ("ffn_down", FF)] {
            inputs.push(CalibrationInput { weight: format!("blk.{layer}.{role}.weight"), also: vec![], k });
        }
    }
    let collected = Collector::bytes_max(&inputs, Collect::Hessian, 512);
    let packed = gptq_bytes_max(FF as u64);
    println!(
        "GPTQ of {LAYERS} such layers, computed: calibration at most {:.2} GB for {} inputs, packing at most {:.2} GB beside \
         one weight; 24 GiB are {:.2} GB",
        collected as f64 / 1e9,
        inputs.len(),
        packed as f64 / 1e9,
        (24u64 << 30) as f64 / 1e9
    );
}

/// One weight of the largest K: statistics of 3072 rows, then GPTQ.
fn measure_gptq(folder: &Path) {
    let name = "blk.0.ffn_down.weight";
    let inputs = [CalibrationInput { weight: name.to_owned(), also: vec![], k: FF }];
    let mut collector = Collector::new(&inputs, Collect::Hessian, 512, 24 << 30).expect("memory");
    let start = Instant::now();
    for batch in 0..6u32 {
        let value = |i: usize| ((i as f32) * 0.37 + batch as f32).sin() * (1.0 + (i % 97) as f32);
        let rows: Vec<f32> = (0..512 * FF).map(value).collect();
        collector.add(name, &rows).expect("rows");
    }
    println!("Hessian of 3072 rows of {FF} channels: {:.1} s", start.elapsed().as_secs_f64());
    collector.advance(3072);
    let text = Corpus::from_text("bench", "text").expect("a text").whole().origin();
    let model = SourceSample { bytes: 1, hash: Hash::of(b"layer") };
    let run = CalibrationRun { model, text, window_tokens: 512, tokens: 3072 };
    let (stats, path) = (folder.join("bench.orkstat"), folder.join("bench.orkpack"));
    save_statistics(collector.statistics(), &run, &stats).expect("a file");
    drop(collector);
    let knowledge = Knowledge::Statistics(Box::new(StatisticsFile::open(&stats).expect("a file")));
    let layer = Layer::new(&[("ffn_down", FF, D)]);
    let seconds = pack(&layer, "w4a4+smooth+rotate+gptq+clip", &knowledge, &path);
    println!(
        "GPTQ of {FF} x {D}: {seconds:.1} s, {:.1} minutes for {LAYERS} of them; peak memory {:.0} MB, bound {:.0}",
        seconds * LAYERS as f64 / 60.0,
        peak_memory(),
        (gptq_bytes_max(FF as u64) as f64 + 2.0 * (D * FF * 2) as f64 + (1u64 << 30) as f64) / 1e6
    );
    for file in [stats, path] {
        _ = std::fs::remove_file(file);
    }
}
