// SPDX-License-Identifier: MIT OR Apache-2.0
//! An accelerator that fails while a model loads: the load fails, with the cause, and nothing leaks.
//!
//! A process of its own, since the accelerator of an engine cannot be exchanged.

mod support;

use ork_engine::tiny::TinyModel;
use ork_engine::{
    ContextOptions, Engine, EngineError, GenerateOptions, Generation, LoadOptions, LogSink, Model, Prompt,
};
use ork_ggml::{AccelErrorKind, BackendError, Route};
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::naive::{Counts, Fault, NaiveAccelerator};
use support::{backend, routed};

#[test]
fn a_failed_upload_fails_the_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tiny = TinyModel::default();
    tiny.write(&path).unwrap();
    let load = |engine: &Engine| {
        Model::load(engine, &path, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))
    };

    // gate and up have as many rows as the feed-forward is wide.
    let rows = tiny.feed_forward as usize;
    let counts = Arc::new(Counts::default());
    let make = |fault| {
        let accelerator =
            NaiveAccelerator { fault, counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
        backend(accelerator, routed(Route::Npu))
    };
    let engine = Engine::init(Some(make(Fault::LoadFailsForRows(rows))), LogSink::discard()).unwrap();
    match load(&engine) {
        Err(EngineError::Placement { source, .. }) => match &source {
            BackendError::Load { name, source, .. } => {
                assert!(name == "blk.0.ffn_gate.weight" || name == "blk.0.ffn_up.weight", "{name}");
                assert_eq!(source.kind(), AccelErrorKind::Device);
                assert_eq!(source.source().unwrap().to_string(), "EIO");
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    assert_eq!(counts.live.load(SeqCst), 0);
    drop(engine);

    // A second engine in the process, with a backend of its own; the retired one claims nothing.
    let second = make(Fault::NoRoomForRows(rows));
    second.set_route(Route::default());
    let engine = Engine::init(Some(Arc::clone(&second)), LogSink::discard()).unwrap();
    let model = load(&engine).unwrap();
    let holding = second.census().holding;
    assert_eq!((holding.no_room, holding.live), (4, tiny.matmuls_per_evaluation() - 4));
    let options = ContextOptions { threads: Some(1), ..ContextOptions::default() };
    let mut generation = Generation::new(&model, &options).unwrap();
    let prompt = Prompt::Raw("a".repeat(40));
    let options = GenerateOptions { max_tokens: 0, ..GenerateOptions::default() };
    generation.run(&prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    // Two layers of seven, without the four left out and those that see the last token only: the last layer's third
    // feed-forward matrix.
    assert_eq!(second.census().executed.matmuls, 9, "{}", second.census());
    drop(generation);
    drop((model, engine));

    // More engines, one after the other, than a context has room for devices.
    // SAFETY: a count of a list that only this thread changes.
    let devices = || unsafe { llama_cpp_sys_2::ggml_backend_dev_count() };
    let without = devices();
    for _ in 0..20 {
        let backend = make(Fault::default());
        let engine = Engine::init(Some(backend), LogSink::discard()).unwrap();
        assert_eq!(devices(), without + 1);
        let model = load(&engine).unwrap();
        drop(
            Generation::new(&model, &ContextOptions { threads: Some(1), ..ContextOptions::default() })
                .unwrap(),
        );
    }
    assert_eq!(devices(), without);
}
