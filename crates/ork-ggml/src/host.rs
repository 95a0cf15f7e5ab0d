// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of the host's ggml that this backend calls, as one table of pointers.
//!
//! In-process users fill it from linked symbols (`ork-engine`), a plug-in by looking the names up in its host. So
//! this crate neither links ggml nor depends on a crate that does.

use crate::abi;
use std::ffi::{CStr, c_char, c_int, c_void};

/// ggml functions, by the names ggml exports them under (all are in ggml-base).
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "each field is the ggml function of that name")]
pub struct Host {
    pub ggml_backend_cpu_buffer_type: unsafe extern "C" fn() -> *mut abi::BufferType,
    pub ggml_backend_cpu_buffer_from_ptr:
        unsafe extern "C" fn(ptr: *mut c_void, size: usize) -> *mut abi::Buffer,
    pub ggml_backend_buffer_init: unsafe extern "C" fn(
        buft: *mut abi::BufferType,
        iface: abi::BufferI,
        context: *mut c_void,
        size: usize,
    ) -> *mut abi::Buffer,
    pub ggml_backend_buft_is_host: unsafe extern "C" fn(*mut abi::BufferType) -> bool,
    pub ggml_get_type_traits: unsafe extern "C" fn(c_int) -> *const abi::TypeTraits,
    pub ggml_nbytes: unsafe extern "C" fn(*const abi::Tensor) -> usize,
    pub ggml_is_contiguous: unsafe extern "C" fn(*const abi::Tensor) -> bool,
    pub ggml_graph_n_nodes: unsafe extern "C" fn(*mut abi::Graph) -> c_int,
    pub ggml_graph_node: unsafe extern "C" fn(*mut abi::Graph, c_int) -> *mut abi::Tensor,
    pub ggml_op_name: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// Codes of the operations this backend tells apart, looked up by name since forks insert operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpCodes {
    pub(crate) none: c_int,
    pub(crate) mul_mat: c_int,
    pub(crate) mul_mat_id: c_int,
    /// RESHAPE, VIEW, PERMUTE, TRANSPOSE: no work, only another way to look at the same bytes.
    pub(crate) views: [c_int; 4],
}

/// ggml had 100 operations at version 0.26; the ones looked for are among the first forty. `ggml_op_name` reads an
/// array without a bound check, hence the margin.
const OP_SEARCH_END: c_int = 64;

impl Host {
    /// Looks the operation codes up by name; `Err` names the missing one.
    pub(crate) fn op_codes(&self) -> Result<OpCodes, &'static str> {
        let find = |wanted: &'static str| {
            (0..OP_SEARCH_END).find(|&code| self.op_name(code) == wanted).ok_or(wanted)
        };
        Ok(OpCodes {
            none: find("NONE")?,
            mul_mat: find("MUL_MAT")?,
            mul_mat_id: find("MUL_MAT_ID")?,
            views: [find("RESHAPE")?, find("VIEW")?, find("PERMUTE")?, find("TRANSPOSE")?],
        })
    }

    /// Whether the CPU can read memory of this type in ggml's own layout.
    pub(crate) fn is_host(&self, buft: *mut abi::BufferType) -> bool {
        // SAFETY: buffer types are never freed: those of live buffers are valid, and null is excluded.
        !buft.is_null() && unsafe { (self.ggml_backend_buft_is_host)(buft) }
    }

    /// Name of an operation as ggml spells it.
    pub(crate) fn op_name(&self, code: c_int) -> String {
        // SAFETY: callers pass codes read from a live tensor or below OP_SEARCH_END, all inside ggml's table.
        let name = unsafe { (self.ggml_op_name)(code) };
        if name.is_null() {
            return format!("op{code}");
        }
        // SAFETY: ggml returns a static NUL-terminated string.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Facts about one tensor type.
    pub(crate) fn element_type(&self, type_: c_int) -> ElementType {
        // SAFETY: the code comes from a live tensor, so it is inside ggml's table.
        let traits = unsafe { (self.ggml_get_type_traits)(type_).as_ref() };
        let Some(traits) = traits else {
            return ElementType { name: format!("type{type_}"), block: 1, block_bytes: 0, decode: None };
        };
        let name = if traits.type_name.is_null() {
            format!("type{type_}")
        } else {
            // SAFETY: ggml's table holds static NUL-terminated names.
            unsafe { CStr::from_ptr(traits.type_name) }.to_string_lossy().into_owned()
        };
        let decode = match (type_, traits.to_float) {
            (abi::TYPE_F32, _) => Some(Decode::Copy),
            (_, Some(function)) => Some(Decode::Function(function)),
            (_, None) => None,
        };
        ElementType {
            name,
            block: usize::try_from(traits.blck_size).unwrap_or(1).max(1),
            block_bytes: traits.type_size,
            decode,
        }
    }
}

/// How rows of a type become f32.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Decode {
    Copy,
    Function(unsafe extern "C" fn(*const c_void, *mut f32, i64)),
}

/// One ggml tensor type.
#[derive(Debug, Clone)]
pub(crate) struct ElementType {
    pub(crate) name: String,
    pub(crate) block: usize,
    pub(crate) block_bytes: usize,
    /// `None`: ggml cannot dequantise it.
    pub(crate) decode: Option<Decode>,
}

impl ElementType {
    /// Bytes of one contiguous row of `k` elements, if `k` is whole blocks.
    pub(crate) fn row_bytes(&self, k: usize) -> Option<usize> {
        (k.is_multiple_of(self.block)).then(|| k / self.block * self.block_bytes)
    }

    /// Dequantises one row into `out`. Returns false if the type has no decoder (`out` is then untouched).
    ///
    /// # Safety
    /// `row` must point to `self.row_bytes(out.len())` readable bytes in this type's format.
    pub(crate) unsafe fn decode_row(&self, row: *const u8, out: &mut [f32]) -> bool {
        match self.decode {
            Some(Decode::Copy) => {
                let bytes = std::mem::size_of_val(out);
                // SAFETY: the caller vouches for `row`; `out` is an exclusive slice of as many bytes.
                unsafe { std::ptr::copy_nonoverlapping(row, out.as_mut_ptr().cast::<u8>(), bytes) };
                true
            }
            Some(Decode::Function(to_float)) => {
                let k = i64::try_from(out.len()).unwrap_or(i64::MAX);
                // SAFETY: as above; ggml's to_float writes exactly k floats.
                unsafe { to_float(row.cast(), out.as_mut_ptr(), k) };
                true
            }
            None => false,
        }
    }
}
