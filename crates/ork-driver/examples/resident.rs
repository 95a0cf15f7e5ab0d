// SPDX-License-Identifier: MIT OR Apache-2.0
//! A weight that stays on the device and is multiplied by many activations, quantised to int8 on the way:
//! `cargo run --release -p ork-driver --example resident`
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;

use ork_device::{Device, DeviceOptions};
use ork_driver::{Driver, DriverOptions, MatmulGroup};

const K: usize = 512;
const N: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let driver = Driver::new(Device::open(&DeviceOptions::default())?, DriverOptions::default())?;
    let element = |row: usize, k: usize| ((row * 31 + k * 7) % 97) as f32 / 48.0 - 1.0;
    let weight = driver.load("ffn_up", K, N, &|row, out| {
        for (k, out) in out.iter_mut().enumerate() {
            *out = element(row, k);
        }
    })?;

    for m in [64, 1] {
        let x: Vec<f32> = (0..m * K).map(|i| (i * 13 % 101) as f32 / 50.0 - 1.0).collect();
        let mut out = vec![0.0; m * N];
        driver.matmul(&mut MatmulGroup { m, x: &x, parts: vec![(&weight, &mut out)] })?;

        let exact: f32 = (0..K).map(|k| x[k] * element(0, k)).sum();
        println!("{m} rows: {} and exactly {exact}", out[0]);
        // Each factor has an error of at most 1/254 of its row's largest.
        assert!((out[0] - exact).abs() < K as f32 * 2.0 / 254.0);
    }
    println!("{}", driver.counters());
    Ok(())
}
