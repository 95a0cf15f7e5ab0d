// SPDX-License-Identifier: MIT OR Apache-2.0
//! What packing and calibration see of a model: the weights that are claimed, their rows, and their activations.
//!
//! One test, because llama.cpp exists once per process and the survey brings an engine of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ork_engine::tiny::{OutputMatrix, TinyModel, WeightType};
use ork_engine::{
    ContextOptions, Engine, EngineError, LoadOptions, LogSink, Model, Observation, ObservedProduct, Observer,
    WeightFile, claimed_weights,
};
use ork_ggml::Survey;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

#[derive(Default)]
struct Seen {
    asked: Vec<ObservedProduct>,
    rows: BTreeMap<String, Vec<f32>>,
    stop: bool,
}

impl Observer for Seen {
    fn wants(&mut self, product: &ObservedProduct) -> bool {
        self.asked.push(product.clone());
        product.weight.starts_with("blk.0.") || product.weight == "output.weight"
    }

    fn take(&mut self, product: &ObservedProduct, rows: &[f32]) -> ControlFlow<()> {
        if self.stop {
            return ControlFlow::Break(());
        }
        self.rows.entry(product.weight.clone()).or_default().extend(rows);
        ControlFlow::Continue(())
    }
}

#[test]
fn claimed_weights_their_rows_and_their_activations() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let tiny =
        TinyModel { weight_type: WeightType::Q8_0, output: OutputMatrix::Separate, ..TinyModel::default() };
    tiny.write(&path).unwrap();

    // Everything that is multiplied, and not the embedding, which is looked up.
    let survey = || Survey::new(Default::default());
    let claimed = claimed_weights(&path, survey(), &[]).unwrap();
    assert_eq!(claimed.len(), 15);
    assert!(claimed.iter().any(|weight| weight.name == "output.weight"));
    assert!(claimed.iter().all(|weight| weight.name != "token_embd.weight"));
    let down = claimed.iter().find(|weight| weight.name == "blk.1.ffn_down.weight").unwrap();
    assert_eq!((down.k, down.n), (160, 96));
    // With a tied output the embedding is multiplied as well; exclusions count here as they do in a run.
    let tied = folder.path().join("tied.gguf");
    TinyModel { output: OutputMatrix::Tied, ..tiny.clone() }.write(&tied).unwrap();
    let names = claimed_weights(&tied, survey(), &["blk.0.*".to_owned()]).unwrap();
    assert_eq!(names.len(), 8);
    assert!(names.iter().any(|weight| weight.name == "token_embd.weight"));

    // Rows against a decoder of Q8_0 written here: blocks of an fp16 scale and 32 codes.
    let file = WeightFile::open(&path).unwrap();
    let matrix = file.matrix("blk.1.ffn_down.weight").unwrap();
    let info = matrix.info().clone();
    let bytes = std::fs::read(&path).unwrap();
    let mut row = vec![0f32; 160];
    for index in [0, 41, 95] {
        matrix.row(index, &mut row);
        let start = info.offset as usize + index * (160 / 32 * 34);
        for (block, values) in row.chunks(32).enumerate() {
            let block = &bytes[start + block * 34..][..34];
            let scale = half_to_float(u16::from_le_bytes([block[0], block[1]]));
            for (value, code) in values.iter().zip(&block[2..]) {
                assert_eq!(*value, scale * f32::from(code.cast_signed()));
            }
        }
    }
    file.release("blk.1.ffn_down.weight");
    let before = row.clone();
    matrix.row(95, &mut row);
    assert_eq!(row, before, "released pages come back");
    assert!(file.matrix("nothing").is_none());

    let engine = Engine::init(None, LogSink::discard()).unwrap();
    assert!(matches!(claimed_weights(&path, survey(), &[]), Err(EngineError::AlreadyRunning)));
    let model =
        Model::load(&engine, &path, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    let options = ContextOptions { context_tokens: Some(64), batch_tokens: Some(16), ..Default::default() };
    let mut observation = Observation::new(&model, &options, Seen::default()).unwrap();
    // More than one batch.
    let tokens: Vec<i32> = (0..40).map(|i| 260 + i % 50).collect();
    observation.evaluate(&tokens).unwrap();
    observation.evaluate(&tokens).unwrap();
    let seen = observation.with(std::mem::take);
    let products: Vec<_> = seen.asked.iter().filter(|product| product.weight.ends_with(".weight")).collect();
    assert_eq!(products.len() % 15, 0);
    let first = &products[..15];
    let input = |name: &str| first.iter().find(|product| product.weight == name).unwrap().input;
    assert_eq!(input("blk.0.attn_q.weight"), input("blk.0.attn_v.weight"));
    assert_eq!(input("blk.0.ffn_gate.weight"), input("blk.0.ffn_up.weight"));
    assert_ne!(input("blk.0.attn_q.weight"), input("blk.0.attn_output.weight"));
    assert_ne!(input("blk.0.attn_q.weight"), input("blk.1.attn_q.weight"));
    assert_eq!(seen.rows.len(), 8);
    for (name, rows) in &seen.rows {
        let k = if name == "blk.0.ffn_down.weight" { 160 } else { 96 };
        assert_eq!(rows.len(), 80 * k, "{name}: every token of both passes");
        assert!(rows[..40 * k] == rows[40 * k..], "{name}: the context was emptied between them");
    }
    // The norms of this model have weights of one, so what follows them has a mean square of one.
    for name in ["blk.0.attn_q.weight", "blk.0.ffn_up.weight", "output.weight"] {
        for row in seen.rows[name].chunks(96) {
            let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 96.0;
            assert!((mean - 1.0).abs() < 1e-3, "{name}: {mean}");
        }
    }
    assert!(seen.rows["blk.0.attn_q.weight"] == seen.rows["blk.0.attn_k.weight"]);
    // An observer that stops fails the evaluation; the next one works.
    observation.with(|seen| seen.stop = true);
    assert!(observation.evaluate(&tokens).is_err());
    observation.with(|seen| seen.stop = false);
    observation.evaluate(&tokens).unwrap();
}

/// Normal numbers only, which scales of random weights are.
fn half_to_float(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 31) - 15;
    sign * (1.0 + f32::from(bits & 1023) / 1024.0) * 2f32.powi(exponent)
}
