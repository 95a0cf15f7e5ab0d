// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPTQ and its linear algebra against dense references.

use nalgebra::DMatrix;
use ork_quant::{
    Basis, ClipReport, Collect, Factor, GptqError, Hessian, NativeClip, NativeRows, Scale, Step,
    TensorStatistics, quantise_native_rows, quantise_native_weight, search_clip,
};
use ork_testkit::Stream;

/// Rows whose channels are correlated, as activations are.
fn correlated(stream: &mut Stream, rows: usize, k: usize) -> Vec<f32> {
    let common = stream.f32s_unit(rows * 8);
    let mut x = stream.f32s_unit(rows * k);
    for (row, common) in x.chunks_exact_mut(k).zip(common.chunks_exact(8)) {
        for (channel, value) in row.iter_mut().enumerate() {
            *value = 0.5 * *value + 2.0 * common[channel % 8] * (1.0 + (channel % 5) as f32);
        }
    }
    x
}

fn hessian(x: &[f32], k: usize) -> Hessian {
    let mut statistics = TensorStatistics::new(k, Collect::Hessian);
    statistics.add_rows(x).unwrap();
    statistics.hessian().unwrap()
}

fn dense(h: &Hessian) -> DMatrix<f64> {
    DMatrix::from_fn(h.k(), h.k(), |i, j| h.row(i)[j])
}

/// Σ (w − ŵ)·H·(w − ŵ)ᵀ.
fn weighted_error(h: &DMatrix<f64>, weights: &[f32], found: &NativeRows) -> f64 {
    let k = h.nrows();
    let miss = |index: usize| {
        f64::from(weights[index]) - f64::from(found.codes[index]) * f64::from(found.scales[index / k].get())
    };
    let e = DMatrix::from_fn(weights.len() / k, k, |i, j| miss(i * k + j));
    (&e * h * e.transpose()).trace()
}

fn nearest(weights: &[f32], k: usize, clip: NativeClip) -> NativeRows {
    let mut found = NativeRows { codes: vec![], scales: vec![], report: ClipReport::default() };
    for row in weights.chunks_exact(k) {
        let mut codes = vec![0; k];
        let wide: Vec<f64> = row.iter().copied().map(f64::from).collect();
        let scale = match clip {
            NativeClip::Search => search_clip(&wide, None).scale as f32,
            NativeClip::AbsMax => (wide.iter().fold(0f64, |max, w| max.max(w.abs())) / 7.0) as f32,
        };
        for (code, w) in codes.iter_mut().zip(&wide) {
            *code = (w / f64::from(scale)).round().clamp(-8.0, 7.0) as i8;
        }
        found.codes.extend(codes);
        found.scales.push(Scale::new(scale).unwrap());
    }
    found
}

#[test]
fn the_factor_is_that_of_the_textbook() {
    let mut stream = Stream::new(7);
    // Around the panel of 128, and odd.
    for k in [1, 5, 64, 127, 128, 129, 300, 391] {
        let h = hessian(&correlated(&mut stream, 2 * k + 3, k), k);
        let mut damped = dense(&h);
        let damping = 0.01 * damped.diagonal().mean();
        for i in 0..k {
            damped[(i, i)] += damping;
        }
        let factor = Factor::new(h).unwrap();
        let u = DMatrix::from_fn(k, k, |i, j| factor.row(i)[j]);
        for i in 0..k {
            for j in 0..i {
                assert_eq!(u[(i, j)], 0.0);
            }
        }
        let inverse = damped.cholesky().unwrap().inverse();
        let wanted = inverse.cholesky().unwrap().l().transpose();
        let miss = (&u - &wanted).norm() / wanted.norm();
        assert!(miss < 1e-11, "K = {k}: {miss:e}");
    }
}

#[test]
fn a_plain_hessian_gives_rounding_to_nearest() {
    let (k, n) = (200, 7);
    let mut stream = Stream::new(8);
    let weights = stream.f32s_unit(n * k);
    let scaled = DMatrix::<f64>::identity(k, k) * 3.7;
    let factor = Factor::new(Hessian::new(k, scaled.as_slice().to_vec()).unwrap()).unwrap();
    for clip in [NativeClip::Search, NativeClip::AbsMax] {
        let found = factor.quantise(&weights, k, clip).unwrap();
        let wanted = nearest(&weights, k, clip);
        assert_eq!(found.codes, wanted.codes);
        assert_eq!(found.scales, wanted.scales);
    }
}

