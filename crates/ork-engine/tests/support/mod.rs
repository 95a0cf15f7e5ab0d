// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests share: a plain accelerator, and real ggml graphs around one weight or several.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "plain calls of ggml on tensors the test owns")]

pub(crate) mod naive;

use llama_cpp_sys_2 as sys;
use naive::NaiveAccelerator;
use ork_engine::linked_host;
use ork_engine::tiny::WeightType;
use ork_ggml::{BackendOptions, OrkBackend, Route};
use std::ptr::null_mut;
use std::sync::Arc;

/// A backend over plain loops, not registered.
pub(crate) fn backend(accelerator: NaiveAccelerator, options: BackendOptions) -> Arc<OrkBackend> {
    OrkBackend::new(linked_host(), Arc::new(accelerator), options).unwrap()
}

pub(crate) fn routed(route: Route) -> BackendOptions {
    BackendOptions { route, ..BackendOptions::default() }
}

/// Numbers in [-1, 1) without a short period.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A ggml context without data.
pub(crate) struct Tensors(pub(crate) *mut sys::ggml_context);

impl Tensors {
    pub(crate) fn new() -> Self {
        let params = sys::ggml_init_params { mem_size: 1 << 20, mem_buffer: null_mut(), no_alloc: true };
        Self(unsafe { sys::ggml_init(params) })
    }

    pub(crate) fn matrix(&self, type_: sys::ggml_type, ne: [usize; 4], name: &str) -> *mut sys::ggml_tensor {
        let name = std::ffi::CString::new(name).unwrap();
        unsafe {
            let tensor = sys::ggml_new_tensor(self.0, type_, 4, ne.map(|n| n as i64).as_ptr());
            sys::ggml_set_name(tensor, name.as_ptr())
        }
    }
}

impl Drop for Tensors {
    fn drop(&mut self) {
        unsafe { sys::ggml_free(self.0) }
    }
}

/// The buffer of all tensors of a context.
pub(crate) struct Buffer(pub(crate) sys::ggml_backend_buffer_t);

impl Buffer {
    pub(crate) fn weights(tensors: &Tensors, buft: sys::ggml_backend_buffer_type_t) -> Self {
        let buffer = Self::plain(tensors, buft);
        unsafe { sys::ggml_backend_buffer_set_usage(buffer.0, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS) };
        buffer
    }

    pub(crate) fn plain(tensors: &Tensors, buft: sys::ggml_backend_buffer_type_t) -> Self {
        let buffer = unsafe { sys::ggml_backend_alloc_ctx_tensors_from_buft(tensors.0, buft) };
        assert!(!buffer.is_null());
        Self(buffer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        unsafe { sys::ggml_backend_buffer_free(self.0) }
    }
}

/// A stream of a device.
pub(crate) struct Stream(pub(crate) sys::ggml_backend_t);

impl Stream {
    pub(crate) fn ork(backend: &OrkBackend) -> Self {
        Self(unsafe { sys::ggml_backend_dev_init(device(backend), std::ptr::null()) })
    }

    pub(crate) fn cpu() -> Self {
        Self(unsafe { sys::ggml_backend_cpu_init() })
    }

    pub(crate) fn compute(&self, graph: *mut sys::ggml_cgraph) -> sys::ggml_status {
        unsafe { sys::ggml_backend_graph_compute(self.0, graph) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        unsafe { sys::ggml_backend_free(self.0) }
    }
}

pub(crate) fn device(backend: &OrkBackend) -> sys::ggml_backend_dev_t {
    backend.device().cast()
}

/// The device's weight buffer type under the current route.
pub(crate) fn weight_type(backend: &OrkBackend) -> sys::ggml_backend_buffer_type_t {
    unsafe { sys::ggml_backend_dev_buffer_type(device(backend)) }
}

pub(crate) fn cpu_type() -> sys::ggml_backend_buffer_type_t {
    unsafe { sys::ggml_backend_cpu_buffer_type() }
}

pub(crate) fn graph(tensors: &Tensors, outputs: &[*mut sys::ggml_tensor]) -> *mut sys::ggml_cgraph {
    unsafe {
        let graph = sys::ggml_new_graph(tensors.0);
        for &output in outputs {
            sys::ggml_build_forward_expand(graph, output);
        }
        graph
    }
}

pub(crate) fn set(tensor: *mut sys::ggml_tensor, bytes: &[u8]) {
    unsafe { sys::ggml_backend_tensor_set(tensor, bytes.as_ptr().cast(), 0, bytes.len()) }
}

pub(crate) fn set_f32(tensor: *mut sys::ggml_tensor, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    set(tensor, &bytes);
}

pub(crate) fn get_f32(tensor: *mut sys::ggml_tensor) -> Vec<f32> {
    let mut values = vec![0f32; unsafe { sys::ggml_nelements(tensor) } as usize];
    unsafe { sys::ggml_backend_tensor_get(tensor, values.as_mut_ptr().cast(), 0, values.len() * 4) };
    values
}

pub(crate) fn code(type_: WeightType) -> sys::ggml_type {
    match type_ {
        WeightType::F32 => sys::GGML_TYPE_F32,
        WeightType::F16 => sys::GGML_TYPE_F16,
        WeightType::Q8_0 => sys::GGML_TYPE_Q8_0,
        WeightType::Q4_0 => sys::GGML_TYPE_Q4_0,
        WeightType::Q4_1 => sys::GGML_TYPE_Q4_1,
        WeightType::Q4K => sys::GGML_TYPE_Q4_K,
        WeightType::Q6K => sys::GGML_TYPE_Q6_K,
    }
}

/// What ggml makes of encoded bytes.
pub(crate) fn decode(type_: WeightType, bytes: &[u8], count: usize) -> Vec<f32> {
    if type_ == WeightType::F32 {
        return bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect();
    }
    let mut values = vec![0f32; count];
    unsafe {
        let traits = &*sys::ggml_get_type_traits(code(type_));
        traits.to_float.unwrap()(bytes.as_ptr().cast(), values.as_mut_ptr(), count as i64);
    }
    values
}

/// `out[i][j] = Σ x[i][·] · w[j][·]` in f64.
pub(crate) fn reference(w: &[f32], x: &[f32], k: usize) -> Vec<f64> {
    let row = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
    x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(move |w| row(x, w))).collect()
}

/// Largest error, in units of the largest value.
pub(crate) fn worst(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-30, |max: f64, v| max.max(v.abs()));
    let errors = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs());
    errors.fold(0.0, |max: f64, e| if e.is_nan() { f64::INFINITY } else { max.max(e) }) / scale
}
