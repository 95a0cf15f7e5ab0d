// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accumulators against plain sums, their bounds, and promotion.

use ork_quant::{
    BITS_PER_WEIGHT, Codebook, Collect, Prior, Statistics, StatisticsError, TensorSize, TensorStatistics,
    Tier, promote, transitions,
};
use ork_testkit::Stream;

#[test]
fn sums_are_those_of_plain_loops() {
    let mut stream = Stream::new(31);
    // Around the band of 256 rows and the chunk of 128.
    for (k, rows) in [(1, 3), (5, 129), (255, 40), (256, 7), (257, 300), (600, 65)] {
        let x = stream.f32s_activation(rows * k);
        let mut found = TensorStatistics::new(k, Collect::Hessian);
        // Batches of uneven size.
        let (first, rest) = x.split_at(k * (rows / 3));
        found.add_rows(first).unwrap();
        found.add_rows(rest).unwrap();
        assert_eq!((found.rows(), found.k(), found.collects()), (rows as u64, k, Collect::Hessian));
        let h = found.hessian().unwrap();
        for i in (0..k).step_by(if k > 100 { 37 } else { 1 }) {
            let column = |c: usize| x.iter().skip(c).step_by(k);
            let max = column(i).fold(0f32, |max, x| max.max(x.abs()));
            assert_eq!(found.abs_max()[i], max);
            for j in 0..k {
                let products = column(i).zip(column(j)).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                // The stated bound, for both sums.
                let bound = 2.0 * (rows + 1) as f64 * 2f64.powi(-53) * size;
                assert!((h.row(i)[j] - sum).abs() <= bound, "({i}, {j}): {} for {sum}", h.row(i)[j]);
            }
            let mean = h.row(i)[i] / rows as f64;
            assert!((found.mean_squares()[i] / mean - 1.0).abs() < 1e-12 || mean == 0.0);
        }
    }
}

#[test]
fn passes_add_up_and_parts_go_back_together() {
    let k = 300;
    let mut stream = Stream::new(32);
    let x = stream.f32s_unit(80 * k);
    for collect in [Collect::Sums, Collect::Hessian] {
        let (mut whole, mut half, mut other) = (
            TensorStatistics::new(k, collect),
            TensorStatistics::new(k, collect),
            TensorStatistics::new(k, collect),
        );
        whole.add_rows(&x).unwrap();
        half.add_rows(&x[..50 * k]).unwrap();
        other.add_rows(&x[50 * k..]).unwrap();
        half.merge(&other).unwrap();
        assert_eq!((half.rows(), half.abs_max()), (whole.rows(), whole.abs_max()));
        for (a, b) in half.squares().iter().zip(whole.squares()) {
            assert!((a - b).abs() < 1e-12 * b);
        }
        let (max, squares, bands) = whole.parts();
        let bands: Vec<Vec<f64>> = bands.map(<[f64]>::to_vec).collect();
        assert_eq!(
            bands.iter().map(Vec::len).collect::<Vec<_>>(),
            TensorStatistics::band_lengths(k, collect)
        );
        let bytes =
            4 * max.len() + 8 * squares.len() + bands.iter().map(|band| 8 * band.len()).sum::<usize>();
        assert!(bytes as u64 <= TensorStatistics::bytes_max(k as u64, collect), "{bytes}");
        let back = TensorStatistics::from_parts(80, max.to_vec(), squares.to_vec(), bands.clone()).unwrap();
        assert_eq!(back, whole);
        let mut poisoned = squares.to_vec();
        poisoned[9] = f64::NAN;
        assert!(TensorStatistics::from_parts(80, max.to_vec(), poisoned, bands.clone()).is_err());
        assert!(TensorStatistics::from_parts(80, max.to_vec(), vec![0.0; k - 1], bands.clone()).is_err());
        if collect == Collect::Hessian {
            assert!(
                TensorStatistics::from_parts(80, max.to_vec(), squares.to_vec(), bands[1..].to_vec())
                    .is_err()
            );
        }
    }
}

#[test]
fn bad_rows_change_nothing() {
    let mut statistics = TensorStatistics::new(3, Collect::Hessian);
    statistics.add_rows(&[1.0, 2.0, 3.0]).unwrap();
    let before = statistics.clone();
    assert_eq!(statistics.add_rows(&[1.0; 4]), Err(StatisticsError::Shape { k: 3, values: 4 }));
    let error = statistics.add_rows(&[1.0, 1.0, 1.0, 1.0, f32::NAN, 1.0]).unwrap_err();
    assert!(matches!(error, StatisticsError::NonFinite { row: 1, .. }), "{error}");
    assert_eq!(statistics, before);
    let other = TensorStatistics::new(3, Collect::Sums);
    assert!(matches!(statistics.merge(&other), Err(StatisticsError::Mismatch { .. })));
    assert!(matches!(
        statistics.merge(&TensorStatistics::new(4, Collect::Hessian)),
        Err(StatisticsError::Mismatch { .. })
    ));
}

