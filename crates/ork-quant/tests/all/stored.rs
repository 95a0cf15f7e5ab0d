// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stored int4 and native activations against naive references and published errors.

use ork_quant::{
    ACTIVATION_CLIPS, Codebook, NF4_LEVELS, Rounding, StoredClip, XorShift32, inflate, pack_nibbles,
    quantise_native_activation, quantise_stored_row,
};
use ork_testkit::Stream;

fn gaussian(stream: &mut Stream, len: usize) -> Vec<f32> {
    stream.f32s_unit(len * 12).chunks_exact(12).map(|twelve| twelve.iter().sum::<f32>() / 2.0).collect()
}

fn values(row: &[f32], codebook: Codebook, clip: StoredClip<'_>, rounding: &mut Rounding<'_>) -> Vec<f64> {
    let mut nibbles = vec![0; row.len()];
    let found = quantise_stored_row(row, codebook, clip, rounding, &mut nibbles).unwrap();
    let table = codebook.int8();
    nibbles
        .iter()
        .map(|nibble| f64::from(table[usize::from(*nibble)]) * f64::from(found.scale.get()))
        .collect()
}

fn relative(row: &[f32], values: &[f64], weights: &[f32]) -> f64 {
    let sum =
        |f: &dyn Fn(usize) -> f64| (0..row.len()).map(|i| f64::from(weights[i]) * f(i).powi(2)).sum::<f64>();
    (sum(&|i| f64::from(row[i]) - values[i]) / sum(&|i| f64::from(row[i]))).sqrt()
}

#[test]
fn published_errors_on_gaussian_weights() {
    // K = 3584, per channel: uniform 0.158, NF4 0.110 (§7.2).
    let k = 3584;
    let mut stream = Stream::new(21);
    let ones = vec![1.0; k];
    let mean = |codebook, stream: &mut Stream| {
        (0..8)
            .map(|_| {
                let row = gaussian(stream, k);
                relative(&row, &values(&row, codebook, StoredClip::AbsMax, &mut Rounding::Nearest), &ones)
            })
            .sum::<f64>()
            / 8.0
    };
    let (uniform, nf4) = (mean(Codebook::Uniform, &mut stream), mean(Codebook::Nf4, &mut stream));
    assert!((uniform - 0.158).abs() < 0.012, "{uniform}");
    assert!((nf4 - 0.110).abs() < 0.008, "{nf4}");
}

#[test]
fn importance_lowers_the_weighted_error() {
    let k = 512;
    let mut stream = Stream::new(22);
    for codebook in [Codebook::Uniform, Codebook::Nf4] {
        let (mut plain, mut searched) = (0.0, 0.0);
        for _ in 0..16 {
            let mut row = gaussian(&mut stream, k);
            row[7] = 6.0;
            let mut importance: Vec<f32> = stream.f32s_unit(k).iter().map(|x| x * x).collect();
            importance[7] = 1e-4;
            let error =
                |clip| relative(&row, &values(&row, codebook, clip, &mut Rounding::Nearest), &importance);
            let (without, with) = (error(StoredClip::AbsMax), error(StoredClip::Importance(&importance)));
            assert!(with <= without);
            plain += without * without;
            searched += with * with;
        }
        assert!(searched < 0.7 * plain, "{codebook:?}: {searched} of {plain}");
    }
}

#[test]
fn stochastic_rounding_removes_the_bias() {
    let k = 4096;
    for codebook in [Codebook::Uniform, Codebook::Nf4] {
        // A constant that lies a third of the way between two levels, and the element that fixes the scale.
        let mut row = vec![0.047f32; k];
        row[0] = 1.0;
        let mean = |values: Vec<f64>| values[1..].iter().sum::<f64>() / (k - 1) as f64;
        let nearest = mean(values(&row, codebook, StoredClip::AbsMax, &mut Rounding::Nearest));
        let mut draws = XorShift32::new();
        let stochastic =
            mean(values(&row, codebook, StoredClip::AbsMax, &mut Rounding::Stochastic(&mut draws)));
        // Nearest is off by all of it; the mean of draws is off by chance, and for NF4 by the int8 levels (< 0.3 %).
        assert!((nearest - 0.047).abs() > 0.03, "{codebook:?}: {nearest}");
        assert!((stochastic - 0.047).abs() < 0.005, "{codebook:?}: {stochastic}");
    }
}

