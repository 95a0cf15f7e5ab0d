// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stored int4 with levels per group: what inflates against plain arithmetic, what the search finds against all there is.

use ork_quant::{
    Collect, Factor, GROUP, GROUP_BYTES, GptqError, Hessian, Kernels, Levels, StoredGroup, TensorStatistics,
    inflate_groups, quantise_grouped_row,
};
use ork_testkit::Stream;

/// `clamp(offset + rint(nibble · multiplier / 8), −127, 127)` in `f64`.
fn level(multiplier: u8, offset: i8, nibble: u8) -> f64 {
    let steps = (f64::from(nibble) * f64::from(multiplier) / 8.0).round_ties_even();
    (f64::from(offset) + steps).clamp(-127.0, 127.0)
}

fn gaussian(stream: &mut Stream, len: usize) -> Vec<f32> {
    stream.f32s_unit(len * 12).chunks_exact(12).map(|twelve| twelve.iter().sum::<f32>() / 2.0).collect()
}

/// Stored groups of a row, and the values that they stand for.
fn stored(row: &[f32], importance: Option<&[f32]>) -> (Vec<StoredGroup>, Vec<f64>) {
    let mut groups = vec![[0; GROUP_BYTES]; row.len().div_ceil(GROUP)];
    let scale = quantise_grouped_row(row, importance, &mut groups).unwrap();
    let mut codes = vec![0; groups.len() * GROUP];
    inflate_groups(groups.as_flattened(), &mut codes);
    assert!(codes[row.len()..].iter().all(|code| *code == 0), "padding is zero");
    let values = codes[..row.len()].iter().map(|code| f64::from(*code) * f64::from(scale.get()));
    (groups, values.collect())
}

fn error(row: &[f32], values: &[f64], importance: Option<&[f32]>) -> f64 {
    let weight = |i: usize| importance.map_or(1.0, |importance| f64::from(importance[i]));
    (0..row.len()).map(|i| weight(i) * (f64::from(row[i]) - values[i]).powi(2)).sum()
}

fn relative(row: &[f32], values: &[f64]) -> f64 {
    (error(row, values, None) / row.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>()).sqrt()
}

#[test]
fn every_group_inflates_to_its_levels_with_every_instruction_set() {
    // All multipliers and offsets; the nibbles of a group are all sixteen, twice, in an order that moves.
    let mut groups = Vec::new();
    for (multiplier, offset) in (0..=255).flat_map(|m: u8| (i8::MIN..=i8::MAX).map(move |o| (m, o))) {
        let mut group = [0; GROUP_BYTES];
        (group[0], group[1]) = (multiplier, offset.cast_unsigned());
        for (index, byte) in group[2..].iter_mut().enumerate() {
            let start = groups.len() + index;
            *byte = ((2 * start) % 16) as u8 | (((2 * start + 5) % 16) as u8) << 4;
        }
        groups.push(group);
    }
    let nibble = |group: &StoredGroup, i: usize| group[2 + i / 2] >> (4 * (i % 2)) & 15;
    let wanted: Vec<f64> = groups
        .iter()
        .flat_map(|group| (0..GROUP).map(move |i| level(group[0], group[1].cast_signed(), nibble(group, i))))
        .collect();
    for kernels in Kernels::available() {
        let mut codes = vec![0; groups.len() * GROUP];
        kernels.inflate_groups(groups.as_flattened(), &mut codes);
        for (index, (code, wanted)) in codes.iter().zip(&wanted).enumerate() {
            assert_eq!(f64::from(*code), *wanted, "{kernels:?}: {:?}", groups[index / GROUP]);
        }
    }
    let levels = Levels { multiplier: 12, offset: -3 };
    assert_eq!(levels.table()[..5], [-3, -1, 0, 1, 3], "1.5, 3, 4.5 and 6 from −3, halves to even");
    assert!(std::panic::catch_unwind(|| inflate_groups(&[0; 19], &mut [0; 32])).is_err());
    assert!(std::panic::catch_unwind(|| inflate_groups(&[0; 18], &mut [0; 31])).is_err());
}

#[test]
fn gaussian_weights_lose_half_of_what_one_scale_loses() {
    // K = 3584: 0.158 uniform and 0.110 NF4 per channel, Q4_K 0.071 (isa-int4-sdp.md §7.2).
    let mut stream = Stream::new(61);
    let mean = (0..8)
        .map(|_| {
            let row = gaussian(&mut stream, 3584);
            relative(&row, &stored(&row, None).1)
        })
        .sum::<f64>()
        / 8.0;
    assert!((0.066..0.078).contains(&mean), "{mean}");
}

