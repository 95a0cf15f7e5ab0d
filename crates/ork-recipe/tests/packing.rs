// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans and packs of a generated model.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{D, Generated, activations, asked, inputs, pack, plan, sample, statistics};
use ork_isa::soc::RK3588;
use ork_layout::Int4;
use ork_pack::{Pack, PackError, verify};
use ork_quant::{Collect, Scheme, StepKind, Tier};
use ork_recipe::{Collector, Guide, Knowledge, ModelPlan, RecipeError, WeightSource, Why, measure};

const SCHEMES: [&str; 22] = [
    "w8a8",
    "w8a8-rot",
    "w8a8+smooth",
    "i4a8",
    "i4a8-nf4",
    "i4a8+stochastic",
    "i4a8+imatrix",
    "i4a8-nf4+imatrix",
    "i4a8-nf4+rotate+imatrix",
    "i4a8+rotate+gptq+clip",
    "i4a8+group",
    "i4a8+group+imatrix",
    "i4a8+group+rotate+gptq",
    "i4a8+group+promote:6",
    "w4a4",
    "w4a4+clip",
    "w4a4+rotate+clip",
    "w4a4+smooth+signs+rotate+clip",
    "w4a4+rotate+gptq",
    "w4a4+smooth+rotate+gptq+clip",
    "w4a4-ladder",
    "i4a8+promote:5.5",
];

/// Relative error of every weight of a pack by plain loops over the source, for schemes without a basis.
fn naive_error(source: &Generated, index: usize, steps: f32) -> f64 {
    let info = &source.weights()[index];
    let (mut error, mut total) = (0f64, 0f64);
    let mut row = vec![0f32; info.k];
    for n in 0..info.n {
        source.row(index, n, &mut row);
        let scale = row.iter().fold(0f32, |max, w| max.max(w.abs())) / steps;
        for w in &row {
            let back = (w / scale).round() * scale;
            error += f64::from(w - back).powi(2);
            total += f64::from(*w).powi(2);
        }
    }
    (error / total).sqrt()
}

#[test]
fn every_scheme_is_packed_verified_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let source = Generated::new(2);
    let knowledge = statistics(&folder.path().join("s.orkstat"), 2, Collect::Hessian);
    let mut errors = std::collections::BTreeMap::new();
    for scheme in SCHEMES {
        let path = folder.path().join("m.orkpack");
        let plan = plan(&source, scheme, &knowledge).unwrap();
        let report = pack(&source, &plan, &knowledge, &path, None).unwrap();
        assert_eq!((report.written.tensors, report.continued), (15, 0), "{scheme}");
        assert!(report.schemes.values().all(|count| count.asked == count.written), "{report:?}");
        let pack = Pack::open_any(&path).unwrap();
        assert_eq!(verify(&pack).damages, [], "{scheme}");
        pack.check(&asked(&source, &plan, &knowledge)).unwrap();
        let found = measure(&pack, &source, (&RK3588, &common::options())).unwrap();
        assert_eq!(found.len(), 15);
        for tensor in &found {
            // Smoothing takes outliers from activations to weights: their own error grows.
            let smooth = if tensor.scheme.basis.contains(&StepKind::Smooth) { 5.0 } else { 1.0 };
            let bound = match tensor.scheme.tier {
                Tier::W8A8 => 0.02 * smooth,
                Tier::I4A8 { .. } | Tier::I4A8Group | Tier::W4A4 => 0.5 * smooth,
            };
            assert!(tensor.error > 0.0 && tensor.relative() < bound, "{scheme}: {tensor:?}");
            let index = source.weights().iter().position(|weight| weight.name == tensor.name).unwrap();
            let steps = match scheme {
                "w8a8" => 127.0,
                "i4a8" | "w4a4" => 7.0,
                _ => continue,
            };
            let naive = naive_error(&source, index, steps);
            assert!((tensor.relative() / naive - 1.0).abs() < 1e-3, "{scheme}: {tensor:?}, and {naive}");
        }
        let (error, total) =
            found.iter().fold((0.0, 0.0), |(e, t), tensor| (e + tensor.error, t + tensor.total));
        errors.insert(scheme, (error / total).sqrt());
        std::fs::remove_file(&path).unwrap();
    }
    // Of the weights alone; what the steps do to products is the business of the next test.
    let better = |a: &str, b: &str| assert!(errors[a] < errors[b], "{a} and {b}: {errors:?}");
    better("w8a8", "i4a8");
    better("i4a8-nf4", "i4a8");
    better("i4a8+group", "i4a8-nf4");
    better("i4a8+group+promote:6", "i4a8+group");
    better("i4a8+group", "i4a8+group+rotate+gptq");
    better("w4a4+clip", "w4a4");
    better("w4a4+rotate+clip", "w4a4+clip");
    better("i4a8", "i4a8+stochastic");
    better("i4a8+promote:5.5", "i4a8");
}

