// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes to the accelerator by modelled cost, SwiGLU beside a product, and products of computed matrices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "plain calls of ggml on tensors the test owns")]

mod support;

use llama_cpp_sys_2 as sys;
use ork_engine::tiny::WeightType;
use ork_ggml::{Attention, BackendOptions, DeclineReason, MinRows, OrkBackend, Place, Route, Swiglu, Why};
use std::sync::Arc;
use support::naive::{Fault, NaiveAccelerator};
use support::*;

/// 20 us, and one more for each row.
fn slow(_k: usize, _n: usize, m: usize) -> f64 {
    20.0 + m as f64
}

/// An accelerator with a model of its time.
fn modelled(options: BackendOptions) -> Arc<OrkBackend> {
    backend(NaiveAccelerator { time: Some(slow), ..NaiveAccelerator::default() }, options)
}

#[test]
fn each_product_goes_where_it_is_modelled_to_be_faster() {
    let backend = modelled(BackendOptions::default());
    let tensors = Tensors::new();
    // 2048 x 1024 in Q8_0 are 2.2 MB, 102 us of the CPU's stream; 64 x 96 are nothing, and 0.12 us for each row.
    let large = tensors.matrix(sys::GGML_TYPE_Q8_0, [2048, 1024, 1, 1], "blk.0.large.weight");
    let small = tensors.matrix(sys::GGML_TYPE_Q8_0, [64, 96, 1, 1], "blk.0.small.weight");
    let _weights = Buffer::weights(&tensors, weight_type(&backend));
    set(large, &WeightType::Q8_0.encode(&numbers(1, 2048 * 1024), 2048));
    set(small, &WeightType::Q8_0.encode(&numbers(2, 64 * 96), 64));
    let nodes = Tensors::new();
    let stream = Stream::ork(&backend);
    let ask = |w: *mut sys::ggml_tensor, m: usize| unsafe {
        let x = nodes.matrix(sys::GGML_TYPE_F32, [(*w).ne[0] as usize, m, 1, 1], "x");
        sys::ggml_backend_supports_op(stream.0, sys::ggml_mul_mat(nodes.0, w, x))
    };
    // Decode: the accelerator streams the large one faster.
    assert!(ask(large, 1) && ask(large, 512));
    assert!(!ask(small, 1) && !ask(small, 512));
    let census = backend.census();
    assert_eq!(census.declined("MUL_MAT", DeclineReason::CpuFaster), 2);
    let example = &census.planning.declined[0].example;
    assert!(example.contains("m = 1 rows, 21 us modelled on the accelerator, 0 us on the CPU"), "{example}");
    let line = |kind: &str, place| {
        let lines = census.routes.iter().filter(|(key, _)| key.kind == kind && key.place == place);
        lines.map(|(key, used)| (key.why, used.asked, used.npu_ns, used.cpu_ns)).collect::<Vec<_>>()
    };
    let [one, many] = line("blk.*.large.weight", Place::Npu)[..] else { panic!("{}", census.route_table()) };
    assert_eq!((one.0, one.1, one.2), (Why::Cost, 1, Some(21_000)));
    assert!((one.3 as f64 / 1e3 - 2048.0 * 1024.0 * 34.0 / 32.0 / 21_900.0).abs() < 0.1, "{one:?}");
    assert_eq!((many.2, many.3), (Some(532_000), 21_474_836));
    assert_eq!(line("blk.*.small.weight", Place::Cpu).len(), 2);

    // Rows, where the settings name them, whatever it costs.
    backend.set_route(Route::Auto { min_rows: MinRows::Rows(2) });
    assert!(!ask(large, 1) && ask(small, 2));
    assert_eq!(backend.census().declined("MUL_MAT", DeclineReason::BelowMinRows), 1);
}

/// Gate, up and their SwiGLU; the products by weights in buffers of a type.
struct FeedForward {
    parts: [*mut sys::ggml_tensor; 3],
    graph: *mut sys::ggml_cgraph,
    _buffers: [Buffer; 2],
    _tensors: [Tensors; 2],
}

