// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mapped model file is not copied into memory of the process. A test program of its own: it measures the process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ork_engine::tiny::{OutputMatrix, TinyModel, WeightType};
use ork_engine::{ContextOptions, Engine, Generation, LoadOptions, LogSink, Model, linked_host};
use ork_ggml::{
    AccelError, AccelErrorKind, Accelerator, BackendOptions, Decline, LoadedWeight, OrkBackend, Route,
    WeightRows,
};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Takes every weight, looks at all of it, and keeps nothing.
#[derive(Debug)]
struct Reader;

#[derive(Debug)]
struct Nothing {
    k: usize,
    n: usize,
}

impl Accelerator for Reader {
    fn describe(&self) -> String {
        "reads weights and keeps nothing".to_owned()
    }

    fn limits(&self, _: usize, _: usize) -> Result<(), Decline> {
        Ok(())
    }

    fn load(
        &self,
        _: &str,
        k: usize,
        n: usize,
        rows: &WeightRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        let mut row = vec![0.0; k];
        for j in 0..n {
            rows(j, &mut row);
        }
        Ok(Box::new(Nothing { k, n }))
    }
}

impl LoadedWeight for Nothing {
    fn k(&self) -> usize {
        self.k
    }

    fn n(&self) -> usize {
        self.n
    }

    fn matmul(&self, _: usize, _: &[f32], _: &mut [f32]) -> Result<(), AccelError> {
        Err(AccelError::new(AccelErrorKind::Unsupported, "nothing was kept"))
    }
}

/// Bytes of memory that belong to no file.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_mapped_file_stays_out_of_anonymous_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tiny = TinyModel {
        layers: 3,
        embedding: 768,
        feed_forward: 3072,
        heads: 12,
        kv_heads: 12,
        weight_type: WeightType::Q8_0,
        output: OutputMatrix::Tied,
        ..TinyModel::default()
    };
    tiny.write(&path).unwrap();
    let file_bytes = std::fs::metadata(&path).unwrap().len();
    assert!(file_bytes > 24 << 20, "{file_bytes} bytes are too few to see");

    let options = BackendOptions { route: Route::Npu, ..BackendOptions::default() };
    let backend = OrkBackend::new(linked_host(), Arc::new(Reader), options).unwrap();
    let engine = Engine::init(Some(Arc::clone(&backend)), LogSink::discard()).unwrap();
    let context = ContextOptions {
        context_tokens: Some(64),
        batch_tokens: Some(64),
        threads: Some(1),
        ..ContextOptions::default()
    };
    let grown = |route, mmap| {
        backend.set_route(route);
        let before = anonymous_bytes();
        let options = LoadOptions { mmap };
        let model = Model::load(&engine, &path, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        // Read straight into memory that the CPU shares, weights are seen when the first context is planned.
        drop(Generation::new(&model, &context).unwrap());
        let census = backend.census();
        assert_eq!(census.holding.live, tiny.matmuls_per_evaluation(), "{route}, mapped {mmap}: {census}");
        let grown = anonymous_bytes().saturating_sub(before);
        drop(model);
        assert_eq!(backend.census().holding.live, 0);
        grown
    };
    // The first load pays for what llama.cpp keeps for ever.
    grown(Route::Npu, true);
    for route in [Route::Npu, Route::default()] {
        let bytes = grown(route, true);
        assert!(bytes < file_bytes / 4, "{route}: {bytes} of {file_bytes} bytes were copied");
    }
    // The measure itself: read, not mapped, the file must be seen in memory that the CPU shares.
    let bytes = grown(Route::default(), false);
    assert!(bytes > file_bytes / 2, "{bytes} of {file_bytes} bytes: the measure sees nothing");
}
