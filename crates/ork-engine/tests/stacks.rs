// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stacks of matrices: batches, and mixtures of experts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "plain calls of ggml on tensors the test owns")]

mod support;

use llama_cpp_sys_2 as sys;
use ork_engine::tiny::WeightType;
use ork_ggml::{
    BackendOptions, DeclineReason, ExpertCache, ExpertCodes, ExpertOptions, ExpertSkew, ForeignWeights,
    InitError, LayerSkew, MinRows, OrkBackend, Place, Route, RouteKey, RouteUse, Why,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::naive::{Counts, Fault, NaiveAccelerator};
use support::*;

fn f32_to_f16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&value| unsafe { sys::ggml_fp32_to_fp16(value) }.to_ne_bytes()).collect()
}

/// Routes under which weights of the stack are packed when they are written, and how many rows are enough.
fn routes() -> [Route; 2] {
    [Route::Npu, Route::Auto { min_rows: MinRows::Rows(1) }]
}

/// `ne` of the stack and of the activation, whose last two dimensions are multiples of the stack's.
fn batched(route: Route, stack: [usize; 4], batch: [usize; 4], half: bool) {
    let label = format!("{route} {stack:?} {batch:?} half {half}");
    let backend = backend(NaiveAccelerator::default(), routed(route));
    let tensors = Tensors::new();
    let w = tensors.matrix(sys::GGML_TYPE_Q8_0, stack, "w");
    let _weights = Buffer::weights(&tensors, weight_type(&backend));
    let [k, n, s2, s3] = stack;
    let bytes = WeightType::Q8_0.encode(&numbers(3, k * n * s2 * s3), k);
    set(w, &bytes);
    assert_eq!(backend.census().holding.live as usize, s2 * s3, "{label}: each matrix is a weight");

    let nodes = Tensors::new();
    let type_ = if half { sys::GGML_TYPE_F16 } else { sys::GGML_TYPE_F32 };
    let x = nodes.matrix(type_, batch, "x");
    let out = unsafe { sys::ggml_mul_mat(nodes.0, w, x) };
    let graph = graph(&nodes, &[out]);
    let _activations = Buffer::plain(&nodes, cpu_type());
    let [_, m, b2, b3] = batch;
    // Sixteenths are exact in both types.
    let input: Vec<f32> = numbers(4, k * m * b2 * b3).iter().map(|x| (x * 16.0).round() / 16.0).collect();
    if half {
        set(x, &f32_to_f16_bytes(&input))
    } else {
        set_f32(x, &input)
    }

    let stream = Stream::ork(&backend);
    assert!(unsafe { sys::ggml_backend_supports_op(stream.0, out) }, "{label}");
    assert_eq!(stream.compute(graph), sys::GGML_STATUS_SUCCESS, "{label}: {:?}", backend.take_error());
    let matrices = decode(WeightType::Q8_0, &bytes, k * n * s2 * s3);
    let mut want = Vec::new();
    for i3 in 0..b3 {
        for i2 in 0..b2 {
            let matrix = (i3 * s3 / b3) * s2 + i2 * s2 / b2;
            let rows = &input[(i3 * b2 + i2) * m * k..][..m * k];
            want.extend(reference(&matrices[matrix * n * k..][..n * k], rows, k));
        }
    }
    let error = worst(&get_f32(out), &want);
    assert!(error < 1e-5, "{label}: {error}");
}

#[test]
fn matrices_of_a_batch_meet_their_own_rows() {
    for route in routes() {
        batched(route, [64, 5, 3, 1], [64, 7, 3, 1], false);
        batched(route, [64, 5, 3, 2], [64, 7, 6, 2], false);
        batched(route, [32, 9, 2, 3], [32, 1, 4, 6], false);
        batched(route, [32, 9, 1, 2], [32, 4, 3, 2], true);
        batched(route, [32, 9, 1, 1], [32, 4, 3, 2], true);
    }
}