#[test]
fn draws_do_not_depend_on_the_row_before() {
    // One draw per element whatever the element: rows of zeros included.
    let mut through_rows = XorShift32::new();
    let mut nibbles = [0; 4];
    for row in [[0.0; 4], [1.0, -1.0, 0.5, 0.0]] {
        for codebook in [Codebook::Uniform, Codebook::Nf4] {
            let mut rounding = Rounding::Stochastic(&mut through_rows);
            quantise_stored_row(&row, codebook, StoredClip::AbsMax, &mut rounding, &mut nibbles).unwrap();
        }
    }
    let mut plain = XorShift32::new();
    (0..16).for_each(|_| _ = plain.next_state());
    assert_eq!(through_rows, plain);
}

#[test]
fn levels_are_reached_and_codes_stay_in_range() {
    let mut nibbles = [0; 16];
    let mut row = NF4_LEVELS;
    for scale in [1.0, 3e38, 1e-30, -2.5] {
        row.iter_mut().zip(NF4_LEVELS).for_each(|(w, level)| *w = level * scale);
        quantise_stored_row(&row, Codebook::Nf4, StoredClip::AbsMax, &mut Rounding::Nearest, &mut nibbles)
            .unwrap();
        if scale > 0.0 {
            assert_eq!(nibbles, std::array::from_fn(|i| i as u8), "scale {scale}");
        }
        quantise_stored_row(
            &row,
            Codebook::Uniform,
            StoredClip::AbsMax,
            &mut Rounding::Nearest,
            &mut nibbles,
        )
        .unwrap();
        assert!(nibbles.iter().all(|nibble| *nibble < 16 && *nibble != 8), "−8 is not used: {nibbles:?}");
    }
    for codebook in [Codebook::Uniform, Codebook::Nf4] {
        let found = quantise_stored_row(
            &[0.0; 16],
            codebook,
            StoredClip::AbsMax,
            &mut Rounding::Nearest,
            &mut nibbles,
        )
        .unwrap();
        assert!(found.scale.is_zero());
        assert!(nibbles.iter().all(|nibble| codebook.int8()[usize::from(*nibble)] == 0));
        let bad = [1.0, f32::NEG_INFINITY];
        let refused = quantise_stored_row(
            &bad,
            codebook,
            StoredClip::AbsMax,
            &mut Rounding::Nearest,
            &mut nibbles[..2],
        );
        assert!(refused.is_err());
    }
}

#[test]
fn inflating_undoes_packing() {
    let mut stream = Stream::new(23);
    let nibbles: Vec<u8> = stream.bytes(514).iter().map(|byte| byte & 15).collect();
    let mut bytes = vec![0; 257];
    pack_nibbles(&nibbles, &mut bytes);
    for codebook in [Codebook::Uniform, Codebook::Nf4] {
        let mut codes = vec![0i8; 514];
        inflate(&bytes, codebook, &mut codes);
        let wanted: Vec<i8> = nibbles.iter().map(|nibble| codebook.int8()[usize::from(*nibble)]).collect();
        assert_eq!(codes, wanted);
    }
    let mut odd = [0xff; 2];
    pack_nibbles(&[1, 2, 3], &mut odd);
    assert_eq!(odd, [0x21, 0x03]);
}

#[test]
fn activations_take_the_least_error() {
    let mut stream = Stream::new(24);
    for k in [1, 7, 31, 256, 300, 2048] {
        for _ in 0..20 {
            let row = stream.f32s_activation(k);
            let mut codes = vec![0; k];
            let scale = quantise_native_activation(&row, &mut codes).unwrap();
            let abs_max = row.iter().fold(0f64, |max, a| max.max(f64::from(a.abs())));
            let error = |scale: f64| {
                row.iter()
                    .map(|a| f64::from(*a))
                    .map(|a| (a - scale * (a / scale).round_ties_even().clamp(-8.0, 7.0)).powi(2))
                    .sum::<f64>()
            };
            let least = ACTIVATION_CLIPS
                .iter()
                .map(|clip| error(abs_max * f64::from(*clip) / 7.0))
                .fold(f64::INFINITY, f64::min);
            let found: f64 = row
                .iter()
                .zip(&codes)
                .map(|(a, code)| (f64::from(*a) - f64::from(*code) * f64::from(scale.get())).powi(2))
                .sum();
            assert!(
                found <= least * (1.0 + 1e-4) + abs_max * abs_max * 1e-10,
                "K = {k}: {found} over {least}"
            );
            assert!(codes.iter().all(|code| (-8..=7).contains(code)));
        }
    }
    let mut codes = [1; 3];
    assert!(quantise_native_activation(&[0.0; 3], &mut codes).unwrap().is_zero());
    assert_eq!(codes, [0; 3]);
    assert!(quantise_native_activation(&[0.0, f32::NAN, 1.0], &mut codes).is_err());
}
