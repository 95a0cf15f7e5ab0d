// SPDX-License-Identifier: MIT OR Apache-2.0
//! A generated model: weights with large channels, activations with outliers, statistics of them.
#![allow(dead_code, reason = "every test binary uses another part")]

use std::ops::ControlFlow;
use std::path::Path;

use ork_corpus::Corpus;
use ork_isa::soc::RK3588;
use ork_pack::{
    Calibration, CalibrationRun, Hash, PackPlan, SourceId, SourceSample, StatisticsFile, WriteOptions,
    save_statistics,
};
use ork_plan::PlanOptions;
use ork_quant::Collect;
use ork_recipe::{
    CalibrationInput, Collector, Knowledge, ModelPlan, PackReport, Recipe, RecipeError, WeightInfo,
    WeightSource, pack_model,
};
use ork_testkit::Stream;

/// Not a power of two and not a multiple of a tile: 96 = 2^5 · 3, 160 = 2^5 · 5.
pub(crate) const D: usize = 96;
pub(crate) const FF: usize = 160;

/// Weights of some layers and an output matrix.
pub(crate) struct Generated {
    infos: Vec<WeightInfo>,
}

impl Generated {
    pub(crate) fn new(layers: usize) -> Self {
        // Not in the order of a forward pass: the plan has to find that.
        let mut infos = vec![info("output.weight", D, 130)];
        for layer in (0..layers).rev() {
            for (role, k, n) in [
                ("ffn_down", FF, D),
                ("ffn_up", D, FF),
                ("ffn_gate", D, FF),
                ("attn_output", D, D),
                ("attn_v", D, 40),
                ("attn_k", D, 40),
                ("attn_q", D, D),
            ] {
                infos.push(info(&format!("blk.{layer}.{role}.weight"), k, n));
            }
        }
        Self { infos }
    }
}

fn info(name: &str, k: usize, n: usize) -> WeightInfo {
    WeightInfo { name: name.to_owned(), k, n, type_name: "f16".to_owned(), bits_per_weight: 16.0 }
}

pub(crate) fn seed(name: &str) -> u64 {
    u64::from_le_bytes(Hash::of(name.as_bytes()).0[..8].try_into().unwrap())
}

impl WeightSource for Generated {
    fn weights(&self) -> &[WeightInfo] {
        &self.infos
    }

    fn row(&self, index: usize, row: usize, out: &mut [f32]) {
        let info = &self.infos[index];
        out.copy_from_slice(&Stream::lane(seed(&info.name), row as u32).f32s_unit(info.k));
        // A few large weights per row, so that clipping has something to decide.
        out[(row * 7 + 3) % info.k] *= 6.0;
    }
}

pub(crate) fn options() -> PlanOptions {
    PlanOptions::default()
}

pub(crate) fn sample() -> SourceSample {
    SourceSample { bytes: 12345, hash: Hash::of(b"sample") }
}

pub(crate) fn source_id() -> SourceId {
    SourceId { name: "model.gguf".into(), sample: sample(), content: Hash::of(b"content") }
}

/// The inputs of [`Generated`], as a graph would show them.
pub(crate) fn inputs(layers: usize) -> Vec<CalibrationInput> {
    let mut inputs = Vec::new();
    for layer in 0..layers {
        let name = |role: &str| format!("blk.{layer}.{role}.weight");
        for (role, also, k) in [
            ("attn_q", vec!["attn_k", "attn_v"], D),
            ("attn_output", vec![], D),
            ("ffn_gate", vec!["ffn_up"], D),
            ("ffn_down", vec![], FF),
        ] {
            let also = also.into_iter().map(name).collect();
            inputs.push(CalibrationInput { weight: name(role), also, k });
        }
    }
    inputs.push(CalibrationInput { weight: "output.weight".into(), also: vec![], k: D });
    inputs
}

/// Activations of an input: correlated, with six channels about forty times larger.
pub(crate) fn activations(name: &str, k: usize, rows: usize) -> Vec<f32> {
    let mut stream = Stream::new(seed(name) ^ 0xAC7);
    let mut x = stream.f32s_unit(rows * k);
    for row in x.chunks_exact_mut(k) {
        for i in 1..k {
            row[i] += 0.6 * row[i - 1];
        }
        for outlier in 0..6 {
            row[(outlier * 31 + 5) % k] *= 40.0;
        }
    }
    x
}

pub(crate) fn run(tokens: u64) -> CalibrationRun {
    CalibrationRun {
        model: sample(),
        text: Corpus::from_text("text.txt", "What the model reads. ".repeat(40)).unwrap().whole().origin(),
        window_tokens: 64,
        tokens,
    }
}

/// Statistics of [`activations`] in a file.
pub(crate) fn statistics(path: &Path, layers: usize, collect: Collect) -> Knowledge {
    let inputs = inputs(layers);
    let mut collector = Collector::new(&inputs, collect, 64, 1 << 30).unwrap();
    for input in &inputs {
        collector.add(&input.weight, &activations(&input.weight, input.k, 400)).unwrap();
    }
    collector.advance(400);
    save_statistics(collector.statistics(), &run(400), path).unwrap();
    Knowledge::Statistics(Box::new(StatisticsFile::open(path).unwrap()))
}

pub(crate) fn plan(
    source: &Generated,
    scheme: &str,
    knowledge: &Knowledge,
) -> Result<ModelPlan, RecipeError> {
    let recipe: Recipe = scheme.parse().unwrap();
    ModelPlan::new(&recipe, source.weights(), None, knowledge, (&RK3588, &options()))
}

pub(crate) fn asked(source: &Generated, plan: &ModelPlan, knowledge: &Knowledge) -> PackPlan {
    let calibration = match knowledge {
        Knowledge::Statistics(file) => {
            Some(Calibration::of(file.path(), Some(file.run().text.clone())).unwrap())
        }
        _ => None,
    };
    plan.pack_plan(source.weights(), &RK3588, source_id(), calibration, "test 1")
}

/// Packs everything, or stops before the weight `stop`.
pub(crate) fn pack(
    source: &Generated,
    plan: &ModelPlan,
    knowledge: &Knowledge,
    path: &Path,
    stop: Option<usize>,
) -> Result<PackReport, RecipeError> {
    let asked = asked(source, plan, knowledge);
    let mut left = stop;
    pack_model(source, plan, &asked, knowledge, (path, WriteOptions::default()), &mut |_| match &mut left {
        Some(0) => ControlFlow::Break(()),
        Some(left) => {
            *left -= 1;
            ControlFlow::Continue(())
        }
        None => ControlFlow::Continue(()),
    })
}
