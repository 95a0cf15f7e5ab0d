// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend under real ggml graphs, without llama.cpp: numbers, grouping, claims, errors, lifetimes.

#![allow(clippy::undocumented_unsafe_blocks, reason = "plain calls of ggml on tensors the test owns")]

mod support;

use llama_cpp_sys_2 as sys;
use ork_engine::tiny::WeightType;
use ork_ggml::{
    AccelErrorKind, BackendError, BackendOptions, DeclineReason, ForeignWeights, OrkBackend, Route,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::naive::{Counts, Fault, NaiveAccelerator};
use support::*;

/// How the activation lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Contiguous,
    /// Every other row of a larger tensor.
    EveryOtherRow,
    /// A transposed view: elements of a row are far apart.
    Transposed,
}

struct Case {
    type_: WeightType,
    k: usize,
    n: usize,
    m: usize,
    batch: [usize; 2],
    layout: Layout,
}

/// One weight, one activation, one result; the weight in a buffer of type `buft`.
struct OneMatMul {
    out: *mut sys::ggml_tensor,
    x: *mut sys::ggml_tensor,
    graph: *mut sys::ggml_cgraph,
    weight_bytes: Vec<u8>,
    _activations: Buffer,
    _nodes: Tensors,
    _weights: Buffer,
    _weight_tensors: Tensors,
}

impl OneMatMul {
    fn new(case: &Case, buft: sys::ggml_backend_buffer_type_t) -> Self {
        let Case { type_, k, n, m, batch: [b2, b3], layout } = *case;
        let weight_tensors = Tensors::new();
        let w = weight_tensors.matrix(code(type_), [k, n, 1, 1], "blk.0.w.weight");
        let weights = Buffer::weights(&weight_tensors, buft);
        let weight_bytes = type_.encode(&numbers(7, k * n), k);
        set(w, &weight_bytes);

        let nodes = Tensors::new();
        let (x, view) = unsafe {
            match layout {
                Layout::Contiguous => {
                    let x = nodes.matrix(sys::GGML_TYPE_F32, [k, m, b2, b3], "x");
                    (x, x)
                }
                Layout::EveryOtherRow => {
                    let x = nodes.matrix(sys::GGML_TYPE_F32, [k, 2 * m, b2, b3], "x");
                    let [_, nb1, nb2, nb3] = (*x).nb;
                    let ne = [k, m, b2, b3].map(|n| n as i64);
                    let view =
                        sys::ggml_view_4d(nodes.0, x, ne[0], ne[1], ne[2], ne[3], 2 * nb1, nb2, nb3, nb1);
                    (x, view)
                }
                Layout::Transposed => {
                    let x = nodes.matrix(sys::GGML_TYPE_F32, [m, k, b2, b3], "x");
                    (x, sys::ggml_transpose(nodes.0, x))
                }
            }
        };
        let out = unsafe { sys::ggml_mul_mat(nodes.0, w, view) };
        let graph = graph(&nodes, &[out]);
        let activations = Buffer::plain(&nodes, cpu_type());
        Self {
            out,
            x,
            graph,
            weight_bytes,
            _activations: activations,
            _nodes: nodes,
            _weights: weights,
            _weight_tensors: weight_tensors,
        }
    }

    /// Fills the activation and returns it row by row as the matmul sees it.
    fn fill(&self, case: &Case, seed: u64) -> Vec<f32> {
        let count = unsafe { sys::ggml_nelements(self.x) } as usize;
        let values = numbers(seed, count);
        set_f32(self.x, &values);
        let Case { k, m, .. } = *case;
        match case.layout {
            Layout::Contiguous => values,
            Layout::EveryOtherRow => {
                values.chunks_exact(2 * k).flat_map(|pair| pair[k..].iter().copied()).collect()
            }
            Layout::Transposed => values
                .chunks_exact(m * k)
                .flat_map(|plane| (0..m).flat_map(move |i| (0..k).map(move |j| plane[j * m + i])))
                .collect(),
        }
    }
}

