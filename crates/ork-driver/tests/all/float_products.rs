// SPDX-License-Identifier: MIT OR Apache-2.0
//! f32 products: quantise, compute on the NPU, dequantise.

use crate::support;
use ork_driver::{DriverError, MatmulGroup};
use ork_testkit::{Shape, Stream, compare, reference};

/// Shapes: one row, odd sizes, a K that is no multiple of 32, K slices, several passes of rows.
const SHAPES: [(u32, u32, u32); 6] =
    [(1, 576, 192), (37, 577, 33), (129, 1536, 576), (3, 4999, 65), (70, 9001, 31), (2100, 64, 40)];

#[test]
fn products_agree_with_the_exact_product_of_the_same_codes() {
    for (m, k, n) in SHAPES {
        let shape = Shape::new(m, k, n);
        let (m, k, n) = (m as usize, k as usize, n as usize);
        let mut stream = Stream::new(u64::from(shape.k));
        let (x, w) = (stream.f32s_activation(m * k), stream.f32s_unit(n * k));
        let (driver, board) = support::driver(3);
        let weight =
            driver.load("w", k, n, &|row, out| out.copy_from_slice(&w[row * k..(row + 1) * k])).unwrap();
        let mut got = vec![f32::NAN; m * n];
        driver.matmul(&mut MatmulGroup { m, x: &x, parts: vec![(&weight, &mut got)] }).unwrap();

        // The same arithmetic in plain loops: codes, exact sums, scales.
        let quantise = |row: &[f32]| {
            let scale = row.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
            let codes: Vec<i64> = row.iter().map(|x| (x * (1.0 / scale)).round_ties_even() as i64).collect();
            (codes, f64::from(scale))
        };
        let rows: Vec<_> = x.chunks(k).map(quantise).collect();
        let columns: Vec<_> = w.chunks(k).map(quantise).collect();
        let mut want = Vec::with_capacity(m * n);
        for (a, row_scale) in &rows {
            for (b, column_scale) in &columns {
                let sum: i64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                want.push((sum as f64 * row_scale * column_scale) as f32);
            }
        }
        for (index, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(
                (got - want).abs() <= 2e-7 * want.abs(),
                "{shape} element {index}: {got} instead of {want}"
            );
        }
        // And it is a product of the floats, within the error of eight bits; the activations have outliers.
        let error = compare::relative_rms(&got, &reference::matmul_f32(&x, &w, shape));
        assert!(error < 0.1, "{shape}: relative error {error}");
        drop((weight, driver));
        support::assert_nothing_lives(&board);
    }
}

#[test]
fn a_group_gives_what_its_members_give() {
    let (m, k) = (70usize, 1111usize);
    let mut stream = Stream::new(7);
    let x = stream.f32s_activation(m * k);
    let (driver, _board) = support::driver(3);
    let weights: Vec<_> = [33usize, 64, 1000]
        .into_iter()
        .map(|n| {
            let w = stream.f32s_activation(n * k);
            driver.load("w", k, n, &|row, out| out.copy_from_slice(&w[row * k..(row + 1) * k])).unwrap()
        })
        .collect();
    let mut together: Vec<Vec<f32>> = weights.iter().map(|weight| vec![f32::NAN; m * weight.n()]).collect();
    let parts = weights.iter().zip(&mut together).map(|(weight, out)| (weight, &mut out[..])).collect();
    let flushed = driver.device().counters().bytes_flushed;
    driver.matmul(&mut MatmulGroup { m, x: &x, parts }).unwrap();
    let flushed_together = driver.device().counters().bytes_flushed - flushed;
    let mut flushed_alone = 0;
    for (weight, together) in weights.iter().zip(&together) {
        let mut alone = vec![f32::NAN; m * weight.n()];
        let flushed = driver.device().counters().bytes_flushed;
        driver.matmul(&mut MatmulGroup { m, x: &x, parts: vec![(weight, &mut alone)] }).unwrap();
        flushed_alone += driver.device().counters().bytes_flushed - flushed;
        assert_eq!(&alone, together);
    }
    let activation = (m * k) as u64;
    assert!(flushed_together + 2 * activation <= flushed_alone, "the activation is laid out once per group");

    // Handed over one by one: the same results and the same work, each while the later ones are still to come.
    let mut results: Vec<Vec<f32>> = weights.iter().map(|weight| vec![f32::NAN; m * weight.n()]).collect();
    let parts = weights.iter().zip(&mut results).map(|(weight, out)| (weight, &mut out[..])).collect();
    let (flushed, done) = (driver.device().counters().bytes_flushed, driver.counters().matmuls);
    let mut seen = Vec::new();
    let finished = &mut |index: usize, out: &mut [f32]| {
        seen.push((index, driver.counters().matmuls - done, out == together[index]));
    };
    driver.matmul_then(MatmulGroup { m, x: &x, parts }, finished).unwrap();
    assert_eq!(seen, [(0, 1, true), (1, 2, true), (2, 3, true)]);
    // No more than the first time, when programs were new: the activation is laid out once here, too.
    assert!(driver.device().counters().bytes_flushed - flushed <= flushed_together);
}

