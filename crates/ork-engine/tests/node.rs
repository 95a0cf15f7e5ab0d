// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device that takes whole graphs: what is multiplied where, and whose bytes the accelerator holds.

#![allow(clippy::undocumented_unsafe_blocks, reason = "plain calls of ggml on tensors the test owns")]

mod support;

use std::ffi::c_void;
use std::mem::transmute;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use llama_cpp_sys_2 as sys;
use ork_ggml::{Attention, BackendOptions, GraphHost, OrkBackend, Route};
use support::naive::{Counts, Fault, NaiveAccelerator};
use support::*;

/// The scheduler's functions of the linked ggml; the bindings have their own names for the same structs.
#[expect(clippy::missing_transmute_annotations, reason = "the fields have the types")]
fn graph_host() -> GraphHost {
    macro_rules! linked {
        ($($name:ident),*) => {
            GraphHost { $($name: unsafe { transmute::<*const c_void, _>(sys::$name as *const c_void) }),* }
        };
    }
    linked!(
        ggml_backend_dev_by_type,
        ggml_backend_dev_init,
        ggml_backend_dev_supports_op,
        ggml_backend_dev_memory,
        ggml_backend_dev_backend_reg,
        ggml_backend_reg_get_proc_address,
        ggml_backend_free,
        ggml_backend_sched_new,
        ggml_backend_sched_reset,
        ggml_backend_sched_alloc_graph,
        ggml_backend_sched_graph_compute,
        ggml_backend_sched_free
    )
}

fn node(route: Route) -> (Arc<OrkBackend>, Arc<Counts>, sys::ggml_backend_dev_t) {
    node_with(routed(route))
}

fn node_with(options: BackendOptions) -> (Arc<OrkBackend>, Arc<Counts>, sys::ggml_backend_dev_t) {
    let counts = Arc::new(Counts::default());
    let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
    let backend = backend(accelerator, options);
    let registration: sys::ggml_backend_reg_t = backend.registration().cast();
    assert_eq!(unsafe { sys::ggml_backend_reg_dev_count(registration) }, 1);
    backend.serve_graphs(graph_host());
    assert_eq!(unsafe { sys::ggml_backend_reg_dev_count(registration) }, 2);
    let device = unsafe { sys::ggml_backend_reg_dev_get(registration, 1) };
    (backend, counts, device)
}

const K: usize = 33;
const N: usize = 7;
const M: usize = 5;

/// `w · (x + x) + bias`: a product between two sums, all of it in the device's own memory.
struct Sandwich {
    w: *mut sys::ggml_tensor,
    other: *mut sys::ggml_tensor,
    out: *mut sys::ggml_tensor,
    graph: *mut sys::ggml_cgraph,
    stream: Stream,
    x: Vec<f32>,
    bias: Vec<f32>,
    nodes: Tensors,
    _buffers: [Buffer; 2],
    _weights: Tensors,
}

impl Sandwich {
    fn new(device: sys::ggml_backend_dev_t) -> Self {
        let buft = unsafe { sys::ggml_backend_dev_buffer_type(device) };
        let weights = Tensors::new();
        let w = weights.matrix(sys::GGML_TYPE_F32, [K, N, 1, 1], "w");
        let other = weights.matrix(sys::GGML_TYPE_F32, [K, N, 1, 1], "other");
        let weight_buffer = Buffer::plain(&weights, buft);
        let nodes = Tensors::new();
        let x = nodes.matrix(sys::GGML_TYPE_F32, [K, M, 1, 1], "x");
        let bias = nodes.matrix(sys::GGML_TYPE_F32, [N, M, 1, 1], "bias");
        let out = unsafe {
            let sum = sys::ggml_add(nodes.0, x, x);
            sys::ggml_add(nodes.0, sys::ggml_mul_mat(nodes.0, w, sum), bias)
        };
        let graph = graph(&nodes, &[out]);
        let buffer = Buffer::plain(&nodes, buft);
        let stream = Stream(unsafe { sys::ggml_backend_dev_init(device, std::ptr::null()) });
        let (x_values, bias_values) = (numbers(3, K * M), numbers(4, N * M));
        set_f32(x, &x_values);
        set_f32(bias, &bias_values);
        let _buffers = [weight_buffer, buffer];
        Self {
            w,
            other,
            out,
            graph,
            stream,
            x: x_values,
            bias: bias_values,
            nodes,
            _buffers,
            _weights: weights,
        }
    }