#[test]
fn the_bound_is_stated() {
    let h = |k| TensorStatistics::bytes_max(k, Collect::Hessian);
    assert_eq!(h(11008) >> 20, 473);
    assert_eq!(TensorStatistics::scratch_bytes_max(11008) >> 20, 21);
    assert_eq!(
        Statistics::bytes_max([(11008, Collect::Hessian), (2048, Collect::Sums)]),
        h(11008) + 12 * 2048
    );
}

/// A model like Qwen3-1.7B: 28 layers of seven weights and the output matrix.
fn model() -> Vec<TensorSize> {
    let mut tensors = Vec::new();
    for layer in 0..28 {
        for (role, k, n) in [
            ("attn_q", 2048, 2048),
            ("attn_k", 2048, 1024),
            ("attn_v", 2048, 1024),
            ("attn_output", 2048, 2048),
            ("ffn_gate", 2048, 6144),
            ("ffn_up", 2048, 6144),
            ("ffn_down", 6144, 2048),
        ] {
            tensors.push(TensorSize { name: format!("blk.{layer}.{role}.weight"), k, n });
        }
    }
    tensors
}

fn promoted(tensors: &[TensorSize], tiers: &[Tier]) -> Vec<String> {
    tensors
        .iter()
        .zip(tiers)
        .filter(|(_, tier)| **tier == Tier::W8A8)
        .map(|(tensor, _)| tensor.name.clone())
        .collect()
}

#[test]
fn native_int4_promotes_whole_layers_with_two_transitions() {
    let mut tensors = model();
    let prior = Prior::for_tier(Tier::W4A4);
    assert_eq!(prior, Prior::WholeLayers);
    let plan = promote(&tensors, Tier::W4A4, prior, BITS_PER_WEIGHT);
    let names = promoted(&tensors, &plan.tiers);
    assert!(
        plan.bits_per_weight <= BITS_PER_WEIGHT && plan.bits_per_weight > BITS_PER_WEIGHT - 4.0 / 28.0 - 0.01
    );
    assert_eq!(names.len() % 7, 0);
    assert_eq!(plan.transitions, 2);
    for layer in [0, 1, 2, 25, 26, 27] {
        assert!(names.contains(&format!("blk.{layer}.ffn_up.weight")), "layer {layer} of {names:?}");
    }
    // With an int8 output matrix the ends still join.
    tensors.push(TensorSize { name: "output.weight".into(), k: 2048, n: 4096 });
    let plan = promote(&tensors, Tier::W4A4, prior, BITS_PER_WEIGHT);
    assert_eq!((plan.transitions, *plan.tiers.last().unwrap()), (2, Tier::W8A8));
    assert!(plan.bits_per_weight <= BITS_PER_WEIGHT);
    // Scattered, the same tier costs a reset at both sides of every promoted run.
    let scattered = promote(&tensors, Tier::W4A4, Prior::ValueAndDown, BITS_PER_WEIGHT);
    assert!(scattered.transitions > 40, "{}", scattered.transitions);
}

#[test]
fn stored_int4_promotes_the_list() {
    let tensors = model();
    let base = Tier::I4A8 { codebook: Codebook::Nf4 };
    let plan = promote(&tensors, base, Prior::for_tier(base), 4.6);
    let names = promoted(&tensors, &plan.tiers);
    assert!(
        !names.is_empty() && names.iter().all(|name| name.contains("attn_v") || name.contains("ffn_down"))
    );
    assert!(names.contains(&"blk.0.attn_v.weight".into()) && names.contains(&"blk.2.ffn_down.weight".into()));
    assert!(!names.contains(&"blk.1.attn_v.weight".into()), "{names:?}");
    // Enough for all: every second layer first, then the rest.
    let all = promote(&tensors, base, Prior::ValueAndDown, 8.0);
    assert_eq!(promoted(&tensors, &all.tiers).len(), 56);
    assert_eq!(all.transitions, 0);
}

#[test]
fn budgets_are_kept() {
    let tensors = model();
    let mut last = 0;
    for tenths in 40..90 {
        let budget = f64::from(tenths) / 10.0;
        let plan = promote(&tensors, Tier::W4A4, Prior::WholeLayers, budget);
        let count = promoted(&tensors, &plan.tiers).len();
        assert!(plan.bits_per_weight <= budget || count == 0);
        assert!(count >= last);
        last = count;
    }
    assert_eq!(last, 28 * 7);
    assert_eq!(promote(&[], Tier::W4A4, Prior::WholeLayers, 5.0).transitions, 0);
    assert_eq!(transitions(&[Tier::W4A4, Tier::W8A8, Tier::W4A4]), 2);
    assert_eq!(transitions(&[Tier::W4A4]), 0);
}
