// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mix across Hadamard blocks: the orthonormal discrete Hartley matrix Q[i][j] = (cos θ + sin θ)/√m, θ = 2πij/m.
//!
//! Why this one of all orthogonal matrices (`isa-int4-sdp.md` §7.3): symmetric and its own inverse, any m, and its
//! first row is constant, so an outlier in one block leaves exactly (m − 1)/m of its energy to the others.
//! An entry depends on i·j mod m alone, so m numbers hold it.

use crate::real::Real;
use crate::wide::wide;

/// The m values of (cos θ + sin θ)/√m, θ = 2πt/m.
pub(crate) fn cas<T: Real>(m: usize) -> Vec<T> {
    (0..m)
        .map(|t| {
            let angle = 2.0 * std::f64::consts::PI * t as f64 / m as f64;
            T::from_f64((angle.cos() + angle.sin()) / (m as f64).sqrt())
        })
        .collect()
}

/// Positions of each block that are mixed together: m × this many values of scratch.
pub(crate) const WIDTH: usize = 32;

wide! {
    pub(crate) fn mix_f32(row: &mut [f32], cas: &[f32], scratch: &mut [f32]) {
        mix(row, cas, scratch);
    }
}

wide! {
    pub(crate) fn mix_f64(row: &mut [f64], cas: &[f64], scratch: &mut [f64]) {
        mix(row, cas, scratch);
    }
}

/// `row` is m blocks of equal length; `scratch` holds m × [`WIDTH`].
#[inline(always)]
fn mix<T: Real>(row: &mut [T], cas: &[T], scratch: &mut [T]) {
    let m = cas.len();
    let b = row.len() / m;
    let scratch = &mut scratch.as_chunks_mut::<WIDTH>().0[..m];
    if b < WIDTH {
        for (kept, block) in scratch.iter_mut().zip(row.chunks_exact(b)) {
            kept[..b].copy_from_slice(block);
        }
        for (i, block) in row.chunks_exact_mut(b).enumerate() {
            block.copy_from_slice(&mixed(i, cas, scratch)[..b]);
        }
        return;
    }
    // Blocks are powers of two, so a multiple of the width from here on.
    for start in (0..b).step_by(WIDTH) {
        for (kept, block) in scratch.iter_mut().zip(row.chunks_exact(b)) {
            if let Some(positions) = block[start..].first_chunk() {
                *kept = *positions;
            }
        }
        for (i, block) in row.chunks_exact_mut(b).enumerate() {
            if let Some(positions) = block[start..].first_chunk_mut() {
                *positions = mixed(i, cas, scratch);
            }
        }
    }
}

/// Row `i` of Q times the kept positions.
#[inline(always)]
fn mixed<T: Real>(i: usize, cas: &[T], kept: &[[T; WIDTH]]) -> [T; WIDTH] {
    let mut sums = [T::ZERO; WIDTH];
    let mut t = 0;
    for kept in kept {
        let factor = cas[t];
        for (sum, x) in sums.iter_mut().zip(kept) {
            *sum = *sum + factor * *x;
        }
        t += i;
        if t >= cas.len() {
            t -= cas.len();
        }
    }
    sums
}
