// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models on the emulated board come and go, two at a time, and leave nothing behind. A test program of its own: llama.cpp
//! exists once per process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_device::{Board, Device, DeviceOptions, Live};
use ork_driver::{Driver, DriverOptions};
use ork_engine::tiny::{OutputMatrix, TinyModel};
use ork_engine::{
    ContextOptions, Engine, GenerateOptions, Generation, LoadOptions, LogSink, Model, Sampling, linked_host,
};
use ork_ggml::{BackendOptions, NpuAccelerator, OrkBackend, Route};

fn load(engine: &Engine, path: &Path) -> Model {
    Model::load(engine, path, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Greedy text of a model, from tokens.
fn text(generation: &mut Generation<'_>, tokens: &[i32]) -> String {
    let options = GenerateOptions { max_tokens: 5, sampling: Sampling::greedy() };
    let mut text = String::new();
    generation
        .run_tokens(tokens, &options, &mut |event| {
            if let ork_engine::Event::Text(piece) = event {
                text += piece;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    text
}

#[test]
fn models_come_and_go_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = |seed, output| TinyModel { seed, output, ..TinyModel::default() };
    let (first, second) = (tiny(1, OutputMatrix::Tied), tiny(2, OutputMatrix::Separate));
    let paths = [folder.path().join("first.gguf"), folder.path().join("second.gguf")];
    first.write(&paths[0]).unwrap();
    second.write(&paths[1]).unwrap();

    let board = Board::new(&DeviceOptions::default().emulated);
    let device = Device::on_board(&board, &DeviceOptions::default()).unwrap();
    let driver = Arc::new(Driver::new(device, DriverOptions::default()).unwrap());
    let accelerator = Arc::new(NpuAccelerator::new(Arc::clone(&driver)));
    let options = BackendOptions { route: Route::Npu, ..BackendOptions::default() };
    let backend = OrkBackend::new(linked_host(), accelerator, options).unwrap();
    let engine = Engine::init(Some(Arc::clone(&backend)), LogSink::discard()).unwrap();
    let weight_bytes = || driver.device().weight_bytes().iter().sum::<u64>();

    let context = ContextOptions {
        context_tokens: Some(128),
        batch_tokens: Some(32),
        threads: Some(2),
        ..ContextOptions::default()
    };
    let mut texts = Vec::new();
    for round in 0..3 {
        let models = [load(&engine, &paths[0]), load(&engine, &paths[1])];
        let holding = backend.census().holding;
        assert_eq!(
            holding.live,
            first.matmuls_per_evaluation() + second.matmuls_per_evaluation(),
            "round {round}"
        );
        assert!(weight_bytes() > 0);
        let tokens = models[0].tokenize("some words to begin with").unwrap();
        // Two models and two contexts of each, used in turn.
        let mut generations: Vec<Generation<'_>> =
            [0, 1, 0, 1].iter().map(|&model| Generation::new(&models[model], &context).unwrap()).collect();
        let said: Vec<String> = generations.iter_mut().map(|g| text(g, &tokens)).collect();
        assert_eq!(said[..2], said[2..], "round {round}: contexts of one model agree");
        assert_ne!(said[0], said[1], "round {round}: the models are different ones");
        texts.push(said);
        drop(generations);
        let [one, other] = models;
        drop(one);
        assert_eq!(backend.census().holding.live, second.matmuls_per_evaluation(), "round {round}");
        drop(other);
        assert_eq!((backend.census().holding.live, weight_bytes()), (0, 0), "round {round}");
    }
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "{texts:?}");
    assert!(backend.take_error().is_none());

    // ggml never forgets a backend; what it holds of the board can be let go nevertheless.
    backend.retire();
    drop(engine);
    drop(driver);
    // The board's own threads let go of the last job a moment after it was waited for.
    let end = Instant::now() + Duration::from_secs(5);
    while board.live() != Live::default() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(board.live(), Live::default());
}
