// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights that lie in mapped memory, and what the device says of itself.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "plain calls of ggml on tensors the test owns")]

mod support;

use llama_cpp_sys_2 as sys;
use ork_engine::tiny::WeightType;
use ork_ggml::{BackendError, MinRows, Route, abi};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::naive::{Counts, NaiveAccelerator};
use support::*;

const ROUTES: [Route; 3] = [Route::Npu, Route::Auto { min_rows: MinRows::Rows(1) }, Route::Cpu];

/// Bytes on a page of their own, as a mapping has them.
struct Mapping {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Mapping {
    fn new(bytes: &[u8]) -> Self {
        let mut memory = vec![0; bytes.len() + 4096];
        let start = memory.as_ptr().align_offset(4096);
        memory[start..start + bytes.len()].copy_from_slice(bytes);
        Self { memory, start, len: bytes.len() }
    }

    fn at(&self, offset: usize) -> *mut std::ffi::c_void {
        unsafe { self.memory.as_ptr().add(self.start + offset).cast_mut().cast() }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

fn from_host_ptr(device: sys::ggml_backend_dev_t, mapping: &Mapping) -> Buffer {
    let buffer = unsafe {
        sys::ggml_backend_dev_buffer_from_host_ptr(device, mapping.at(0), mapping.len, mapping.len)
    };
    assert!(!buffer.is_null());
    Buffer(buffer)
}

/// What the functions do and what the properties promise, on both devices, under every route.
#[test]
fn properties_and_functions_agree() {
    for route in ROUTES {
        let backend = backend(NaiveAccelerator::default(), routed(route));
        let stream = Stream::ork(&backend);
        let twin = unsafe { sys::ggml_backend_get_device(stream.0) };
        assert_ne!(twin, device(&backend), "streams name the twin");
        for (role, dev) in [("weights", device(&backend)), ("activations", twin)] {
            let label = format!("{route}, {role}");
            let mut props = unsafe { std::mem::zeroed::<sys::ggml_backend_dev_props>() };
            unsafe { sys::ggml_backend_dev_get_props(dev, &raw mut props) };
            let text = |text| unsafe { CStr::from_ptr(text) };
            unsafe {
                assert_eq!(text(props.name), text(sys::ggml_backend_dev_name(dev)), "{label}");
                assert_eq!(text(props.description), text(sys::ggml_backend_dev_description(dev)), "{label}");
                assert_eq!(props.type_, sys::ggml_backend_dev_type(dev), "{label}");
                let (mut free, mut total) = (0, 0);
                sys::ggml_backend_dev_memory(dev, &raw mut free, &raw mut total);
                assert_eq!((props.memory_free, props.memory_total), (free, total), "{label}");
            }
            let own = unsafe { sys::ggml_backend_dev_buffer_type(dev) };

            // Properties, and whether the functions behind them are there.
            let iface = unsafe { &(*dev.cast::<abi::Device>()).iface };
            let stream_iface = unsafe { &(*stream.0.cast::<abi::Stream>()).iface };
            let asynchronous = [
                stream_iface.set_tensor_async,
                stream_iface.get_tensor_async,
                stream_iface.cpy_tensor_async,
                stream_iface.synchronize,
            ];
            let events =
                [iface.event_new, iface.event_free, iface.event_synchronize, stream_iface.event_record];
            let all = |slots: &[abi::Slot]| slots.iter().all(Option::is_some);
            let none = |slots: &[abi::Slot]| slots.iter().all(Option::is_none);
            let caps = props.caps;
            assert!(if caps.async_ { all(&asynchronous) } else { none(&asynchronous) }, "{label}");
            assert!(if caps.events { all(&events) } else { none(&events) }, "{label}");
            assert_eq!(caps.host_buffer, iface.get_host_buffer_type.is_some(), "{label}");
            assert_eq!(
                caps.host_buffer,
                !unsafe { sys::ggml_backend_dev_host_buffer_type(dev) }.is_null(),
                "{label}"
            );
            assert_eq!(caps.buffer_from_host_ptr, iface.buffer_from_host_ptr.is_some(), "{label}");
            let mapping = Mapping::new(&[1, 2, 3, 4]);
            let mapped = from_host_ptr(dev, &mapping);
            unsafe {
                assert_eq!(sys::ggml_backend_buffer_get_base(mapped.0), mapping.at(0), "{label}");
                assert_eq!(sys::ggml_backend_buffer_get_size(mapped.0), 4, "{label}");
                let host = sys::ggml_backend_buft_is_host(own);
                assert_eq!(sys::ggml_backend_buffer_is_host(mapped.0), host, "{label}");
                // The CPU has a type of its own for memory that it does not own.
                if role == "weights" && route != Route::Cpu {
                    assert_eq!(sys::ggml_backend_buffer_get_type(mapped.0), own, "{label}");
                }
            }

            // Both kinds of weight buffers can be used by either device, and so can plain memory.
            assert!(unsafe { sys::ggml_backend_dev_supports_buft(dev, own) }, "{label}");
            assert!(unsafe { sys::ggml_backend_dev_supports_buft(dev, cpu_type()) }, "{label}");
            let expected = (role == "weights" && route != Route::Cpu).then_some(device(&backend));
            match expected {
                Some(dev) => {
                    assert_eq!(unsafe { sys::ggml_backend_buft_get_device(own) }, dev, "{label}");
                    let host = unsafe { sys::ggml_backend_buft_is_host(own) };
                    assert_eq!(host, route != Route::Npu, "{label}: only shared memory is for the CPU too");
                }
                None => assert_eq!(own, cpu_type(), "{label}"),
            }
        }
    }
}

/// A mapped file: a weight, a stack of two, and between them bytes that are nobody's.
#[test]
fn weights_are_packed_where_they_lie() {
    const K: usize = 64;
    for route in [Route::Npu, Route::Auto { min_rows: MinRows::Rows(1) }] {
        let counts = Arc::new(Counts::default());
        let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
        let backend = backend(accelerator, routed(route));
        let single = WeightType::Q4_1.encode(&numbers(1, K * 24), K);
        let stacked = WeightType::Q8_0.encode(&numbers(2, K * 10 * 2), K);
        let gap = 96;
        let file = [single.as_slice(), &vec![0xA5; gap], &stacked].concat();
        let mapping = Mapping::new(&file);

        let tensors = Tensors::new();
        let w = tensors.matrix(sys::GGML_TYPE_Q4_1, [K, 24, 1, 1], "w");
        let s = tensors.matrix(sys::GGML_TYPE_Q8_0, [K, 10, 2, 1], "s");
        let buffer = from_host_ptr(device(&backend), &mapping);
        unsafe {
            sys::ggml_backend_buffer_set_usage(buffer.0, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            for (tensor, at) in [(w, 0), (s, single.len() + gap)] {
                let status = sys::ggml_backend_tensor_alloc(buffer.0, tensor, mapping.at(at));
                assert_eq!(status, sys::GGML_STATUS_SUCCESS);
                assert_eq!((*tensor).data, mapping.at(at), "nothing moved");
            }
        }
        assert_eq!(counts.live.load(SeqCst), 3);

        let nodes = Tensors::new();
        let x = nodes.matrix(sys::GGML_TYPE_F32, [K, 3, 2, 1], "x");
        let (a, b) = unsafe { (sys::ggml_mul_mat(nodes.0, w, x), sys::ggml_mul_mat(nodes.0, s, x)) };
        let graph = graph(&nodes, &[a, b]);
        let _activations = Buffer::plain(&nodes, cpu_type());
        let input = numbers(3, K * 6);
        set_f32(x, &input);
        let stream = Stream::ork(&backend);
        assert!([a, b].iter().all(|&op| unsafe { sys::ggml_backend_supports_op(stream.0, op) }));
        assert_eq!(stream.compute(graph), sys::GGML_STATUS_SUCCESS, "{:?}", backend.take_error());
        let matrix = decode(WeightType::Q4_1, &single, K * 24);
        assert!(worst(&get_f32(a), &reference(&matrix, &input, K)) < 1e-5);
        let matrices = decode(WeightType::Q8_0, &stacked, K * 20);
        let halves = matrices.chunks(K * 10).zip(input.chunks(K * 3));
        let want: Vec<f64> = halves.flat_map(|(w, x)| reference(w, x, K)).collect();
        assert!(worst(&get_f32(b), &want) < 1e-5);

        // The bytes are still there to read, and nobody may write them.
        let mut read = vec![0; single.len()];
        unsafe { sys::ggml_backend_tensor_get(w, read.as_mut_ptr().cast(), 0, read.len()) };
        assert_eq!(read, single);
        assert!(backend.take_error().is_none());
        set(w, &vec![0; single.len()]);
        assert!(matches!(backend.take_error(), Some(BackendError::MappedWrite { name }) if name == "w"));
        unsafe { sys::ggml_backend_buffer_clear(buffer.0, 7) };
        assert!(matches!(backend.take_error(), Some(BackendError::MappedWrite { .. })));
        assert_eq!(mapping.bytes(), file);
        drop(buffer);
        assert_eq!((counts.live.load(SeqCst), backend.census().holding.live), (0, 0));
    }
}

#[test]
fn a_tensor_outside_the_mapping_is_refused() {
    let backend = backend(NaiveAccelerator::default(), routed(Route::Npu));
    let mapping = Mapping::new(&WeightType::Q8_0.encode(&numbers(1, 64 * 4), 64));
    let tensors = Tensors::new();
    let w = tensors.matrix(sys::GGML_TYPE_Q8_0, [64, 4, 1, 1], "w");
    // Our own table is called: ggml's function aborts on such a request before it gets there.
    let buffer = from_host_ptr(device(&backend), &mapping);
    unsafe {
        sys::ggml_backend_buffer_set_usage(buffer.0, sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        (*w).data = mapping.at(64);
        (*w).buffer = buffer.0;
        let place = (*buffer.0.cast::<abi::Buffer>()).iface.init_tensor.unwrap();
        assert_eq!(place(buffer.0.cast(), w.cast()), abi::STATUS_FAILED);
    }
    assert!(matches!(backend.take_error(), Some(BackendError::Operand { .. })));
    assert_eq!(backend.census().holding.live, 0);
}

/// A host that reads a file straight into memory shared with the CPU says nothing. The weight is seen when work with it is
/// planned, and offered once.
#[test]
fn a_weight_written_in_silence_is_taken_when_work_is_planned() {
    let counts = Arc::new(Counts::default());
    let accelerator =
        NaiveAccelerator { counts: Arc::clone(&counts), n_max: 24, ..NaiveAccelerator::default() };
    let backend = backend(accelerator, routed(Route::Auto { min_rows: MinRows::Rows(2) }));
    let tensors = Tensors::new();
    let w = tensors.matrix(sys::GGML_TYPE_F32, [8, 4, 1, 1], "w");
    let wide = tensors.matrix(sys::GGML_TYPE_F32, [8, 25, 1, 1], "wide");
    let _weights = Buffer::weights(&tensors, weight_type(&backend));
    let matrix = numbers(1, 8 * 4);
    unsafe { std::ptr::copy_nonoverlapping(matrix.as_ptr(), (*w).data.cast::<f32>(), matrix.len()) };
    let nodes = Tensors::new();
    let x = nodes.matrix(sys::GGML_TYPE_F32, [8, 3, 1, 1], "x");
    let one = nodes.matrix(sys::GGML_TYPE_F32, [8, 1, 1, 1], "one");
    let (out, few, far) = unsafe {
        (
            sys::ggml_mul_mat(nodes.0, w, x),
            sys::ggml_mul_mat(nodes.0, w, one),
            sys::ggml_mul_mat(nodes.0, wide, x),
        )
    };
    let graph = graph(&nodes, &[out]);
    let _activations = Buffer::plain(&nodes, cpu_type());
    let input = numbers(2, 24);
    set_f32(x, &input);
    let stream = Stream::ork(&backend);
    let ask = |op| unsafe { sys::ggml_backend_supports_op(stream.0, op) };
    assert!(!ask(few));
    assert_eq!(counts.live.load(SeqCst), 0, "nothing is packed for work that the CPU does");
    assert!(ask(out) && ask(out) && !ask(far));
    assert_eq!((counts.live.load(SeqCst), backend.census().holding.loaded), (1, 1));
    assert_eq!(stream.compute(graph), sys::GGML_STATUS_SUCCESS, "{:?}", backend.take_error());
    assert!(worst(&get_f32(out), &reference(&matrix, &input, 8)) < 1e-5);
}