/// Codes with scales of their own: the product is that of `load` where the codes are those that it makes.
#[test]
fn scaled_codes_are_multiplied_as_they_are() {
    let (m, k, n) = (5usize, 97usize, 41usize);
    let mut stream = Stream::new(11);
    let (x, w) = (stream.f32s_activation(m * k), stream.f32s_activation(n * k));
    let (driver, board) = support::driver(3);
    let row = |row: usize| &w[row * k..][..k];
    let loaded = driver.load("w", k, n, &|index, out| out.copy_from_slice(row(index))).unwrap();
    let quantised = |index: usize, out: &mut [i8]| ork_quant::quantise_row(row(index), out).unwrap();
    let coded = driver.load_scaled_codes("w", k, n, &quantised).unwrap();
    let turned = |index: usize, out: &mut [i8]| {
        let scale = quantised(index, out);
        out.iter_mut().for_each(|code| *code = -*code);
        scale
    };
    let negated = driver.load_scaled_codes("w", k, n, &turned).unwrap();
    let product = |weight| {
        let mut out = vec![f32::NAN; m * n];
        driver.matmul(&mut MatmulGroup { m, x: &x, parts: vec![(weight, &mut out)] }).unwrap();
        out
    };
    let want = product(&loaded);
    assert_eq!(product(&coded), want);
    assert_eq!(product(&negated), want.iter().map(|x| -x).collect::<Vec<f32>>());
    drop((loaded, coded, negated, driver));
    support::assert_nothing_lives(&board);
}

#[test]
fn bad_input_is_one_clear_error() {
    let (driver, board) = support::driver(3);
    let rows = |row: usize, out: &mut [f32]| {
        out.fill(1.0);
        if row == 40 {
            out[3] = f32::NAN;
        }
    };
    let error = driver.load("blk.0.ffn_up", 64, 64, &rows).unwrap_err();
    assert!(
        matches!(error, DriverError::Weight { .. }) && error.to_string().contains("blk.0.ffn_up"),
        "{error}"
    );
    let live = board.live();
    assert_eq!(live.handles, 0, "a weight that failed leaves nothing behind");

    let weight = driver.load("w", 64, 32, &|_, out| out.fill(0.5)).unwrap();
    let mut out = vec![0.0; 64];
    let mut x = vec![1.0; 128];
    x[64] = f32::INFINITY;
    let error =
        driver.matmul(&mut MatmulGroup { m: 2, x: &x, parts: vec![(&weight, &mut out)] }).unwrap_err();
    assert!(matches!(error, DriverError::Activation { .. }), "{error}");
    let error =
        driver.matmul(&mut MatmulGroup { m: 3, x: &x, parts: vec![(&weight, &mut out)] }).unwrap_err();
    assert!(matches!(error, DriverError::Shape { needed: 192, found: 128, .. }), "{error}");
    // After an error the driver still works.
    driver.matmul(&mut MatmulGroup { m: 1, x: &x[..64], parts: vec![(&weight, &mut out[..32])] }).unwrap();
    assert!(out[..32].iter().all(|y| (y - 32.0).abs() < 1e-4));

    assert!(driver.check(576, 1536).is_ok());
    assert!(driver.check(0, 8).is_err());
    assert!(driver.check(usize::MAX, 8).is_err());
    drop((weight, driver));
    support::assert_nothing_lives(&board);
}
