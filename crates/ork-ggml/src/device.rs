// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface tables ggml calls, and the C entry points behind them. Each entry point turns raw pointers into
//! references and forwards; decisions are made elsewhere.
//!
//! Capabilities are declared once ([`CAPS`]); the null slots of the tables agree with it.

use crate::abi;
use crate::backend::OrkBackend;
use crate::buffer::{ALIGNMENT, OrkBuffer, Residency};
use crate::claim;
use crate::error::BackendError;
use crate::graph;
use crate::node::{self, GraphHost, NodeTables};
use crate::options::Route;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

const REG_NAME: &CStr = c"ORK";
const DEVICE_NAME: &CStr = c"ORK";
const RESIDENT_NAME: &CStr = c"ORK_Resident";
const SHARED_NAME: &CStr = c"ORK";
pub(crate) const SET_THREADS: &CStr = c"ggml_backend_set_n_threads";

/// Identifies our streams among all of ggml's.
static GUID: [u8; 16] = *b"ork-rk3588-npu\0\x01";

/// Synchronous; a mapped model file is used where it lies.
const CAPS: abi::DeviceCaps = abi::DeviceCaps {
    async_: false,
    host_buffer: false,
    buffer_from_host_ptr: true,
    events: false,
    mmap_support: false,
};

/// The structs ggml holds pointers to; leaked, so their addresses are good for ever.
#[derive(Debug)]
pub(crate) struct Tables {
    reg: *mut abi::Reg,
    device: *mut abi::Device,
    twin: *mut abi::Device,
    resident: *mut abi::BufferType,
    shared: *mut abi::BufferType,
    node: OnceLock<NodeTables>,
}

// SAFETY: the pointers name leaked structs that are written only in `leak`, before anyone else sees them; ggml treats
// them as read-only.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

/// Context of a device.
#[derive(Debug)]
struct DeviceState {
    backend: &'static OrkBackend,
    role: Role,
    description: CString,
}

/// Which of the two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Registered; its buffer type is where weights go.
    Weights,
    /// What streams name; its buffer type is the CPU's, where activations go.
    Activations,
}

/// Context of a buffer type.
#[derive(Debug)]
struct BufferTypeState {
    backend: &'static OrkBackend,
    residency: Residency,
}

/// Context of a stream.
#[derive(Debug)]
struct StreamState {
    backend: &'static OrkBackend,
    scratch: graph::Scratch,
}

fn leak<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

impl Tables {
    /// Builds the tables. They and everything they point to are leaked: ggml never lets go of them.
    pub(crate) fn leak(backend: &'static OrkBackend, description: &str) -> Self {
        let description = CString::new(description.replace('\0', " ")).unwrap_or_default();
        let reg = leak(abi::Reg {
            api_version: abi::API_VERSION,
            iface: abi::RegI {
                get_name: Some(reg_name),
                get_device_count: Some(reg_device_count),
                get_device: Some(reg_device),
                get_proc_address: Some(reg_proc_address),
            },
            context: std::ptr::from_ref(backend).cast_mut().cast(),
        });
        let device = |role| {
            let description = description.clone();
            leak(abi::Device {
                iface: DEVICE,
                reg,
                context: leak(DeviceState { backend, role, description }).cast(),
            })
        };
        let (weights, twin) = (device(Role::Weights), device(Role::Activations));
        let buffer_type = |residency| {
            leak(abi::BufferType {
                iface: BUFFER_TYPE,
                device: weights,
                context: leak(BufferTypeState { backend, residency }).cast(),
            })
        };
        let (resident, shared) = (buffer_type(Residency::Resident), buffer_type(Residency::Shared));
        Self { reg, device: weights, twin, resident, shared, node: OnceLock::new() }
    }

    pub(crate) fn registration(&self) -> *mut abi::Reg {
        self.reg
    }

    pub(crate) fn device(&self) -> *mut abi::Device {
        self.device
    }

    /// Registers the device that takes whole graphs, too. Only the first call counts.
    pub(crate) fn add_node(&self, backend: &'static OrkBackend, host: GraphHost, description: &str) {
        self.node.get_or_init(|| NodeTables::leak(backend, self.reg, host, description));
    }

    /// The kind of one of our buffer types, `None` for anyone else's.
    pub(crate) fn residency_of(&self, buft: *mut abi::BufferType) -> Option<Residency> {
        match buft {
            b if b == self.resident => Some(Residency::Resident),
            b if b == self.shared => Some(Residency::Shared),
            b if self.node.get().is_some_and(|node| b == node.buffers()) => Some(Residency::Node),
            _ => None,
        }
    }
}