/// The error of the products of one weight with activations that calibration has not seen, both operands as a run has
/// them: four bits, in the basis of the pack.
fn product_error(source: &Generated, pack: &Pack, name: &str) -> f64 {
    let tensor = pack.tensor(name).unwrap();
    let index = source.weights().iter().position(|weight| weight.name == name).unwrap();
    let (k, n) = (source.weights()[index].k, source.weights()[index].n);
    let layout =
        ork_layout::WeightLayout::one_slice(ork_layout::Format::INT4_INT16, k as u32, n as u32).unwrap();
    let (basis, scales) = (tensor.basis().unwrap(), tensor.scales().unwrap());
    let x = activations(name, k, 450).split_off(400 * k);
    let (mut error, mut total) = (0f64, 0f64);
    for (channel, weight_scale) in scales.iter().enumerate().take(n) {
        let mut codes = vec![Int4::default(); k];
        layout.unpack_channel(channel as u32, tensor.data(), &mut codes);
        let mut weights = vec![0f32; k];
        source.row(index, channel, &mut weights);
        for row in x.chunks_exact(k) {
            let wanted: f64 = row.iter().zip(&weights).map(|(a, w)| f64::from(*a) * f64::from(*w)).sum();
            let mut row = row.to_vec();
            basis.activation_row(&mut row);
            let mut quantised = vec![0i8; k];
            let scale = ork_quant::quantise_native_activation(&row, &mut quantised).unwrap();
            let sum: i32 =
                quantised.iter().zip(&codes).map(|(a, w)| i32::from(*a) * i32::from(w.get())).sum();
            let found = f64::from(sum) * f64::from(scale.get()) * f64::from(weight_scale.get());
            error += (wanted - found).powi(2);
            total += wanted.powi(2);
        }
    }
    (error / total).sqrt()
}

#[test]
fn each_step_of_the_ladder_brings_products_closer() {
    let folder = tempfile::tempdir().unwrap();
    let source = Generated::new(1);
    let knowledge = statistics(&folder.path().join("s.orkstat"), 1, Collect::Hessian);
    let mut before = f64::INFINITY;
    for scheme in
        ["w4a4", "w4a4+rotate", "w4a4+rotate+clip", "w4a4+rotate+gptq+clip", "w4a4+smooth+rotate+gptq+clip"]
    {
        let path = folder.path().join("m.orkpack");
        let plan = plan(&source, scheme, &knowledge).unwrap();
        pack(&source, &plan, &knowledge, &path, None).unwrap();
        let error = product_error(&source, &Pack::open_any(&path).unwrap(), "blk.0.ffn_down.weight");
        assert!(error < before && error > 0.01, "{scheme}: {error}, before {before}");
        before = error;
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn weights_of_the_same_activations_have_one_basis() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    let source = Generated::new(1);
    let knowledge = statistics(&folder.path().join("s.orkstat"), 1, Collect::Hessian);
    let plan = plan(&source, "w4a4+smooth+rotate+clip", &knowledge).unwrap();
    pack(&source, &plan, &knowledge, &path, None).unwrap();
    let pack = Pack::open_any(&path).unwrap();
    let basis = |role: &str| pack.tensor(&format!("blk.0.{role}.weight")).unwrap().entry().basis;
    assert_eq!(basis("attn_q"), basis("attn_k"));
    assert_eq!(basis("attn_q"), basis("attn_v"));
    assert_eq!(basis("ffn_gate"), basis("ffn_up"));
    assert_ne!(basis("attn_q"), basis("attn_output"));
    assert_ne!(basis("attn_q"), basis("ffn_gate"));
    // The factors are those of the group: the largest weight of any member counts.
    let mut max = vec![0f32; D];
    for (index, info) in source.weights().iter().enumerate() {
        if ["attn_q", "attn_k", "attn_v"].iter().any(|role| info.name.contains(role)) {
            for n in 0..info.n {
                let mut row = vec![0f32; D];
                source.row(index, n, &mut row);
                max.iter_mut().zip(&row).for_each(|(max, w)| *max = max.max(w.abs()));
            }
        }
    }
    let x = activations("blk.0.attn_q.weight", D, 400);
    let mean =
        |channel: usize| x.chunks_exact(D).map(|row| f64::from(row[channel]).powi(2)).sum::<f64>() / 400.0;
    let raw: Vec<f64> = (0..D).map(|c| mean(c).powf(0.25) / f64::from(max[c]).sqrt()).collect();
    let log_mean = raw.iter().map(|s| s.ln()).sum::<f64>() / D as f64;
    let ork_quant::Step::Smooth(factors) =
        &pack.tensor("blk.0.attn_v.weight").unwrap().basis().unwrap().steps()[0].clone()
    else {
        panic!("the first step smooths")
    };
    for (found, raw) in factors.iter().zip(raw) {
        assert!((f64::from(*found) / (raw / log_mean.exp()) - 1.0).abs() < 1e-5);
    }
}

#[test]
fn a_stopped_pack_is_continued_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.orkpack");
    let source = Generated::new(2);
    let knowledge = statistics(&folder.path().join("s.orkstat"), 2, Collect::Hessian);
    let plan = plan(&source, "w4a4-ladder", &knowledge).unwrap();
    pack(&source, &plan, &knowledge, &path, None).unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut reached = 0;
    for steps in [0, 1, 3, 2, 4] {
        let stopped = pack(&source, &plan, &knowledge, &path, Some(steps)).unwrap_err();
        reached += steps;
        assert!(matches!(stopped, RecipeError::Stopped { weights } if weights == reached), "{stopped}");
        assert!(Pack::open_any(&path).is_err());
    }
    let report = pack(&source, &plan, &knowledge, &path, None).unwrap();
    assert_eq!(report.continued, 10);
    assert!(std::fs::read(&path).unwrap() == whole);
    // Another recipe does not continue it.
    assert!(pack(&source, &plan, &knowledge, &folder.path().join("n.orkpack"), Some(1)).is_err());
    let other = common::plan(&source, "w8a8", &Knowledge::Nothing).unwrap();
    let refused = pack(&source, &other, &Knowledge::Nothing, &folder.path().join("n.orkpack"), None);
    assert!(matches!(refused, Err(RecipeError::Pack(PackError::OtherPlan { .. }))));
}

