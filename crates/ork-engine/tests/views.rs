// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights that are multiplied by through views, and bytes that only the accelerator has.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "plain calls of ggml on tensors the test owns")]

mod support;

use llama_cpp_sys_2 as sys;
use ork_ggml::{BackendError, DeclineReason, MinRows, OrkBackend, Route};
use std::sync::Arc;
use support::naive::NaiveAccelerator;
use support::*;

const K: usize = 16;
const PARTS: usize = 5;
const ROWS: Route = Route::Auto { min_rows: MinRows::Rows(1) };

/// A stack of square matrices, in memory of the device or in a file of the host.
struct Stack {
    backend: Arc<OrkBackend>,
    w: *mut sys::ggml_tensor,
    stream: Stream,
    file: Vec<f32>,
    nodes: Tensors,
    _buffer: Buffer,
    _tensors: Tensors,
}

impl Stack {
    fn new(route: Route, mapped: bool) -> Self {
        let backend = backend(NaiveAccelerator::default(), routed(route));
        let tensors = Tensors::new();
        let w = tensors.matrix(sys::GGML_TYPE_F32, [K, K, PARTS, 1], "blk.0.time_mix_w2.weight");
        let mut file = numbers(1, K * K * PARTS);
        let buffer = if mapped {
            let (start, bytes) = (file.as_mut_ptr(), size_of_val(file.as_slice()));
            unsafe {
                let buffer =
                    sys::ggml_backend_dev_buffer_from_host_ptr(device(&backend), start.cast(), bytes, bytes);
                sys::ggml_backend_buffer_set_usage(buffer, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
                let placed = sys::ggml_backend_tensor_alloc(buffer, w, start.cast());
                assert_eq!(placed, sys::GGML_STATUS_SUCCESS);
                Buffer(buffer)
            }
        } else {
            let buffer = Buffer::weights(&tensors, weight_type(&backend));
            set_f32(w, &file);
            buffer
        };
        assert_eq!(backend.census().holding.live, PARTS as u64);
        let stream = Stream::ork(&backend);
        Self { backend, w, stream, file, nodes: Tensors::new(), _buffer: buffer, _tensors: tensors }
    }

    fn asked(&self, op: *mut sys::ggml_tensor) -> bool {
        unsafe { sys::ggml_backend_supports_op(self.stream.0, op) }
    }

    /// The product of a view with numbers, ready to be computed, and the numbers.
    fn product(&self, view: *mut sys::ggml_tensor) -> Product {
        let [k, _, ne2, ne3] = unsafe { (*view).ne }.map(|ne| ne as usize);
        let x = self.nodes.matrix(sys::GGML_TYPE_F32, [k, 3, ne2, ne3], "x");
        let out = unsafe { sys::ggml_mul_mat(self.nodes.0, view, x) };
        let graph = graph(&self.nodes, &[out]);
        // The views are in the memory of the weight; what follows is in plain memory.
        let buffer = Buffer::plain(&self.nodes, cpu_type());
        let input = numbers(2, k * 3 * ne2 * ne3);
        set_f32(x, &input);
        Product { out, graph, input, _buffer: buffer }
    }
}

struct Product {
    out: *mut sys::ggml_tensor,
    graph: *mut sys::ggml_cgraph,
    input: Vec<f32>,
    _buffer: Buffer,
}

/// As RWKV does. Nobody else can read a resident weight, so that the view must be taken.
#[test]
fn a_reshaped_weight_is_the_weight() {
    for mapped in [false, true] {
        let stack = Stack::new(Route::Npu, mapped);
        let k = K as i64;
        let view = unsafe { sys::ggml_reshape_4d(stack.nodes.0, stack.w, k, k, 1, PARTS as i64) };
        let product = stack.product(view);
        assert!(stack.asked(product.out), "{}", stack.backend.census());
        assert_eq!(stack.stream.compute(product.graph), sys::GGML_STATUS_SUCCESS);
        let parts = stack.file.chunks(K * K).zip(product.input.chunks(K * 3));
        let want: Vec<f64> = parts.flat_map(|(w, x)| reference(w, x, K)).collect();
        assert!(worst(&get_f32(product.out), &want) < 1e-5);
        let executed = stack.backend.census().executed;
        assert_eq!((executed.matmuls, executed.software), (PARTS as u64, 0));
        assert!(stack.backend.take_error().is_none());
    }
    // Where the CPU can read it, it is left to the CPU.
    let stack = Stack::new(ROWS, false);
    let view = unsafe { sys::ggml_reshape_4d(stack.nodes.0, stack.w, K as i64, K as i64, 1, PARTS as i64) };
    assert!(!stack.asked(stack.product(view).out));
    assert_eq!(stack.backend.census().declined("MUL_MAT", DeclineReason::ComputedOperand), 1);
}

/// Other bounds than those that were packed: declined where ggml can copy the bytes, and else an error, for a copy would be zeros.
#[test]
fn a_part_of_a_weight_is_not_taken_for_the_weight() {
    type View = fn(*mut sys::ggml_context, *mut sys::ggml_tensor) -> *mut sys::ggml_tensor;
    assert_eq!((K, PARTS), (16, 5), "what the views are made for");
    let views: [View; 4] = [
        |ctx, w| unsafe { sys::ggml_reshape_3d(ctx, w, 16, 8, 10) },
        |ctx, w| unsafe { sys::ggml_permute(ctx, w, 0, 2, 1, 3) },
        // Every other row, as many as a matrix has.
        |ctx, w| unsafe { sys::ggml_view_2d(ctx, w, 16, 16, 2 * (*w).nb[1], 0) },
        // From the middle of one matrix to that of the next.
        |ctx, w| unsafe { sys::ggml_view_2d(ctx, w, 16, 16, (*w).nb[1], 8 * (*w).nb[1]) },
    ];
    for (index, view) in views.into_iter().enumerate() {
        let stack = Stack::new(Route::Npu, false);
        let product = stack.product(view(stack.nodes.0, stack.w));
        assert!(stack.asked(product.out), "view {index}");
        assert_eq!(stack.stream.compute(product.graph), sys::GGML_STATUS_FAILED, "view {index}");
        let error = stack.backend.take_error().unwrap();
        assert!(error.to_string().contains("other bounds"), "view {index}: {error}");
        assert_eq!(
            (stack.backend.census().executed.failed, stack.backend.census().executed.software),
            (1, 0)
        );

        let stack = Stack::new(Route::Npu, true);
        let product = stack.product(view(stack.nodes.0, stack.w));
        assert!(!stack.asked(product.out), "view {index}");
        assert_eq!(stack.backend.census().declined("MUL_MAT", DeclineReason::WeightLayout), 1);
    }
}

/// The same for tensors that are no views, at the address of a weight that the CPU can read.
#[test]
fn other_bounds_at_the_same_address_are_another_weight() {
    let stack = Stack::new(ROWS, false);
    for ne in [[K, K / 2, 1, 1], [K / 2, K, 1, 1], [K, K, 1, 1]] {
        let other = stack.nodes.matrix(sys::GGML_TYPE_F32, ne, "other");
        unsafe { ((*other).buffer, (*other).data) = ((*stack.w).buffer, (*stack.w).data) };
        let x = stack.nodes.matrix(sys::GGML_TYPE_F32, [ne[0], 3, 1, 1], "x");
        let out = unsafe { sys::ggml_mul_mat(stack.nodes.0, other, x) };
        assert_eq!(stack.asked(out), ne[0] * ne[1] == K * K, "{ne:?}");
    }
    assert_eq!(stack.backend.census().declined("MUL_MAT", DeclineReason::NotLoaded), 2);
}

#[test]
fn no_part_of_a_resident_weight_can_be_read() {
    let stack = Stack::new(Route::Npu, false);
    for offset in [0, 4, K * K * 4, (K * K * PARTS - 4) * 4] {
        let part = unsafe { sys::ggml_view_1d(stack.nodes.0, stack.w, 4, offset) };
        unsafe { sys::ggml_backend_view_init(part) };
        assert_eq!(get_f32(part), [0.0; 4]);
        assert!(matches!(stack.backend.take_error(), Some(BackendError::Unreadable { .. })), "{offset}");
    }
    let stack = Stack::new(Route::Npu, true);
    let part = unsafe { sys::ggml_view_1d(stack.nodes.0, stack.w, 4, 8) };
    unsafe { sys::ggml_backend_view_init(part) };
    assert_eq!(get_f32(part), stack.file[2..6]);
}
