// SPDX-License-Identifier: MIT OR Apache-2.0
//! Float products: 16 kernels of a group side by side, features as rows, one sum per row and kernel.
//!
//! Each sum adds its products one after the other in the order of the depth, with fused multiply-adds, in f64 or in
//! f32 ([`FloatSums`]). So the result does not depend on the instructions, the threads or the blocking, and every
//! vector kernel equals [`reference()`], which is the definition, bit for bit.
//!
//! Vectors hold kernels. Features are packed row block by row block, depth by depth, so that a tile of rows reads
//! one stream; weights come as a panel `[depth][16]` per group. Two f32 groups, or one f64 group, make a tile of two
//! AVX-512 registers per row.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::engine::piece_rows;
use crate::{Engine, Isa};

/// Kernels of a group at two and four bytes per element.
pub const FLOAT_LANES: usize = 16;

/// In which precision float products are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FloatSums {
    /// In f64, rounded to f32 once at the end. For features and weights of at most 11 bits of mantissa no product
    /// rounds.
    #[default]
    Exact,
    /// In f32, rounded after every product.
    Fast,
}

/// Sizes of a float product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatShape {
    /// Feature rows.
    pub rows: usize,
    /// Products per sum.
    pub depth: usize,
    /// Groups of 16 kernels.
    pub groups: usize,
}

/// Features as the kernels read them, from any number of threads: `fill(row, out)` writes the `depth` features of a
/// row.
pub trait Features: Fn(usize, &mut [f32]) + Sync {}
impl<F: Fn(usize, &mut [f32]) + Sync> Features for F {}

/// Weights as the kernels read them: `fill(group, panel)` writes all of a `[depth][16]` panel.
pub trait Weights: Fn(usize, &mut [f32]) + Sync {}
impl<F: Fn(usize, &mut [f32]) + Sync> Weights for F {}

/// The definition of [`Engine::float`]: `out[(g * rows + m) * 16 + lane]` is the sum over the depth of feature row `m`
/// times kernel `lane` of group `g`.
///
/// # Panics
/// When `out` does not hold `groups * rows * 16` elements.
pub fn reference(
    sums: FloatSums,
    shape: FloatShape,
    features: &dyn Features,
    weights: &dyn Weights,
    out: &mut [f32],
) {
    let FloatShape { rows, depth, groups } = shape;
    assert_eq!(out.len(), groups * rows * FLOAT_LANES, "sums");
    let mut row = vec![0f32; depth];
    let mut panel = vec![0f32; depth * FLOAT_LANES];
    for (g, out) in out.chunks_exact_mut((rows * FLOAT_LANES).max(1)).enumerate() {
        weights(g, &mut panel);
        for (m, out) in out.chunks_exact_mut(FLOAT_LANES).enumerate() {
            features(m, &mut row);
            for (lane, out) in out.iter_mut().enumerate() {
                let products = row.iter().zip(panel[lane.min(panel.len())..].iter().step_by(FLOAT_LANES));
                *out = match sums {
                    FloatSums::Exact => {
                        products.fold(0f64, |s, (x, w)| f64::from(*x).mul_add(f64::from(*w), s)).narrow()
                    }
                    FloatSums::Fast => products.fold(0f32, |s, (x, w)| x.mul_add(*w, s)).narrow(),
                };
            }
        }
    }
}

impl Engine {
    /// Same result as [`float::reference`](reference()).
    ///
    /// # Panics
    /// When `out` does not hold `groups * rows * 16` elements.
    pub fn float(
        &self,
        sums: FloatSums,
        shape: FloatShape,
        features: &dyn Features,
        weights: &dyn Weights,
        out: &mut [f32],
    ) {
        assert_eq!(out.len(), shape.groups * shape.rows * FLOAT_LANES, "sums");
        if out.is_empty() {
            return;
        }
        match (sums, tiles(self.isa())) {
            _ if shape.depth == 0 => out.fill(0.0),
            (_, None) => reference(sums, shape, features, weights, out),
            (FloatSums::Exact, Some(_)) => self.float_by::<f64>(shape, features, weights, out),
            (FloatSums::Fast, Some(_)) => self.float_by::<f32>(shape, features, weights, out),
        }
    }