fn cases() -> Vec<Case> {
    use Layout::*;
    use WeightType::*;
    let case = |type_, k, n, m, batch, layout| Case { type_, k, n, m, batch, layout };
    vec![
        case(F32, 32, 16, 1, [1, 1], Contiguous),
        case(F32, 33, 7, 5, [1, 1], Contiguous),
        case(F16, 96, 40, 1, [1, 1], Contiguous),
        case(F16, 100, 31, 17, [1, 1], EveryOtherRow),
        case(Q8_0, 160, 96, 33, [1, 1], Contiguous),
        case(Q8_0, 64, 96, 4, [3, 2], Contiguous),
        case(Q8_0, 64, 24, 3, [2, 2], EveryOtherRow),
        case(Q4_0, 96, 64, 2, [1, 1], Contiguous),
        case(Q4_1, 576, 192, 1, [1, 1], Contiguous),
        case(Q4_1, 576, 192, 40, [1, 1], Contiguous),
        case(Q4K, 256, 48, 9, [1, 1], Contiguous),
        case(Q6K, 512, 17, 2, [1, 2], Contiguous),
        case(F32, 12, 5, 6, [1, 1], Transposed),
    ]
}

#[test]
fn numbers_match_by_hand_and_by_ggml() {
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let (ork, cpu) = (Stream::ork(&backend), Stream::cpu());
    for case in cases() {
        let label = format!(
            "{:?} k{} n{} m{} {:?} {:?}",
            case.type_, case.k, case.n, case.m, case.batch, case.layout
        );
        let ours = OneMatMul::new(&case, weight_type(&backend));
        assert!(unsafe { sys::ggml_backend_supports_op(ork.0, ours.out) }, "{label}");
        let x = ours.fill(&case, 3);
        let w = decode(case.type_, &ours.weight_bytes, case.k * case.n);
        let want = reference(&w, &x, case.k);
        assert_eq!(ork.compute(ours.graph), sys::GGML_STATUS_SUCCESS, "{label}");
        let error = worst(&get_f32(ours.out), &want);
        assert!(error < 1e-5, "{label}: {error}");

        // ggml's CPU quantises activations for quantised weights, and does not take transposed ones.
        if case.layout != Layout::Transposed {
            let theirs = OneMatMul::new(&case, cpu_type());
            theirs.fill(&case, 3);
            assert_eq!(cpu.compute(theirs.graph), sys::GGML_STATUS_SUCCESS, "{label}");
            let ggml: Vec<f64> = get_f32(theirs.out).into_iter().map(f64::from).collect();
            let error = worst(&get_f32(ours.out), &ggml);
            assert!(error < 0.02, "{label}: {error}");
        }
    }
    let census = backend.census();
    assert_eq!(census.executed.matmuls, cases().len() as u64);
    assert_eq!((census.executed.software, census.executed.failed), (0, 0));
}

#[test]
fn a_changed_activation_changes_the_result() {
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let stream = Stream::ork(&backend);
    for layout in [Layout::Contiguous, Layout::EveryOtherRow] {
        let case = Case { type_: WeightType::F16, k: 64, n: 32, m: 3, batch: [1, 1], layout };
        let one = OneMatMul::new(&case, weight_type(&backend));
        let w = decode(case.type_, &one.weight_bytes, case.k * case.n);
        for seed in [11, 12, 11] {
            let x = one.fill(&case, seed);
            assert_eq!(stream.compute(one.graph), sys::GGML_STATUS_SUCCESS);
            assert!(worst(&get_f32(one.out), &reference(&w, &x, case.k)) < 1e-5, "seed {seed}");
        }
    }
}

