// SPDX-License-Identifier: MIT OR Apache-2.0
//! Products with weights in four bits: against loops in f64 and i64 that know nothing of blocks, with every instruction set.

use ork_quant::{Codebook, QuantError, StoredKernels, StoredRows, quantise_row};

/// Numbers in [-1, 1) without a short period.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn stored(k: usize, n: usize, codebook: Codebook, w: &[f32]) -> StoredRows {
    StoredRows::quantise(k, n, codebook, &|row, out| out.copy_from_slice(&w[row * k..][..k])).unwrap()
}

/// Sizes below, at and beyond the blocks and vectors, and odd ones.
const SIZES: [(usize, usize, usize); 9] = [
    (1, 32, 4),
    (1, 1, 1),
    (3, 33, 5),
    (4, 64, 16),
    (5, 31, 17),
    (7, 129, 35),
    (13, 96, 3),
    (33, 768, 64),
    (2, 2048, 21),
];

#[test]
fn products_are_those_of_the_codes() {
    for codebook in [Codebook::Nf4, Codebook::Uniform] {
        for (m, k, n) in SIZES {
            let weight = stored(k, n, codebook, &numbers(1, n * k));
            let x = numbers(2, m * k);
            let mut want = Vec::new();
            for x in x.chunks_exact(k) {
                let mut codes = vec![0; k];
                let row_scale = quantise_row(x, &mut codes).unwrap();
                for row in 0..n {
                    let mut w = vec![0; k];
                    let scale = weight.row(row, &mut w);
                    assert!(w.iter().all(|code| codebook.int8().contains(code)));
                    let sum: i64 = codes.iter().zip(&w).map(|(x, w)| i64::from(*x) * i64::from(*w)).sum();
                    want.push((sum as f64 * (f64::from(row_scale.get()) * f64::from(scale.get()))) as f32);
                }
            }
            for kernels in StoredKernels::available() {
                let mut out = vec![f32::NAN; m * n];
                weight.product_with(kernels, m, &x, &mut out).unwrap();
                assert_eq!(out, want, "{kernels:?} {codebook:?} {m} x {k} x {n}");
            }
        }
    }
}

#[test]
fn they_are_near_those_of_the_floats() {
    let (m, k, n) = (9, 512, 40);
    let (w, x) = (numbers(3, n * k), numbers(4, m * k));
    let mut out = vec![0.0; m * n];
    // Uniform numbers suit the uniform codebook: an error of half a step of 1/7 in each weight.
    for (codebook, bound) in [(Codebook::Uniform, 0.09), (Codebook::Nf4, 0.14)] {
        stored(k, n, codebook, &w).product(m, &x, &mut out).unwrap();
        let (mut wrong, mut size) = (0.0, 0.0);
        for (i, x) in x.chunks_exact(k).enumerate() {
            for (j, w) in w.chunks_exact(k).enumerate() {
                let want: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                wrong += (f64::from(out[i * n + j]) - want).powi(2);
                size += want * want;
            }
        }
        let error = (wrong / size).sqrt();
        assert!(error > 0.01 && error < bound, "{codebook:?}: {error}");
    }
}

#[test]
fn the_largest_sum_fits() {
    let k = StoredRows::K_MAX;
    let ones = vec![-1.0; k];
    let weight = stored(k, 1, Codebook::Nf4, &ones);
    for kernels in StoredKernels::available() {
        let mut out = [0.0];
        weight.product_with(kernels, 1, &ones, &mut out).unwrap();
        assert!((f64::from(out[0]) / k as f64 - 1.0).abs() < 1e-6, "{kernels:?}: {}", out[0]);
    }
}

#[test]
fn what_is_not_a_number_is_refused_with_its_place() {
    let mut w = numbers(5, 3 * 40);
    w[2 * 40 + 7] = f32::NAN;
    let refused =
        StoredRows::quantise(40, 3, Codebook::Nf4, &|row, out| out.copy_from_slice(&w[row * 40..][..40]));
    assert!(matches!(refused, Err(QuantError::NonFinite { row: Some(2), index: 7, .. })), "{refused:?}");
    let weight = stored(40, 2, Codebook::Nf4, &numbers(6, 80));
    let mut x = numbers(7, 80);
    x[41] = f32::INFINITY;
    let refused = weight.product(2, &x, &mut [0.0; 4]);
    assert!(matches!(refused, Err(QuantError::NonFinite { row: Some(1), index: 1, .. })), "{refused:?}");
    assert!(weight.bytes() < 80);
}