    fn float_by<T: Sum>(
        &self,
        shape: FloatShape,
        features: &dyn Features,
        weights: &dyn Weights,
        out: &mut [f32],
    ) {
        let FloatShape { rows, depth, groups } = shape;
        let Some(isa) = tiles(self.isa()) else { return };
        let block = isa.rows;
        // Features, packed [row block][depth][row of the block].
        let mut packed = vec![T::default(); rows * depth];
        self.for_each_chunk(&mut packed, block * depth, |b, chunk| {
            let count = chunk.len() / depth;
            let mut row = vec![0f32; depth];
            for r in 0..count {
                features(b * block + r, &mut row);
                for (place, x) in chunk[r..].iter_mut().step_by(count).zip(&row) {
                    *place = T::widen(*x);
                }
            }
        });
        let wide = groups.div_ceil(T::GROUPS);
        let threads = if rows * depth * groups * FLOAT_LANES < SERIAL_MACS { 1 } else { self.threads() };
        let piece = piece_rows(rows, wide, threads).next_multiple_of(block);
        // Per piece of rows the parts of `out` of the groups that share a tile.
        let mut cut: Vec<_> = out
            .chunks_exact_mut(rows * FLOAT_LANES)
            .map(|group| group.chunks_mut(piece * FLOAT_LANES).collect::<Vec<_>>().into_iter())
            .collect();
        let mut jobs = Vec::new();
        for (index, groups) in cut.chunks_mut(T::GROUPS).enumerate() {
            for first in (0..rows).step_by(piece) {
                let outs: Vec<&mut [f32]> = groups.iter_mut().filter_map(Iterator::next).collect();
                jobs.push(Job { group: index * T::GROUPS, first, count: piece.min(rows - first), outs });
            }
        }
        let run = |scratch: &mut Scratch<T>, job: Job<'_>| {
            scratch.fill(depth, job.group, job.outs.len(), weights);
            let packed = &packed[job.first * depth..(job.first + job.count) * depth];
            scratch.multiply(isa, depth, job.count, packed);
            scratch.store(job);
        };
        match self.pool() {
            Some(pool) if threads > 1 => {
                pool.install(|| jobs.into_par_iter().for_each_init(Scratch::default, run));
            }
            _ => {
                let mut scratch = Scratch::default();
                jobs.into_iter().for_each(|job| run(&mut scratch, job));
            }
        }
    }
}

/// Work below this many multiply-adds is not worth waking other threads.
const SERIAL_MACS: usize = 1 << 17;

/// The kernels to use and the most rows of a tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    pub(crate) isa: Isa,
    pub(crate) rows: usize,
}

/// The vector kernels for these instructions; `None` where the definition itself has to do.
fn tiles(isa: Isa) -> Option<Tiles> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => Some(Tiles { isa, rows: 12 }),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if is_x86_feature_detected!("fma") => Some(Tiles { isa, rows: 6 }),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => Some(Tiles { isa, rows: 8 }),
        _ => None,
    }
}

/// Rows of a group, or of the two groups that share a tile.
struct Job<'a> {
    group: usize,
    first: usize,
    count: usize,
    outs: Vec<&'a mut [f32]>,
}

/// A number that products are added up in.
pub(crate) trait Sum: Copy + Default + Send + Sync {
    /// Groups that share a panel.
    const GROUPS: usize;
    /// Columns of a panel.
    const COLUMNS: usize = Self::GROUPS * FLOAT_LANES;
    /// Depth that is worked on at once, so that a panel's part stays in the second-level cache beside the features.
    const DEPTH: usize;

    fn widen(x: f32) -> Self;
    fn narrow(self) -> f32;
    /// Adds to the sums of some rows, `acc[row][column]`: `features[depth][row]`, `panel[depth][column]`.
    fn tile(tiles: Tiles, rows: usize, features: &[Self], panel: &[Self], acc: &mut [Self]);
}

impl Sum for f32 {
    const GROUPS: usize = 2;
    const DEPTH: usize = 1024;

    fn widen(x: f32) -> Self {
        x
    }

    // Which NaN silicon stores is not known; one is as good as another, but it should always be the same one. And no
    // sum is -0: the zeros that fill up a block may have been added or not.
    fn narrow(self) -> f32 {
        if self.is_nan() { f32::NAN } else { self + 0.0 }
    }

