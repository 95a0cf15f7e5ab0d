// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host speed of packing beside memcpy, in one run: `cargo run --release -p ork-pack --example tiling`.
//!
//! Rates of packing count the bytes of fp16 weights that went in; the ratio compares them with bytes that memcpy
//! reads and writes. All threads of rayon's pool, on which packing runs too.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;

use half::f16;
use half::slice::HalfFloatSliceExt;
use ork_layout::{Format, WeightLayout};
use ork_pack::{tile_i4a8, tile_w8a8};
use ork_quant::{Codebook, Method, Scale, dequantise_row, inflate};
use rayon::prelude::*;

#[path = "../../ork-quant/examples/throughput/race.rs"]
mod race;

use race::{Arm, copies, race};

fn main() {
    println!("{} threads", rayon::current_num_threads());
    for (k, n) in [(2048, 6144), (6144, 2048), (11008, 4096)] {
        println!("\nweight of {k} x {n}");
        let weights: Vec<f16> = (0..k * n).map(|i| f16::from_f32((i as f32 * 0.7).sin())).collect();
        let weights = &weights;
        let rows = |row: usize, out: &mut [f32]| weights[row * k..(row + 1) * k].convert_to_f32_slice(out);
        let layout = WeightLayout::one_slice(Format::INT8_INT32, k as u32, n as u32).expect("a shape");
        let layout = &layout;
        let bytes = k * n * 2;
        let mut arms = copies(bytes);
        arms.push(Arm {
            name: "pack w8a8".into(),
            bytes,
            work: Box::new(|| _ = black_box(tile_w8a8(layout, &rows))),
        });
        for codebook in [Codebook::Uniform, Codebook::Nf4] {
            arms.push(Arm {
                name: format!("pack i4a8 {codebook:?}"),
                bytes,
                work: Box::new(move || {
                    _ = black_box(tile_i4a8(layout, codebook, Method::Nearest, None, &rows));
                }),
            });
        }
        let nibbles = vec![0x5a; k * n / 2];
        let mut tiles = vec![0i8; k * n];
        arms.push(Arm {
            name: "inflate nf4".into(),
            bytes: k * n * 3 / 2,
            work: Box::new(move || {
                let chunks = tiles.par_chunks_mut(1 << 16).zip(nibbles.par_chunks(1 << 15));
                chunks.for_each(|(tiles, nibbles)| inflate(nibbles, Codebook::Nf4, tiles));
                black_box(&tiles);
            }),
        });
        let accumulators: Vec<i32> = (0..k * n / 4).map(|i| i as i32 * 77).collect();
        let columns = vec![Scale::new(0.01).expect("a scale"); n];
        let mut out = vec![0f32; k * n / 4];
        arms.push(Arm {
            name: "dequantise".into(),
            bytes: k * n * 2,
            work: Box::new(move || {
                let rows = accumulators.par_chunks_exact(n).zip(out.par_chunks_exact_mut(n));
                rows.for_each(|(row, out)| dequantise_row(row, columns[0], &columns, out));
                black_box(&out);
            }),
        });
        race(arms);
    }
}
