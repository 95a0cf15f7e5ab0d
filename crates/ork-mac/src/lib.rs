// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host kernels for the MAC array of the simulated NPU.
//!
//! A MAC array multiplies feature rows with *kernels*. Features come as rows of bytes in the convolution
//! buffer ([`Rows`]); weights stay exactly as the hardware streams them from memory ([`Kernels`], `isa.md`
//! §4.1): groups of 32 kernels, in a group blocks of 32 channels, in a block the kernels, channels innermost.
//! Nothing is repacked beyond a register.
//!
//! Every vector kernel has the same contract as [`scalar`] (int8) or [`float::reference`], which is its definition,
//! and is compared with it bit for bit. Which one runs is decided at run time ([`Engine`]).

mod engine;
pub mod float;
mod half;
mod lanes;
pub mod scalar;

#[cfg(target_arch = "aarch64")]
mod float_neon;
#[cfg(target_arch = "x86_64")]
mod float_x86;
#[cfg(target_arch = "x86_64")]
mod half_x86;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use engine::{Engine, Isa};
pub use float::{FLOAT_LANES, FloatShape, FloatSums};
pub use half::{HALF_BLOCK, HALF_BLOCK_BYTES, HalfKind, turn_half_block};
pub use lanes::int_rows;

/// Kernels that the array works on together, at one byte per element.
pub const GROUP_KERNELS: usize = 32;
/// Channels of a weight block.
pub const BLOCK_CHANNELS: usize = 32;

/// Feature rows: `rows` times `k` signed bytes, `stride` bytes apart.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    stride: usize,
    rows: usize,
    k: usize,
}

impl<'a> Rows<'a> {
    /// Rows over `bytes`; `None` when the last row does not lie inside.
    #[must_use]
    pub fn new(bytes: &'a [u8], stride: usize, rows: usize, k: usize) -> Option<Self> {
        let end = rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(k))?;
        (end <= bytes.len()).then_some(Self { bytes, stride, rows, k })
    }

    /// Number of rows.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is no row.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The bytes of row `m`.
    #[must_use]
    pub fn row(&self, m: usize) -> &'a [u8] {
        &self.bytes[m * self.stride..m * self.stride + self.k]
    }

    fn slice(&self, from: usize, count: usize) -> Self {
        Self { bytes: &self.bytes[from * self.stride..], rows: count, ..*self }
    }
}

/// Weights in stream order: `kernels` kernels of `k` channels, `k` a multiple of [`BLOCK_CHANNELS`].
#[derive(Clone, Copy, Debug)]
pub struct Kernels<'a> {
    bytes: &'a [u8],
    kernels: usize,
    k: usize,
}

impl<'a> Kernels<'a> {
    /// Kernels over `bytes`; `None` when `k` is not a whole number of blocks or bytes are missing.
    #[must_use]
    pub fn new(bytes: &'a [u8], kernels: usize, k: usize) -> Option<Self> {
        let need = kernels.checked_mul(k)?;
        if !k.is_multiple_of(BLOCK_CHANNELS) {
            return None;
        }
        Some(Self { bytes: bytes.get(..need)?, kernels, k })
    }

    /// Number of kernel groups; the last one may be short.
    #[must_use]
    pub const fn groups(&self) -> usize {
        self.kernels.div_ceil(GROUP_KERNELS)
    }

    fn group(&self, g: usize) -> Group<'a> {
        let first = g * GROUP_KERNELS;
        let kernels = (self.kernels - first).min(GROUP_KERNELS);
        Group { bytes: &self.bytes[first * self.k..(first + kernels) * self.k], kernels, k: self.k }
    }
}

/// One kernel group: `[k / 32][kernels][32]` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) kernels: usize,
    pub(crate) k: usize,
}

impl Group<'_> {
    pub(crate) fn blocks(&self) -> usize {
        self.k / BLOCK_CHANNELS
    }
}