#[test]
fn a_rewritten_weight_is_packed_again() {
    for route in [Route::Npu, Route::default()] {
        let backend = backend(NaiveAccelerator::default(), routed(route));
        let stream = Stream::ork(&backend);
        let tensors = Tensors::new();
        let w = tensors.matrix(sys::GGML_TYPE_F32, [8, 4, 1, 1], "w");
        let _weights = Buffer::weights(&tensors, weight_type(&backend));
        let nodes = Tensors::new();
        let x = nodes.matrix(sys::GGML_TYPE_F32, [8, 2, 1, 1], "x");
        let out = unsafe { sys::ggml_mul_mat(nodes.0, w, x) };
        let graph = graph(&nodes, &[out]);
        let _activations = Buffer::plain(&nodes, cpu_type());
        set_f32(x, &numbers(1, 16));
        for seed in [5, 6] {
            set_f32(w, &numbers(seed, 32));
            assert_eq!(stream.compute(graph), sys::GGML_STATUS_SUCCESS);
            assert!(worst(&get_f32(out), &reference(&numbers(seed, 32), &numbers(1, 16), 8)) < 1e-5);
            assert_eq!(backend.census().holding.live, 1);
        }
    }
}

#[test]
fn a_weight_written_in_pieces_is_packed_when_complete() {
    for route in [Route::Npu, Route::default()] {
        let counts = Arc::new(Counts::default());
        let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
        let backend = backend(accelerator, routed(route));
        let case =
            Case { type_: WeightType::Q8_0, k: 64, n: 8, m: 2, batch: [1, 1], layout: Layout::Contiguous };
        let one = OneMatMul::new(&case, weight_type(&backend));
        let w = unsafe { (*one.out).src[0] };
        let write = |offset: usize, bytes: &[u8]| unsafe {
            sys::ggml_backend_tensor_set(w, bytes.as_ptr().cast(), offset, bytes.len())
        };
        let rows = numbers(99, case.k * case.n);
        let bytes = case.type_.encode(&rows, case.k);
        let (head, tail) = bytes.split_at(100);
        write(0, head);
        assert_eq!(counts.live.load(SeqCst), 0, "half a weight must not be used");
        write(100, tail);
        assert_eq!(counts.live.load(SeqCst), 1);
        let x = one.fill(&case, 4);
        assert_eq!(Stream::ork(&backend).compute(one.graph), sys::GGML_STATUS_SUCCESS);
        let want = reference(&decode(case.type_, &bytes, rows.len()), &x, case.k);
        assert!(worst(&get_f32(one.out), &want) < 1e-5);
        assert!(backend.take_error().is_none());

        write(100, tail);
        assert!(matches!(
            backend.take_error(),
            Some(BackendError::WriteOutOfOrder { offset: 100, expected: 0, .. })
        ));
        assert_eq!(counts.live.load(SeqCst), 0);
    }
}

/// Three weights over one activation, the middle one over another: which are submitted together.
#[test]
fn matmuls_sharing_an_activation_are_grouped() {
    let counts = Arc::new(Counts::default());
    let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
    let backend = backend(accelerator, routed(Route::Npu));
    let tensors = Tensors::new();
    let weights: Vec<_> =
        (0..4).map(|i| tensors.matrix(sys::GGML_TYPE_F32, [16, 16, 1, 1], &format!("w{i}"))).collect();
    let _weights = Buffer::weights(&tensors, weight_type(&backend));
    let matrices: Vec<_> = (0..4).map(|i| numbers(20 + i, 256)).collect();
    weights.iter().zip(&matrices).for_each(|(&w, values)| set_f32(w, values));

    let nodes = Tensors::new();
    let x = nodes.matrix(sys::GGML_TYPE_F32, [16, 3, 1, 1], "x");
    let outs = unsafe {
        // a, b over x; then c over a *view* of b's result, then d over x again.
        let a = sys::ggml_mul_mat(nodes.0, weights[0], x);
        let b = sys::ggml_mul_mat(nodes.0, weights[1], x);
        let c = sys::ggml_mul_mat(
            nodes.0,
            weights[2],
            sys::ggml_view_2d(nodes.0, b, 16, 2, (*b).nb[1], (*b).nb[1]),
        );
        let d = sys::ggml_mul_mat(nodes.0, weights[3], x);
        [a, b, c, d]
    };
    let graph = graph(&nodes, &outs);
    let _activations = Buffer::plain(&nodes, cpu_type());
    let input = numbers(30, 48);
    set_f32(x, &input);
    assert_eq!(Stream::ork(&backend).compute(graph), sys::GGML_STATUS_SUCCESS);

    let b = reference(&matrices[1], &input, 16);
    let b_rows: Vec<f32> = b[16..].iter().map(|&v| v as f32).collect();
    assert!(worst(&get_f32(outs[0]), &reference(&matrices[0], &input, 16)) < 1e-5);
    assert!(worst(&get_f32(outs[1]), &b) < 1e-5);
    assert!(worst(&get_f32(outs[2]), &reference(&matrices[2], &b_rows, 16)) < 1e-5);
    assert!(worst(&get_f32(outs[3]), &reference(&matrices[3], &input, 16)) < 1e-5);
    // [a b] [c] [d]: the graph's order is kept, and d does not jump over c.
    assert_eq!((backend.census().executed.submissions, backend.census().executed.matmuls), (3, 4));
    assert_eq!(counts.groups.load(SeqCst), 1);
}