#[test]
fn the_search_comes_close_to_the_best_that_there_is() {
    let mut stream = Stream::new(62);
    let (mut found, mut best) = (0.0, 0.0);
    for round in 0..12 {
        let mut row = gaussian(&mut stream, GROUP);
        // Of rounds, some lie to one side of zero, and some are much smaller than the row's largest.
        let (shift, factor) = ([0.0, 3.0, -5.0][round % 3], [1.0, 0.2, 0.05][round / 4]);
        row.iter_mut().for_each(|w| *w = (*w + shift) * factor);
        let mut whole = row.clone();
        whole.extend([8.0; GROUP]);
        let mut importance: Vec<f32> = stream.f32s_unit(2 * GROUP).iter().map(|x| x * x).collect();
        importance[round] = 20.0;
        let own = error(&row, &stored(&whole, Some(&importance)).1[..GROUP], Some(&importance[..GROUP]));
        let scale = f64::from(8f32 / 127.0);
        let mut least = f64::INFINITY;
        for (multiplier, offset) in (1..=255).flat_map(|m: u8| (-127..=127i8).map(move |o| (m, o))) {
            let mut sum = 0.0;
            let levels: Vec<f64> = (0..16).map(|nibble| level(multiplier, offset, nibble) * scale).collect();
            for (w, weight) in row.iter().zip(&importance) {
                let miss = levels.iter().map(|level| (f64::from(*w) - level).abs()).fold(f64::MAX, f64::min);
                sum += f64::from(*weight) * miss * miss;
            }
            least = least.min(sum);
        }
        assert!(own >= least * (1.0 - 1e-5), "better than the best: {own} and {least}");
        (found, best) = (found + own / least, best + 1.0);
    }
    assert!(found / best < 1.12, "{}", found / best);
}

#[test]
fn importance_lowers_the_weighted_error() {
    let mut stream = Stream::new(63);
    let (mut plain, mut weighted) = (0.0, 0.0);
    for _ in 0..16 {
        let row = gaussian(&mut stream, 320);
        let importance: Vec<f32> = stream.f32s_unit(320).iter().map(|x| x.powi(4)).collect();
        plain += error(&row, &stored(&row, None).1, Some(&importance));
        weighted += error(&row, &stored(&row, Some(&importance)).1, Some(&importance));
    }
    assert!(weighted < 0.8 * plain, "{weighted} and {plain}");
    // Nothing known is the same as nothing given.
    let row = gaussian(&mut stream, 64);
    for unknown in [vec![0.0; 64], vec![f32::INFINITY; 64], vec![3.5; 64]] {
        assert_eq!(stored(&row, Some(&unknown)).0, stored(&row, None).0);
    }
}

#[test]
fn levels_that_fit_the_grid_come_back_exactly() {
    // Blocks of 32 with a step and an offset of their own, as llama.cpp's Q4_1 has them: here whole int8 steps.
    let mut stream = Stream::new(64);
    let row: Vec<f32> = (0..9)
        .flat_map(|block: i32| {
            let (step, offset) = (f32::from((block % 7 + 1) as u8), f32::from((block * 9 - 50) as i8));
            let mut nibbles: Vec<f32> = (0..GROUP).map(|_| stream.below(16) as f32).collect();
            (nibbles[3], nibbles[17]) = (0.0, 15.0);
            nibbles.into_iter().map(move |nibble| (offset + nibble * step) / 4.0)
        })
        .chain([127.0 / 4.0; 1])
        .collect();
    let (_, values) = stored(&row, None);
    for (w, value) in row.iter().zip(values) {
        assert!((f64::from(*w) - value).abs() < 1e-5, "{w} became {value}");
    }
}

#[test]
fn short_empty_and_bad_rows() {
    let mut stream = Stream::new(65);
    for k in [1, 5, 31, 32, 33, 63, 70, 95] {
        let row: Vec<f32> = gaussian(&mut stream, k).iter().map(|w| w + 2.0).collect();
        let (groups, values) = stored(&row, None);
        assert_eq!(groups.len(), k.div_ceil(GROUP));
        assert!(relative(&row, &values) < 0.12, "K = {k}: {}", relative(&row, &values));
    }
    assert_eq!(stored(&[0.0; 40], None).0, [[0; GROUP_BYTES]; 2]);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut groups = [[7; GROUP_BYTES]; 2];
        let row = [1.0, bad, 3.0].repeat(15);
        let refused = quantise_grouped_row(&row[..40], None, &mut groups).unwrap_err();
        assert!(refused.to_string().contains("element 1"), "{refused}");
        assert_eq!(groups, [[7; GROUP_BYTES]; 2]);
    }
    // A group of one value, and one that is far below a step of the row.
    let mut row = vec![0.75; 32];
    row.extend(vec![1e-9; 32]);
    row.extend(vec![-1.0; 32]);
    let (_, values) = stored(&row, None);
    assert!(
        row.iter().zip(&values).all(|(w, v)| (f64::from(*w) - v).abs() <= 0.5 / 127.0 + 1e-6),
        "{values:?}"
    );
}