/// Asks as llama.cpp's loader does before it makes a weight: with a weight in a buffer of no size.
fn probe(
    buft: sys::ggml_backend_buffer_type_t,
    type_: sys::ggml_type,
    ne: [usize; 4],
    name: &str,
    by_choice: bool,
) {
    let device = unsafe { sys::ggml_backend_buft_get_device(buft) };
    // The CPU's type names none as long as nobody asked for ggml's registry.
    if device.is_null() {
        return;
    }
    let tensors = Tensors::new();
    let w = tensors.matrix(type_, ne, name);
    let dummy = Buffer(unsafe { sys::ggml_backend_buft_alloc_buffer(buft, 0) });
    let [k, _, ne2, ne3] = ne;
    let op = unsafe {
        (*w).buffer = dummy.0;
        if by_choice {
            let x = tensors.matrix(sys::GGML_TYPE_F32, [k, SLOTS, 512, 1], "x");
            let choice = tensors.matrix(sys::GGML_TYPE_I32, [SLOTS, 512, 1, 1], "choice");
            sys::ggml_mul_mat_id(tensors.0, w, x, choice)
        } else {
            sys::ggml_mul_mat(tensors.0, w, tensors.matrix(sys::GGML_TYPE_F32, [k, 512, ne2, ne3], "x"))
        }
    };
    assert!(unsafe { sys::ggml_backend_dev_supports_op(device, op) });
}

/// A mixture of experts: two products (gate and up) that share activation and choice, and one with a row per slot.
struct Mixture {
    gate: *mut sys::ggml_tensor,
    up: *mut sys::ggml_tensor,
    down: *mut sys::ggml_tensor,
    graph: *mut sys::ggml_cgraph,
    matrices: [Vec<f32>; 3],
    shared: Vec<f32>,
    own: Vec<f32>,
    choice: Vec<i32>,
    _buffers: [Buffer; 2],
    _tensors: [Tensors; 2],
}

const K: usize = 64;
const N: [usize; 3] = [24, 24, 40];
const EXPERTS: usize = 6;
const SLOTS: usize = 3;
const TOKENS: usize = 5;

impl Mixture {
    fn new(buft: sys::ggml_backend_buffer_type_t) -> Self {
        let tensors = Tensors::new();
        let stack = |name: &str, n| {
            probe(buft, sys::GGML_TYPE_Q4_0, [K, n, EXPERTS, 1], name, true);
            tensors.matrix(sys::GGML_TYPE_Q4_0, [K, n, EXPERTS, 1], name)
        };
        let weights = [
            stack("blk.0.ffn_gate_exps.weight", N[0]),
            stack("blk.0.ffn_up_exps.weight", N[1]),
            stack("blk.0.ffn_down_exps.weight", N[2]),
        ];
        let weight_buffer = Buffer::weights(&tensors, buft);
        let mut seed = 10;
        let matrices = weights.map(|w| {
            seed += 1;
            let count = unsafe { sys::ggml_nelements(w) } as usize;
            let bytes = WeightType::Q4_0.encode(&numbers(seed, count), K);
            set(w, &bytes);
            decode(WeightType::Q4_0, &bytes, count)
        });

        let nodes = Tensors::new();
        let shared = nodes.matrix(sys::GGML_TYPE_F32, [K, 1, TOKENS, 1], "shared");
        let own = nodes.matrix(sys::GGML_TYPE_F32, [K, SLOTS, TOKENS, 1], "own");
        // The choice is the start of a longer list for each token, as after a sort.
        let sorted = nodes.matrix(sys::GGML_TYPE_I32, [EXPERTS, TOKENS, 1, 1], "sorted");
        let (gate, up, down) = unsafe {
            let choice = sys::ggml_view_2d(nodes.0, sorted, SLOTS as i64, TOKENS as i64, (*sorted).nb[1], 0);
            (
                sys::ggml_mul_mat_id(nodes.0, weights[0], shared, choice),
                sys::ggml_mul_mat_id(nodes.0, weights[1], shared, choice),
                sys::ggml_mul_mat_id(nodes.0, weights[2], own, choice),
            )
        };
        let graph = graph(&nodes, &[gate, up, down]);
        let node_buffer = Buffer::plain(&nodes, cpu_type());
        let (shared_rows, own_rows) = (numbers(1, K * TOKENS), numbers(2, K * SLOTS * TOKENS));
        set_f32(shared, &shared_rows);
        set_f32(own, &own_rows);
        // Expert 5 is chosen by nobody, expert 0 by every token.
        let choice: Vec<i32> =
            (0..TOKENS).flat_map(|token| [1 + (token % 2) as i32, 0, 3 + (token % 3 / 2) as i32]).collect();
        let rest = [9, -9, 5];
        let table: Vec<u8> = choice
            .chunks(SLOTS)
            .flat_map(|chosen| chosen.iter().chain(&rest).flat_map(|entry| entry.to_ne_bytes()))
            .collect();
        set(sorted, &table);
        Self {
            gate,
            up,
            down,
            graph,
            matrices,
            shared: shared_rows,
            own: own_rows,
            choice,
            _buffers: [weight_buffer, node_buffer],
            _tensors: [tensors, nodes],
        }
    }

