// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hand-written mirror of ggml's private backend interface, `GGML_BACKEND_API_VERSION` 3 (ggml 0.26), 64-bit.
//!
//! Only layout lives here: no behaviour. Sizes and offsets are asserted when this crate compiles, and a test of
//! `ork-engine` prints the same numbers from a C program built against the header that `llama-cpp-sys-2` ships.
//!
//! Slots this backend never calls or fills are typed [`Slot`]: a nullable pointer without a signature.

#![allow(
    missing_docs,
    reason = "the fields are ggml's own; their meaning is documented in ggml-backend-impl.h"
)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// The interface version this mirror describes. A host with another number must be refused.
pub const API_VERSION: c_int = 3;

/// A function pointer that stays null in every table built here.
pub type Slot = Option<unsafe extern "C" fn()>;

pub const TYPE_F32: c_int = 0;
pub const TYPE_I32: c_int = 26;

pub const STATUS_FAILED: c_int = -1;
pub const STATUS_SUCCESS: c_int = 0;

pub const DEVICE_TYPE_CPU: c_int = 0;
pub const DEVICE_TYPE_GPU: c_int = 1;
pub const DEVICE_TYPE_ACCEL: c_int = 3;

pub const USAGE_WEIGHTS: c_int = 1;

/// Node flag: the node must be computed.
pub const FLAG_COMPUTE: i32 = 16;

/// Index into `op_params` of a matmul's hint (0 = none).
pub const OP_PARAM_HINT: usize = 1;
/// Index into `op_params` of the fewest bits that a matmul's activation may be converted to (0 = not said).
pub const OP_PARAM_ACTIVATION_PRECISION: usize = 3;
/// `GGML_PREC_Q8`: eight bits are enough, and so they are for every larger value.
pub const PREC_Q8: i32 = 30;

/// Index into `op_params` of a GLU's kind.
pub const OP_PARAM_GLU_KIND: usize = 0;
/// Index into `op_params` that says whether a GLU's operands are swapped.
pub const OP_PARAM_GLU_SWAPPED: usize = 1;
/// `GGML_GLU_OP_SWIGLU`: `silu(src[0]) * src[1]`.
pub const GLU_SWIGLU: i32 = 2;

pub const MAX_DIMS: usize = 4;
pub const MAX_SRC: usize = 10;
pub const MAX_NAME: usize = 64;

#[repr(C)]
#[derive(Debug)]
pub struct Tensor {
    pub type_: c_int,
    pub buffer: *mut Buffer,
    pub ne: [i64; MAX_DIMS],
    pub nb: [usize; MAX_DIMS],
    pub op: c_int,
    pub op_params: [i32; 16],
    pub flags: i32,
    pub src: [*mut Tensor; MAX_SRC],
    pub view_src: *mut Tensor,
    pub view_offs: usize,
    pub data: *mut c_void,
    pub name: [c_char; MAX_NAME],
    pub extra: *mut c_void,
    pub padding: [u8; 8],
}

/// A compute graph; opaque, read through [`crate::Host`].
#[repr(C)]
#[derive(Debug)]
pub struct Graph {
    _opaque: [u8; 0],
}