/// A result that overwrites the shared activation must not join, or the next member would read the wrong bytes.
#[test]
fn a_result_over_the_activation_breaks_the_group() {
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let tensors = Tensors::new();
    let weights: Vec<_> =
        (0..2).map(|i| tensors.matrix(sys::GGML_TYPE_F32, [8, 8, 1, 1], &format!("w{i}"))).collect();
    let _weights = Buffer::weights(&tensors, weight_type(&backend));
    let matrices = [numbers(1, 64), numbers(2, 64)];
    weights.iter().zip(&matrices).for_each(|(&w, values)| set_f32(w, values));
    let nodes = Tensors::new();
    let x = nodes.matrix(sys::GGML_TYPE_F32, [8, 2, 1, 1], "x");
    let (first, second) =
        unsafe { (sys::ggml_mul_mat(nodes.0, weights[0], x), sys::ggml_mul_mat(nodes.0, weights[1], x)) };
    let graph = graph(&nodes, &[first, second]);
    let _activations = Buffer::plain(&nodes, cpu_type());
    unsafe { (*first).data = (*x).data };
    let input = numbers(3, 16);
    set_f32(x, &input);
    assert_eq!(Stream::ork(&backend).compute(graph), sys::GGML_STATUS_SUCCESS);
    let first_out = reference(&matrices[0], &input, 8);
    let overwritten: Vec<f32> = first_out.iter().map(|&v| v as f32).collect();
    assert!(worst(&get_f32(first), &first_out) < 1e-5);
    assert!(worst(&get_f32(second), &reference(&matrices[1], &overwritten, 8)) < 1e-5);
    assert_eq!(backend.census().executed.submissions, 2);
}

#[test]
fn a_failed_matmul_fails_the_graph_and_says_why() {
    let accelerator = NaiveAccelerator { fault: Fault::MatMulFailsAfter(1), ..NaiveAccelerator::default() };
    let backend = backend(accelerator, routed(Route::Npu));
    let stream = Stream::ork(&backend);
    let case = Case { type_: WeightType::F16, k: 32, n: 8, m: 2, batch: [1, 1], layout: Layout::Contiguous };
    let one = OneMatMul::new(&case, weight_type(&backend));
    one.fill(&case, 1);
    assert_eq!(stream.compute(one.graph), sys::GGML_STATUS_SUCCESS);
    assert_eq!(stream.compute(one.graph), sys::GGML_STATUS_FAILED);
    match backend.take_error() {
        Some(BackendError::MatMul { name, m: 2, k: 32, n: 8, source }) => {
            assert_eq!((name.as_str(), source.kind()), ("blk.0.w.weight", AccelErrorKind::Device));
            assert_eq!(source.hint(), Some("reset the board"));
        }
        other => panic!("{other:?}"),
    }
    assert!(backend.take_error().is_none());
    assert_eq!((backend.census().executed.matmuls, backend.census().executed.failed), (1, 1));
}