#[test]
fn rows_without_a_hessian_are_rows_one_by_one() {
    let k = 130;
    let mut weights = Stream::new(15).f32s_unit(4 * k);
    weights[k..2 * k].fill(0.0);
    let found = quantise_native_rows(&weights, k, NativeClip::Search).unwrap();
    let mut report = ClipReport::default();
    for (index, row) in weights.chunks_exact(k).enumerate() {
        let mut codes = vec![0; k];
        let scale = quantise_native_weight(row, &mut codes, NativeClip::Search, &mut report).unwrap();
        assert_eq!((&found.codes[index * k..][..k], found.scales[index]), (&codes[..], scale));
    }
    assert_eq!((found.report, found.report.rows, found.scales[1]), (report, 3, Scale::ZERO));
    weights[2 * k + 3] = f32::INFINITY;
    assert!(quantise_native_rows(&weights, k, NativeClip::Search).unwrap_err().to_string().contains("row 2"));
}

#[test]
fn the_naive_algorithm_gives_the_same_codes() {
    let (k, n) = (160, 5);
    let mut stream = Stream::new(9);
    let h = hessian(&correlated(&mut stream, 500, k), k);
    let weights = stream.f32s_unit(n * k);
    let factor = Factor::new(h).unwrap();
    let found = factor.quantise(&weights, k, NativeClip::Search).unwrap();
    for (index, row) in weights.chunks_exact(k).enumerate() {
        let mut w: Vec<f64> = row.iter().copied().map(f64::from).collect();
        let scale = f64::from(search_clip(&w, None).scale as f32);
        for j in 0..k {
            let q = (w[j] / scale).round().clamp(-8.0, 7.0);
            assert_eq!(found.codes[index * k + j], q as i8, "row {index}, channel {j}");
            let e = (w[j] - q * scale) / factor.row(j)[j];
            for (w, u) in w.iter_mut().zip(factor.row(j)).skip(j + 1) {
                *w -= e * u;
            }
        }
    }
}

#[test]
fn structure_pays_and_the_clip_search_on_top() {
    let (k, n) = (256, 32);
    let mut stream = Stream::new(10);
    let h = hessian(&correlated(&mut stream, 2000, k), k);
    let dense = dense(&h);
    let weights = stream.f32s_unit(n * k);
    let factor = Factor::new(h).unwrap();
    let error = |found: &NativeRows| weighted_error(&dense, &weights, found);
    let plain = error(&nearest(&weights, k, NativeClip::AbsMax));
    let fed_back = error(&factor.quantise(&weights, k, NativeClip::AbsMax).unwrap());
    assert!(fed_back < 0.6 * plain, "{fed_back} of {plain}");
    let clipped = factor.quantise(&weights, k, NativeClip::Search).unwrap();
    assert!(error(&clipped) < 0.6 * plain);
    assert_eq!((clipped.report.rows, clipped.report.pinned), (n as u64, 0));
}

#[test]
fn rows_may_be_handed_out_in_pieces() {
    let (k, n) = (96, 13);
    let mut stream = Stream::new(11);
    let factor = Factor::new(hessian(&correlated(&mut stream, 300, k), k)).unwrap();
    let weights = stream.f32s_unit(n * k);
    let whole = factor.quantise(&weights, 32, NativeClip::Search).unwrap();
    let mut codes = Vec::new();
    let mut report = ClipReport::default();
    for piece in weights.chunks(4 * k) {
        let found = factor.quantise(piece, 32, NativeClip::Search).unwrap();
        codes.extend(found.codes);
        report.merge(&found.report);
    }
    assert_eq!(codes, whole.codes);
    assert_eq!(report.rows, whole.report.rows);
    assert_eq!(whole.scales.len(), n * 3);
}

