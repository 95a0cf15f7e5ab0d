// SPDX-License-Identifier: MIT OR Apache-2.0
//! The published test vectors of `isa-int4-sdp.md` §7, number for number.

use ork_quant::{
    Basis, ClipReport, Codebook, Collect, Factor, Hessian, IMPORTANCE_CLIPS, NativeClip, Rounding, Scale,
    Step, StoredClip, StoredWeight, TensorStatistics, XorShift32, inflate, pack_nibbles,
    quantise_native_weight, quantise_stored_row, search_clip, smoothing,
};

/// The weights of §7.2.
const STORED: [f32; 12] = [0.03, -0.5, 1.0, -0.13, 0.61, 0.2, -0.02, -1.27, 0.0, 1.27, 0.25, -0.88];

fn stored(
    row: &[f32],
    codebook: Codebook,
    clip: StoredClip<'_>,
    mut rounding: Rounding<'_>,
) -> (Vec<u8>, Scale, f32) {
    let mut nibbles = vec![99; row.len()];
    let found = quantise_stored_row(row, codebook, clip, &mut rounding, &mut nibbles).unwrap();
    (nibbles, found.scale, found.clip)
}

/// Sign-extended nibbles.
fn signed(nibbles: &[u8]) -> Vec<i8> {
    nibbles.iter().map(|nibble| (*nibble as i8) << 4 >> 4).collect()
}

fn packed(nibbles: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; nibbles.len().div_ceil(2)];
    pack_nibbles(nibbles, &mut bytes);
    bytes
}

