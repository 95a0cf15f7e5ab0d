// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arms beside each other in one run, memcpy first and twice. Used by the throughput examples of several crates.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 41;

/// One thing to time: its name, the bytes it moves, and the work.
pub(crate) struct Arm<'a> {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    pub(crate) work: Box<dyn FnMut() + 'a>,
}

/// The yardstick, twice.
pub(crate) fn copies(len: usize) -> Vec<Arm<'static>> {
    ["memcpy", "memcpy again"]
        .map(|name| {
            let (from, mut to) = (vec![1_u8; len], vec![2_u8; len]);
            let work = Box::new(move || {
                to.copy_from_slice(black_box(&from));
                black_box(&to);
            });
            Arm { name: name.to_owned(), bytes: 2 * len, work }
        })
        .into()
}

pub(crate) fn race(mut arms: Vec<Arm<'_>>) {
    let bytes_max = arms.iter().map(|arm| arm.bytes).max().unwrap_or(1);
    // Small working sets are repeated until a round takes measurable time.
    let repeats = (64 << 20) / bytes_max + 1;
    let mut seconds = vec![Vec::new(); arms.len()];
    for round in 0..=ROUNDS {
        for (arm, seconds) in arms.iter_mut().zip(&mut seconds) {
            let start = Instant::now();
            for _ in 0..repeats {
                (arm.work)();
            }
            // The first round touches the pages.
            if round > 0 {
                seconds.push(start.elapsed().as_secs_f64() / repeats as f64);
            }
        }
    }
    let mut yardstick = None;
    for (arm, mut seconds) in arms.iter().zip(seconds) {
        seconds.sort_by(f64::total_cmp);
        let rate = arm.bytes as f64 / seconds[seconds.len() / 2] / 1e9;
        let yardstick = *yardstick.get_or_insert(rate);
        println!("  {:24} {rate:7.1} GB/s   {:5.2} of memcpy", arm.name, rate / yardstick);
    }
}