    fn check(&self, label: &str) {
        for (which, out) in [self.gate, self.up, self.down].into_iter().enumerate() {
            let n = N[which];
            let mut want = Vec::new();
            for (at, &expert) in self.choice.iter().enumerate() {
                let matrix = &self.matrices[which][expert as usize * n * K..][..n * K];
                let row =
                    if which == 2 { &self.own[at * K..][..K] } else { &self.shared[at / SLOTS * K..][..K] };
                want.extend(reference(matrix, row, K));
            }
            let error = worst(&get_f32(out), &want);
            assert!(error < 1e-5, "{label}, product {which}: {error}");
        }
    }
}

#[test]
fn rows_meet_the_experts_they_chose() {
    for route in routes() {
        let counts = Arc::new(Counts::default());
        let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
        let backend = backend(accelerator, routed(route));
        let mixture = Mixture::new(weight_type(&backend));
        assert_eq!(counts.live.load(SeqCst), 3 * EXPERTS, "every expert is a weight");
        let stream = Stream::ork(&backend);
        assert!(unsafe { sys::ggml_backend_supports_op(stream.0, mixture.down) });
        assert_eq!(stream.compute(mixture.graph), sys::GGML_STATUS_SUCCESS, "{:?}", backend.take_error());
        mixture.check(&route.to_string());

        let census = backend.census();
        assert!(!census.executed.weights.keys().any(|name| name.ends_with("[5]")), "{census}");
        let busiest = &census.executed.weights["blk.0.ffn_down_exps.weight[0]"];
        assert_eq!((busiest.matmuls, busiest.rows), (1, TOKENS as u64));
        // Five experts are used: gate and up of each go together, down alone.
        assert_eq!((census.executed.submissions, census.executed.matmuls), (10, 15));
        assert_eq!(counts.groups.load(SeqCst), 5);
        drop(mixture);
        assert_eq!((counts.live.load(SeqCst), backend.census().holding.live), (0, 0));
    }
}

#[test]
fn experts_in_plain_memory_are_packed_for_each_call_if_asked() {
    let counts = Arc::new(Counts::default());
    let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
    let foreign_weights = ForeignWeights::PackPerCall;
    let backend = backend(
        accelerator,
        BackendOptions {
            route: Route::Auto { min_rows: MinRows::Rows(1) },
            foreign_weights,
            ..BackendOptions::default()
        },
    );
    let stream = Stream::ork(&backend);
    let mixture = Mixture::new(cpu_type());
    assert!(unsafe { sys::ggml_backend_supports_op(stream.0, mixture.gate) });
    assert_eq!(stream.compute(mixture.graph), sys::GGML_STATUS_SUCCESS, "{:?}", backend.take_error());
    mixture.check("foreign");
    assert_eq!(counts.live.load(SeqCst), 0);
}

#[test]
fn a_choice_that_names_no_expert_is_an_error() {
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let mixture = Mixture::new(weight_type(&backend));
    for bad in [EXPERTS as i32, -1] {
        let table = unsafe { (*(*mixture.gate).src[2]).view_src };
        set(table, &bad.to_ne_bytes());
        assert_eq!(Stream::ork(&backend).compute(mixture.graph), sys::GGML_STATUS_FAILED);
        let message = backend.take_error().unwrap().to_string();
        assert!(message.contains(&format!("chooses matrix {bad}")), "{message}");
    }
}