/// What shares a graph out between streams; opaque.
#[repr(C)]
#[derive(Debug)]
pub struct Scheduler {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Debug)]
pub struct TypeTraits {
    pub type_name: *const c_char,
    pub blck_size: i64,
    pub blck_size_interleave: i64,
    pub type_size: usize,
    pub is_quantized: bool,
    pub to_float: Option<unsafe extern "C" fn(*const c_void, *mut f32, i64)>,
    pub from_float_ref: Slot,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BufferTypeI {
    pub get_name: Option<unsafe extern "C" fn(*mut BufferType) -> *const c_char>,
    pub alloc_buffer: Option<unsafe extern "C" fn(*mut BufferType, usize) -> *mut Buffer>,
    pub alloc_buffer_n: Slot,
    pub get_alignment: Option<unsafe extern "C" fn(*mut BufferType) -> usize>,
    pub get_max_size: Slot,
    pub get_alloc_size: Slot,
    pub get_alloc_size_n: Slot,
    pub is_host: Option<unsafe extern "C" fn(*mut BufferType) -> bool>,
}

impl BufferTypeI {
    /// All slots null.
    pub const EMPTY: Self = Self {
        get_name: None,
        alloc_buffer: None,
        alloc_buffer_n: None,
        get_alignment: None,
        get_max_size: None,
        get_alloc_size: None,
        get_alloc_size_n: None,
        is_host: None,
    };
}

#[repr(C)]
#[derive(Debug)]
pub struct BufferType {
    pub iface: BufferTypeI,
    pub device: *mut Device,
    pub context: *mut c_void,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BufferI {
    pub free_buffer: Option<unsafe extern "C" fn(*mut Buffer)>,
    pub get_base: Option<unsafe extern "C" fn(*mut Buffer) -> *mut c_void>,
    pub init_tensor: Option<unsafe extern "C" fn(*mut Buffer, *mut Tensor) -> c_int>,
    pub memset_tensor: Option<unsafe extern "C" fn(*mut Buffer, *mut Tensor, u8, usize, usize)>,
    pub set_tensor: Option<unsafe extern "C" fn(*mut Buffer, *mut Tensor, *const c_void, usize, usize)>,
    pub get_tensor: Option<unsafe extern "C" fn(*mut Buffer, *const Tensor, *mut c_void, usize, usize)>,
    pub set_tensor_2d: Slot,
    pub get_tensor_2d: Slot,
    pub cpy_tensor: Slot,
    pub clear: Option<unsafe extern "C" fn(*mut Buffer, u8)>,
    pub reset: Slot,
}

#[repr(C)]
#[derive(Debug)]
pub struct Buffer {
    pub iface: BufferI,
    pub buft: *mut BufferType,
    pub context: *mut c_void,
    pub size: usize,
    pub usage: c_int,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct StreamI {
    pub get_name: Option<unsafe extern "C" fn(*mut Stream) -> *const c_char>,
    pub free: Option<unsafe extern "C" fn(*mut Stream)>,
    pub set_tensor_async: Slot,
    pub get_tensor_async: Slot,
    pub set_tensor_2d_async: Slot,
    pub get_tensor_2d_async: Slot,
    pub cpy_tensor_async: Slot,
    pub synchronize: Slot,
    pub graph_plan_create: Slot,
    pub graph_plan_free: Slot,
    pub graph_plan_update: Slot,
    pub graph_plan_compute: Slot,
    pub graph_compute: Option<unsafe extern "C" fn(*mut Stream, *mut Graph) -> c_int>,
    pub event_record: Slot,
    pub event_wait: Slot,
    pub graph_optimize: Slot,
}

impl StreamI {
    /// All slots null.
    pub const EMPTY: Self = Self {
        get_name: None,
        free: None,
        set_tensor_async: None,
        get_tensor_async: None,
        set_tensor_2d_async: None,
        get_tensor_2d_async: None,
        cpy_tensor_async: None,
        synchronize: None,
        graph_plan_create: None,
        graph_plan_free: None,
        graph_plan_update: None,
        graph_plan_compute: None,
        graph_compute: None,
        event_record: None,
        event_wait: None,
        graph_optimize: None,
    };
}

/// ggml calls this struct `ggml_backend`; one per context, so *stream* here.
#[repr(C)]
#[derive(Debug)]
pub struct Stream {
    pub guid: *const [u8; 16],
    pub iface: StreamI,
    pub device: *mut Device,
    pub context: *mut c_void,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCaps {
    pub async_: bool,
    pub host_buffer: bool,
    pub buffer_from_host_ptr: bool,
    pub events: bool,
    pub mmap_support: bool,
}

#[repr(C)]
#[derive(Debug)]
pub struct DeviceProps {
    pub name: *const c_char,
    pub description: *const c_char,
    pub memory_free: usize,
    pub memory_total: usize,
    pub type_: c_int,
    pub device_id: *const c_char,
    pub caps: DeviceCaps,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DeviceI {
    pub get_name: Option<unsafe extern "C" fn(*mut Device) -> *const c_char>,
    pub get_description: Option<unsafe extern "C" fn(*mut Device) -> *const c_char>,
    pub get_memory: Option<unsafe extern "C" fn(*mut Device, *mut usize, *mut usize)>,
    pub get_type: Option<unsafe extern "C" fn(*mut Device) -> c_int>,
    pub get_props: Option<unsafe extern "C" fn(*mut Device, *mut DeviceProps)>,
    pub init_backend: Option<unsafe extern "C" fn(*mut Device, *const c_char) -> *mut Stream>,
    pub get_buffer_type: Option<unsafe extern "C" fn(*mut Device) -> *mut BufferType>,
    pub get_host_buffer_type: Slot,
    pub buffer_from_host_ptr:
        Option<unsafe extern "C" fn(*mut Device, *mut c_void, usize, usize) -> *mut Buffer>,
    pub supports_op: Option<unsafe extern "C" fn(*mut Device, *const Tensor) -> bool>,
    pub supports_buft: Option<unsafe extern "C" fn(*mut Device, *mut BufferType) -> bool>,
    pub offload_op: Slot,
    pub event_new: Slot,
    pub event_free: Slot,
    pub event_synchronize: Slot,
}

impl DeviceI {
    /// All slots null.
    pub const EMPTY: Self = Self {
        get_name: None,
        get_description: None,
        get_memory: None,
        get_type: None,
        get_props: None,
        init_backend: None,
        get_buffer_type: None,
        get_host_buffer_type: None,
        buffer_from_host_ptr: None,
        supports_op: None,
        supports_buft: None,
        offload_op: None,
        event_new: None,
        event_free: None,
        event_synchronize: None,
    };
}

#[repr(C)]
#[derive(Debug)]
pub struct Device {
    pub iface: DeviceI,
    pub reg: *mut Reg,
    pub context: *mut c_void,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RegI {
    pub get_name: Option<unsafe extern "C" fn(*mut Reg) -> *const c_char>,
    pub get_device_count: Option<unsafe extern "C" fn(*mut Reg) -> usize>,
    pub get_device: Option<unsafe extern "C" fn(*mut Reg, usize) -> *mut Device>,
    pub get_proc_address: Option<unsafe extern "C" fn(*mut Reg, *const c_char) -> *mut c_void>,
}

#[repr(C)]
#[derive(Debug)]
pub struct Reg {
    pub api_version: c_int,
    pub iface: RegI,
    pub context: *mut c_void,
}

/// `(name, value)` of every size and offset this mirror relies on, in the order the C probe prints them.
pub const LAYOUT: &[(&str, usize)] = &[
    ("sizeof(struct ggml_tensor)", size_of::<Tensor>()),
    ("offsetof(struct ggml_tensor, type)", offset_of!(Tensor, type_)),
    ("offsetof(struct ggml_tensor, buffer)", offset_of!(Tensor, buffer)),
    ("offsetof(struct ggml_tensor, ne)", offset_of!(Tensor, ne)),
    ("offsetof(struct ggml_tensor, nb)", offset_of!(Tensor, nb)),
    ("offsetof(struct ggml_tensor, op)", offset_of!(Tensor, op)),
    ("offsetof(struct ggml_tensor, op_params)", offset_of!(Tensor, op_params)),
    ("offsetof(struct ggml_tensor, flags)", offset_of!(Tensor, flags)),
    ("offsetof(struct ggml_tensor, src)", offset_of!(Tensor, src)),
    ("offsetof(struct ggml_tensor, view_src)", offset_of!(Tensor, view_src)),
    ("offsetof(struct ggml_tensor, view_offs)", offset_of!(Tensor, view_offs)),
    ("offsetof(struct ggml_tensor, data)", offset_of!(Tensor, data)),
    ("offsetof(struct ggml_tensor, name)", offset_of!(Tensor, name)),
    ("offsetof(struct ggml_tensor, extra)", offset_of!(Tensor, extra)),
    ("sizeof(struct ggml_type_traits)", size_of::<TypeTraits>()),
    ("offsetof(struct ggml_type_traits, to_float)", offset_of!(TypeTraits, to_float)),
    ("sizeof(struct ggml_backend_buffer_type_i)", size_of::<BufferTypeI>()),
    ("offsetof(struct ggml_backend_buffer_type_i, get_alignment)", offset_of!(BufferTypeI, get_alignment)),
    ("offsetof(struct ggml_backend_buffer_type_i, is_host)", offset_of!(BufferTypeI, is_host)),
    ("sizeof(struct ggml_backend_buffer_type)", size_of::<BufferType>()),
    ("offsetof(struct ggml_backend_buffer_type, context)", offset_of!(BufferType, context)),
    ("sizeof(struct ggml_backend_buffer_i)", size_of::<BufferI>()),
    ("offsetof(struct ggml_backend_buffer_i, init_tensor)", offset_of!(BufferI, init_tensor)),
    ("offsetof(struct ggml_backend_buffer_i, memset_tensor)", offset_of!(BufferI, memset_tensor)),
    ("offsetof(struct ggml_backend_buffer_i, set_tensor)", offset_of!(BufferI, set_tensor)),
    ("offsetof(struct ggml_backend_buffer_i, get_tensor)", offset_of!(BufferI, get_tensor)),
    ("offsetof(struct ggml_backend_buffer_i, clear)", offset_of!(BufferI, clear)),
    ("sizeof(struct ggml_backend_buffer)", size_of::<Buffer>()),
    ("offsetof(struct ggml_backend_buffer, buft)", offset_of!(Buffer, buft)),
    ("offsetof(struct ggml_backend_buffer, context)", offset_of!(Buffer, context)),
    ("offsetof(struct ggml_backend_buffer, size)", offset_of!(Buffer, size)),
    ("offsetof(struct ggml_backend_buffer, usage)", offset_of!(Buffer, usage)),
    ("sizeof(struct ggml_backend_i)", size_of::<StreamI>()),
    ("offsetof(struct ggml_backend_i, free)", offset_of!(StreamI, free)),
    ("offsetof(struct ggml_backend_i, graph_compute)", offset_of!(StreamI, graph_compute)),
    ("sizeof(struct ggml_backend)", size_of::<Stream>()),
    ("offsetof(struct ggml_backend, device)", offset_of!(Stream, device)),
    ("offsetof(struct ggml_backend, context)", offset_of!(Stream, context)),
    ("sizeof(struct ggml_backend_dev_props)", size_of::<DeviceProps>()),
    ("offsetof(struct ggml_backend_dev_props, type)", offset_of!(DeviceProps, type_)),
    ("offsetof(struct ggml_backend_dev_props, caps)", offset_of!(DeviceProps, caps)),
    ("sizeof(struct ggml_backend_device_i)", size_of::<DeviceI>()),
    ("offsetof(struct ggml_backend_device_i, init_backend)", offset_of!(DeviceI, init_backend)),
    (
        "offsetof(struct ggml_backend_device_i, buffer_from_host_ptr)",
        offset_of!(DeviceI, buffer_from_host_ptr),
    ),
    ("offsetof(struct ggml_backend_device_i, supports_op)", offset_of!(DeviceI, supports_op)),
    ("offsetof(struct ggml_backend_device_i, supports_buft)", offset_of!(DeviceI, supports_buft)),
    ("sizeof(struct ggml_backend_device)", size_of::<Device>()),
    ("offsetof(struct ggml_backend_device, reg)", offset_of!(Device, reg)),
    ("sizeof(struct ggml_backend_reg)", size_of::<Reg>()),
    ("offsetof(struct ggml_backend_reg, iface)", offset_of!(Reg, iface)),
    ("offsetof(struct ggml_backend_reg, context)", offset_of!(Reg, context)),
];

const _: () = {
    assert!(size_of::<usize>() == 8);
    assert!(size_of::<Tensor>() == 336);
    assert!(offset_of!(Tensor, buffer) == 8 && offset_of!(Tensor, ne) == 16 && offset_of!(Tensor, nb) == 48);
    assert!(offset_of!(Tensor, op) == 80 && offset_of!(Tensor, op_params) == 84);
    assert!(offset_of!(Tensor, flags) == 148 && offset_of!(Tensor, src) == 152);
    assert!(offset_of!(Tensor, view_src) == 232 && offset_of!(Tensor, view_offs) == 240);
    assert!(offset_of!(Tensor, data) == 248 && offset_of!(Tensor, name) == 256);
    assert!(offset_of!(Tensor, extra) == 320 && offset_of!(Tensor, padding) == 328);
    assert!(size_of::<TypeTraits>() == 56);
    assert!(size_of::<BufferTypeI>() == 64 && size_of::<BufferType>() == 80);
    assert!(size_of::<BufferI>() == 88 && size_of::<Buffer>() == 120);
    assert!(size_of::<StreamI>() == 128 && size_of::<Stream>() == 152);
    assert!(size_of::<DeviceI>() == 120 && size_of::<Device>() == 136);
    assert!(size_of::<Reg>() == 48);
    assert!(size_of::<DeviceProps>() == 56);
};
