// SPDX-License-Identifier: MIT OR Apache-2.0
//! An accelerator of plain f32 loops, with switches to make it fail.

#![allow(dead_code, reason = "each test binary uses a part")]

use ork_ggml::{
    AccelError, AccelErrorKind, AccelMemory, Accelerator, CodeRows, Decline, LoadedWeight, ModelledTime,
    WeightRows,
};
use rayon::prelude::*;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What goes wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// `load` has no room for weights of this many rows.
    NoRoomForRows(usize),
    /// `load` fails with a device error for weights of this many rows.
    LoadFailsForRows(usize),
    /// Every matmul after the first `n` fails.
    MatMulFailsAfter(u64),
    /// Every matmul panics.
    MatMulPanics,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) live: AtomicUsize,
    /// Weights taken so far.
    pub(crate) loads: AtomicUsize,
    pub(crate) matmuls: AtomicU64,
    pub(crate) groups: AtomicU64,
    /// Weights that came as codes.
    pub(crate) coded: AtomicU64,
    /// The next matmul fails, once.
    pub(crate) fail_next: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct NaiveAccelerator {
    pub(crate) fault: Fault,
    /// Largest n accepted; 0 = any.
    pub(crate) n_max: usize,
    /// Modelled microseconds by k, n, m.
    pub(crate) time: Option<fn(usize, usize, usize) -> f64>,
    pub(crate) counts: Arc<Counts>,
}

#[derive(Debug)]
struct NaiveWeight {
    /// Rows of the activation are rounded to int8, as the codes were.
    rounds: bool,
    time: Option<fn(usize, usize, usize) -> f64>,
    k: usize,
    n: usize,
    rows: Vec<f32>,
    fault: Fault,
    counts: Arc<Counts>,
}

impl Accelerator for NaiveAccelerator {
    fn describe(&self) -> String {
        "plain f32 loops".to_owned()
    }

    fn memory(&self) -> Option<AccelMemory> {
        Some(AccelMemory { free_bytes: 3 << 30, total_bytes: 4 << 30 })
    }

    fn limits(&self, k: usize, n: usize) -> Result<(), Decline> {
        if self.n_max != 0 && n > self.n_max {
            let detail = format!("n = {n} for k = {k}, at most {}", self.n_max);
            return Err(Decline::Limit { law: "n_max".to_owned(), detail });
        }
        Ok(())
    }

    fn load(
        &self,
        _name: &str,
        k: usize,
        n: usize,
        rows: &WeightRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        match self.fault {
            Fault::NoRoomForRows(bad) if bad == n => {
                return Err(AccelError::new(AccelErrorKind::NoRoom, "full").with_hint("free something"));
            }
            Fault::LoadFailsForRows(bad) if bad == n => {
                let cause = std::io::Error::other("EIO");
                return Err(AccelError::caused_by(AccelErrorKind::Device, "upload failed", cause));
            }
            _ => {}
        }
        let mut matrix = vec![0.0; k * n];
        matrix.par_chunks_mut(k).enumerate().for_each(|(row, out)| rows(row, out));
        Ok(self.weight(false, k, n, matrix))
    }

    fn load_codes(
        &self,
        _name: &str,
        k: usize,
        n: usize,
        rows: &CodeRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        if self.fault == Fault::NoRoomForRows(n) {
            return Err(AccelError::new(AccelErrorKind::NoRoom, "full"));
        }
        self.counts.coded.fetch_add(1, Ordering::SeqCst);
        let mut matrix = Vec::new();
        for row in 0..n {
            let mut codes = vec![0i8; k];
            let scale = rows(row, &mut codes).get();
            matrix.extend(codes.iter().map(|&code| f32::from(code)));
            // The scale of a row lies behind it.
            matrix.push(scale);
        }
        Ok(self.weight(true, k, n, matrix))
    }

    fn modelled(&self, k: usize, n: usize, m: usize) -> Option<ModelledTime> {
        modelled(self.time, k, n, m)
    }