/// Of experts of 40 rows there is no room for any: none of the stack is kept, and the CPU computes all of it.
#[test]
fn a_stack_without_room_is_left_to_the_cpu() {
    let counts = Arc::new(Counts::default());
    let accelerator = NaiveAccelerator {
        fault: Fault::NoRoomForRows(40),
        counts: Arc::clone(&counts),
        ..NaiveAccelerator::default()
    };
    let backend = backend(accelerator, routed(Route::Auto { min_rows: MinRows::Rows(1) }));
    let mixture = Mixture::new(weight_type(&backend));
    assert_eq!(counts.live.load(SeqCst), 2 * EXPERTS);
    let stream = Stream::ork(&backend);
    let ask = |op| unsafe { sys::ggml_backend_supports_op(stream.0, op) };
    assert!(ask(mixture.gate) && !ask(mixture.down));
    assert_eq!(backend.census().declined("MUL_MAT_ID", DeclineReason::NotLoaded), 1);
    assert_eq!(backend.census().holding.no_room, EXPERTS as u64);
}

/// The accelerator is worth it for the three rows that an expert is expected to meet, and not for the one that some expert
/// meets. Who can leave the product to the CPU has taken it by the expected cost.
#[test]
fn an_expert_is_where_it_is_for_the_reason_of_the_plan() {
    for (loaded, why) in [(Route::default(), Why::Cost), (Route::Npu, Why::Route)] {
        let accelerator = NaiveAccelerator { time: Some(|_, _, _| 0.06), ..NaiveAccelerator::default() };
        let backend = backend(accelerator, routed(loaded));
        let mixture = Mixture::new(weight_type(&backend));
        backend.set_route(Route::default());
        let stream = Stream::ork(&backend);
        for op in [mixture.gate, mixture.up, mixture.down] {
            assert!(unsafe { sys::ggml_backend_supports_op(stream.0, op) });
        }
        assert_eq!(stream.compute(mixture.graph), sys::GGML_STATUS_SUCCESS, "{:?}", backend.take_error());
        let routes = backend.census().routes;
        let one_row = |kind: &str| {
            let wanted =
                |(key, used): &&(RouteKey, RouteUse)| key.kind == kind && used.calls > 0 && used.m_max == 1;
            let found = routes.iter().find(wanted).unwrap();
            (found.0.place, found.0.why)
        };
        assert_eq!(one_row("blk.*.ffn_up_exps.weight[*]"), (Place::Npu, why), "{loaded}");
        assert_eq!(
            one_row("blk.*.ffn_down_exps.weight[*]"),
            (Place::Npu, Why::Cost),
            "it is faster for one row, too"
        );
    }
}

const STACKS: [&str; 3] =
    ["blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"];

/// Measured use that makes experts 0 and 3 the most used ones.
fn measured(folder: &std::path::Path, stacks: &[&str]) -> std::path::PathBuf {
    let path = folder.join("skew.toml");
    let mut skew = ExpertSkew::new("m.gguf".to_owned(), "a text".to_owned());
    skew.layers.push(LayerSkew {
        layer: 0,
        stacks: stacks.iter().map(|&name| name.to_owned()).collect(),
        expert_bytes: (K * N.iter().sum::<usize>()) as u64,
        counts: vec![9, 2, 1, 4, 3, 0],
    });
    std::fs::write(&path, skew.to_text()).unwrap();
    path
}

