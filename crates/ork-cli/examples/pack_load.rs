// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much faster a pack is loaded than made. Measured on this host, with the emulated board's memory for the NPU's. Time of
//! all processors beside wall time: on a host that does other work too, only the former says much. Loading ends when all
//! products can be asked for; what is not used in place may still be on its way then, so the time until all is ready is beside it.
//!
//! `cargo run --release -p ork-cli --example pack_load [LAYERS]`: layers of 576 x 1536 as SmolLM2-135M has them.
#![expect(clippy::print_stdout, reason = "a benchmark")]

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use half::f16;
use ork_device::{Device, DeviceKind, DeviceOptions};
use ork_driver::{Driver, DriverOptions, ResidencyOptions, TilePlace, Weight};
use ork_ggml::{Absent, ModelPack};
use ork_isa::soc::RK3588;
use ork_layout::{Format, Int4};
use ork_pack::{
    LAYOUT, NewTensor, Pack, PackPlan, PackWriter, Request, SourceId, Target, TiledWeight, WriteOptions,
    tile_codes, tile_grouped, tile_i4a8, tile_w8a8,
};
use ork_plan::weight_layout;
use ork_quant::{
    Basis, ClipRule, Codebook, Method, NativeClip, Scheme, Step, StepKind, Tier, quantise_native_rows,
};
use rayon::prelude::*;

/// Name, K, N of the weights of a layer.
const LAYER: [(&str, usize, usize); 7] = [
    ("attn_q", 576, 576),
    ("attn_k", 576, 192),
    ("attn_v", 576, 192),
    ("attn_output", 576, 576),
    ("ffn_gate", 576, 1536),
    ("ffn_up", 576, 1536),
    ("ffn_down", 1536, 576),
];

/// Seconds of wall time and of all processors.
#[derive(Clone, Copy)]
struct Spent {
    wall: f64,
    processors: f64,
}

impl Spent {
    fn min(self, other: Self) -> Self {
        Self { wall: self.wall.min(other.wall), processors: self.processors.min(other.processors) }
    }
}

fn spent<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Spent)> {
    let (start, before) = (Instant::now(), processor_seconds());
    let made = work()?;
    let spent = Spent { wall: start.elapsed().as_secs_f64(), processors: processor_seconds() - before };
    Ok((made, spent))
}

fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place lives through the call; this clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() -> Result<()> {
    let layers: usize = std::env::args().nth(1).map_or(Ok(30), |layers| layers.parse())?;
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("weights");
    // One layer of random fp16 weights, used again and again.
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f16::from_f32((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5)
    };
    let weights: Vec<Vec<f16>> =
        LAYER.iter().map(|(_, k, n)| (0..k * n).map(|_| random()).collect()).collect();
    std::fs::write(&source, b"synthetic")?;
    for tier in [
        Tier::W8A8,
        Tier::I4A8 { codebook: Codebook::Uniform },
        Tier::I4A8 { codebook: Codebook::Nf4 },
        Tier::I4A8Group,
        Tier::W4A4,
    ] {
        let path = folder.path().join(format!("{tier}.orkpack"));
        let (bytes, packing) = spent(|| pack(&path, &source, tier, layers, &weights))?;
        let source_bytes = weights.iter().map(|weight| 2 * weight.len()).sum::<usize>() * layers;
        println!(
            "{tier}: {:.1} MB. Packing {:.3} s wall, {:.3} s of all processors ({:.2} GB/s of fp16)",
            bytes as f64 / 1e6,
            packing.wall,
            packing.processors,
            source_bytes as f64 / packing.wall / 1e9
        );
        for (place, words) in [(TilePlace::InPlace, "as the board can"), (TilePlace::Copy, "copied")] {
            let worst = Spent { wall: f64::INFINITY, processors: f64::INFINITY };
            let (mut best, mut best_ready) = (worst, worst);
            let mut in_place = 0;
            for _ in 0..5 {
                let options = DeviceOptions { kind: DeviceKind::Sim, ..DeviceOptions::default() };
                let residency = ResidencyOptions { tiles: place, ..ResidencyOptions::default() };
                let options_of_driver = DriverOptions { residency, ..DriverOptions::default() };
                let driver = Driver::new(Device::open(&options)?, options_of_driver)?;
                let ((loading, _weights), ready) = spent(|| {
                    let (weights, loading) = spent(|| load(&driver, &path, layers))?;
                    weights.iter().try_for_each(Weight::make_ready)?;
                    Ok((loading, weights))
                })?;
                best = best.min(loading);
                best_ready = best_ready.min(ready);
                in_place = driver.device().counters().buffers_imported;
            }
            println!(
                "  {words} ({in_place} weights in place): loading {:.4} s wall, {:.0} times faster than packing; all ready after \
                 {:.4} s wall and {:.4} s of all processors, {:.0} and {:.0} times",
                best.wall,
                packing.wall / best.wall,
                best_ready.wall,
                best_ready.processors,
                packing.wall / best_ready.wall,
                packing.processors / best_ready.processors
            );
        }
    }
    Ok(())
}

