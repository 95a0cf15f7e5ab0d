// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model with a weight that cannot be loaded, in a program that asks llama.cpp only, as those with the plug-in do.
//!
//! A process of its own, since the accelerator of an engine cannot be exchanged.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "plain calls of llama.cpp on a model the test owns")]

mod support;

use llama_cpp_sys_2 as sys;
use ork_engine::tiny::TinyModel;
use ork_engine::{Engine, LogSink};
use ork_ggml::{BackendError, MinRows, Route};
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use support::naive::{Fault, NaiveAccelerator};
use support::{backend, routed};

/// What `llama_decode` says about a first batch; that the model can be loaded is asserted.
fn decoded(path: &Path, mmap: bool) -> i32 {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    unsafe {
        let mut params = sys::llama_model_default_params();
        params.n_gpu_layers = 0;
        params.load_mode = if mmap { sys::LLAMA_LOAD_MODE_MMAP } else { sys::LLAMA_LOAD_MODE_NONE };
        let model = sys::llama_model_load_from_file(path.as_ptr(), params);
        assert!(!model.is_null());
        let mut params = sys::llama_context_default_params();
        (params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch) = (64, 64, 1, 1);
        let context = sys::llama_init_from_model(model, params);
        assert!(!context.is_null());
        let mut tokens = [1, 2, 3];
        let batch = sys::llama_batch_get_one(tokens.as_mut_ptr(), tokens.len() as i32);
        let status = sys::llama_decode(context, batch);
        sys::llama_free(context);
        sys::llama_model_free(model);
        status
    }
}

#[test]
fn a_model_without_a_weight_computes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tiny = TinyModel::default();
    tiny.write(&path).unwrap();
    for rows in [tiny.feed_forward as usize, usize::MAX] {
        let accelerator =
            NaiveAccelerator { fault: Fault::LoadFailsForRows(rows), ..NaiveAccelerator::default() };
        let backend = backend(accelerator, routed(Route::Npu));
        let engine = Engine::init(Some(Arc::clone(&backend)), LogSink::discard()).unwrap();
        for route in [Route::Npu, Route::Auto { min_rows: MinRows::Rows(1) }] {
            for mmap in [true, false] {
                backend.set_route(route);
                backend.reset_census();
                backend.take_error();
                let status = decoded(&path, mmap);
                let label = format!("{route}, mapped {mmap}: {}", backend.census());
                if rows == usize::MAX {
                    assert_eq!((status, backend.census().executed.failed), (0, 0), "{label}");
                    assert!(backend.census().executed.matmuls > 0, "{label}");
                    continue;
                }
                assert!(status < 0, "{label}");
                assert_eq!(backend.census().executed.failed, 1, "{label}");
                let error = backend.take_error();
                assert!(matches!(error, Some(BackendError::Load { .. })), "the first: {error:?}");
            }
        }
        drop(engine);
    }
}
