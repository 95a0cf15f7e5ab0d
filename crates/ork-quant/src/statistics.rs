// SPDX-License-Identifier: MIT OR Apache-2.0
//! What calibration keeps of the activations of one weight.
//!
//! # Memory
//! [`TensorStatistics::bytes_max`] is the bound of one tensor: K · 12 bytes of sums and ranges and, with a Hessian,
//! 8 bytes for each pair of channels of its lower block triangle, 4·K² + 1024·K at most. While rows are added,
//! [`TensorStatistics::scratch_bytes_max`] comes on top. For K = 11008 that is 475 MiB and 22 MiB.
//! Statistics of all tensors of a model rarely fit at once; collect a few layers per pass over the text.
//!
//! # Error
//! Sums are `f64`, and a product of two `f32` is exact in `f64`. So after `rows` rows an entry lies within
//! (rows + 1) · 2⁻⁵³ · Σ|x_i·x_j| of the exact sum, whatever the order of additions.
//!
//! # One pass
//! Statistics are always those of the plain activations. [`Hessian::in_basis`] brings them into a basis afterwards
//! (H' = Tᵀ·H·T), so a smoothing that depends on the statistics needs no second pass, and no sum can belong to a
//! basis that the weights were not quantised in.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::linalg::{View, gemm};
use crate::{Basis, QuantError};

/// Rows of the lower block triangle that are kept together: each such band holds all columns up to its last row.
const BAND: usize = 256;
/// Rows of activations that are converted at once.
const CHUNK: usize = 128;

/// What to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collect {
    /// Ranges and sums of squares per channel: for int8, NF4, SmoothQuant.
    Sums,
    /// Also H = Xᵀ·X: for GPTQ.
    Hessian,
}

/// Statistics that do not fit together.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StatisticsError {
    /// Rows of another K.
    #[error("{values} activations are not whole rows of {k} channels")]
    Shape {
        /// Channels.
        k: usize,
        /// Values given.
        values: usize,
    },
    /// An activation that is not finite. Nothing was added.
    #[error("calibration row {row}: {source}")]
    NonFinite {
        /// Row of the batch.
        row: usize,
        /// Where in the row.
        source: QuantError,
    },
    /// Two statistics of different kind or K.
    #[error("statistics of {found_k} channels ({found:?}) cannot be added to those of {k} ({kept:?})")]
    Mismatch {
        /// Channels kept.
        k: usize,
        /// What is kept.
        kept: Collect,
        /// Channels of the other.
        found_k: usize,
        /// What the other keeps.
        found: Collect,
    },
}

/// Statistics of the activations of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorStatistics {
    k: usize,
    rows: u64,
    abs_max: Vec<f32>,
    squares: Vec<f64>,
    bands: Vec<Vec<f64>>,
}

impl TensorStatistics {
    /// Nothing seen yet.
    pub fn new(k: usize, collect: Collect) -> Self {
        let bands = match collect {
            Collect::Sums => Vec::new(),
            Collect::Hessian => bands(k).map(|(start, end)| vec![0f64; (end - start) * end]).collect(),
        };
        Self { k, rows: 0, abs_max: vec![0.0; k], squares: vec![0.0; k], bands }
    }

    /// Bytes that statistics of K channels take, at most.
    pub const fn bytes_max(k: u64, collect: Collect) -> u64 {
        match collect {
            Collect::Sums => 12 * k,
            Collect::Hessian => 12 * k + 4 * k * k + 4 * k * BAND as u64,
        }
    }

    /// Bytes that [`TensorStatistics::add_rows`] takes for the time of the call, at most.
    pub const fn scratch_bytes_max(k: u64) -> u64 {
        // The rows as f64, and as much again in the product's packing buffers on all threads.
        2 * 8 * k * CHUNK as u64
    }

    /// Channels.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Rows seen.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// What is kept.
    pub fn collects(&self) -> Collect {
        if self.bands.is_empty() { Collect::Sums } else { Collect::Hessian }
    }

    /// Largest magnitude of every channel.
    pub fn abs_max(&self) -> &[f32] {
        &self.abs_max
    }

    /// Sum of squares of every channel.
    pub fn squares(&self) -> &[f64] {
        &self.squares
    }

    /// Mean square of every channel: what an importance matrix holds, and what [`crate::smoothing`] takes. Zeros before
    /// the first row.
    pub fn mean_squares(&self) -> Vec<f64> {
        self.squares.iter().map(|sum| sum / self.rows.max(1) as f64).collect()
    }

