// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that takes whole graphs, for llama.cpp's RPC server.
//!
//! An RPC server gives every graph to one device and tells its clients that it can compute everything. The NPU cannot, so
//! this second device, `ORK_NODE`, does what llama.cpp does at home: ggml's scheduler shares each graph out between
//! the NPU and the CPU of this machine. Its memory is host memory; a matrix that a product names first goes to the NPU then, and
//! is forgotten when its bytes change, because such a server is not told which of its buffers hold weights.

use crate::abi;
use crate::backend::OrkBackend;
use crate::buffer::{ALIGNMENT, OrkBuffer, Residency};
use crate::claim::buffer_of;
use crate::device::{BUFFER, buffer_context, open_stream};
use crate::error::BackendError;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, PoisonError};

const NAME: &CStr = c"ORK_NODE";

/// Identifies the streams of this device among all of ggml's.
static GUID: [u8; 16] = *b"ork-rk3588-node\x01";

/// Entries of the scheduler's tables beyond the nodes: operands that no node computes.
const LEAVES: c_int = 4096;

/// What schedules graphs, by the names ggml exports it under.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "each field is the ggml function of that name")]
pub struct GraphHost {
    pub ggml_backend_dev_by_type: unsafe extern "C" fn(c_int) -> *mut abi::Device,
    pub ggml_backend_dev_init: unsafe extern "C" fn(*mut abi::Device, *const c_char) -> *mut abi::Stream,
    pub ggml_backend_dev_supports_op: unsafe extern "C" fn(*mut abi::Device, *const abi::Tensor) -> bool,
    pub ggml_backend_dev_memory: unsafe extern "C" fn(*mut abi::Device, free: *mut usize, total: *mut usize),
    pub ggml_backend_dev_backend_reg: unsafe extern "C" fn(*mut abi::Device) -> *mut abi::Reg,
    pub ggml_backend_reg_get_proc_address: unsafe extern "C" fn(*mut abi::Reg, *const c_char) -> *mut c_void,
    pub ggml_backend_free: unsafe extern "C" fn(*mut abi::Stream),
    pub ggml_backend_sched_new: unsafe extern "C" fn(
        backends: *mut *mut abi::Stream,
        bufts: *mut *mut abi::BufferType,
        n_backends: c_int,
        graph_size: usize,
        parallel: bool,
        op_offload: bool,
    ) -> *mut abi::Scheduler,
    pub ggml_backend_sched_reset: unsafe extern "C" fn(*mut abi::Scheduler),
    pub ggml_backend_sched_alloc_graph: unsafe extern "C" fn(*mut abi::Scheduler, *mut abi::Graph) -> bool,
    pub ggml_backend_sched_graph_compute: unsafe extern "C" fn(*mut abi::Scheduler, *mut abi::Graph) -> c_int,
    pub ggml_backend_sched_free: unsafe extern "C" fn(*mut abi::Scheduler),
}

/// The structs ggml holds pointers to; leaked, as those of the other device are.
#[derive(Debug)]
pub(crate) struct NodeTables {
    device: *mut abi::Device,
    buffers: *mut abi::BufferType,
}

// SAFETY: the pointers name leaked structs that are written only in `leak`, before anyone else sees them.
unsafe impl Send for NodeTables {}
// SAFETY: as above.
unsafe impl Sync for NodeTables {}

/// Context of the device and of its buffer type.
#[derive(Debug)]
struct NodeState {
    backend: &'static OrkBackend,
    host: GraphHost,
    description: CString,
    buffers: *mut abi::BufferType,
}

/// Context of a stream: one of the NPU, one of the CPU, and what shares graphs out between them.
#[derive(Debug)]
struct NodeStream {
    backend: &'static OrkBackend,
    host: GraphHost,
    npu: *mut abi::Stream,
    cpu: *mut abi::Stream,
    cpu_threads: Option<unsafe extern "C" fn(*mut abi::Stream, c_int)>,
    scheduler: Mutex<Scheduler>,
}

