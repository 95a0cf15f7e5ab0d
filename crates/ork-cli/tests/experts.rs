// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mixtures of experts on the emulated NPU: which are there, which stay on the CPU in four bits, and that nobody can tell
//! from the result. A test program of its own: llama.cpp exists once per process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use ork_device::{Board, Device, DeviceOptions};
use ork_driver::{Driver, DriverOptions};
use ork_engine::tiny::{Family, TinyFamily};
use ork_engine::{
    ContextOptions, Divergence, Engine, LoadOptions, LogSink, LogitTable, Model, Observation, ObservedChoice,
    ObservedProduct, Observer, linked_host, logits,
};
use ork_ggml::{
    BackendOptions, ClaimCensus, ExpertCache, ExpertOptions, ExpertSkew, ModelPack, NpuAccelerator,
    OrkBackend, PackChoice, Route,
};

const TEXT: &str = "A weight is read once and multiplied often; the rows that meet it come and go, and nothing of them \
                    is kept but the sums. ";
const LAYERS: usize = 2;
const EXPERTS: usize = 8;
const USED: u64 = 3;

fn ork(args: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ork"));
    let output = command.env_clear().stdin(Stdio::null()).args(args).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {said}");
    (String::from_utf8(output.stdout).unwrap(), said)
}

/// Evaluates the text under a route with these experts, and says what was done.
fn evaluated(path: &Path, route: Route, experts: ExpertOptions, pack: bool) -> (LogitTable, ClaimCensus) {
    let board = Board::new(&DeviceOptions::default().emulated);
    let device = Device::on_board(&board, &DeviceOptions::default()).unwrap();
    let driver = Arc::new(Driver::new(device, DriverOptions::default()).unwrap());
    let soc = driver.soc();
    let accelerator = Arc::new(NpuAccelerator::new(driver));
    let options = BackendOptions { route, experts, ..BackendOptions::default() };
    let backend = OrkBackend::new(linked_host(), accelerator, options).unwrap();
    let engine = Engine::init(Some(Arc::clone(&backend)), LogSink::discard()).unwrap();
    if pack {
        let pack = ModelPack::find(path, &PackChoice::Require, soc).unwrap().unwrap();
        backend.set_pack(Some(pack));
    }
    let model = Model::load(&engine, path, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()));
    let model = model.unwrap();
    backend.set_pack(None);
    let tokens = model.tokenize(TEXT).unwrap();
    let context = ContextOptions { batch_tokens: Some(32), threads: Some(2), ..ContextOptions::default() };
    let table = logits(&model, &tokens, &context).unwrap();
    (table, backend.census())
}

fn cached(bytes: u64, skew: &Path) -> ExpertOptions {
    ExpertOptions {
        cache: ExpertCache::Bytes(bytes),
        skew: Some(skew.to_owned()),
        ..ExpertOptions::default()
    }
}

/// The choices of the last layer, as llama.cpp's CPU backend makes them.
#[derive(Default)]
struct Choices(Arc<Mutex<Vec<i32>>>);

impl Observer for Choices {
    fn wants(&mut self, _product: &ObservedProduct) -> bool {
        false
    }

    fn take(&mut self, _product: &ObservedProduct, _rows: &[f32]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn wants_choice(&mut self, choice: &ObservedChoice) -> bool {
        choice.stack == "blk.1.ffn_down_exps.weight"
    }

    fn take_choice(&mut self, choice: &ObservedChoice, experts: &[i32]) -> ControlFlow<()> {
        assert_eq!((choice.experts, choice.k, choice.n), (EXPERTS, 96, 128));
        self.0.lock().unwrap().extend(experts);
        ControlFlow::Continue(())
    }
}

#[test]
fn experts_are_counted_placed_and_packed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let (model, text, skew_file) = (path("moe.gguf"), path("text.txt"), path("skew.toml"));
    TinyFamily::new(Family::Qwen3Moe, 5).write(&model).unwrap();
    fs::write(&text, TEXT.repeat(9)).unwrap();
    let skew = measured(&model, &text, &skew_file);
    hot_and_cold_are_one(&model, &skew_file, &skew);
    experts_of_a_pack(&model, &skew_file, &skew);
}

fn measured(model: &Path, text: &Path, output: &Path) -> ExpertSkew {
    let [m, f, o] = [model, text, output].map(|path| path.to_str().unwrap());
    let (out, said) = ork(&["moe-skew", "-m", m, "-f", f, "-o", o, "--set", "calibrate.window_tokens=200"]);
    assert!(said.contains("wrote") && out.contains("hit rate") && out.contains("evenness"), "{out}{said}");
    let skew = ExpertSkew::read(output).unwrap();
    assert_eq!(skew.layers.len(), LAYERS);
    for (number, layer) in skew.layers.iter().enumerate() {
        assert_eq!((layer.layer as usize, layer.counts.len()), (number, EXPERTS));
        assert_eq!(layer.chosen(), skew.tokens * USED);
        assert_eq!((layer.stacks.len(), layer.expert_bytes), (3, 3 * 96 * 128));
        // Random weights, and yet not all experts alike: a table that was read as if it were contiguous would show
        // each expert once for every token.
        assert!(layer.evenness() < 0.999 && layer.coverage(2) > 0.3, "{layer:?}");
    }
    skew
}

