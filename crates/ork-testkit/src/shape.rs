// SPDX-License-Identifier: MIT OR Apache-2.0
#![forbid(unsafe_code)]

use std::fmt;

/// A matmul: `m × k` features times `k × n` weights. Weights are stored as models store
/// them, one row of `k` per output channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of the input and of the output.
    pub m: u32,
    /// Length of the dot products.
    pub k: u32,
    /// Output channels.
    pub n: u32,
}

impl Shape {
    /// The shape `m × k × n`.
    pub const fn new(m: u32, k: u32, n: u32) -> Self {
        Self { m, k, n }
    }

    /// Multiply-accumulates.
    pub const fn macs(self) -> u64 {
        self.m as u64 * self.k as u64 * self.n as u64
    }

    /// Elements of the feature matrix, `m · k`.
    pub const fn features_len(self) -> usize {
        self.m as usize * self.k as usize
    }

    /// Elements of the weight matrix, `n · k`.
    pub const fn weights_len(self) -> usize {
        self.n as usize * self.k as usize
    }

    /// Elements of the result, `m · n`.
    pub const fn output_len(self) -> usize {
        self.m as usize * self.n as usize
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}×{}", self.m, self.k, self.n)
    }
}