const DEVICE: abi::DeviceI = abi::DeviceI {
    get_name: Some(device_name),
    get_description: Some(device_description),
    get_memory: Some(device_memory),
    get_type: Some(device_type),
    get_props: Some(device_props),
    init_backend: Some(device_open_stream),
    get_buffer_type: Some(device_buffer_type),
    buffer_from_host_ptr: Some(device_buffer_from_ptr),
    supports_op: Some(device_supports_op),
    supports_buft: Some(device_supports_buft),
    ..abi::DeviceI::EMPTY
};

const BUFFER_TYPE: abi::BufferTypeI = abi::BufferTypeI {
    get_name: Some(buft_name),
    alloc_buffer: Some(buft_alloc),
    get_alignment: Some(buft_alignment),
    is_host: Some(buft_is_host),
    ..abi::BufferTypeI::EMPTY
};

pub(crate) const BUFFER: abi::BufferI = abi::BufferI {
    free_buffer: Some(buffer_free),
    get_base: Some(buffer_base),
    init_tensor: None,
    memset_tensor: Some(buffer_memset_tensor),
    set_tensor: Some(buffer_set_tensor),
    get_tensor: Some(buffer_get_tensor),
    set_tensor_2d: None,
    get_tensor_2d: None,
    cpy_tensor: None,
    clear: Some(buffer_clear),
    reset: None,
};

/// A buffer over memory of the host: weights are taken as tensors are placed in it, since nobody writes them.
const MAPPED_BUFFER: abi::BufferI = abi::BufferI { init_tensor: Some(buffer_init_tensor), ..BUFFER };

const STREAM: abi::StreamI = abi::StreamI {
    get_name: Some(stream_name),
    free: Some(stream_free),
    graph_compute: Some(stream_compute),
    ..abi::StreamI::EMPTY
};

impl OrkBuffer {
    /// Our state behind a buffer of one of our types; `None` for the zero-sized dummies ggml makes itself.
    pub(crate) fn of(buffer: &abi::Buffer) -> Option<&'static Self> {
        let ours =
            buffer.iface.free_buffer.is_some_and(|free| free as usize == buffer_free as *const () as usize);
        // SAFETY: buffers with our `free_buffer` were made in `buft_alloc`, which sets this context; ggml frees a
        // buffer only after the graphs and tensors that use it.
        if ours { unsafe { buffer.context.cast::<Self>().as_ref() } } else { None }
    }
}

/// Name of any buffer type, for people.
pub(crate) fn buffer_type_name(buft: *mut abi::BufferType) -> String {
    // SAFETY: buffer types are live or null; ggml's are leaked statics too.
    let Some(get_name) = (unsafe { buft.as_ref() }).and_then(|b| b.iface.get_name) else {
        return "none".to_owned();
    };
    // SAFETY: calling the type's own function on it; it returns a static string.
    unsafe { CStr::from_ptr(get_name(buft)) }.to_string_lossy().into_owned()
}

// ---- registry ----------------------------------------------------------------------------------------------------

unsafe extern "C" fn reg_name(_: *mut abi::Reg) -> *const c_char {
    REG_NAME.as_ptr()
}

/// # Safety
/// `reg` must be our registration.
unsafe fn reg_tables(reg: *mut abi::Reg) -> &'static Tables {
    // SAFETY: the context is the leaked backend.
    unsafe { &*(*reg).context.cast::<OrkBackend>() }.tables()
}

unsafe extern "C" fn reg_device_count(reg: *mut abi::Reg) -> usize {
    // SAFETY: ggml hands back the registration it was given.
    1 + usize::from(unsafe { reg_tables(reg) }.node.get().is_some())
}

unsafe extern "C" fn reg_device(reg: *mut abi::Reg, index: usize) -> *mut abi::Device {
    // SAFETY: ggml hands back the registration it was given.
    let tables = unsafe { reg_tables(reg) };
    match index {
        0 => tables.device,
        1 => tables.node.get().map_or(null_mut(), NodeTables::device),
        _ => null_mut(),
    }
}

