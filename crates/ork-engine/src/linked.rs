// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host table of `ork-ggml`, filled from the ggml linked into this process.
//!
//! Declared here with the mirror's types: the generated bindings know these functions too, but not the private
//! structs behind their pointers.

use ork_ggml::{Host, abi};
use std::ffi::{c_char, c_int, c_void};

unsafe extern "C" {
    fn ggml_backend_cpu_buffer_type() -> *mut abi::BufferType;
    fn ggml_backend_cpu_buffer_from_ptr(ptr: *mut c_void, size: usize) -> *mut abi::Buffer;
    fn ggml_backend_buffer_init(
        buft: *mut abi::BufferType,
        iface: abi::BufferI,
        context: *mut c_void,
        size: usize,
    ) -> *mut abi::Buffer;
    fn ggml_backend_buft_is_host(buft: *mut abi::BufferType) -> bool;
    fn ggml_get_type_traits(type_: c_int) -> *const abi::TypeTraits;
    fn ggml_nbytes(tensor: *const abi::Tensor) -> usize;
    fn ggml_is_contiguous(tensor: *const abi::Tensor) -> bool;
    fn ggml_graph_n_nodes(graph: *mut abi::Graph) -> c_int;
    fn ggml_graph_node(graph: *mut abi::Graph, index: c_int) -> *mut abi::Tensor;
    fn ggml_op_name(op: c_int) -> *const c_char;
}

/// The linked ggml, for [`ork_ggml::OrkBackend::new`].
pub fn linked_host() -> Host {
    Host {
        ggml_backend_cpu_buffer_type,
        ggml_backend_cpu_buffer_from_ptr,
        ggml_backend_buffer_init,
        ggml_backend_buft_is_host,
        ggml_get_type_traits,
        ggml_nbytes,
        ggml_is_contiguous,
        ggml_graph_n_nodes,
        ggml_graph_node,
        ggml_op_name,
    }
}