    fn matmul_group(
        &self,
        weights: &[&dyn LoadedWeight],
        m: usize,
        x: &[f32],
        outs: &mut [&mut [f32]],
    ) -> Result<(), AccelError> {
        self.counts.groups.fetch_add(1, Ordering::SeqCst);
        for (weight, out) in weights.iter().zip(outs) {
            let any: &dyn Any = *weight;
            any.downcast_ref::<NaiveWeight>().expect("a weight of this accelerator").matmul(m, x, out)?;
        }
        Ok(())
    }
}

fn modelled(
    time: Option<fn(usize, usize, usize) -> f64>,
    k: usize,
    n: usize,
    m: usize,
) -> Option<ModelledTime> {
    time.map(|time| ModelledTime { npu_us: time(k, n, m), host_bytes: 0, brought_in_bytes: 0 })
}

impl NaiveAccelerator {
    fn weight(&self, rounds: bool, k: usize, n: usize, rows: Vec<f32>) -> Box<dyn LoadedWeight> {
        self.counts.live.fetch_add(1, Ordering::SeqCst);
        self.counts.loads.fetch_add(1, Ordering::SeqCst);
        let (fault, time, counts) = (self.fault, self.time, Arc::clone(&self.counts));
        Box::new(NaiveWeight { rounds, time, k, n, rows, fault, counts })
    }
}

impl NaiveWeight {
    /// Codes by codes, by the rule of int8 rows, in plain loops.
    fn rounded(&self, x: &[f32], out: &mut [f32]) {
        for (x, out) in x.chunks_exact(self.k).zip(out.chunks_exact_mut(self.n)) {
            let largest = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let scale = largest / 127.0;
            let codes: Vec<i64> = x.iter().map(|x| (x * (1.0 / scale)).round_ties_even() as i64).collect();
            for (out, row) in out.iter_mut().zip(self.rows.chunks_exact(self.k + 1)) {
                let sum: i64 = codes.iter().zip(row).map(|(x, w)| x * *w as i64).sum();
                *out = (sum as f64 * (f64::from(scale) * f64::from(row[self.k]))) as f32;
            }
        }
    }
}

impl LoadedWeight for NaiveWeight {
    fn k(&self) -> usize {
        self.k
    }

    fn n(&self) -> usize {
        self.n
    }

    fn device_bytes(&self) -> u64 {
        (self.rows.len() * size_of::<f32>()) as u64
    }

    fn modelled(&self, m: usize) -> Option<ModelledTime> {
        modelled(self.time, self.k, self.n, m)
    }

    fn matmul(&self, m: usize, x: &[f32], out: &mut [f32]) -> Result<(), AccelError> {
        let done = self.counts.matmuls.fetch_add(1, Ordering::SeqCst);
        if self.counts.fail_next.swap(false, Ordering::SeqCst) {
            return Err(AccelError::new(AccelErrorKind::Device, "told to fail"));
        }
        match self.fault {
            Fault::MatMulFailsAfter(limit) if done >= limit => {
                let error = AccelError::new(AccelErrorKind::Device, "the core timed out");
                return Err(error.with_hint("reset the board"));
            }
            Fault::MatMulPanics => panic!("a bug in the accelerator"),
            _ => {}
        }
        assert_eq!((x.len(), out.len()), (m * self.k, m * self.n));
        if self.rounds {
            self.rounded(x, out);
            return Ok(());
        }
        // A block of weight rows stays in the cache while all of x passes by; each task owns a block of columns.
        const BLOCK: usize = 16;
        let columns: Vec<Vec<f32>> = self
            .rows
            .par_chunks(BLOCK * self.k)
            .map(|rows| {
                let width = rows.len() / self.k;
                let mut block = vec![0.0; m * width];
                for (x, out) in x.chunks_exact(self.k).zip(block.chunks_exact_mut(width)) {
                    for (row, out) in rows.chunks_exact(self.k).zip(out) {
                        *out = dot(x, row);
                    }
                }
                block
            })
            .collect();
        for (index, block) in columns.iter().enumerate() {
            let width = block.len() / m;
            for (block, out) in block.chunks_exact(width).zip(out.chunks_exact_mut(self.n)) {
                out[index * BLOCK..index * BLOCK + width].copy_from_slice(block);
            }
        }
        Ok(())
    }
}

impl Drop for NaiveWeight {
    fn drop(&mut self) {
        self.counts.live.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Sixteen partial sums, so that the compiler can use vector registers.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + tail
}