unsafe extern "C" fn reg_proc_address(reg: *mut abi::Reg, name: *const c_char) -> *mut c_void {
    // SAFETY: ggml hands back the registration it was given.
    let with_cpu = unsafe { reg_tables(reg) }.node.get().is_some();
    // SAFETY: ggml passes a NUL-terminated name.
    if with_cpu && !name.is_null() && unsafe { CStr::from_ptr(name) } == SET_THREADS {
        let function: unsafe extern "C" fn(*mut abi::Stream, c_int) = node::set_threads;
        return function as *mut c_void;
    }
    null_mut()
}

// ---- device ------------------------------------------------------------------------------------------------------

/// # Safety
/// `device` must be one of our devices.
unsafe fn device_state(device: *mut abi::Device) -> &'static DeviceState {
    // SAFETY: set in `Tables::leak`, never changed or freed.
    unsafe { &*(*device).context.cast::<DeviceState>() }
}

unsafe extern "C" fn device_name(_: *mut abi::Device) -> *const c_char {
    DEVICE_NAME.as_ptr()
}

unsafe extern "C" fn device_description(device: *mut abi::Device) -> *const c_char {
    // SAFETY: ggml calls with our device.
    unsafe { device_state(device) }.description.as_ptr()
}

unsafe extern "C" fn device_memory(device: *mut abi::Device, free: *mut usize, total: *mut usize) {
    // SAFETY: ggml calls with our device.
    let backend = unsafe { device_state(device) }.backend;
    let memory = backend.guard("get_memory", None, || backend.accelerator().ok().and_then(|a| a.memory()));
    let bytes = |b: u64| usize::try_from(b).unwrap_or(usize::MAX);
    // SAFETY: ggml passes two valid pointers.
    unsafe {
        *free = memory.map_or(0, |m| bytes(m.free_bytes));
        *total = memory.map_or(0, |m| bytes(m.total_bytes));
    }
}

unsafe extern "C" fn device_type(_: *mut abi::Device) -> c_int {
    abi::DEVICE_TYPE_ACCEL
}

unsafe extern "C" fn device_props(device: *mut abi::Device, props: *mut abi::DeviceProps) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: ggml calls with our device.
    unsafe { device_memory(device, &raw mut free, &raw mut total) };
    // SAFETY: as above.
    let description = unsafe { device_state(device) }.description.as_ptr();
    let value = abi::DeviceProps {
        name: DEVICE_NAME.as_ptr(),
        description,
        memory_free: free,
        memory_total: total,
        type_: abi::DEVICE_TYPE_ACCEL,
        device_id: std::ptr::null(),
        caps: CAPS,
    };
    // SAFETY: ggml passes room for one struct.
    unsafe { props.write(value) };
}

unsafe extern "C" fn device_open_stream(device: *mut abi::Device, _: *const c_char) -> *mut abi::Stream {
    // SAFETY: ggml calls with our device.
    open_stream(unsafe { device_state(device) }.backend)
}

/// A stream of the NPU; ggml's `free` ends it.
pub(crate) fn open_stream(backend: &'static OrkBackend) -> *mut abi::Stream {
    let state = leak(StreamState { backend, scratch: graph::Scratch::default() });
    leak(abi::Stream {
        guid: &raw const GUID,
        iface: STREAM,
        device: backend.tables().twin,
        context: state.cast(),
    })
}

unsafe extern "C" fn device_buffer_type(device: *mut abi::Device) -> *mut abi::BufferType {
    // SAFETY: ggml calls with our device.
    let DeviceState { backend, role, .. } = unsafe { device_state(device) };
    let tables = backend.tables();
    match (role, backend.route()) {
        (Role::Weights, Route::Npu) => tables.resident,
        (Role::Weights, Route::Auto { .. }) => tables.shared,
        // With the CPU's own type the loader skips this device.
        (Role::Weights, Route::Cpu) | (Role::Activations, _) => {
            // SAFETY: a function of the host without arguments.
            unsafe { (backend.host().ggml_backend_cpu_buffer_type)() }
        }
    }
}