    /// Adds a batch of rows, K activations each.
    ///
    /// # Errors
    /// [`StatisticsError`] if the values are not whole finite rows; then nothing was added.
    pub fn add_rows(&mut self, batch: &[f32]) -> Result<(), StatisticsError> {
        if self.k == 0 || !batch.len().is_multiple_of(self.k) {
            return Err(StatisticsError::Shape { k: self.k, values: batch.len() });
        }
        for (row, values) in batch.chunks_exact(self.k).enumerate() {
            crate::kernels::finite_abs_max(values)
                .map_err(|source| StatisticsError::NonFinite { row, source })?;
        }
        for row in batch.chunks_exact(self.k) {
            for ((max, sum), x) in self.abs_max.iter_mut().zip(&mut self.squares).zip(row) {
                *max = max.max(x.abs());
                *sum += f64::from(*x) * f64::from(*x);
            }
        }
        if !self.bands.is_empty() {
            let mut wide = Vec::with_capacity(self.k * CHUNK);
            for chunk in batch.chunks(self.k * CHUNK) {
                wide.clear();
                wide.extend(chunk.iter().copied().map(f64::from));
                add_products(&mut self.bands, self.k, &wide);
            }
        }
        self.rows += (batch.len() / self.k) as u64;
        Ok(())
    }

    /// Adds what another pass has seen.
    ///
    /// # Errors
    /// [`StatisticsError::Mismatch`] if the two differ in K or kind.
    pub fn merge(&mut self, other: &Self) -> Result<(), StatisticsError> {
        if (self.k, self.collects()) != (other.k, other.collects()) {
            return Err(StatisticsError::Mismatch {
                k: self.k,
                kept: self.collects(),
                found_k: other.k,
                found: other.collects(),
            });
        }
        self.rows += other.rows;
        for (max, x) in self.abs_max.iter_mut().zip(&other.abs_max) {
            *max = max.max(*x);
        }
        let sums = self.squares.iter_mut().chain(self.bands.iter_mut().flatten());
        for (sum, x) in sums.zip(other.squares.iter().chain(other.bands.iter().flatten())) {
            *sum += x;
        }
        Ok(())
    }

    /// H = Xᵀ·X as a whole matrix, if it was collected. Takes another 8·K² bytes.
    pub fn hessian(&self) -> Option<Hessian> {
        if self.bands.is_empty() {
            return None;
        }
        let k = self.k;
        let mut h = vec![0f64; k * k];
        for (band, (start, end)) in self.bands.iter().zip(bands(k)) {
            for (i, row) in (start..end).zip(band.chunks_exact(end)) {
                h[i * k..i * k + i + 1].copy_from_slice(&row[..=i]);
            }
        }
        for i in 0..k {
            for j in 0..i {
                h[j * k + i] = h[i * k + j];
            }
        }
        Some(Hessian { k, h })
    }

    /// All sums as they lie in memory: ranges, squares, then the bands of the Hessian (rows of the lower block triangle,
    /// 256 at a time, each with the columns up to the band's last row). For writing to a file.
    pub fn parts(&self) -> (&[f32], &[f64], impl Iterator<Item = &[f64]>) {
        (&self.abs_max, &self.squares, self.bands.iter().map(Vec::as_slice))
    }

    /// Puts back what [`TensorStatistics::parts`] gave.
    ///
    /// # Errors
    /// [`StatisticsError::Shape`] if a length does not fit K, [`StatisticsError::NonFinite`] if a sum is not finite.
    pub fn from_parts(
        rows: u64,
        abs_max: Vec<f32>,
        squares: Vec<f64>,
        bands_of: Vec<Vec<f64>>,
    ) -> Result<Self, StatisticsError> {
        let k = abs_max.len();
        let shape = |values: usize| StatisticsError::Shape { k, values };
        if squares.len() != k {
            return Err(shape(squares.len()));
        }
        if !bands_of.is_empty() {
            let lengths: Vec<usize> = bands(k).map(|(start, end)| (end - start) * end).collect();
            if lengths.len() != bands_of.len() {
                return Err(shape(bands_of.len()));
            }
            if let Some((_, band)) =
                lengths.iter().zip(&bands_of).find(|(length, band)| **length != band.len())
            {
                return Err(shape(band.len()));
            }
        }
        let sums = squares.iter().chain(bands_of.iter().flatten()).copied();
        if let Some((index, value)) = sums.enumerate().find(|(_, sum)| !sum.is_finite()) {
            let source = QuantError::NonFinite { row: None, index, value: value as f32 };
            return Err(StatisticsError::NonFinite { row: 0, source });
        }
        Ok(Self { k, rows, abs_max, squares, bands: bands_of })
    }