/// A scheduler, and how many nodes it has room for.
#[derive(Debug)]
struct Scheduler {
    ggml: *mut abi::Scheduler,
    nodes: c_int,
}

fn leak<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

impl NodeTables {
    pub(crate) fn leak(
        backend: &'static OrkBackend,
        reg: *mut abi::Reg,
        host: GraphHost,
        description: &str,
    ) -> Self {
        let description = CString::new(description.replace('\0', " ")).unwrap_or_default();
        let device = leak(abi::Device { iface: DEVICE, reg, context: null_mut() });
        let buffers = leak(abi::BufferType { iface: BUFFER_TYPE, device, context: null_mut() });
        let state = leak(NodeState { backend, host, description, buffers });
        // SAFETY: leaked just now; nobody else knows of them yet.
        unsafe {
            (*device).context = state.cast();
            (*buffers).context = state.cast();
        }
        Self { device, buffers }
    }

    pub(crate) fn device(&self) -> *mut abi::Device {
        self.device
    }

    pub(crate) fn buffers(&self) -> *mut abi::BufferType {
        self.buffers
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

const STREAM: abi::StreamI = abi::StreamI {
    get_name: Some(stream_name),
    free: Some(stream_free),
    graph_compute: Some(stream_compute),
    ..abi::StreamI::EMPTY
};

// ---- device ------------------------------------------------------------------------------------------------------

/// # Safety
/// `device` must be this device.
unsafe fn device_state(device: *mut abi::Device) -> &'static NodeState {
    // SAFETY: set in `NodeTables::leak`, never changed or freed.
    unsafe { &*(*device).context.cast::<NodeState>() }
}

unsafe extern "C" fn device_name(_: *mut abi::Device) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn device_description(device: *mut abi::Device) -> *const c_char {
    // SAFETY: ggml calls with this device.
    unsafe { device_state(device) }.description.as_ptr()
}

/// The machine's memory, where the buffers are.
unsafe extern "C" fn device_memory(device: *mut abi::Device, free: *mut usize, total: *mut usize) {
    // SAFETY: ggml calls with this device, and passes two valid pointers.
    unsafe {
        let NodeState { host, .. } = device_state(device);
        (*free, *total) = (0, 0);
        let cpu = (host.ggml_backend_dev_by_type)(abi::DEVICE_TYPE_CPU);
        if !cpu.is_null() {
            (host.ggml_backend_dev_memory)(cpu, free, total);
        }
    }
}

/// Of the kind that computes everything it is given.
unsafe extern "C" fn device_type(_: *mut abi::Device) -> c_int {
    abi::DEVICE_TYPE_GPU
}

unsafe extern "C" fn device_props(device: *mut abi::Device, props: *mut abi::DeviceProps) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: ggml calls with this device.
    unsafe { device_memory(device, &raw mut free, &raw mut total) };
    // SAFETY: as above.
    let description = unsafe { device_state(device) }.description.as_ptr();
    let value = abi::DeviceProps {
        name: NAME.as_ptr(),
        description,
        memory_free: free,
        memory_total: total,
        type_: abi::DEVICE_TYPE_GPU,
        device_id: null(),
        caps: abi::DeviceCaps::default(),
    };
    // SAFETY: ggml passes room for one struct.
    unsafe { props.write(value) };
}

unsafe extern "C" fn device_open_stream(device: *mut abi::Device, _: *const c_char) -> *mut abi::Stream {
    // SAFETY: ggml calls with this device.
    let &NodeState { backend, host, .. } = unsafe { device_state(device) };
    backend.guard("init_backend", null_mut(), || {
        // SAFETY: functions of the host, called as its header says; the registry has the CPU before any plug-in's
        // device is opened.
        let (cpu, cpu_threads) = unsafe {
            let cpu = (host.ggml_backend_dev_by_type)(abi::DEVICE_TYPE_CPU);
            if cpu.is_null() {
                backend.report(BackendError::NoCpu);
                return null_mut();
            }
            let reg = (host.ggml_backend_dev_backend_reg)(cpu);
            let threads = (host.ggml_backend_reg_get_proc_address)(reg, crate::device::SET_THREADS.as_ptr());
            let threads = std::mem::transmute::<
                *mut c_void,
                Option<unsafe extern "C" fn(*mut abi::Stream, c_int)>,
            >(threads);
            ((host.ggml_backend_dev_init)(cpu, null()), threads)
        };
        if cpu.is_null() {
            backend.report(BackendError::NoCpu);
            return null_mut();
        }
        let npu = open_stream(backend);
        let scheduler = Mutex::new(Scheduler { ggml: null_mut(), nodes: 0 });
        let state = leak(NodeStream { backend, host, npu, cpu, cpu_threads, scheduler });
        leak(abi::Stream { guid: &raw const GUID, iface: STREAM, device, context: state.cast() })
    })
}