    /// Computes, and compares with `w` as the caller believes it to be.
    fn check(&self, w: &[f32], what: &str) {
        assert_eq!(self.stream.compute(self.graph), sys::GGML_STATUS_SUCCESS, "{what}");
        let doubled: Vec<f32> = self.x.iter().map(|x| x + x).collect();
        let want: Vec<f64> = reference(w, &doubled, K)
            .iter()
            .zip(&self.bias)
            .map(|(product, bias)| product + f64::from(*bias))
            .collect();
        let error = worst(&get_f32(self.out), &want);
        assert!(error < 1e-5, "{what}: {error}");
    }
}

#[test]
fn products_go_to_the_npu_and_the_rest_to_the_cpu() {
    let (backend, counts, device) = node(Route::Npu);
    let sandwich = Sandwich::new(device);
    let w = numbers(5, K * N);
    set_f32(sandwich.w, &w);
    assert_eq!(counts.live.load(SeqCst), 0, "nobody knows yet that it is a weight");
    for round in 1..=3 {
        sandwich.check(&w, "unchanged");
        assert_eq!(backend.census().executed.matmuls, round);
        assert_eq!((counts.live.load(SeqCst), counts.loads.load(SeqCst)), (1, 1), "taken once");
    }
    assert!(backend.take_error().is_none());
    drop(sandwich);
    assert_eq!(counts.live.load(SeqCst), 0, "nothing outlives the buffer");
}

#[test]
fn without_the_npu_the_cpu_computes_all_of_it() {
    let (backend, counts, device) = node(Route::Cpu);
    let sandwich = Sandwich::new(device);
    let w = numbers(5, K * N);
    set_f32(sandwich.w, &w);
    sandwich.check(&w, "route cpu");
    assert_eq!((backend.census().executed.matmuls, counts.loads.load(SeqCst)), (0, 0));
}

#[test]
fn a_matrix_that_changes_is_taken_anew() {
    let (backend, counts, device) = node(Route::Npu);
    let sandwich = Sandwich::new(device);
    let mut w = numbers(5, K * N);
    set_f32(sandwich.w, &w);
    sandwich.check(&w, "first");

    // A few bytes in its middle, from outside.
    let fresh = numbers(6, 2 * K);
    w[3 * K..5 * K].copy_from_slice(&fresh);
    let offset = 3 * K * size_of::<f32>();
    unsafe {
        let bytes = size_of_val(fresh.as_slice());
        sys::ggml_backend_tensor_set(sandwich.w, fresh.as_ptr().cast(), offset, bytes);
    }
    sandwich.check(&w, "a part rewritten from outside");
    assert_eq!(counts.loads.load(SeqCst), 2);

    // All of it, by an operation of another graph.
    let w = numbers(7, K * N);
    set_f32(sandwich.other, &w);
    let copy = unsafe { sys::ggml_cpy(sandwich.nodes.0, sandwich.other, sandwich.w) };
    let copying = graph(&sandwich.nodes, &[copy]);
    assert_eq!(sandwich.stream.compute(copying), sys::GGML_STATUS_SUCCESS);
    assert_eq!(counts.live.load(SeqCst), 0, "what was held is out of date");
    sandwich.check(&w, "overwritten by a graph");
    assert_eq!((counts.loads.load(SeqCst), backend.census().executed.matmuls), (3, 3));

    // And by the very graph that multiplies by it: nothing may be taken before that has run.
    let w = numbers(8, K * N);
    set_f32(sandwich.other, &w);
    let both = graph(&sandwich.nodes, &[copy, sandwich.out]);
    assert_eq!(sandwich.stream.compute(both), sys::GGML_STATUS_SUCCESS);
    assert_eq!(backend.census().executed.matmuls, 3, "left to the CPU");
    let through_both = get_f32(sandwich.out);
    sandwich.check(&w, "afterwards");
    let want: Vec<f64> = get_f32(sandwich.out).into_iter().map(f64::from).collect();
    assert!(worst(&through_both, &want) < 1e-5);
    assert!(backend.take_error().is_none());
}