unsafe extern "C" fn device_buffer_from_ptr(
    device: *mut abi::Device,
    start: *mut c_void,
    size: usize,
    _: usize,
) -> *mut abi::Buffer {
    // SAFETY: ggml calls with our device.
    let backend = unsafe { device_state(device) }.backend;
    // SAFETY: as above.
    let buft = unsafe { device_buffer_type(device) };
    backend.guard("buffer_from_host_ptr", null_mut(), || match backend.tables().residency_of(buft) {
        Some(residency) => {
            let Some(start) = NonNull::new(start.cast()) else { return null_mut() };
            // SAFETY: the host vouches for `size` readable bytes that outlive the buffer.
            let state = match unsafe { OrkBuffer::over(backend, residency, start, size) } {
                Ok(state) => state,
                Err(error) => {
                    backend.report(error);
                    return null_mut();
                }
            };
            // SAFETY: the host makes the struct and calls our `free_buffer` before deleting it.
            unsafe {
                (backend.host().ggml_backend_buffer_init)(buft, MAPPED_BUFFER, leak(state).cast(), size)
            }
        }
        // SAFETY: as above.
        None => unsafe { (backend.host().ggml_backend_cpu_buffer_from_ptr)(start, size) },
    })
}

unsafe extern "C" fn device_supports_op(device: *mut abi::Device, op: *const abi::Tensor) -> bool {
    // SAFETY: ggml calls with our device.
    let backend = unsafe { device_state(device) }.backend;
    // SAFETY: ggml passes a live tensor.
    let op = unsafe { op.as_ref() };
    backend.guard("supports_op", false, || op.is_some_and(|op| claim::supports(backend, op)))
}

unsafe extern "C" fn device_supports_buft(device: *mut abi::Device, buft: *mut abi::BufferType) -> bool {
    // SAFETY: ggml calls with our device.
    let backend = unsafe { device_state(device) }.backend;
    backend.tables().residency_of(buft).is_some() || backend.host().is_host(buft)
}

// ---- buffer type -------------------------------------------------------------------------------------------------

/// # Safety
/// `buft` must be one of our buffer types.
unsafe fn buft_state(buft: *mut abi::BufferType) -> &'static BufferTypeState {
    // SAFETY: set in `Tables::leak`, never changed or freed.
    unsafe { &*(*buft).context.cast::<BufferTypeState>() }
}

unsafe extern "C" fn buft_name(buft: *mut abi::BufferType) -> *const c_char {
    // SAFETY: ggml calls with our buffer type.
    let resident = unsafe { buft_state(buft) }.residency == Residency::Resident;
    if resident { RESIDENT_NAME.as_ptr() } else { SHARED_NAME.as_ptr() }
}

unsafe extern "C" fn buft_alloc(buft: *mut abi::BufferType, size: usize) -> *mut abi::Buffer {
    // SAFETY: ggml calls with our buffer type.
    let BufferTypeState { backend, residency } = *unsafe { buft_state(buft) };
    backend.guard("alloc_buffer", null_mut(), || match OrkBuffer::new(backend, residency, size) {
        // SAFETY: the host makes the struct and calls our `free_buffer` before deleting it.
        Some(state) => unsafe {
            (backend.host().ggml_backend_buffer_init)(buft, BUFFER, leak(state).cast(), size)
        },
        None => null_mut(),
    })
}

unsafe extern "C" fn buft_alignment(_: *mut abi::BufferType) -> usize {
    ALIGNMENT
}

unsafe extern "C" fn buft_is_host(buft: *mut abi::BufferType) -> bool {
    // SAFETY: ggml calls with our buffer type.
    unsafe { buft_state(buft) }.residency == Residency::Shared
}

impl Clone for BufferTypeState {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for BufferTypeState {}

// ---- buffer ------------------------------------------------------------------------------------------------------

/// The context of a buffer whose table is [`BUFFER`], which frees it.
pub(crate) fn buffer_context(state: OrkBuffer) -> *mut c_void {
    leak(state).cast()
}

/// # Safety
/// `buffer` must have been made by `buft_alloc`, and not be freed.
unsafe fn buffer_state(buffer: *mut abi::Buffer) -> &'static OrkBuffer {
    // SAFETY: `buft_alloc` sets the context.
    unsafe { &*(*buffer).context.cast::<OrkBuffer>() }
}

/// Runs a buffer callback that has no way to report failure: the error waits in the backend.
fn report(buffer: &OrkBuffer, callback: &'static str, body: impl FnOnce() -> Result<(), BackendError>) {
    let backend = buffer.backend;
    if let Err(error) = backend.guard(callback, Ok(()), body) {
        backend.report(error);
    }
}

unsafe extern "C" fn buffer_free(buffer: *mut abi::Buffer) {
    // SAFETY: ggml frees a buffer once; the context came from `leak` in `buft_alloc`.
    let state = unsafe { Box::from_raw((*buffer).context.cast::<OrkBuffer>()) };
    let backend = state.backend;
    backend.guard("free_buffer", (), || drop(state));
}

