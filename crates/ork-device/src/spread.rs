// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

/// Runs several things at once: a submit that waits blocks its thread, so that each core needs one.
pub trait Spread: fmt::Debug {
    /// Calls `work` with 0 to `count`, exclusive, each on a thread of its own; all have returned when this does.
    fn spread(&self, count: usize, work: &(dyn Fn(usize) + Sync));
}

/// A new thread for each call but the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

impl Spread for Threads {
    fn spread(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for index in 1..count {
                scope.spawn(move || work(index));
            }
            if count != 0 {
                work(0);
            }
        });
    }
}