unsafe extern "C" fn device_buffer_type(device: *mut abi::Device) -> *mut abi::BufferType {
    // SAFETY: ggml calls with this device.
    unsafe { device_state(device) }.buffers
}

unsafe extern "C" fn device_supports_op(device: *mut abi::Device, op: *const abi::Tensor) -> bool {
    // SAFETY: ggml calls with this device.
    let &NodeState { backend, host, .. } = unsafe { device_state(device) };
    backend.guard("supports_op", false, || {
        // SAFETY: functions of the host; what its CPU computes, this device does.
        unsafe {
            let cpu = (host.ggml_backend_dev_by_type)(abi::DEVICE_TYPE_CPU);
            !cpu.is_null() && (host.ggml_backend_dev_supports_op)(cpu, op)
        }
    })
}

unsafe extern "C" fn device_supports_buft(device: *mut abi::Device, buft: *mut abi::BufferType) -> bool {
    // SAFETY: ggml calls with this device.
    buft == unsafe { device_state(device) }.buffers
}

// ---- buffer type -------------------------------------------------------------------------------------------------

unsafe extern "C" fn buft_name(_: *mut abi::BufferType) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn buft_alloc(buft: *mut abi::BufferType, size: usize) -> *mut abi::Buffer {
    // SAFETY: ggml calls with this buffer type, whose context is set in `NodeTables::leak`.
    let backend = unsafe { &*(*buft).context.cast::<NodeState>() }.backend;
    backend.guard("alloc_buffer", null_mut(), || match OrkBuffer::new(backend, Residency::Node, size) {
        // SAFETY: the host makes the struct and calls our `free_buffer` before deleting it.
        Some(state) => unsafe {
            (backend.host().ggml_backend_buffer_init)(buft, BUFFER, buffer_context(state), size)
        },
        None => null_mut(),
    })
}

unsafe extern "C" fn buft_alignment(_: *mut abi::BufferType) -> usize {
    ALIGNMENT
}

unsafe extern "C" fn buft_is_host(_: *mut abi::BufferType) -> bool {
    true
}

// ---- stream ------------------------------------------------------------------------------------------------------

unsafe extern "C" fn stream_name(_: *mut abi::Stream) -> *const c_char {
    NAME.as_ptr()
}

unsafe extern "C" fn stream_free(stream: *mut abi::Stream) {
    // SAFETY: ggml frees a stream once; both boxes came from `leak` in `device_open_stream`.
    let (state, stream) =
        unsafe { (Box::from_raw((*stream).context.cast::<NodeStream>()), Box::from_raw(stream)) };
    drop(stream);
    let scheduler = state.scheduler.lock().unwrap_or_else(PoisonError::into_inner).ggml;
    // SAFETY: made by this stream, and used by nobody else; the scheduler goes before what it schedules.
    unsafe {
        if !scheduler.is_null() {
            (state.host.ggml_backend_sched_free)(scheduler);
        }
        (state.host.ggml_backend_free)(state.npu);
        (state.host.ggml_backend_free)(state.cpu);
    }
}