#[test]
fn promotion_and_guides_decide_tiers() {
    let source = Generated::new(4);
    let nothing = Knowledge::Nothing;
    let order = |plan: &ModelPlan| -> Vec<String> {
        plan.choices.iter().map(|choice| source.weights()[choice.index].name.clone()).collect()
    };
    let int8 = |plan: &ModelPlan| -> Vec<String> {
        let wanted = plan.choices.iter().filter(|choice| choice.scheme == Scheme::w8a8());
        wanted.map(|choice| source.weights()[choice.index].name.clone()).collect()
    };
    let plain = plan(&source, "w4a4+clip", &nothing).unwrap();
    assert_eq!((int8(&plain).len(), plain.transitions), (0, 0));
    assert_eq!(order(&plain)[..3], ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"]);
    assert_eq!(order(&plain)[28], "output.weight");
    let output = plan(&source, "w4a4+clip+promote:output", &nothing).unwrap();
    assert_eq!((int8(&output), output.transitions), (vec!["output.weight".to_owned()], 2));
    let some = plan(&source, "w4a4+clip+promote:6", &nothing).unwrap();
    // Whole layers, from the end: the pass enters int4 once and leaves it once.
    assert!(int8(&some).contains(&"blk.3.attn_q.weight".to_owned()) && some.transitions == 2);
    assert!(some.bits_per_weight > output.bits_per_weight && some.bits_per_weight <= 6.0);

    let types = source.weights().iter().map(|info| {
        let more = info.name.contains("ffn_down") || info.name == "output.weight";
        let (type_name, bits) = if more { ("q6_K", 6.5625) } else { ("q4_K", 4.5) };
        (info.name.clone(), type_name.to_owned(), bits)
    });
    let guide = Guide::new(types);
    let guided = |recipe: &str, guide: &Guide| {
        let recipe = recipe.parse().unwrap();
        ModelPlan::new(&recipe, source.weights(), Some(guide), &nothing, (&RK3588, &common::options()))
    };
    let found = guided("i4a8", &guide).unwrap();
    assert_eq!(int8(&found).len(), 5);
    let why = &found.choices.iter().find(|choice| choice.scheme == Scheme::w8a8()).unwrap().why;
    assert_eq!(*why, Why::Guide { type_name: "q6_K".into() });
    assert!(matches!(guided("i4a8+promote", &guide), Err(RecipeError::Recipe(_))));
    let other = Guide::new([("other.weight".to_owned(), "f16".to_owned(), 16.0)]);
    assert!(matches!(guided("i4a8", &other), Err(RecipeError::Knowledge { .. })));
    let none = ModelPlan::new(&"w8a8".parse().unwrap(), &[], None, &nothing, (&RK3588, &common::options()));
    assert!(matches!(none, Err(RecipeError::NoWeights)));
}

#[test]
fn what_is_not_known_is_said_before_anything_is_packed() {
    let folder = tempfile::tempdir().unwrap();
    let source = Generated::new(2);
    let hessian = statistics(&folder.path().join("h"), 2, Collect::Hessian);
    let sums = statistics(&folder.path().join("s"), 2, Collect::Sums);
    let fewer = statistics(&folder.path().join("f"), 1, Collect::Hessian);
    let fails = |scheme: &str, knowledge: &Knowledge| plan(&source, scheme, knowledge).unwrap_err();
    assert!(matches!(fails("w4a4+gptq", &Knowledge::Nothing), RecipeError::Unknown { .. }));
    assert!(matches!(fails("w8a8+smooth", &Knowledge::Nothing), RecipeError::Unknown { .. }));
    let text = fails("w4a4+gptq", &sums).to_string();
    assert!(text.contains("blk.0.attn_q.weight") && text.contains("no Hessian"), "{text}");
    assert!(matches!(fails("i4a8+rotate+imatrix", &sums), RecipeError::Knowledge { .. }));
    let text = fails("w4a4+gptq", &fewer).to_string();
    assert!(text.contains("blk.1.attn_q.weight"), "{text}");
    plan(&source, "w8a8+smooth", &sums).unwrap();
    plan(&source, "w4a4+gptq", &hessian).unwrap();
    // Of another model, or unfinished.
    let recipe = "w4a4+gptq".parse().unwrap();
    hessian.check_model(&recipe, &sample()).unwrap();
    let mut other = sample();
    other.bytes += 1;
    let error = hessian.check_model(&recipe, &other).unwrap_err();
    assert!(matches!(error, RecipeError::Pack(PackError::Mismatch { kind: "model", .. })), "{error}");
    let collector = Collector::new(&inputs(2), Collect::Hessian, 64, 1 << 30).unwrap();
    let path = folder.path().join("u");
    ork_pack::save_statistics(collector.statistics(), &common::run(400), &path).unwrap();
    let unfinished = Knowledge::Statistics(Box::new(ork_pack::StatisticsFile::open(&path).unwrap()));
    assert!(unfinished.check_model(&recipe, &sample()).unwrap_err().to_string().contains("complete"));
}

#[test]
fn statistics_stay_within_their_bound_and_are_resumed() {
    let inputs = inputs(2);
    let needed = Collector::bytes_max(&inputs, Collect::Hessian, 64);
    let refused = Collector::new(&inputs, Collect::Hessian, 64, needed - 1).unwrap_err();
    assert!(matches!(refused, RecipeError::Memory { inputs: 9, .. }), "{refused}");
    let mut collector = Collector::new(&inputs, Collect::Hessian, 64, needed).unwrap();
    let held: usize = collector
        .statistics()
        .tensors
        .values()
        .map(|tensor| {
            let (ranges, squares, bands) = tensor.parts();
            4 * ranges.len() + 8 * squares.len() + bands.map(|band| 8 * band.len()).sum::<usize>()
        })
        .sum();
    assert!((held as u64) < needed && needed < 4 * held as u64 + (1 << 20), "{held} of {needed}");
    assert!(collector.wants("blk.0.attn_q.weight") && !collector.wants("blk.0.attn_k.weight"));
    assert!(matches!(collector.add("blk.0.attn_k.weight", &[0.0; D]), Err(RecipeError::Knowledge { .. })));
    let bad = collector.add("blk.0.attn_q.weight", &[f32::NAN; D]);
    assert!(matches!(bad, Err(RecipeError::Statistics { .. })));
    collector.add("blk.0.attn_q.weight", &activations("x", D, 5)).unwrap();
    collector.advance(5);
    let found = collector.statistics().clone();
    let resumed = Collector::resume(&inputs, Collect::Hessian, 64, needed, found.clone()).unwrap();
    assert_eq!(resumed.statistics(), &found);
    for (inputs, collect) in [(&inputs[1..], Collect::Hessian), (&inputs[..], Collect::Sums)] {
        let refused = Collector::resume(inputs, collect, 64, needed, found.clone());
        assert!(matches!(refused, Err(RecipeError::Knowledge { .. })));
    }
}