fn load(driver: &Driver, path: &Path, layers: usize) -> Result<Vec<Weight>> {
    let pack = ModelPack::new(Pack::open_any(path)?, path.to_owned(), Absent::Refuse);
    let mut loaded = Vec::new();
    for layer in 0..layers {
        for (part, k, n) in LAYER {
            let name = format!("blk.{layer}.{part}.weight");
            let (tiles, _) = pack.tiles(&name, k, n)?;
            loaded.push(driver.load_tiles(&name, tiles)?);
        }
    }
    Ok(loaded)
}

fn pack(path: &Path, source: &Path, tier: Tier, layers: usize, weights: &[Vec<f16>]) -> Result<u64> {
    let steps = if tier == Tier::W4A4 { vec![StepKind::Rotate] } else { Vec::new() };
    let scheme = Scheme { tier, method: Method::Nearest, clip: ClipRule::AbsMax, basis: steps.clone() };
    let mut tensors = Vec::new();
    for layer in 0..layers {
        for (part, k, n) in LAYER {
            let name = format!("blk.{layer}.{part}.weight");
            tensors.push(Request { name, k: k as u32, n: n as u32, scheme: scheme.clone() });
        }
    }
    let target = Target { soc: RK3588.name.to_owned(), layout: LAYOUT.to_owned() };
    let plan = PackPlan {
        target,
        source: SourceId::of(source)?,
        writer: "benchmark".to_owned(),
        calibration: None,
        tensors,
    };
    let mut writer = PackWriter::open(path, plan, WriteOptions::default())?;
    for _ in 0..layers {
        for ((_, k, n), weight) in LAYER.iter().zip(weights) {
            let rows = |row: usize, out: &mut [f32]| {
                let row = &weight[row * k..(row + 1) * k];
                out.iter_mut().zip(row).for_each(|(out, x)| *out = x.to_f32());
            };
            let format = if tier == Tier::W4A4 { Format::INT4_INT16 } else { Format::INT8_INT32 };
            let layout = weight_layout(format, *k as u32, *n as u32, &RK3588)?;
            let basis = Basis::new(*k, steps.iter().map(|_| Step::Rotate).collect())?;
            let tiled = match tier {
                Tier::W8A8 => tile_w8a8(&layout, &rows)?,
                Tier::I4A8 { codebook } => tile_i4a8(&layout, codebook, Method::Nearest, None, &rows)?,
                Tier::I4A8Group => tile_grouped(&layout, None, &rows)?,
                Tier::W4A4 => {
                    let mut turned = vec![0f32; k * n];
                    let found: Vec<_> = turned
                        .par_chunks_mut(*k)
                        .enumerate()
                        .map(|(row, out)| {
                            rows(row, out);
                            basis.weight_row(out);
                            quantise_native_rows(out, *k, NativeClip::Search)
                        })
                        .collect::<Result<_, _>>()?;
                    let codes: Option<Vec<Int4>> =
                        found.iter().flat_map(|row| &row.codes).map(|code| Int4::new(*code)).collect();
                    let data = tile_codes(&layout, &codes.context("codes of four bits")?);
                    let scales = found.into_iter().flat_map(|row| row.scales).collect();
                    TiledWeight { data, scales, layout: (&layout).into() }
                }
            };
            let TiledWeight { data, scales, layout } = &tiled;
            writer.write(&NewTensor { scheme: &scheme, layout, basis: &basis, data, scales })?;
        }
    }
    Ok(writer.finish()?.bytes)
}
