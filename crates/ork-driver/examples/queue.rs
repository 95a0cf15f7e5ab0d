// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several small products in as few starts of the NPU as their order allows:
//! `cargo run --release -p ork-driver --example queue`
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;

use ork_device::{Device, DeviceOptions};
use ork_driver::{Driver, DriverOptions, Queue, Work};

fn main() -> Result<(), Box<dyn Error>> {
    let driver = Driver::new(Device::open(&DeviceOptions::default())?, DriverOptions::default())?;
    let weights = (1..=4_i8)
        .map(|factor| driver.load_codes("expert", 512, 64, &|_, out| out.fill(factor)))
        .collect::<Result<Vec<_>, _>>()?;
    let a = [1_i8; 512];
    let mut outs = vec![vec![0_i32; 64]; weights.len()];

    let mut queue = Queue::new();
    for (weight, out) in weights.iter().zip(&mut outs) {
        // No product waits for another.
        queue.push(weight, 1, Work::Int8 { a: &a, out }, &[]);
    }
    let before = driver.device().counters().submits();
    driver.run_queue(queue)?;
    let submits = driver.device().counters().submits() - before;
    println!(
        "{} products in {submits} submits: {:?}",
        outs.len(),
        outs.iter().map(|out| out[0]).collect::<Vec<_>>()
    );
    assert_eq!(outs, [1, 2, 3, 4].map(|factor| vec![512 * factor; 64]));
    Ok(())
}