#[test]
fn dead_channels_become_zero_and_do_not_disturb() {
    let k = 40;
    let mut stream = Stream::new(12);
    let mut x = correlated(&mut stream, 200, k);
    for row in x.chunks_exact_mut(k) {
        row[3] = 0.0;
        row[k - 1] = 0.0;
    }
    let weights = stream.f32s_unit(2 * k);
    let found = Factor::new(hessian(&x, k)).unwrap().quantise(&weights, k, NativeClip::AbsMax).unwrap();
    for row in found.codes.chunks_exact(k) {
        assert_eq!((row[3], row[k - 1]), (0, 0));
        assert!(row.iter().filter(|code| **code != 0).count() > k / 2);
    }
    // No calibration at all: everything is dead, nothing fails, scales stay scales.
    let none = Factor::new(Hessian::new(2, vec![0.0; 4]).unwrap()).unwrap();
    let found = none.quantise(&[1.0, -1.0], 2, NativeClip::Search).unwrap();
    assert_eq!((found.codes, found.scales[0].get()), (vec![0, 0], 1e-12));
}

#[test]
fn refusals_name_the_numbers() {
    let factor = Factor::new(Hessian::new(2, vec![1.0, 0.0, 0.0, 1.0]).unwrap()).unwrap();
    let quantise = |rows: &[f32], group| factor.quantise(rows, group, NativeClip::Search);
    assert_eq!(quantise(&[1.0; 3], 2), Err(GptqError::Shape { k: 2, values: 3 }));
    assert_eq!(quantise(&[1.0; 2], 3), Err(GptqError::Group { group: 3, k: 2 }));
    assert_eq!(quantise(&[1.0; 2], 0), Err(GptqError::Group { group: 0, k: 2 }));
    assert!(matches!(quantise(&[1.0, f32::NAN], 2), Err(GptqError::Quant(_))));
    // Indefinite in channel 1, found although the factorisation runs from the last channel.
    let indefinite = Hessian::new(3, vec![1.0, 9.0, 0.0, 9.0, 1.0, 0.0, 0.0, 0.0, 1.0]).unwrap();
    let error = Factor::new(indefinite).unwrap_err();
    assert!(matches!(error, GptqError::NotPositive { k: 3, channel: 0, .. }), "{error}");
    assert!(matches!(
        Factor::new(Hessian::new(1, vec![f64::INFINITY]).unwrap()),
        Err(GptqError::NotPositive { .. })
    ));
}

#[test]
fn a_hessian_follows_its_basis() {
    let mut stream = Stream::new(13);
    for k in [48, 37, 320] {
        let x = correlated(&mut stream, 90, k);
        let factors = (0..k).map(|i| 0.5 + (i % 7) as f32 / 3.0).collect();
        let basis = Basis::new(k, vec![Step::Smooth(factors), Step::Signs, Step::Rotate]).unwrap();
        let found = hessian(&x, k).in_basis(&basis);
        let rows: Vec<f64> = x
            .chunks_exact(k)
            .flat_map(|row| {
                let mut row: Vec<f64> = row.iter().copied().map(f64::from).collect();
                basis.activation_row_f64(&mut row);
                row
            })
            .collect();
        let x = DMatrix::from_row_slice(rows.len() / k, k, &rows);
        let wanted = x.transpose() * &x;
        let miss = (dense(&found) - &wanted).norm() / wanted.norm();
        assert!(miss < 1e-13, "K = {k}: {miss:e}");
    }
}

/// Gaussian rows at K = 3072 (§7.4): the search is not pinned, mean alpha about 0.65.
#[test]
fn the_search_is_not_pinned() {
    let k = 3072;
    let mut stream = Stream::new(14);
    let mut report = ClipReport::default();
    for _ in 0..24 {
        let row: Vec<f32> =
            stream.f32s_unit(k * 12).chunks_exact(12).map(|twelve| twelve.iter().sum()).collect();
        quantise_native_weight(&row, &mut vec![0; k], NativeClip::Search, &mut report).unwrap();
    }
    assert_eq!((report.rows, report.pinned), (24, 0));
    assert!((report.alpha_mean() - 0.65).abs() < 0.05, "{}", report.alpha_mean());
    // And the counter counts: one large weight among thousands of small ones wants less than the floor.
    let mut row: Vec<f32> = (0..20 * k).map(|place| ((place % 1009) as f32 / 504.0 - 1.0) * 0.09).collect();
    row[0] = 1.0;
    quantise_native_weight(&row, &mut vec![0; 20 * k], NativeClip::Search, &mut report).unwrap();
    assert_eq!(report.pinned, 1, "{report:?}");
}