impl FeedForward {
    fn new(buft: sys::ggml_backend_buffer_type_t, [k, n, m]: [usize; 3]) -> Self {
        let tensors = Tensors::new();
        let gate = tensors.matrix(sys::GGML_TYPE_F32, [k, n, 1, 1], "blk.0.ffn_gate.weight");
        let up = tensors.matrix(sys::GGML_TYPE_F32, [k, n, 1, 1], "blk.0.ffn_up.weight");
        let weights = Buffer::weights(&tensors, buft);
        // Large enough that silu meets both of its ends.
        set_f32(gate, &numbers(5, k * n).iter().map(|w| w * 20.0).collect::<Vec<f32>>());
        set_f32(up, &numbers(6, k * n));
        let nodes = Tensors::new();
        let x = nodes.matrix(sys::GGML_TYPE_F32, [k, m, 1, 1], "x");
        let parts = unsafe {
            let gate = sys::ggml_mul_mat(nodes.0, gate, x);
            let up = sys::ggml_mul_mat(nodes.0, up, x);
            [gate, up, sys::ggml_swiglu_split(nodes.0, gate, up)]
        };
        let graph = graph(&nodes, &[parts[2]]);
        let activations = Buffer::plain(&nodes, cpu_type());
        set_f32(x, &numbers(7, k * m));
        Self { parts, graph, _buffers: [weights, activations], _tensors: [tensors, nodes] }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What ggml's CPU backend makes of a gate and an up.
fn swiglu_of_the_cpu(gate: &[f32], up: &[f32], n: usize) -> Vec<f32> {
    let nodes = Tensors::new();
    let shape = [n, gate.len() / n, 1, 1];
    let (a, b) =
        (nodes.matrix(sys::GGML_TYPE_F32, shape, "gate"), nodes.matrix(sys::GGML_TYPE_F32, shape, "up"));
    let out = unsafe { sys::ggml_swiglu_split(nodes.0, a, b) };
    let graph = graph(&nodes, &[out]);
    let _buffer = Buffer::plain(&nodes, cpu_type());
    set_f32(a, gate);
    set_f32(b, up);
    assert_eq!(Stream::cpu().compute(graph), sys::GGML_STATUS_SUCCESS);
    get_f32(out)
}

#[test]
fn swiglu_beside_a_product_is_that_of_the_cpu_to_the_last_bit() {
    for shape in [[32, 64, 1], [48, 96, 7], [33, 37, 19], [64, 160, 40]] {
        let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
        let feed_forward = FeedForward::new(weight_type(&backend), shape);
        let stream = Stream::ork(&backend);
        let [gate, up, out] = feed_forward.parts;
        assert!(unsafe { sys::ggml_backend_supports_op(stream.0, out) }, "{shape:?}");
        assert_eq!(
            stream.compute(feed_forward.graph),
            sys::GGML_STATUS_SUCCESS,
            "{:?}",
            backend.take_error()
        );
        let want = swiglu_of_the_cpu(&get_f32(gate), &get_f32(up), shape[1]);
        assert_eq!(bits(&get_f32(out)), bits(&want), "{shape:?}");
        let executed = backend.census().executed;
        assert_eq!((executed.swiglu.computed, executed.swiglu.overlapped, executed.matmuls), (1, 1, 2));
        assert_eq!(backend.census().planning.swiglu, 1);
    }
}

/// A SwiGLU whose operands another subgraph has made: nothing to overlap with, the same values.
#[test]
fn swiglu_alone() {
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let feed_forward = FeedForward::new(weight_type(&backend), [32, 64, 5]);
    let [gate, up, out] = feed_forward.parts;
    let stream = Stream::ork(&backend);
    assert_eq!(stream.compute(feed_forward.graph), sys::GGML_STATUS_SUCCESS);
    let want = get_f32(out);
    set_f32(out, &vec![0.0; want.len()]);
    for part in [gate, up] {
        unsafe { (*part).flags &= !16 };
    }
    assert_eq!(stream.compute(feed_forward.graph), sys::GGML_STATUS_SUCCESS);
    assert_eq!(bits(&get_f32(out)), bits(&want));
    let used = backend.census().executed.swiglu;
    assert_eq!((used.computed, used.overlapped), (2, 1));
}

#[test]
fn swiglu_is_left_where_its_products_are() {
    let asked = |options: BackendOptions, shape| {
        let backend = modelled(options);
        let feed_forward = FeedForward::new(weight_type(&backend), shape);
        let stream = Stream::ork(&backend);
        let [gate, _, out] = feed_forward.parts;
        let ask = |op| unsafe { sys::ggml_backend_supports_op(stream.0, op) };
        (ask(gate), ask(out))
    };
    let small = [32, 64, 5];
    assert_eq!(asked(routed(Route::Npu), small), (true, true));
    let off = BackendOptions { swiglu: Swiglu::Off, ..routed(Route::Npu) };
    assert_eq!(asked(off, small), (true, false));
    // The products are cheaper on the CPU, and so it stays there.
    assert_eq!(asked(BackendOptions::default(), small), (false, false));

    // Other kinds of GLU are not ours.
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let feed_forward = FeedForward::new(weight_type(&backend), small);
    let [gate, up, _] = feed_forward.parts;
    let stream = Stream::ork(&backend);
    for other in unsafe {
        let context = feed_forward._tensors[1].0;
        [sys::ggml_geglu_split(context, gate, up), sys::ggml_swiglu_split(context, gate, gate)]
    } {
        let same = unsafe { (*other).src[0] == (*other).src[1] };
        assert_eq!(unsafe { sys::ggml_backend_supports_op(stream.0, other) }, same);
    }
}

#[test]
fn a_product_that_fails_fails_its_swiglu() {
    for after in [0, 1] {
        let fault = Fault::MatMulFailsAfter(after);
        let backend = backend(NaiveAccelerator { fault, ..NaiveAccelerator::default() }, routed(Route::Npu));
        let feed_forward = FeedForward::new(weight_type(&backend), [32, 64, 5]);
        assert_eq!(Stream::ork(&backend).compute(feed_forward.graph), sys::GGML_STATUS_FAILED);
        assert!(backend.take_error().unwrap().to_string().contains("blk.0.ffn_gate.weight"));
        assert_eq!(backend.census().executed.swiglu.computed, 0);
    }
}

/// Keys of a cache in f16, seen through a permuted view, times queries; two heads of the one for each of the other.
struct Scores {
    out: *mut sys::ggml_tensor,
    graph: *mut sys::ggml_cgraph,
    want: Vec<f64>,
    _buffer: Buffer,
    _nodes: Tensors,
}

impl Scores {
    /// `planned` is called before there is memory, as ggml plans.
    fn new(planned: impl FnOnce(*mut sys::ggml_tensor)) -> Self {
        let (d, keys, heads, m) = (32, 48, 2, 40);
        let nodes = Tensors::new();
        // As the cache holds them: all heads of a key behind each other.
        let cache = nodes.matrix(sys::GGML_TYPE_F16, [d, heads, keys, 1], "cache_k");
        let q = nodes.matrix(sys::GGML_TYPE_F32, [d, m, 2 * heads, 1], "q");
        let out = unsafe {
            let k = sys::ggml_permute(nodes.0, cache, 0, 2, 1, 3);
            let out = sys::ggml_mul_mat(nodes.0, k, q);
            sys::ggml_mul_mat_set_prec(out, sys::GGML_PREC_F32);
            out
        };
        let graph = graph(&nodes, &[out]);
        planned(out);
        let buffer = Buffer::plain(&nodes, cpu_type());
        // Sixteenths are exact in f16.
        let sixteenths =
            |seed, count| numbers(seed, count).iter().map(|x| (x * 16.0).round() / 16.0).collect();
        let (k_values, q_values): (Vec<f32>, Vec<f32>) =
            (sixteenths(8, d * heads * keys), sixteenths(9, d * m * 2 * heads));
        let halves =
            k_values.iter().flat_map(|&value| unsafe { sys::ggml_fp32_to_fp16(value) }.to_ne_bytes());
        set(cache, &halves.collect::<Vec<u8>>());
        set_f32(q, &q_values);
        let mut want = Vec::new();
        for head in 0..2 * heads {
            let matrix: Vec<f32> = (0..keys)
                .flat_map(|key| k_values[(key * heads + head / 2) * d..][..d].iter().copied())
                .collect();
            want.extend(reference(&matrix, &q_values[head * m * d..][..m * d], d));
        }
        Self { out, graph, want, _buffer: buffer, _nodes: nodes }
    }
}

#[test]
fn attention_goes_to_the_accelerator_when_it_is_told_to() {
    let asked = |attention, time: fn(usize, usize, usize) -> f64, route| {
        let accelerator = NaiveAccelerator { time: Some(time), ..NaiveAccelerator::default() };
        let backend = backend(accelerator, BackendOptions { route, attention, ..BackendOptions::default() });
        let stream = Stream::ork(&backend);
        let ask = |out| unsafe { sys::ggml_backend_supports_op(stream.0, out) };
        let mut without_memory = false;
        let scores = Scores::new(|out| without_memory = ask(out));
        let claimed = ask(scores.out);
        assert_eq!(
            without_memory, claimed,
            "{attention:?} {route}: keys that a graph computes have no memory yet"
        );
        // Each line as it is known when a graph is planned, and when it was computed: what, where, why, and for how much.
        let lines = || {
            let routes = backend.census().routes.into_iter();
            let kept = routes.map(|(key, used)| (key, used.asked, used.m_max, used.npu_ns, used.cpu_ns));
            kept.collect::<Vec<_>>()
        };
        if claimed {
            let planned = lines();
            assert_eq!((planned.len(), planned[0].1), (1, 2), "{planned:?}");
            assert_eq!(stream.compute(scores.graph), sys::GGML_STATUS_SUCCESS, "{:?}", backend.take_error());
            let error = worst(&get_f32(scores.out), &scores.want);
            assert!(error < 1e-5, "{attention:?}: {error}");
            assert_eq!(backend.census().executed.matmuls, 2, "one for each head of the keys");
            assert_eq!(backend.census().holding.live, 0, "nothing of it stays");
            assert_eq!(lines(), planned, "{attention:?} {route}");
        }
        let census = backend.census();
        let reasons: Vec<DeclineReason> = census.planning.declined.iter().map(|line| line.reason).collect();
        (claimed, reasons)
    };
    let free: fn(usize, usize, usize) -> f64 = |_, _, _| 0.0;
    for route in [Route::default(), Route::Npu] {
        assert_eq!(asked(Attention::Off, free, route), (false, vec![DeclineReason::ComputedOperand]));
        assert_eq!(asked(Attention::On, slow, route), (true, vec![]));
        assert_eq!(asked(Attention::ByCost, slow, route), (false, vec![DeclineReason::CpuFaster]));
        assert_eq!(asked(Attention::ByCost, free, route), (true, vec![]));
    }
    assert_eq!(asked(Attention::On, free, Route::Cpu), (false, vec![DeclineReason::RouteIsCpu]));
}