/// Threads of the CPU's part of a stream; streams of the NPU alone have none.
pub(crate) unsafe extern "C" fn set_threads(stream: *mut abi::Stream, threads: c_int) {
    // SAFETY: ggml calls with a stream of the registration that it got the function from.
    if unsafe { (*stream).guid } != &raw const GUID {
        return;
    }
    // SAFETY: it is one of this device, so that `device_open_stream` has set the context.
    let state = unsafe { &*(*stream).context.cast::<NodeStream>() };
    if let Some(cpu_threads) = state.cpu_threads {
        // SAFETY: a function of ggml's CPU on its own stream.
        unsafe { cpu_threads(state.cpu, threads.max(1)) };
    }
}

unsafe extern "C" fn stream_compute(stream: *mut abi::Stream, graph: *mut abi::Graph) -> c_int {
    // SAFETY: `device_open_stream` sets the context.
    let state = unsafe { &*(*stream).context.cast::<NodeStream>() };
    // SAFETY: ggml passes a live graph whose operands are allocated.
    state.backend.guard("graph_compute", abi::STATUS_FAILED, || unsafe { state.compute(graph) })
}

impl NodeStream {
    /// # Safety
    /// `graph` must be live, with all operands allocated.
    unsafe fn compute(&self, graph: *mut abi::Graph) -> c_int {
        // SAFETY: live graph.
        let nodes = unsafe { (self.backend.host().ggml_graph_n_nodes)(graph) };
        // SAFETY: passed on.
        let written = unsafe { self.announce_results(graph, nodes) };
        // SAFETY: passed on.
        let status = unsafe { self.share_out(graph, nodes) };
        for buffer in written {
            buffer.will_be_written(Vec::new());
        }
        status
    }

    /// # Safety
    /// As for [`Self::compute`].
    unsafe fn share_out(&self, graph: *mut abi::Graph, nodes: c_int) -> c_int {
        let mut scheduler = self.scheduler.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: functions of the host as its header says, one graph at a time.
        unsafe {
            if scheduler.nodes < nodes {
                if !scheduler.ggml.is_null() {
                    (self.host.ggml_backend_sched_free)(scheduler.ggml);
                }
                // Twice the nodes, since each may have a leaf of its own.
                let room = usize::try_from(nodes.saturating_mul(2).saturating_add(LEAVES)).unwrap_or(0);
                let mut streams = [self.npu, self.cpu];
                scheduler.ggml = (self.host.ggml_backend_sched_new)(
                    streams.as_mut_ptr(),
                    null_mut(),
                    2,
                    room,
                    false,
                    false,
                );
                scheduler.nodes = nodes;
            }
            (self.host.ggml_backend_sched_reset)(scheduler.ggml);
            if !(self.host.ggml_backend_sched_alloc_graph)(scheduler.ggml, graph) {
                return abi::STATUS_FAILED;
            }
            (self.host.ggml_backend_sched_graph_compute)(scheduler.ggml, graph)
        }
    }

    /// Tells the buffers which of their bytes the graph writes: a matrix there is not what the NPU holds, nor may it be
    /// taken before the graph has run.
    ///
    /// # Safety
    /// As for [`Self::compute`].
    unsafe fn announce_results(&self, graph: *mut abi::Graph, nodes: c_int) -> Vec<&'static OrkBuffer> {
        let (host, codes) = (self.backend.host(), self.backend.ops());
        let mut results: HashMap<*const OrkBuffer, (&'static OrkBuffer, Vec<Range<usize>>)> = HashMap::new();
        for index in 0..nodes {
            // SAFETY: index below the number of nodes; an RPC client may send a null one.
            let Some(node) = (unsafe { (host.ggml_graph_node)(graph, index).as_ref() }) else { continue };
            if node.op == codes.none || codes.views.contains(&node.op) {
                continue;
            }
            if let Some(buffer) = buffer_of(node).and_then(OrkBuffer::of) {
                // SAFETY: live tensor.
                let bytes = unsafe { (host.ggml_nbytes)(node) };
                let spans = &mut results.entry(buffer).or_insert((buffer, Vec::new())).1;
                spans.push(buffer.span(node, bytes));
            }
        }
        let announce = |(buffer, spans): (&'static OrkBuffer, _)| {
            buffer.will_be_written(spans);
            buffer
        };
        results.into_values().map(announce).collect()
    }
}
