// SPDX-License-Identifier: MIT OR Apache-2.0
//! One product on the NPU, or on the simulated one where there is no board:
//! `cargo run --release -p ork-driver --example product`
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;

use half::f16;
use ork_device::{Device, DeviceOptions};
use ork_driver::{Driver, DriverOptions, Operands, Values};

fn main() -> Result<(), Box<dyn Error>> {
    let driver = Driver::new(Device::open(&DeviceOptions::default())?, DriverOptions::default())?;
    println!("{}", driver.device().describe());

    // Two rows of three channels by two columns; b has one row for each column.
    let a = [1.0, 2.0, 3.0, -1.0, 0.5, 4.0].map(f16::from_f32);
    let b = [1.0, 0.0, -1.0, 2.0, 2.0, 2.0].map(f16::from_f32);
    let Values::F32(c) = driver.product(2, 3, 2, &Operands::Fp16 { a: &a, b: &b })? else {
        return Err("an fp16 product gives fp32 sums".into());
    };
    println!("{c:?}");
    assert_eq!(c, [-2.0, 12.0, -5.0, 7.0]);
    Ok(())
}
