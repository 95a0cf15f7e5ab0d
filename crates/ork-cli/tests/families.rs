// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models of many families: logits with every product on the emulated NPU, against llama.cpp's CPU backend. A test program of
//! its own: llama.cpp exists once per process.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it measured"
)]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ork_device::{Board, Device, DeviceOptions};
use ork_driver::{Driver, DriverOptions};
use ork_engine::tiny::{Family, TinyFamily, TinyModel};
use ork_engine::{
    ContextOptions, Divergence, Engine, LoadOptions, LogSink, LogitTable, Model, linked_host, logits,
};
use ork_ggml::{BackendOptions, NpuAccelerator, OrkBackend, Route};

const TEXT: &str = "A weight is read once and multiplied often; the rows that meet it come and go, and nothing of them \
                    is kept but the sums.";

/// int8 by int8: each product is off by about one part in a hundred, and a logit by a few of them.
const LOGIT_ERROR_MAX: f64 = 0.12;

struct Bench {
    backend: Arc<OrkBackend>,
    engine: Engine,
}

impl Bench {
    fn new() -> Self {
        let board = Board::new(&DeviceOptions::default().emulated);
        let device = Device::on_board(&board, &DeviceOptions::default()).unwrap();
        let driver = Arc::new(Driver::new(device, DriverOptions::default()).unwrap());
        let accelerator = Arc::new(NpuAccelerator::new(driver));
        let backend = OrkBackend::new(linked_host(), accelerator, BackendOptions::default()).unwrap();
        let engine = Engine::init(Some(Arc::clone(&backend)), LogSink::discard()).unwrap();
        Self { backend, engine }
    }

    fn logits(&self, route: Route, path: &Path) -> LogitTable {
        self.backend.set_route(route);
        let go_on = &mut |_| ControlFlow::Continue(());
        let model = Model::load(&self.engine, path, &LoadOptions::default(), go_on).unwrap();
        let tokens = model.tokenize(TEXT).unwrap();
        let context =
            ContextOptions { batch_tokens: Some(64), threads: Some(2), ..ContextOptions::default() };
        logits(&model, &tokens, &context).unwrap()
    }
}

/// Root of the mean square of the difference, in units of the spread of the reference.
fn error(reference: &LogitTable, candidate: &LogitTable) -> f64 {
    let (mut difference, mut spread) = (0.0, 0.0);
    for position in 0..reference.tokens().len() {
        let (p, q) = (reference.row(position).unwrap(), candidate.row(position).unwrap());
        let mean = p.iter().map(|&p| f64::from(p)).sum::<f64>() / p.len() as f64;
        for (&p, &q) in p.iter().zip(q) {
            difference += f64::from(p - q).powi(2);
            spread += (f64::from(p) - mean).powi(2);
        }
    }
    (difference / spread).sqrt()
}

/// The weights that must have been multiplied on the NPU, in layer 1; the whole of their names follows "blk.1.".
fn weights_of(family: Family) -> &'static [&'static str] {
    match family {
        Family::Qwen2 | Family::Qwen3 | Family::Gemma3 | Family::Lfm2 => {
            &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        }
        Family::Qwen3Moe => &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp"],
        Family::Phi3 => &["attn_qkv", "attn_output", "ffn_up", "ffn_down"],
        Family::Mamba2 => &["ssm_in", "ssm_out"],
    }
}

#[test]
fn models_of_many_kinds_agree() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new();
    logits_of_every_family(&bench, folder.path());
    a_model_in_several_files(&bench, folder.path());
}

fn logits_of_every_family(bench: &Bench, folder: &Path) {
    let plain = Family::ALL.map(|family| TinyFamily::new(family, 5));
    let wide = TinyFamily { vocabulary: 151_936, ..TinyFamily::new(Family::Qwen2, 6) };
    for tiny in plain.into_iter().chain([wide]) {
        let family = tiny.family;
        let label = format!("{}, {} tokens", family.name(), tiny.vocabulary);
        let path = folder.join("model.gguf");
        tiny.write(&path).unwrap();
        let cpu = bench.logits(Route::Cpu, &path);
        bench.backend.reset_census();
        let npu = bench.logits(Route::Npu, &path);
        let census = bench.backend.census();
        let (executed, used) = (&census.executed, &census.executed.weights);
        assert_eq!((executed.software, executed.failed), (0, 0), "{label}: {census}");
        for part in weights_of(family) {
            assert!(used.contains_key(&format!("blk.1.{part}.weight")), "{label}, {part}: {used:?}");
        }
        if family == Family::Qwen3Moe {
            for part in ["gate", "up", "down"] {
                let experts = (0..8)
                    .filter(|expert| used.contains_key(&format!("blk.1.ffn_{part}_exps.weight[{expert}]")));
                assert!(experts.count() > 3, "{label}, {part}: {used:?}");
            }
        }
        if family == Family::Lfm2 {
            assert!(used.contains_key("blk.0.shortconv.in_proj.weight"), "{label}: {used:?}");
        }
        // The output is the embedding, and one product of its size.
        let output = &used["token_embd.weight"];
        assert_eq!(output.n as usize, cpu.vocabulary(), "{label}");
        assert!(cpu.vocabulary() >= tiny.vocabulary, "{label}");

        let error = error(&cpu, &npu);
        let divergence = Divergence::between(&cpu, &npu, 0).unwrap();
        println!("{label}: logits off by {error:.4}, mean KL {:.5}", divergence.mean_kl);
        assert!(error > 0.0 && error < LOGIT_ERROR_MAX, "{label}: logits are off by {error}");
    }
}

/// Weights of several mappings, the same numbers.
fn a_model_in_several_files(bench: &Bench, folder: &Path) {
    let tiny = TinyModel::default();
    let whole = folder.join("whole.gguf");
    tiny.write(&whole).unwrap();
    let paths = tiny.write_split(folder, "split", 3).unwrap();
    assert_eq!(paths.len(), 3);
    bench.backend.reset_census();
    let split = bench.logits(Route::Npu, &paths[0]);
    assert_eq!(bench.backend.census().executed.weights.len() as u64, tiny.matmuls_per_evaluation());
    assert_eq!(split, bench.logits(Route::Npu, &whole));
}