    fn tile(tiles: Tiles, rows: usize, features: &[f32], panel: &[f32], acc: &mut [f32]) {
        match tiles.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => crate::float_x86::tile_f32_avx512(rows, features, panel, acc),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => crate::float_x86::tile_f32_avx2(rows, features, panel, acc),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => crate::float_neon::tile_f32(rows, features, panel, acc),
            _ => plain_tile(rows, features, panel, acc, f32::mul_add),
        }
    }
}

impl Sum for f64 {
    const GROUPS: usize = 1;
    const DEPTH: usize = 512;

    fn widen(x: f32) -> Self {
        Self::from(x)
    }

    fn narrow(self) -> f32 {
        if self.is_nan() { f32::NAN } else { self as f32 + 0.0 }
    }

    fn tile(tiles: Tiles, rows: usize, features: &[f64], panel: &[f64], acc: &mut [f64]) {
        match tiles.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => crate::float_x86::tile_f64_avx512(rows, features, panel, acc),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => crate::float_x86::tile_f64_avx2(rows, features, panel, acc),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => crate::float_neon::tile_f64(rows, features, panel, acc),
            _ => plain_tile(rows, features, panel, acc, f64::mul_add),
        }
    }
}

/// [`Sum::tile`] in plain loops.
fn plain_tile<T: Sum>(rows: usize, features: &[T], panel: &[T], acc: &mut [T], mul_add: fn(T, T, T) -> T) {
    for (x, w) in features.chunks_exact(rows).zip(panel.chunks_exact(T::COLUMNS)) {
        for (x, acc) in x.iter().zip(acc.chunks_exact_mut(T::COLUMNS)) {
            for (w, acc) in w.iter().zip(acc) {
                *acc = mul_add(*x, *w, *acc);
            }
        }
    }
}

/// Memory of one thread.
struct Scratch<T> {
    /// `[depth][16]`.
    group: Vec<f32>,
    /// `[depth][COLUMNS]`, zero in columns without a group.
    panel: Vec<T>,
    /// `[row][COLUMNS]`.
    acc: Vec<T>,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Self { group: Vec::new(), panel: Vec::new(), acc: Vec::new() }
    }
}

impl<T: Sum> Scratch<T> {
    fn fill(&mut self, depth: usize, first: usize, groups: usize, weights: &dyn Weights) {
        self.group.resize(depth * FLOAT_LANES, 0.0);
        self.panel.resize(depth * T::COLUMNS, T::default());
        if groups < T::GROUPS {
            self.panel.fill(T::default());
        }
        for g in 0..groups {
            weights(first + g, &mut self.group);
            let lanes = self.group.as_chunks::<FLOAT_LANES>().0;
            for (to, from) in self.panel.chunks_exact_mut(T::COLUMNS).zip(lanes) {
                for (to, from) in to[g * FLOAT_LANES..][..FLOAT_LANES].iter_mut().zip(from) {
                    *to = T::widen(*from);
                }
            }
        }
    }

    /// `packed` holds whole blocks of rows, the last one short.
    fn multiply(&mut self, tiles: Tiles, depth: usize, rows: usize, packed: &[T]) {
        self.acc.clear();
        self.acc.resize(rows * T::COLUMNS, T::default());
        for from in (0..depth).step_by(T::DEPTH) {
            let to = (from + T::DEPTH).min(depth);
            let panel = &self.panel[from * T::COLUMNS..to * T::COLUMNS];
            let blocks = packed.chunks(tiles.rows * depth);
            for (features, acc) in blocks.zip(self.acc.chunks_mut(tiles.rows * T::COLUMNS)) {
                let rows = features.len() / depth;
                T::tile(tiles, rows, &features[from * rows..to * rows], panel, acc);
            }
        }
    }

    fn store(&self, job: Job<'_>) {
        for (g, out) in job.outs.into_iter().enumerate() {
            let rows = out.as_chunks_mut::<FLOAT_LANES>().0.iter_mut();
            for (out, acc) in rows.zip(self.acc.chunks_exact(T::COLUMNS)) {
                for (out, acc) in out.iter_mut().zip(&acc[g * FLOAT_LANES..]) {
                    *out = acc.narrow();
                }
            }
        }
    }
}