/// Equal to the six printed decimals.
#[track_caller]
fn six(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!((found - wanted).abs() < 0.51e-6 * wanted.abs().max(1.0), "{index}: {found} for {wanted}");
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

#[test]
fn nf4_codes_bytes_and_values() {
    let (codes, scale, _) = stored(&STORED, Codebook::Nf4, StoredClip::AbsMax, Rounding::Nearest);
    assert_eq!(codes, [7, 3, 14, 6, 12, 9, 7, 0, 7, 15, 9, 1]);
    let bytes = packed(&codes);
    assert_eq!(bytes, [0x37, 0x6e, 0x9c, 0x07, 0xf7, 0x19]);
    assert_eq!(scale.get(), 1.27 / 127.0);
    let mut int8 = [0i8; 12];
    inflate(&bytes, Codebook::Nf4, &mut int8);
    let values: Vec<f64> = int8.iter().map(|code| f64::from(*code) * f64::from(scale.get())).collect();
    six(&values, &[0.0, -0.5, 0.92, -0.12, 0.56, 0.2, 0.0, -1.27, 0.0, 1.27, 0.2, -0.88]);
}

#[test]
fn uniform_codes_and_bytes() {
    let (nibbles, scale, _) = stored(&STORED, Codebook::Uniform, StoredClip::AbsMax, Rounding::Nearest);
    let codes = [0, -3, 6, -1, 3, 1, 0, -7, 0, 7, 1, -5];
    assert_eq!(signed(&nibbles), codes);
    let bytes = packed(&nibbles);
    assert_eq!(bytes, [0xd0, 0xf6, 0x13, 0x90, 0x70, 0xb1]);
    assert_eq!(scale.get(), 1.27 / 7.0);
    let mut int8 = [0i8; 12];
    inflate(&bytes, Codebook::Uniform, &mut int8);
    assert_eq!(int8, codes);
}

#[test]
fn stochastic_states_and_codes() {
    let mut draws = XorShift32::new();
    let states: Vec<u32> = (0..4).map(|_| draws.next_state()).collect();
    assert_eq!(states, [0xe124_b63a, 0x8b9a_74ab, 0x64e1_b3ac, 0x0017_4626]);
    let mut draws = XorShift32::new();
    let units: Vec<f64> = (0..6).map(|_| f64::from(draws.next_unit())).collect();
    six(&units, &[0.879466, 0.545326, 0.394069, 0.000355, 0.947963, 0.995473]);
    // The last element sets absmax = 7, so that scale = 1 and w/s is as published.
    let row = [0.5, 0.5, 0.5, 0.5, -1.25, -1.25, 7.0];
    let mut draws = XorShift32::new();
    let (nibbles, scale, _) =
        stored(&row, Codebook::Uniform, StoredClip::AbsMax, Rounding::Stochastic(&mut draws));
    assert_eq!(scale.get(), 1.0);
    assert_eq!(signed(&nibbles)[..6], [1, 1, 0, 0, -1, -1]);
}

#[test]
fn importance_search() {
    let row = [4.0, 1.0, -1.1, 0.9, 0.52, -0.4, 0.7, -0.25];
    let importance = [0.01, 1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 1.0];
    let errors = IMPORTANCE_CLIPS.map(|clip| {
        let scale = 4.0 * f64::from(clip) / 7.0;
        row.iter()
            .zip(importance)
            .map(|(w, im)| {
                let w = f64::from(*w);
                im * (w - scale * (w / scale).round_ties_even().clamp(-7.0, 7.0)).powi(2)
            })
            .sum::<f64>()
    });
    six(&errors, &[0.199414, 0.140095, 0.154933, 0.200203, 0.160100, 0.151759, 0.138835]);
    let importance = importance.map(|im| im as f32);
    let (_, scale, clip) =
        stored(&row, Codebook::Uniform, StoredClip::Importance(&importance), Rounding::Nearest);
    assert_eq!((clip, scale.get()), (0.55, 4.0 * 0.55 / 7.0));
}

#[test]
#[expect(clippy::approx_constant, reason = "a published number that happens to be -sqrt 2")]
fn hadamard_of_eight() {
    let basis = Basis::new(8, vec![Step::Rotate]).unwrap();
    let wanted = [12.727922, -1.414214, -2.828427, 0.0, -5.656854, 0.0, 0.0, 0.0];
    let mut row: Vec<f64> = (1..=8).map(f64::from).collect();
    basis.weight_row_f64(&mut row);
    six(&row, &wanted);
    let mut row: Vec<f32> = (1u8..=8).map(f32::from).collect();
    basis.activation_row(&mut row);
    six(&wide(&row), &wanted);
}

#[test]
fn hartley_of_three() {
    // With K = 3 the Hadamard blocks are single channels: R is Q itself, a column for each unit vector.
    let basis = Basis::new(3, vec![Step::Rotate]).unwrap();
    for (channel, wanted) in
        [[0.577350, 0.577350, 0.577350], [0.577350, 0.211325, -0.788675], [0.577350, -0.788675, 0.211325]]
            .iter()
            .enumerate()
    {
        let mut row = [0.0; 3];
        row[channel] = 1.0;
        basis.weight_row_f64(&mut row);
        six(&row, wanted);
    }
}

#[test]
fn mixed_radix_of_twelve() {
    let rotate = Basis::new(12, vec![Step::Rotate]).unwrap();
    let mut row: Vec<f64> = (0..12).map(f64::from).collect();
    rotate.weight_row_f64(&mut row);
    six(&row, &[19.052559, -1.732051, -3.464102, 0.0, -10.928203, 0.0, 0.0, 0.0, -2.928203, 0.0, 0.0, 0.0]);
    let mut unit = [0.0; 12];
    unit[0] = 1.0;
    rotate.activation_row_f64(&mut unit);
    six(&unit, &[0.288675; 12]);
    let with_signs = Basis::new(12, vec![Step::Signs, Step::Rotate]).unwrap();
    let wanted = [
        -1.154701, -2.309401, -4.041452, -6.350853, 0.309401, -2.845299, -3.577350, 17.041452, 4.309401,
        5.154701, 2.422650, -8.958548,
    ];
    let mut row: Vec<f64> = (0..12).map(f64::from).collect();
    with_signs.activation_row_f64(&mut row);
    six(&row, &wanted);
    let mut row: Vec<f32> = (0u8..12).map(f32::from).collect();
    with_signs.weight_row(&mut row);
    for (found, wanted) in row.iter().zip(wanted) {
        assert!((f64::from(*found) - wanted).abs() < 1e-5);
    }
}

#[test]
fn the_first_signs() {
    let signs = Basis::new(32, vec![Step::Signs]).unwrap();
    let mut row = [1.0; 32];
    signs.weight_row(&mut row);
    let text: String = row.iter().map(|sign| if *sign < 0.0 { '-' } else { '+' }).collect();
    assert_eq!(text, "--++---+-++---+--++--+-+-++-++++");
}

#[test]
fn smooth_factors() {
    let a: [[f64; 4]; 3] = [[1.0, -2.0, 40.0, 0.5], [0.5, 1.0, -30.0, 0.0], [2.0, 3.0, 20.0, -1.0]];
    let w: [[f32; 4]; 2] = [[0.5, -1.0, 0.1, 2.0], [1.0, 0.25, -0.2, -1.0]];
    let mean_squares: Vec<f64> =
        (0..4).map(|k| a.iter().map(|row| row[k] * row[k]).sum::<f64>() / 3.0).collect();
    let weight_max: Vec<f32> = (0..4).map(|k| w[0][k].abs().max(w[1][k].abs())).collect();
    let factors = smoothing(&mean_squares, &weight_max, 0.5).unwrap();
    six(&wide(&factors), &[0.618298, 0.790114, 6.702584, 0.305401]);
}

/// X and W of §7.4.
const X: [f32; 20] =
    [1.0, 0.5, 0.0, 0.2, 0.3, 1.0, 0.4, 0.0, 0.0, 0.6, 1.0, 0.5, 0.2, 0.0, 0.7, 1.0, 1.0, 1.0, 1.0, 1.0];
const W: [f32; 8] = [0.08, -0.06, -0.92, 0.91, 0.19, 0.46, -0.97, -0.52];

fn hessian() -> Hessian {
    let mut statistics = TensorStatistics::new(4, Collect::Hessian);
    statistics.add_rows(&X).unwrap();
    statistics.hessian().unwrap()
}

/// Σ (w − ŵ)·H·(w − ŵ)ᵀ over the rows.
fn weighted_error(codes: &[i8], scales: &[Scale]) -> f64 {
    let h = hessian();
    let miss: Vec<f64> = codes
        .iter()
        .enumerate()
        .map(|(index, code)| f64::from(W[index]) - f64::from(*code) * f64::from(scales[index / 4].get()))
        .collect();
    miss.chunks(4)
        .map(|row| (0..4).map(|i| (0..4).map(|j| row[i] * h.row(i)[j] * row[j]).sum::<f64>()).sum::<f64>())
        .sum()
}

#[test]
fn gptq_factor_codes_and_error() {
    let factor = Factor::new(hessian()).unwrap();
    let u: Vec<f64> = (0..4).flat_map(|i| factor.row(i).to_vec()).collect();
    six(
        &u,
        &[
            2.005996, -2.036335, 2.582066, -2.436293, //
            0.0, 0.990604, -1.137337, 0.481936, //
            0.0, 0.0, 1.309946, -1.245304, //
            0.0, 0.0, 0.0, 0.657354,
        ],
    );
    let found = factor.quantise(&W, 4, NativeClip::AbsMax).unwrap();
    six(&[f64::from(found.scales[0].get()), f64::from(found.scales[1].get())], &[0.131429, 0.138571]);
    assert_eq!(found.codes, [1, -1, -6, 6, 1, 4, -8, -3]);
    let nearest: Vec<i8> = W
        .iter()
        .enumerate()
        .map(|(index, w)| (w / found.scales[index / 4].get()).round_ties_even() as i8)
        .collect();
    assert_eq!(nearest, [1, 0, -7, 7, 1, 3, -7, -4]);
    six(
        &[weighted_error(&nearest, &found.scales), weighted_error(&found.codes, &found.scales)],
        &[0.060319, 0.003125],
    );
}

#[test]
fn self_tuning_clip() {
    let row: [f32; 16] =
        [8.0, 1.0, -0.9, 0.8, 0.7, -0.6, 0.5, 1.2, -1.1, 0.3, 0.95, -0.85, 0.15, 1.05, -0.45, 0.65];
    let clip = search_clip(&wide(&row), None);
    assert_eq!(clip.alpha, 0.960_937_5);
    six(&[clip.scale, clip.error], &[1.098214, 1.504477]);
    let mut codes = [0; 16];
    let scale =
        quantise_native_weight(&row, &mut codes, NativeClip::Search, &mut ClipReport::default()).unwrap();
    assert_eq!(codes, [7, 1, -1, 1, 1, -1, 0, 1, -1, 0, 1, -1, 0, 1, 0, 1]);
    six(&[f64::from(scale.get())], &[1.098214]);

    let row: Vec<f64> =
        (0..32).map(f64::from).map(|k| (1.7 * (k + 1.0)).sin() * (0.2 + 0.8 * k / 31.0)).collect();
    let clip = search_clip(&row, None);
    assert_eq!(clip.alpha, 0.890625);
    six(&[clip.scale], &[0.106573]);
}

#[test]
fn blob_round_trip_and_refusals() {
    let (codes, scale, _) = stored(&STORED, Codebook::Nf4, StoredClip::AbsMax, Rounding::Nearest);
    let weight =
        StoredWeight { k: 12, n: 1, codebook: Codebook::Nf4, scales: vec![scale], nibbles: packed(&codes) };
    let blob = weight.to_blob();
    assert_eq!(blob[..4], *b"1N4O");
    assert_eq!(blob.len(), 20 + 4 + 6);
    assert_eq!(StoredWeight::from_blob(&blob).unwrap(), weight);
    for length in 0..blob.len() {
        assert!(StoredWeight::from_blob(&blob[..length]).is_err(), "{length} bytes");
    }
    for (place, value) in [(0, 9), (4, 2), (8, 11), (8, 0), (11, 0xff), (12, 0), (16, 2), (23, 0xff)] {
        let mut damaged = blob.clone();
        damaged[place] = value;
        assert!(StoredWeight::from_blob(&damaged).is_err(), "byte {place} = {value}");
    }
}