#[test]
fn a_panic_is_contained() {
    let accelerator = NaiveAccelerator { fault: Fault::MatMulPanics, ..NaiveAccelerator::default() };
    let backend = backend(accelerator, routed(Route::Npu));
    let case = Case { type_: WeightType::F16, k: 32, n: 8, m: 1, batch: [1, 1], layout: Layout::Contiguous };
    let one = OneMatMul::new(&case, weight_type(&backend));
    one.fill(&case, 1);
    for _ in 0..2 {
        assert_eq!(Stream::ork(&backend).compute(one.graph), sys::GGML_STATUS_FAILED);
        match backend.take_error() {
            Some(BackendError::Panic { callback: "graph_compute", message }) => {
                assert!(message.contains("a bug in the accelerator"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn handles_die_with_their_buffer() {
    let counts = Arc::new(Counts::default());
    let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
    let backend = backend(accelerator, BackendOptions::default());
    let case = Case { type_: WeightType::F16, k: 32, n: 8, m: 1, batch: [1, 1], layout: Layout::Contiguous };
    for route in [Route::Npu, Route::default()] {
        backend.set_route(route);
        let a = OneMatMul::new(&case, weight_type(&backend));
        let b = OneMatMul::new(&case, weight_type(&backend));
        assert_eq!((counts.live.load(SeqCst), backend.census().holding.live), (2, 2));
        assert_eq!(backend.census().holding.live_device_bytes, 2 * 32 * 8 * 4);
        drop(a);
        assert_eq!((counts.live.load(SeqCst), backend.census().holding.live), (1, 1));
        drop(b);
        assert_eq!((counts.live.load(SeqCst), backend.census().holding.live_device_bytes), (0, 0));
    }
}

#[test]
fn a_resident_weight_cannot_be_read_back_a_shared_one_can() {
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let case = Case { type_: WeightType::F32, k: 16, n: 4, m: 1, batch: [1, 1], layout: Layout::Contiguous };
    let one = OneMatMul::new(&case, weight_type(&backend));
    let w = unsafe { (*one.out).src[0] };
    assert!(!unsafe { sys::ggml_backend_buft_is_host(weight_type(&backend)) });
    assert_eq!(get_f32(w), vec![0.0; 64]);
    assert!(
        matches!(backend.take_error(), Some(BackendError::Unreadable { name }) if name == "blk.0.w.weight")
    );

    backend.set_route(Route::default());
    assert!(unsafe { sys::ggml_backend_buft_is_host(weight_type(&backend)) });
    let one = OneMatMul::new(&case, weight_type(&backend));
    assert_eq!(get_f32(unsafe { (*one.out).src[0] }), numbers(7, 64));
    assert!(backend.take_error().is_none());
}

/// A matrix beyond the limits can end in a resident buffer (adapters do); it must still be multiplied by.
#[test]
fn what_the_accelerator_cannot_hold_is_computed_in_software_and_counted() {
    let counts = Arc::new(Counts::default());
    let accelerator =
        NaiveAccelerator { n_max: 4, counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
    let backend = backend(accelerator, routed(Route::Npu));
    let stream = Stream::ork(&backend);
    let case = Case { type_: WeightType::Q8_0, k: 64, n: 8, m: 3, batch: [1, 1], layout: Layout::Contiguous };
    let one = OneMatMul::new(&case, weight_type(&backend));
    assert_eq!(counts.live.load(SeqCst), 0);
    assert!(unsafe { sys::ggml_backend_supports_op(stream.0, one.out) });
    let x = one.fill(&case, 2);
    assert_eq!(stream.compute(one.graph), sys::GGML_STATUS_SUCCESS);
    let w = decode(case.type_, &one.weight_bytes, case.k * case.n);
    assert!(worst(&get_f32(one.out), &reference(&w, &x, case.k)) < 1e-5);
    assert_eq!((backend.census().executed.software, backend.census().executed.matmuls), (1, 1));
}

#[test]
fn without_room_a_shared_weight_stays_with_the_cpu_and_a_resident_one_is_an_error() {
    let case = Case { type_: WeightType::F16, k: 32, n: 8, m: 64, batch: [1, 1], layout: Layout::Contiguous };
    let make = |route| {
        backend(
            NaiveAccelerator { fault: Fault::NoRoomForRows(8), ..NaiveAccelerator::default() },
            routed(route),
        )
    };
    let shared = make(Route::default());
    let one = OneMatMul::new(&case, weight_type(&shared));
    assert!(shared.take_error().is_none());
    assert_eq!(shared.census().holding.no_room, 1);
    assert!(!unsafe { sys::ggml_backend_supports_op(Stream::ork(&shared).0, one.out) });
    assert_eq!(shared.census().declined("MUL_MAT", DeclineReason::NotLoaded), 1);

    let resident = make(Route::Npu);
    let _one = OneMatMul::new(&case, weight_type(&resident));
    match resident.take_error() {
        Some(error @ BackendError::Load { k: 32, n: 8, .. }) => {
            assert_eq!(error.hint().as_deref(), Some("free something"));
        }
        other => panic!("{other:?}"),
    }
}

/// Each reason for declining, with the shape that provokes it.
#[test]
fn decline_table() {
    let options = BackendOptions { exclude: vec!["*.secret.*".to_owned()], ..BackendOptions::default() };
    let accelerator = NaiveAccelerator { n_max: 64, ..NaiveAccelerator::default() };
    let backend = backend(accelerator, options);
    let tensors = Tensors::new();
    let f32_ = sys::GGML_TYPE_F32;
    let weight = |name: &str, type_, ne| tensors.matrix(type_, ne, name);
    let w = weight("w", f32_, [32, 8, 1, 1]);
    let wide = weight("wide", f32_, [32, 65, 1, 1]);
    let secret = weight("blk.0.secret.weight", f32_, [32, 8, 1, 1]);
    let wide_stack = weight("experts", f32_, [32, 65, 2, 1]);
    let integers = weight("integers", sys::GGML_TYPE_I32, [32, 8, 1, 1]);
    let _weights = Buffer::weights(&tensors, weight_type(&backend));
    set_f32(w, &numbers(1, 256));

    let foreign_tensors = Tensors::new();
    let foreign = foreign_tensors.matrix(f32_, [32, 8, 1, 1], "foreign");
    let _foreign = Buffer::weights(&foreign_tensors, cpu_type());

    let nodes = Tensors::new();
    let x = nodes.matrix(f32_, [32, 32, 1, 1], "x");
    let few = nodes.matrix(f32_, [32, 31, 1, 1], "few");
    let quantised = nodes.matrix(sys::GGML_TYPE_Q8_0, [32, 32, 1, 1], "quantised");
    let x_stack = nodes.matrix(f32_, [32, 32, 2, 1], "x_stack");
    let mul = |a, b| unsafe { sys::ggml_mul_mat(nodes.0, a, b) };
    let hinted = mul(w, x);
    unsafe { sys::ggml_mul_mat_set_hint(hinted, sys::GGML_HINT_SRC0_IS_HADAMARD) };
    let odd_result = mul(w, x);
    unsafe { (*odd_result).nb[1] += 4 };
    let computed = unsafe { sys::ggml_add(nodes.0, w, w) };
    // ggml refuses to build a matmul by integers; the backend must not trust that.
    let integer = mul(w, x);
    unsafe { (*integer).src[0] = integers };
    let quantised_input = mul(w, x);
    unsafe { (*quantised_input).src[1] = quantised };
    let precise = mul(w, x);
    assert!(unsafe { sys::ggml_prec_set_src(precise, sys::GGML_PREC_F16, 1) });
    let strided = mul(w, x);
    let strided_weight = tensors.matrix(f32_, [32, 8, 1, 1], "strided");
    unsafe {
        (*strided_weight).nb[1] *= 2;
        (*strided_weight).buffer = (*w).buffer;
        (*strided).src[0] = strided_weight;
    }
    let missing = mul(w, x);
    unsafe { (*missing).src[1] = std::ptr::null_mut() };

    let probe_like = |weight: *mut sys::ggml_tensor| {
        // As the loader asks: a zero-sized buffer of our type.
        let dummy = unsafe { sys::ggml_backend_buft_alloc_buffer(weight_type(&backend), 0) };
        unsafe { (*weight).buffer = dummy };
        (mul(weight, x), Buffer(dummy))
    };
    let probe_tensors = Tensors::new();
    let probe_wide = probe_like(probe_tensors.matrix(f32_, [32, 65, 1, 1], "wide"));
    let probe_secret = probe_like(probe_tensors.matrix(f32_, [32, 8, 1, 1], "blk.0.secret.weight"));
    let probe_good = probe_like(probe_tensors.matrix(f32_, [32, 8, 1, 1], "good"));

    let stream = Stream::ork(&backend);
    let ask = |op: *mut sys::ggml_tensor| unsafe { sys::ggml_backend_supports_op(stream.0, op) };
    let table = [
        ("ADD", computed, DeclineReason::Operation),
        ("MUL_MAT", mul(w, few), DeclineReason::BelowMinRows),
        ("MUL_MAT", mul(computed, x), DeclineReason::ComputedOperand),
        ("MUL_MAT", mul(foreign, x), DeclineReason::ForeignBuffer),
        ("MUL_MAT", mul(secret, x), DeclineReason::NotLoaded),
        ("MUL_MAT", mul(wide, x), DeclineReason::NotLoaded),
        ("MUL_MAT", mul(wide_stack, x_stack), DeclineReason::NotLoaded),
        ("MUL_MAT", strided, DeclineReason::WeightLayout),
        ("MUL_MAT", integer, DeclineReason::WeightType),
        ("MUL_MAT", quantised_input, DeclineReason::ActivationType),
        ("MUL_MAT", precise, DeclineReason::Precision),
        ("MUL_MAT", odd_result, DeclineReason::ResultLayout),
        ("MUL_MAT", hinted, DeclineReason::Hint),
        ("MUL_MAT", missing, DeclineReason::Malformed),
        ("MUL_MAT", probe_secret.0, DeclineReason::Excluded),
        ("MUL_MAT", probe_wide.0, DeclineReason::Limit),
    ];
    for (op, node, reason) in table {
        backend.reset_census();
        assert!(!ask(node), "{reason} was accepted");
        let census = backend.census();
        let seen: Vec<_> =
            census.planning.declined.iter().map(|d| (d.op.as_str(), d.reason, d.count)).collect();
        assert_eq!(seen, [(op, reason, 1)], "{census}");
        assert!(census.to_string().contains(reason.as_str()));
    }
    backend.reset_census();
    assert!(ask(mul(w, x)) && ask(probe_good.0) && ask(x));
    let planning = backend.census().planning;
    assert_eq!((planning.claimed, planning.structural, planning.declined.len()), (2, 1, 0));

    backend.set_route(Route::Cpu);
    backend.reset_census();
    assert!(!ask(mul(w, x)));
    assert_eq!(backend.census().declined("MUL_MAT", DeclineReason::RouteIsCpu), 1);
    assert_eq!(weight_type(&backend), cpu_type());
}

/// ggml's own backend test keeps weights in plain buffers; packed per call, a changed weight must be seen.
#[test]
fn foreign_weights_are_packed_for_each_call_if_asked() {
    let counts = Arc::new(Counts::default());
    let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
    let options = BackendOptions {
        route: Route::Npu,
        foreign_weights: ForeignWeights::PackPerCall,
        ..Default::default()
    };
    let backend = backend(accelerator, options);
    let stream = Stream::ork(&backend);
    let case = Case { type_: WeightType::Q4_0, k: 64, n: 8, m: 2, batch: [2, 1], layout: Layout::Contiguous };
    let one = OneMatMul::new(&case, cpu_type());
    assert!(unsafe { sys::ggml_backend_supports_op(stream.0, one.out) });
    let x = one.fill(&case, 8);
    for seed in [1, 2] {
        let bytes = case.type_.encode(&numbers(seed, 64 * 8), 64);
        set(unsafe { (*one.out).src[0] }, &bytes);
        assert_eq!(stream.compute(one.graph), sys::GGML_STATUS_SUCCESS);
        let want = reference(&decode(case.type_, &bytes, 64 * 8), &x, 64);
        assert!(worst(&get_f32(one.out), &want) < 1e-5);
        assert_eq!(counts.live.load(SeqCst), 0);
    }
    // Not for next to nothing.
    let few = OneMatMul::new(&Case { n: 5, m: 3, batch: [1, 1], ..case }, cpu_type());
    assert!(!unsafe { sys::ggml_backend_supports_op(stream.0, few.out) });
    assert_eq!(backend.census().declined("MUL_MAT", DeclineReason::FewResults), 1);
    let enough = OneMatMul::new(&Case { n: 4, m: 4, batch: [1, 1], ..case }, cpu_type());
    assert!(unsafe { sys::ggml_backend_supports_op(stream.0, enough.out) });
}

#[test]
fn an_operation_never_claimed_fails_the_graph() {
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let nodes = Tensors::new();
    let x = nodes.matrix(sys::GGML_TYPE_F32, [8, 1, 1, 1], "x");
    let sum = unsafe { sys::ggml_add(nodes.0, x, x) };
    let graph = graph(&nodes, &[sum]);
    let _activations = Buffer::plain(&nodes, cpu_type());
    set_f32(x, &numbers(1, 8));
    assert_eq!(Stream::ork(&backend).compute(graph), sys::GGML_STATUS_FAILED);
    assert!(
        matches!(backend.take_error(), Some(BackendError::UnexpectedOperation { op, .. }) if op == "ADD")
    );
}

/// The interface must not contradict its own properties.
#[test]
fn properties_agree_with_the_tables() {
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let device = device(&backend);
    let properties = unsafe {
        let mut properties = std::mem::zeroed::<sys::ggml_backend_dev_props>();
        sys::ggml_backend_dev_get_props(device, &raw mut properties);
        properties
    };
    let text = |s: *const std::ffi::c_char| unsafe { std::ffi::CStr::from_ptr(s) }.to_str().unwrap();
    assert_eq!((text(properties.name), text(properties.description)), ("ORK", "plain f32 loops"));
    assert_eq!((properties.memory_free, properties.memory_total), (3 << 30, 4 << 30));
    assert_eq!(unsafe { sys::ggml_backend_dev_type(device) }, sys::GGML_BACKEND_DEVICE_TYPE_ACCEL);
    let tables = unsafe { (*backend.device()).iface };
    let caps = properties.caps;
    assert_eq!(caps.host_buffer, tables.get_host_buffer_type.is_some());
    assert_eq!(caps.buffer_from_host_ptr, tables.buffer_from_host_ptr.is_some());
    assert_eq!(caps.events, tables.event_new.is_some());
    let stream = Stream::ork(&backend);
    assert!(!caps.async_);
    unsafe {
        // The twin: same answers, but activations go to plain memory.
        let twin = sys::ggml_backend_get_device(stream.0);
        assert_ne!(twin, device);
        assert_eq!(sys::ggml_backend_get_default_buffer_type(stream.0), cpu_type());
        assert!(sys::ggml_backend_dev_supports_buft(twin, weight_type(&backend)));
        assert!(sys::ggml_backend_dev_supports_buft(twin, cpu_type()));
        let reg = sys::ggml_backend_dev_backend_reg(device);
        assert_eq!(
            (sys::ggml_backend_reg_dev_count(reg), sys::ggml_backend_reg_dev_get(reg, 0)),
            (1, device)
        );
        assert!(sys::ggml_backend_reg_dev_get(reg, 1).is_null());
    }
}

#[test]
fn a_retired_backend_fails_cleanly() {
    let backend: Arc<OrkBackend> = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let case = Case { type_: WeightType::F16, k: 32, n: 8, m: 1, batch: [1, 1], layout: Layout::Contiguous };
    let one = OneMatMul::new(&case, weight_type(&backend));
    one.fill(&case, 1);
    backend.retire();
    assert_eq!(Stream::ork(&backend).compute(one.graph), sys::GGML_STATUS_FAILED);
    assert!(matches!(backend.take_error(), Some(BackendError::Retired)));
}