/// Keys of a cache in the device's memory, seen through a view, times queries.
#[test]
fn attention_goes_to_the_npu_when_it_is_told_to() {
    let (d, keys, heads, m) = (32, 48, 2, 40);
    for (attention, products) in [(Attention::Off, 0), (Attention::On, heads as u64)] {
        let (backend, counts, device) = node_with(BackendOptions { attention, ..routed(Route::Npu) });
        let buft = unsafe { sys::ggml_backend_dev_buffer_type(device) };
        let nodes = Tensors::new();
        let cache = nodes.matrix(sys::GGML_TYPE_F32, [d, heads, keys, 1], "cache_k");
        let q = nodes.matrix(sys::GGML_TYPE_F32, [d, m, heads, 1], "q");
        let out = unsafe { sys::ggml_mul_mat(nodes.0, sys::ggml_permute(nodes.0, cache, 0, 2, 1, 3), q) };
        let graph = graph(&nodes, &[out]);
        let _buffer = Buffer::plain(&nodes, buft);
        let stream = Stream(unsafe { sys::ggml_backend_dev_init(device, std::ptr::null()) });
        let (k_values, q_values) = (numbers(1, d * heads * keys), numbers(2, d * m * heads));
        set_f32(cache, &k_values);
        set_f32(q, &q_values);
        assert_eq!(stream.compute(graph), sys::GGML_STATUS_SUCCESS, "{:?}", backend.take_error());
        let mut want = Vec::new();
        for head in 0..heads {
            let rows = (0..keys).flat_map(|key| &k_values[(key * heads + head) * d..][..d]);
            let matrix: Vec<f32> = rows.copied().collect();
            want.extend(reference(&matrix, &q_values[head * m * d..][..m * d], d));
        }
        assert!(worst(&get_f32(out), &want) < 1e-5, "{attention:?}");
        assert_eq!(backend.census().executed.matmuls, products, "{attention:?}");
        assert_eq!(counts.live.load(SeqCst), 0, "nothing of it stays");
        assert!(backend.take_error().is_none());
    }
}

/// A matrix that the accelerator was to take and could not fails the graph: nothing is computed some other way in silence.
#[test]
fn a_matrix_that_fails_to_load_fails_the_graph() {
    let fault = Fault::LoadFailsForRows(N);
    let backend = backend(NaiveAccelerator { fault, ..NaiveAccelerator::default() }, routed(Route::Npu));
    backend.serve_graphs(graph_host());
    let device = unsafe { sys::ggml_backend_reg_dev_get(backend.registration().cast(), 1) };
    let sandwich = Sandwich::new(device);
    set_f32(sandwich.w, &numbers(5, K * N));
    for _ in 0..2 {
        assert_eq!(sandwich.stream.compute(sandwich.graph), sys::GGML_STATUS_FAILED);
        assert!(backend.take_error().is_some());
    }
    assert_eq!(backend.census().executed.failed, 2);
}

/// Only the CPU has threads to be set, and so only a registration with this device has the function.
#[test]
fn the_host_can_set_threads() {
    type SetThreads = unsafe extern "C" fn(sys::ggml_backend_t, i32);
    let function = |backend: &OrkBackend| unsafe {
        let registration: sys::ggml_backend_reg_t = backend.registration().cast();
        let unknown =
            sys::ggml_backend_reg_get_proc_address(registration, c"ggml_backend_something".as_ptr());
        assert!(unknown.is_null());
        let found =
            sys::ggml_backend_reg_get_proc_address(registration, c"ggml_backend_set_n_threads".as_ptr());
        transmute::<*mut c_void, Option<SetThreads>>(found)
    };
    let alone = backend(NaiveAccelerator::default(), routed(Route::Npu));
    assert!(function(&alone).is_none());
    let (backend, _, device) = node(Route::Npu);
    let set_threads = function(&backend).unwrap();
    let sandwich = Sandwich::new(device);
    let w = numbers(5, K * N);
    set_f32(sandwich.w, &w);
    for stream in [&sandwich.stream, &Stream::ork(&backend)] {
        unsafe { set_threads(stream.0, 3) };
    }
    sandwich.check(&w, "with three threads");
}

#[test]
fn properties_agree_with_the_functions() {
    let (backend, _, device) = node(Route::Npu);
    unsafe {
        let mut props = std::mem::zeroed();
        sys::ggml_backend_dev_get_props(device, &raw mut props);
        assert_eq!(props.type_, sys::GGML_BACKEND_DEVICE_TYPE_GPU);
        assert_eq!(sys::ggml_backend_dev_type(device), props.type_);
        let name = std::ffi::CStr::from_ptr(sys::ggml_backend_dev_name(device));
        assert_eq!((name, std::ffi::CStr::from_ptr(props.name)), (c"ORK_NODE", c"ORK_NODE"));
        assert!(props.memory_total > 0 && props.memory_free <= props.memory_total, "that of the machine");
        assert!(!props.caps.async_ && !props.caps.host_buffer && !props.caps.events);
        assert!(!props.caps.buffer_from_host_ptr);
        let own = sys::ggml_backend_dev_buffer_type(device);
        assert!(sys::ggml_backend_buft_is_host(own));
        for (buft, wanted) in [(own, true), (cpu_type(), false), (weight_type(&backend), false)] {
            assert_eq!(sys::ggml_backend_dev_supports_buft(device, buft), wanted);
        }
    }
}
