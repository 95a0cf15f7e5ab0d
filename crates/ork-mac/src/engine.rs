// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{GROUP_KERNELS, Group, Kernels, Rows, scalar};

/// Which instructions the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust, the definition.
    Scalar,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX-512 VNNI.
    Avx512Vnni,
    /// aarch64 with the dot-product extension.
    NeonDot,
}

impl Isa {
    /// What this machine can run, best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut found = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                found.push(Self::Avx2);
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vnni")
            {
                found.push(Self::Avx512Vnni);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            found.push(Self::NeonDot);
        }
        found
    }
}

/// Work below this many multiply-adds is not worth waking other threads.
const SERIAL_MACS: usize = 1 << 18;
/// Fewest rows that one piece of work covers when a group is cut.
const ROWS_PER_PIECE: usize = 24;

/// The kernels with the threads that run them. Cheap to clone; engines with the same thread count share one
/// pool, so that three simulated cores do not run three times as many threads.
#[derive(Clone, Debug)]
pub struct Engine {
    isa: Isa,
    pool: Option<Arc<ThreadPool>>,
}

/// Pools by process and number of threads. A child of `fork` has none of its parent's threads, and would wait for them;
/// it leaves the parent's pools alone, because ending one would wait for them too.
static POOLS: Mutex<BTreeMap<(u32, usize), Arc<ThreadPool>>> = Mutex::new(BTreeMap::new());

impl Engine {
    /// The best kernels of this machine on `threads` threads; 0 takes the available parallelism.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let isa = Isa::available().pop().unwrap_or(Isa::Scalar);
        Self { isa, pool: pool(threads) }
    }

    /// Plain loops on one thread.
    #[must_use]
    pub const fn reference() -> Self {
        Self { isa: Isa::Scalar, pool: None }
    }

    /// The same threads with other instructions; `None` when this machine lacks them.
    #[must_use]
    pub fn with_isa(&self, isa: Isa) -> Option<Self> {
        Isa::available().contains(&isa).then(|| Self { isa, pool: self.pool.clone() })
    }

    /// Which instructions it uses.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn pool(&self) -> Option<&ThreadPool> {
        self.pool.as_deref()
    }

    /// How many threads it uses.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.as_ref().map_or(1, |pool| pool.current_num_threads())
    }

    /// Same result as [`scalar::int8`].
    ///
    /// # Panics
    /// When `out` does not hold `groups * rows * 32` elements or the depths differ.
    pub fn int8(&self, rows: Rows<'_>, kernels: Kernels<'_>, out: &mut [i32]) {
        assert_eq!(out.len(), kernels.groups() * rows.len() * GROUP_KERNELS, "size of the accumulator");
        assert!(rows.is_empty() || rows.k == kernels.k, "features and weights differ in depth");
        if out.is_empty() {
            return;
        }
        if self.isa == Isa::Scalar && self.pool.is_none() {
            return scalar::int8(rows, kernels, out);
        }
        // The vector kernels take weights as unsigned (w + 128) or features unchanged; what that adds is 128
        // times the sum of a feature row.
        let sums: Vec<i32> = (0..rows.len()).map(|m| row_sum(rows.row(m))).collect();
        let macs = rows.len() * kernels.kernels * kernels.k;
        let threads = if macs < SERIAL_MACS { 1 } else { self.threads() };
        let piece_rows = piece_rows(rows.len(), kernels.groups(), threads);
        let pieces = out.chunks_exact_mut(rows.len() * GROUP_KERNELS).enumerate().flat_map(|(g, out)| {
            out.chunks_mut(piece_rows * GROUP_KERNELS).enumerate().map(move |(piece, out)| (g, piece, out))
        });
        let run = |(g, piece, out): (usize, usize, &mut [i32])| {
            let first = piece * piece_rows;
            let count = out.len() / GROUP_KERNELS;
            self.int8_group(rows.slice(first, count), &sums[first..first + count], kernels.group(g), out);
        };
        match &self.pool {
            Some(pool) if threads > 1 => {
                let pieces: Vec<_> = pieces.collect();
                pool.install(|| pieces.into_par_iter().for_each(run));
            }
            _ => pieces.for_each(run),
        }
    }

    /// Runs `work` for every index below `count` on the engine's threads.
    pub fn for_each_chunk<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        match &self.pool {
            Some(pool) if data.len() > chunk => pool.install(|| {
                data.par_chunks_mut(chunk).enumerate().for_each(|(index, chunk)| work(index, chunk));
            }),
            _ => data.chunks_mut(chunk.max(1)).enumerate().for_each(|(index, chunk)| work(index, chunk)),
        }
    }

    fn int8_group(&self, rows: Rows<'_>, sums: &[i32], group: Group<'_>, out: &mut [i32]) {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => crate::x86::int8_group_avx512(rows, sums, group, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => crate::x86::int8_group_avx2(rows, group, out),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => crate::neon::int8_group(rows, group, out),
            _ => {
                let _ = sums;
                scalar::int8_group(rows, group, out);
            }
        }
    }
}

fn row_sum(row: &[u8]) -> i32 {
    row.iter().fold(0i32, |sum, byte| sum.wrapping_add(i32::from(byte.cast_signed())))
}

/// Rows per piece of work: whole groups where there are enough of them, else a cut of the rows.
pub(crate) fn piece_rows(rows: usize, groups: usize, threads: usize) -> usize {
    let wanted = 3 * threads;
    if threads == 1 || groups >= wanted {
        return rows;
    }
    let pieces = wanted.div_ceil(groups);
    rows.div_ceil(pieces).max(ROWS_PER_PIECE).min(rows)
}

fn pool(threads: usize) -> Option<Arc<ThreadPool>> {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    };
    if threads == 1 {
        return None;
    }
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (std::process::id(), threads);
    if let Some(pool) = pools.get(&key) {
        return Some(Arc::clone(pool));
    }
    // Without threads the work runs on the caller's.
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("ork-mac-{index}"))
        .build()
        .ok()
        .map(Arc::new)?;
    // Each thread sets up what it shares with the others when it first looks for work. A fork in the midst of that
    // would leave a child that waits for its end.
    pool.broadcast(|_| ());
    pools.insert(key, Arc::clone(&pool));
    Some(pool)
}