fn hot_and_cold_are_one(model: &Path, skew_file: &Path, skew: &ExpertSkew) {
    let all = skew.bytes();
    let (cold, census) = evaluated(model, Route::Npu, cached(0, skew_file), false);
    assert_eq!((census.executed.experts.hot, census.holding.cold), (0, (LAYERS * EXPERTS * 3) as u64));
    let (mixed, census) = evaluated(model, Route::Npu, cached(all / 4, skew_file), false);
    let used = census.executed.experts;
    assert_eq!(census.holding.cold, (LAYERS * (EXPERTS - 2) * 3) as u64);
    assert!(used.hot > 0 && used.cold > 0, "{census}");
    for layer in &skew.layers {
        for (rank, expert) in layer.by_use().into_iter().enumerate() {
            let name = format!("{}[{expert}]", layer.stacks[0]);
            if let Some(weight) = census.executed.weights.get(&name) {
                assert_eq!(weight.cold, if rank < 2 { 0 } else { weight.matmuls }, "{name}");
            }
        }
    }
    let (hot, census) = evaluated(model, Route::Npu, cached(all, skew_file), false);
    assert_eq!((census.executed.experts.cold, census.holding.cold), (0, 0));
    assert!(cold == mixed && cold == hot, "where an expert is shows in the logits");

    // Against the whole model on the CPU: the error of four bits in the experts, and of int8 elsewhere. Without a cache it is int8
    // alone.
    let (cpu, _) = evaluated(model, Route::Cpu, ExpertOptions::default(), false);
    let (int8, census) = evaluated(model, Route::Npu, ExpertOptions::default(), false);
    assert_eq!((census.executed.experts.cold, census.holding.cold), (0, 0));
    let kl = |table| Divergence::between(&cpu, table, 0).unwrap().mean_kl;
    assert!(kl(&int8) < 0.03 && kl(&cold) < 0.2 && kl(&cold) > kl(&int8), "{} {}", kl(&int8), kl(&cold));

    // What the accelerator was given are the choices that the CPU makes, expert by expert.
    let engine = Engine::init(None, LogSink::discard()).unwrap();
    let model = Model::load(&engine, model, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()));
    let model = model.unwrap();
    let choices = Choices::default();
    let seen = Arc::clone(&choices.0);
    let context = ContextOptions {
        context_tokens: Some(256),
        batch_tokens: Some(32),
        threads: Some(2),
        ..ContextOptions::default()
    };
    let mut observation = Observation::new(&model, &context, choices).unwrap();
    let tokens = model.tokenize(TEXT).unwrap();
    observation.evaluate(&tokens).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len() as u64, tokens.len() as u64 * USED);
    for chosen in seen.chunks_exact(USED as usize) {
        let mut different = chosen.to_vec();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), USED as usize, "a token chooses different experts: {chosen:?}");
    }
    let rows = |expert: usize| {
        let name = format!("blk.1.ffn_down_exps.weight[{expert}]");
        census.executed.weights.get(&name).map_or(0, |weight| weight.rows)
    };
    // int8 elsewhere moves a choice now and then.
    let moved: u64 = (0..EXPERTS)
        .map(|expert| {
            let counted = seen.iter().filter(|chosen| **chosen == expert as i32).count() as u64;
            counted.abs_diff(rows(expert))
        })
        .sum();
    assert!(moved * 20 < seen.len() as u64, "{moved} of {} choices differ", seen.len());
}

fn experts_of_a_pack(model: &Path, skew_file: &Path, skew: &ExpertSkew) {
    let pack = ModelPack::beside(model);
    let [m, o] = [model, &pack].map(|path| path.to_str().unwrap());
    ork(&["pack", "-m", m, "-o", o, "--scheme", "i4a8-nf4"]);
    let stacked = (LAYERS * EXPERTS * 3) as u64;
    let (tiles, census) = evaluated(model, Route::Npu, ExpertOptions::default(), true);
    let from_pack: u64 = census.packs.loaded.values().sum();
    assert!(from_pack > stacked && census.packs.missed.is_empty(), "{census}");
    assert_eq!(from_pack, census.holding.loaded, "{census}");
    // The tiles of the pack on the NPU, its codes on the CPU, and some of both.
    for bytes in [0, skew.bytes() / 2, skew.bytes()] {
        let (table, census) = evaluated(model, Route::Npu, cached(bytes, skew_file), true);
        assert!(table == tiles, "{bytes}");
        assert_eq!(census.packs.loaded.values().sum::<u64>(), from_pack);
        assert_eq!(census.holding.cold == 0, bytes == skew.bytes(), "{census}");
    }
}