unsafe extern "C" fn buffer_base(buffer: *mut abi::Buffer) -> *mut c_void {
    // SAFETY: our buffer.
    unsafe { buffer_state(buffer) }.base()
}

unsafe extern "C" fn buffer_init_tensor(buffer: *mut abi::Buffer, tensor: *mut abi::Tensor) -> c_int {
    // SAFETY: our buffer.
    let state = unsafe { buffer_state(buffer) };
    // SAFETY: live buffer; live tensor of this buffer.
    let (usage, tensor) = unsafe { ((*buffer).usage, &*tensor) };
    // SAFETY: the host placed the tensor where its bytes are.
    let placed = state.backend.guard("init_tensor", Ok(()), || unsafe { state.place(tensor, usage) });
    match placed {
        Ok(()) => abi::STATUS_SUCCESS,
        Err(error) => {
            state.backend.report(error);
            abi::STATUS_FAILED
        }
    }
}

unsafe extern "C" fn buffer_memset_tensor(
    buffer: *mut abi::Buffer,
    tensor: *mut abi::Tensor,
    value: u8,
    offset: usize,
    size: usize,
) {
    // SAFETY: our buffer.
    let state = unsafe { buffer_state(buffer) };
    // SAFETY: ggml passes a live tensor of this buffer.
    let tensor = unsafe { &*tensor };
    report(state, "memset_tensor", || state.fill_tensor(tensor, offset, size, value));
}

unsafe extern "C" fn buffer_set_tensor(
    buffer: *mut abi::Buffer,
    tensor: *mut abi::Tensor,
    data: *const c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: our buffer.
    let state = unsafe { buffer_state(buffer) };
    // SAFETY: live buffer; live tensor of this buffer.
    let (usage, tensor) = unsafe { ((*buffer).usage, &*tensor) };
    // SAFETY: ggml passes `size` bytes for a tensor of this buffer.
    report(state, "set_tensor", || unsafe { state.write(tensor, usage, data.cast(), offset, size) });
}

unsafe extern "C" fn buffer_get_tensor(
    buffer: *mut abi::Buffer,
    tensor: *const abi::Tensor,
    data: *mut c_void,
    offset: usize,
    size: usize,
) {
    // SAFETY: our buffer.
    let state = unsafe { buffer_state(buffer) };
    // SAFETY: ggml passes a live tensor of this buffer.
    let tensor = unsafe { &*tensor };
    // SAFETY: ggml passes room for `size` bytes.
    report(state, "get_tensor", || unsafe { state.read(tensor, data.cast(), offset, size) });
}

unsafe extern "C" fn buffer_clear(buffer: *mut abi::Buffer, value: u8) {
    // SAFETY: our buffer.
    let state = unsafe { buffer_state(buffer) };
    report(state, "clear", || state.clear(value));
}

// ---- stream ------------------------------------------------------------------------------------------------------

/// # Safety
/// `stream` must be one of our streams.
unsafe fn stream_state<'a>(stream: *mut abi::Stream) -> &'a StreamState {
    // SAFETY: `device_open_stream` sets the context.
    unsafe { &*(*stream).context.cast::<StreamState>() }
}

unsafe extern "C" fn stream_name(_: *mut abi::Stream) -> *const c_char {
    REG_NAME.as_ptr()
}

unsafe extern "C" fn stream_free(stream: *mut abi::Stream) {
    // SAFETY: ggml frees a stream once; both boxes came from `leak` in `device_open_stream`.
    unsafe {
        drop(Box::from_raw((*stream).context.cast::<StreamState>()));
        drop(Box::from_raw(stream));
    }
}

unsafe extern "C" fn stream_compute(stream: *mut abi::Stream, graph: *mut abi::Graph) -> c_int {
    // SAFETY: our stream.
    let StreamState { backend, scratch } = unsafe { stream_state(stream) };
    let run = || {
        let start = std::time::Instant::now();
        // SAFETY: ggml passes a live graph whose operands are allocated.
        let computed = unsafe { graph::compute(backend, scratch, graph) };
        backend.counters().spent(start.elapsed());
        match computed {
            Ok(()) => abi::STATUS_SUCCESS,
            Err(error) => {
                backend.report(error);
                abi::STATUS_FAILED
            }
        }
    };
    backend.guard("graph_compute", abi::STATUS_FAILED, run)
}