/// The products of the mixture with a cache that holds so many experts.
fn cached(route: Route, experts: u64, codes: ExpertCodes) -> ([Vec<f32>; 3], Arc<Counts>, Arc<OrkBackend>) {
    let folder = tempfile::tempdir().unwrap();
    let counts = Arc::new(Counts::default());
    let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
    let bytes = (K * N.iter().sum::<usize>()) as u64 * experts;
    let skew = Some(measured(folder.path(), &STACKS));
    let options = ExpertOptions { cache: ExpertCache::Bytes(bytes), skew, codes };
    let backend =
        backend(accelerator, BackendOptions { route, experts: options, ..BackendOptions::default() });
    let mixture = Mixture::new(weight_type(&backend));
    assert_eq!(counts.coded.load(SeqCst), 3 * experts);
    assert_eq!(backend.census().holding.cold, 3 * (EXPERTS as u64 - experts));
    let stream = Stream::ork(&backend);
    assert!(unsafe { sys::ggml_backend_supports_op(stream.0, mixture.down) });
    assert_eq!(stream.compute(mixture.graph), sys::GGML_STATUS_SUCCESS, "{:?}", backend.take_error());
    // Four bits are not what the model has, but near it.
    for (which, out) in [mixture.gate, mixture.up, mixture.down].into_iter().enumerate() {
        let n = N[which];
        let (mut wrong, mut size) = (0.0, 0.0);
        for (at, &expert) in mixture.choice.iter().enumerate() {
            let matrix = &mixture.matrices[which][expert as usize * n * K..][..n * K];
            let row =
                if which == 2 { &mixture.own[at * K..][..K] } else { &mixture.shared[at / SLOTS * K..][..K] };
            for (got, want) in get_f32(out)[at * n..].iter().zip(reference(matrix, row, K)) {
                wrong += (f64::from(*got) - want).powi(2);
                size += want * want;
            }
        }
        let error = (wrong / size).sqrt();
        assert!(error > 0.001 && error < 0.15, "{route} {experts} {codes:?}, product {which}: {error}");
    }
    let results = [mixture.gate, mixture.up, mixture.down].map(get_f32);
    let census = backend.census();
    drop(mixture);
    assert_eq!((counts.live.load(SeqCst), backend.census().holding.cold), (0, 0));
    assert_eq!(backend.census().holding.cold_bytes, 0);
    // Five experts are used, 0 and 3 the most: rows 5 and 4 of the 15.
    let used = census.executed.experts;
    let (hot, rows) = match experts {
        0 => (0, 0),
        2 => (2, 9),
        _ => (5, 15),
    };
    assert_eq!((used.hot, used.cold), (3 * hot, 3 * (5 - hot)), "{census}");
    assert_eq!((used.hot_rows, used.cold_rows), (3 * rows, 3 * (15 - rows)), "{census}");
    let cold = &census.executed.weights["blk.0.ffn_up_exps.weight[1]"];
    assert_eq!(cold.cold, if experts < 6 { cold.matmuls } else { 0 });
    let places: Vec<Place> =
        census.routes.iter().filter(|(_, used)| used.calls > 0).map(|(key, _)| key.place).collect();
    assert_eq!(places.contains(&Place::Cold), experts < 6, "{}", census.route_table());
    assert_eq!(places.contains(&Place::Npu), experts > 0, "{}", census.route_table());
    (results, counts, backend)
}

#[test]
fn where_an_expert_is_does_not_change_a_bit() {
    for codes in [ExpertCodes::Nf4, ExpertCodes::Int4] {
        for route in routes() {
            let [cold, mixed, hot] = [0, 2, 6].map(|experts| cached(route, experts, codes).0);
            assert_eq!(cold, mixed, "{route} {codes:?}");
            assert_eq!(cold, hot, "{route} {codes:?}");
        }
    }
    let one = cached(Route::Npu, 2, ExpertCodes::Nf4).0;
    assert_ne!(one, cached(Route::Npu, 2, ExpertCodes::Int4).0);
}