/// Rows whose channels are correlated, as activations are.
fn hessian(stream: &mut Stream, k: usize) -> Hessian {
    let (rows, common) = (3 * k, stream.f32s_unit(3 * k * 8));
    let mut x = stream.f32s_unit(rows * k);
    for (row, common) in x.chunks_exact_mut(k).zip(common.chunks_exact(8)) {
        for (channel, value) in row.iter_mut().enumerate() {
            *value = 0.5 * *value + 2.0 * common[channel % 8] * (1.0 + (channel % 5) as f32);
        }
    }
    let mut statistics = TensorStatistics::new(k, Collect::Hessian);
    statistics.add_rows(&x).unwrap();
    statistics.hessian().unwrap()
}

#[test]
fn a_plain_hessian_gives_the_groups_of_rounding_to_nearest() {
    let (k, n) = (150, 7);
    let mut stream = Stream::new(66);
    let mut weights = gaussian(&mut stream, n * k);
    weights[2 * k..3 * k].fill(0.0);
    let scaled = (0..k * k).map(|i| if i % (k + 1) == 0 { 3.7 } else { 0.0 }).collect();
    let factor = Factor::new(Hessian::new(k, scaled).unwrap()).unwrap();
    let found = factor.quantise_grouped(&weights).unwrap();
    let wanted: Vec<StoredGroup> = weights.chunks_exact(k).flat_map(|row| stored(row, None).0).collect();
    assert_eq!(found.groups, wanted);
    assert_eq!(found.scales.len(), n);
    weights[k + 3] = f32::NAN;
    let refused = factor.quantise_grouped(&weights).unwrap_err();
    assert!(matches!(refused, GptqError::Quant(_)) && refused.to_string().contains("row 1"), "{refused}");
    assert!(matches!(factor.quantise_grouped(&[0.0; 151]), Err(GptqError::Shape { .. })));
}

#[test]
fn feedback_goes_through_groups_as_the_naive_algorithm_does() {
    let (k, n) = (150, 5);
    let mut stream = Stream::new(67);
    let h = hessian(&mut stream, k);
    let weights = gaussian(&mut stream, n * k);
    let factor = Factor::new(h.clone()).unwrap();
    let found = factor.quantise_grouped(&weights).unwrap();
    let of_row = k.div_ceil(GROUP);
    let (mut fed_back, mut nearest) = (0.0, 0.0);
    for (row, original) in weights.chunks_exact(k).enumerate() {
        let groups = &found.groups[row * of_row..][..of_row];
        let scale = f64::from(found.scales[row].get());
        let mut w: Vec<f64> = original.iter().copied().map(f64::from).collect();
        let mut values = Vec::new();
        for j in 0..k {
            let group = &groups[j / GROUP];
            let nibble = group[2 + j % GROUP / 2] >> (4 * (j % 2)) & 15;
            // With the levels that were found, the nibble is the nearest to the weight as it is by now.
            let (multiplier, offset) = (f64::from(group[0]), f64::from(group[1].cast_signed()));
            let place = (w[j] / scale - offset) * 8.0 / multiplier;
            assert!(
                (place.clamp(0.0, 15.0) - f64::from(nibble)).abs() < 0.501,
                "channel {j}: {place}, {nibble}"
            );
            let value = level(group[0], group[1].cast_signed(), nibble) * scale;
            values.push(value);
            let e = (w[j] - value) / factor.row(j)[j];
            (j + 1..k).for_each(|c| w[c] -= e * factor.row(j)[c]);
        }
        let weighted = |values: &[f64]| -> f64 {
            let miss: Vec<f64> = original.iter().zip(values).map(|(w, v)| f64::from(*w) - v).collect();
            (0..k).map(|i| miss[i] * (0..k).map(|j| h.row(i)[j] * miss[j]).sum::<f64>()).sum()
        };
        fed_back += weighted(&values);
        nearest += weighted(&stored(original, None).1);
    }
    assert!(fed_back < 0.5 * nearest, "{fed_back} and {nearest}");
}
