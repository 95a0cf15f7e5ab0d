// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights that could not be loaded, in hosts that are not told: products with them fail and say why.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "plain calls of ggml on tensors the test owns")]

mod support;

use llama_cpp_sys_2 as sys;
use ork_ggml::{Absent, BackendError, MinRows, OrkBackend, Route};
use std::sync::Arc;
use support::naive::{Fault, NaiveAccelerator};
use support::*;

const K: usize = 16;
const N: usize = 8;
const M: usize = 3;

/// A stack of two matrices and its product, as a host makes them that looks at no status.
struct Product {
    w: *mut sys::ggml_tensor,
    out: *mut sys::ggml_tensor,
    x: *mut sys::ggml_tensor,
    graph: *mut sys::ggml_cgraph,
    stream: Stream,
    buffers: [Buffer; 2],
    _tensors: [Tensors; 2],
}

impl Product {
    /// With a weight in memory of the device.
    fn written(backend: &OrkBackend) -> Self {
        Self::with(backend, |tensors| Buffer::weights(tensors, weight_type(backend)))
    }

    /// With a weight that lies in `file`.
    fn mapped(backend: &OrkBackend, file: &mut [f32]) -> Self {
        let (start, bytes) = (file.as_mut_ptr(), size_of_val(file));
        Self::with(backend, |tensors| unsafe {
            let buffer =
                sys::ggml_backend_dev_buffer_from_host_ptr(device(backend), start.cast(), bytes, bytes);
            sys::ggml_backend_buffer_set_usage(buffer, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            let w = sys::ggml_get_first_tensor(tensors.0);
            // llama.cpp's loader drops the status as well.
            sys::ggml_backend_tensor_alloc(buffer, w, start.cast());
            Buffer(buffer)
        })
    }

    fn with(backend: &OrkBackend, place: impl FnOnce(&Tensors) -> Buffer) -> Self {
        let tensors = Tensors::new();
        let w = tensors.matrix(sys::GGML_TYPE_F32, [K, N, 2, 1], "blk.0.w.weight");
        let weights = place(&tensors);
        let nodes = Tensors::new();
        let x = nodes.matrix(sys::GGML_TYPE_F32, [K, M, 2, 1], "x");
        let out = unsafe { sys::ggml_mul_mat(nodes.0, w, x) };
        let graph = graph(&nodes, &[out]);
        let activations = Buffer::plain(&nodes, cpu_type());
        let stream = Stream::ork(backend);
        Self { w, out, x, graph, stream, buffers: [weights, activations], _tensors: [tensors, nodes] }
    }

    /// The device takes the product, so that nobody else does, and fails; what it says.
    fn failure(&self, backend: &OrkBackend) -> (String, Arc<BackendError>) {
        let before = backend.census().executed;
        assert!(unsafe { sys::ggml_backend_supports_op(self.stream.0, self.out) });
        assert_eq!(self.stream.compute(self.graph), sys::GGML_STATUS_FAILED);
        let executed = backend.census().executed;
        assert_eq!((executed.failed, executed.matmuls, executed.software), (before.failed + 1, 0, 0));
        match backend.take_error() {
            Some(error @ BackendError::NotLoaded { .. }) => {
                assert!(error.to_string().contains("blk.0.w.weight"), "{error}");
                assert!(error.hint().is_some());
                let BackendError::NotLoaded { source, .. } = error else { unreachable!() };
                (source.to_string(), source)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn routes() -> [Route; 2] {
    [Route::Npu, Route::Auto { min_rows: MinRows::Rows(100) }]
}

#[test]
fn a_weight_that_fails_to_load_fails_its_products() {
    let fault = Fault::LoadFailsForRows(N);
    for route in routes() {
        let backend = backend(NaiveAccelerator { fault, ..NaiveAccelerator::default() }, routed(route));
        let product = Product::written(&backend);
        let values = numbers(1, K * N * 2);
        set_f32(product.w, &values);
        assert!(matches!(backend.take_error(), Some(BackendError::Load { .. })));
        let (why, source) = product.failure(&backend);
        assert!(why.contains("cannot load weight blk.0.w.weight[0]"), "{why}");
        assert!(matches!(*source, BackendError::Load { .. }));
        // What the host wrote is there to read.
        assert_eq!(get_f32(product.w), values, "{route}");
        assert!(backend.take_error().is_none());
        unsafe { sys::ggml_backend_buffer_clear(product.buffers[0].0, 0) };
        assert_eq!(get_f32(product.w), vec![0.0; values.len()], "{route}");
    }
}

#[test]
fn a_mapped_weight_that_fails_to_load_fails_its_products() {
    let fault = Fault::LoadFailsForRows(N);
    for route in routes() {
        let backend = backend(NaiveAccelerator { fault, ..NaiveAccelerator::default() }, routed(route));
        let mut file = numbers(1, K * N * 2);
        let product = Product::mapped(&backend, &mut file);
        assert!(matches!(backend.take_error(), Some(BackendError::Load { .. })));
        assert!(matches!(*product.failure(&backend).1, BackendError::Load { .. }));
    }
}

/// Of a model that is not mapped the pack cannot be known.
#[test]
fn a_weight_without_the_pack_that_is_required_fails_its_products() {
    for route in routes() {
        let backend = backend(NaiveAccelerator::default(), routed(route));
        backend.find_packs(Box::new(|_| Ok(None)), Absent::Refuse);
        let product = Product::written(&backend);
        set_f32(product.w, &numbers(1, K * N * 2));
        assert!(matches!(backend.take_error(), Some(BackendError::Unmapped { .. })));
        assert!(matches!(*product.failure(&backend).1, BackendError::Unmapped { .. }));
    }
}

/// A host that writes to shared memory in silence: the weight is offered when work with it is planned.
#[test]
fn a_weight_that_fails_while_work_is_planned_fails_that_work() {
    let fault = Fault::LoadFailsForRows(N);
    let route = Route::Auto { min_rows: MinRows::Rows(1) };
    let backend = backend(NaiveAccelerator { fault, ..NaiveAccelerator::default() }, routed(route));
    let product = Product::written(&backend);
    assert!(unsafe { sys::ggml_backend_supports_op(product.stream.0, product.out) });
    assert!(matches!(backend.take_error(), Some(BackendError::Load { .. })));
    assert!(matches!(*product.failure(&backend).1, BackendError::Load { .. }));
}

#[test]
fn half_a_weight_is_multiplied_by_no_one() {
    for route in routes() {
        let backend = backend(NaiveAccelerator::default(), routed(route));
        let product = Product::written(&backend);
        let values = numbers(1, K * N * 2);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let write = |from: usize, to: usize| unsafe {
            let part = &bytes[from..to];
            sys::ggml_backend_tensor_set(product.w, part.as_ptr().cast(), from, part.len());
        };
        write(0, 200);
        let why = product.failure(&backend).0;
        assert!(why.contains("200 of its 1024 bytes were written"), "{why}");
        write(300, 1024);
        assert!(matches!(backend.take_error(), Some(BackendError::WriteOutOfOrder { .. })));
        assert!(matches!(*product.failure(&backend).1, BackendError::WriteOutOfOrder { .. }));
        // And from the start: all is well.
        write(0, 512);
        write(512, 1024);
        let input = numbers(2, K * M * 2);
        set_f32(product.x, &input);
        assert_eq!(product.stream.compute(product.graph), sys::GGML_STATUS_SUCCESS);
        let halves = values.chunks(K * N).zip(input.chunks(K * M));
        let want: Vec<f64> = halves.flat_map(|(w, x)| reference(w, x, K)).collect();
        assert!(worst(&get_f32(product.out), &want) < 1e-5);
        assert!(backend.take_error().is_none());
    }
}