/// The heads of an attention are a stack, too, but nobody chooses among them: the file of measured use does not know them,
/// and they are weights like any, whatever cache there is.
#[test]
fn a_stack_without_a_choice_is_no_mixture() {
    let folder = tempfile::tempdir().unwrap();
    for route in routes() {
        for bytes in [0, 1 << 30] {
            let skew = Some(measured(folder.path(), &STACKS));
            let experts =
                ExpertOptions { cache: ExpertCache::Bytes(bytes), skew, ..ExpertOptions::default() };
            let options = BackendOptions { route, experts, ..BackendOptions::default() };
            let counts = Arc::new(Counts::default());
            let accelerator = NaiveAccelerator {
                counts: Arc::clone(&counts),
                time: Some(|_, _, _| 1.0),
                ..NaiveAccelerator::default()
            };
            let backend = backend(accelerator, options);
            let (name, ne) = ("blk.0.attn_k_b.weight", [K, 5, 2, 1]);
            probe(weight_type(&backend), sys::GGML_TYPE_F32, ne, name, false);
            let tensors = Tensors::new();
            let w = tensors.matrix(sys::GGML_TYPE_F32, ne, name);
            let _weights = Buffer::weights(&tensors, weight_type(&backend));
            let heads = numbers(3, K * 5 * 2);
            set_f32(w, &heads);
            assert!(backend.take_error().is_none(), "{route} {bytes}");
            let nodes = Tensors::new();
            let x = nodes.matrix(sys::GGML_TYPE_F32, [K, 7, 2, 1], "x");
            let out = unsafe { sys::ggml_mul_mat(nodes.0, w, x) };
            let graph = graph(&nodes, &[out]);
            let _activations = Buffer::plain(&nodes, cpu_type());
            let input = numbers(4, K * 7 * 2);
            set_f32(x, &input);
            let stream = Stream::ork(&backend);
            assert!(unsafe { sys::ggml_backend_supports_op(stream.0, out) });
            assert_eq!(stream.compute(graph), sys::GGML_STATUS_SUCCESS, "{:?}", backend.take_error());
            let halves = heads.chunks(K * 5).zip(input.chunks(K * 7));
            let want: Vec<f64> = halves.flat_map(|(w, x)| reference(w, x, K)).collect();
            // The weight as it is, not in four bits.
            assert!(worst(&get_f32(out), &want) < 1e-5, "{route} {bytes}");
            assert_eq!((counts.coded.load(SeqCst), counts.live.load(SeqCst)), (0, 2));
            assert_eq!(backend.census().holding.cold, 0);
        }
    }
}

/// Where the accelerator is full, an expert that was meant for it is cold.
#[test]
fn an_expert_without_room_is_kept_cold() {
    let folder = tempfile::tempdir().unwrap();
    let accelerator = NaiveAccelerator { fault: Fault::NoRoomForRows(40), ..NaiveAccelerator::default() };
    let skew = Some(measured(folder.path(), &STACKS));
    let experts = ExpertOptions { cache: ExpertCache::Bytes(1 << 30), skew, ..ExpertOptions::default() };
    let options = BackendOptions { route: Route::Npu, experts, ..BackendOptions::default() };
    let backend = backend(accelerator, options);
    let mixture = Mixture::new(weight_type(&backend));
    let holding = backend.census().holding;
    assert_eq!((holding.cold, holding.no_room, holding.live), (6, 6, 12));
    assert_eq!(Stream::ork(&backend).compute(mixture.graph), sys::GGML_STATUS_SUCCESS);
    assert_eq!(backend.census().executed.experts.cold, 5);
}

#[test]
fn a_cache_of_another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let skew = Some(measured(folder.path(), &STACKS[1..]));
    let experts = ExpertOptions { cache: ExpertCache::Bytes(1 << 30), skew, ..ExpertOptions::default() };
    let options = BackendOptions { route: Route::Npu, experts: experts.clone(), ..BackendOptions::default() };
    let backend = backend(NaiveAccelerator::default(), options);
    let _mixture = Mixture::new(weight_type(&backend));
    let error = backend.take_error().unwrap();
    assert!(error.to_string().contains("knows no experts blk.0.ffn_gate_exps.weight"), "{error}");
    assert!(error.hint().unwrap().contains("moe-skew"));

    let unknown = ExpertOptions { skew: None, ..experts };
    let options = BackendOptions { experts: unknown, ..BackendOptions::default() };
    let refused = OrkBackend::new(ork_engine::linked_host(), Arc::new(NaiveAccelerator::default()), options);
    assert!(matches!(refused, Err(InitError::Experts { .. })), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("ork moe-skew"));
}