    /// Lengths of the bands of K channels, in the order of [`TensorStatistics::parts`].
    pub fn band_lengths(k: usize, collect: Collect) -> Vec<usize> {
        match collect {
            Collect::Sums => Vec::new(),
            Collect::Hessian => bands(k).map(|(start, end)| (end - start) * end).collect(),
        }
    }
}

fn bands(k: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..k).step_by(BAND).map(move |start| (start, k.min(start + BAND)))
}

/// Adds Xᵀ·X of rows that are already `f64`, bands in parallel.
fn add_products(bands_of: &mut [Vec<f64>], k: usize, rows: &[f64]) {
    let m = rows.len() / k;
    bands_of.par_iter_mut().enumerate().for_each(|(index, band)| {
        let start = index * BAND;
        let end = k.min(start + BAND);
        let left = View::transposed(&rows[start..], k);
        gemm((end - start, m, end), 1.0, left, View::rows(rows, k), 1.0, band, end);
    });
}

/// H = Xᵀ·X, whole and symmetric.
#[derive(Clone, Debug, PartialEq)]
pub struct Hessian {
    pub(crate) k: usize,
    pub(crate) h: Vec<f64>,
}

impl Hessian {
    /// K × K values, row by row. Only the lower triangle counts.
    ///
    /// # Errors
    /// [`StatisticsError::Shape`] if there are not K · K.
    pub fn new(k: usize, h: Vec<f64>) -> Result<Self, StatisticsError> {
        if h.len() != k * k {
            return Err(StatisticsError::Shape { k, values: h.len() });
        }
        let mut hessian = Self { k, h };
        for i in 0..k {
            for j in 0..i {
                hessian.h[j * k + i] = hessian.h[i * k + j];
            }
        }
        Ok(hessian)
    }

    /// Channels.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Row `i`: the products of channel `i` with all channels.
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.h[i * self.k..(i + 1) * self.k]
    }

    /// The Hessian of the same activations in a basis: with rows a·T, that is Tᵀ·H·T. In place, rows in parallel.
    ///
    /// # Panics
    /// If the basis has another K.
    #[must_use]
    pub fn in_basis(mut self, basis: &Basis) -> Self {
        assert_eq!(basis.k(), self.k, "a basis of the same channels");
        if basis.steps().is_empty() {
            return self;
        }
        for _ in 0..2 {
            self.h.par_chunks_exact_mut(self.k).for_each(|row| basis.activation_row_f64(row));
            transpose(&mut self.h, self.k);
        }
        self
    }
}

/// Transposes a square matrix in place, tile by tile.
fn transpose(a: &mut [f64], k: usize) {
    const TILE: usize = 32;
    for i0 in (0..k).step_by(TILE) {
        for j0 in (0..=i0).step_by(TILE) {
            for i in i0..k.min(i0 + TILE) {
                for j in j0..k.min(j0 + TILE).min(i) {
                    a.swap(i * k + j, j * k + i);
                }
            }
        }
    }
}

/// Statistics of a model, as far as they have been collected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// By name of the weight: of the first one, where several multiply the same activations.
    pub tensors: BTreeMap<String, TensorStatistics>,
    /// The other weights of the same activations (keys and values beside queries, up beside gate), and the name under
    /// which their statistics are.
    pub shared: BTreeMap<String, String>,
    /// How far the calibration text has been read, in the caller's unit: where to resume.
    pub position: u64,
}

impl Statistics {
    /// Bytes that statistics of these tensors take, at most: (K, what is kept) each.
    pub fn bytes_max(tensors: impl IntoIterator<Item = (u64, Collect)>) -> u64 {
        tensors.into_iter().map(|(k, collect)| TensorStatistics::bytes_max(k, collect)).sum()
    }

    /// The name under which statistics of a weight are kept: its own, or that of the weight it shares activations with.
    pub fn key_of<'a>(&'a self, weight: &'a str) -> &'a str {
        self.shared.get(weight).map_or(weight, String::as_str)
    }
}
