// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weight buffers: host memory in ggml's layout, and the packed weights beside it.
//!
//! Both kinds reserve the same address range, so that tensors have distinct `data` pointers:
//! * *shared* keeps what ggml writes: the CPU backend reads it like any host buffer;
//! * *resident* writes nothing for weights the accelerator took. Untouched zeroed pages cost no memory.
//!
//! Where the host maps a model file, a buffer of either kind lies over the mapping itself: the file is read while
//! weights are packed, and no byte of it is copied.
//!
//! Packed weights are keyed by their offset in the buffer and die with it; no key outlives the memory it names.

use crate::abi;
use crate::accelerator::AccelErrorKind;
use crate::backend::OrkBackend;
use crate::error::BackendError;
use crate::memory::HostMemory;
use crate::pack::ModelPack;
use crate::software::SoftwareWeight;
use crate::weight::{Held, Shape, Weight, name_of};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Alignment of buffers and of the tensors in them: a cache line.
pub(crate) const ALIGNMENT: usize = 64;

/// Where weights of a buffer can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Residency {
    /// Packed copy only.
    Resident,
    /// Packed copy, and ggml's bytes in host memory.
    Shared,
    /// The same, among tensors of all kinds: what is a weight is found out when a product names it.
    Node,
}

/// State of one of our buffers; `abi::Buffer::context` points to it.
#[derive(Debug)]
pub(crate) struct OrkBuffer {
    pub(crate) backend: &'static OrkBackend,
    pub(crate) residency: Residency,
    memory: HostMemory,
    /// The pack of the model file that the memory is.
    pack: Option<Arc<ModelPack>>,
    weights: RwLock<HashMap<usize, Arc<Weight>>>,
    /// The weights that were offered to the accelerator, taken or not, by offset.
    offered: Mutex<HashMap<usize, Offer>>,
    /// Bytes written so far of tensors that arrive in pieces, by offset.
    partial: Mutex<HashMap<usize, usize>>,
    /// What the graph writes that is planned or run.
    results: Mutex<Vec<Range<usize>>>,
}

/// A weight that was offered to the accelerator.
#[derive(Debug)]
struct Offer {
    bytes: usize,
    /// Why nobody may multiply by it. ggml is not told when a weight is written, so the product has to fail.
    failed: Option<Arc<BackendError>>,
}

impl Offer {
    fn failed(bytes: usize, error: BackendError) -> Self {
        Self { bytes, failed: Some(Arc::new(error)) }
    }
}

impl OrkBuffer {
    /// `None` if the host has no memory left.
    pub(crate) fn new(backend: &'static OrkBackend, residency: Residency, size: usize) -> Option<Self> {
        Some(Self::with(backend, residency, HostMemory::zeroed(size)?, None))
    }

    /// A buffer over memory that belongs to someone else and is not written.
    ///
    /// # Safety
    /// The bytes must be readable as long as the buffer lives.
    pub(crate) unsafe fn over(
        backend: &'static OrkBackend,
        residency: Residency,
        start: NonNull<u8>,
        size: usize,
    ) -> Result<Self, BackendError> {
        let pack = backend.pack_at(start.as_ptr() as usize)?;
        Ok(Self::with(backend, residency, HostMemory { owned: None, start, size }, pack))
    }

    fn with(
        backend: &'static OrkBackend,
        residency: Residency,
        memory: HostMemory,
        pack: Option<Arc<ModelPack>>,
    ) -> Self {
        Self {
            backend,
            residency,
            memory,
            pack,
            weights: RwLock::default(),
            offered: Mutex::default(),
            partial: Mutex::default(),
            results: Mutex::default(),
        }
    }

    /// Offers a weight that the host has written to our memory without a word, once; says whether it was taken. The
    /// buffer must be shared.
    pub(crate) fn adopt(&self, tensor: &abi::Tensor, shape: &Shape) -> bool {
        // SAFETY: `buffer` of a live tensor is live or null.
        let usage = unsafe { tensor.buffer.as_ref() }.map(|buffer| buffer.usage);
        let (start, room) = self.locate(tensor, 0);
        let whole = tensor.view_src.is_null() && shape.matrices * shape.matrix_bytes() <= room;
        let weight = match self.residency {
            Residency::Resident => false,
            Residency::Shared => usage == Some(abi::USAGE_WEIGHTS),
            Residency::Node => tensor.op == self.backend.ops().none,
        };
        if !weight || !whole {
            return false;
        }
        let end = start + shape.matrices * shape.matrix_bytes();
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        if results.iter().any(|result| result.start < end && start < result.end) {
            return false;
        }
        drop(results);
        let unfinished = self.partial.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&start);
        if unfinished || self.offered.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&start) {
            return false;
        }
        // SAFETY: the host has loaded its model before it plans work with it, and the bytes are in our memory.
        if let Err(error) = unsafe { self.take_stack(shape, start, tensor.data.cast()) } {
            self.backend.report(error);
        }
        self.holds_stack(tensor.data, shape)
    }

    /// Takes a weight that lies in memory of the host already.
    ///
    /// # Safety
    /// The tensor's bytes must be there.
    pub(crate) unsafe fn place(&self, tensor: &abi::Tensor, usage: i32) -> Result<(), BackendError> {
        let (start, room) = self.locate(tensor, 0);
        // SAFETY: `tensor` is a live tensor of the host.
        let total = unsafe { (self.backend.host().ggml_nbytes)(tensor) };
        if total > room {
            let what = "it does not lie in its buffer".to_owned();
            return Err(BackendError::Operand { name: name_of(tensor), what });
        }
        // A view's weight was placed before it.
        if usage != abi::USAGE_WEIGHTS || !tensor.view_src.is_null() {
            return Ok(());
        }
        match self.as_weight(tensor) {
            // SAFETY: passed on from the caller.
            Some(shape) => unsafe { self.take_stack(&shape, start, tensor.data.cast()) },
            None => Ok(()),
        }
    }

    /// The tensor as a weight of this buffer, if it can be one.
    fn as_weight(&self, tensor: &abi::Tensor) -> Option<Shape> {
        // SAFETY: `tensor` is a live tensor of the host.
        let contiguous = unsafe { (self.backend.host().ggml_is_contiguous)(tensor) };
        Shape::of(self.backend, tensor).filter(|_| contiguous)
    }

    pub(crate) fn base(&self) -> *mut c_void {
        self.memory.start.as_ptr().cast()
    }

    /// Where the `size` bytes of a tensor of this buffer lie in it.
    pub(crate) fn span(&self, tensor: &abi::Tensor, size: usize) -> Range<usize> {
        let (at, room) = self.locate(tensor, 0);
        at..at + size.min(room)
    }

    /// The graph that is about to be planned writes these bytes, until the next call.
    pub(crate) fn will_be_written(&self, spans: Vec<Range<usize>>) {
        for span in &spans {
            self.forget(span.start, span.len());
        }
        *self.results.lock().unwrap_or_else(PoisonError::into_inner) = spans;
    }

    /// The weight at a tensor's address, if it was taken.
    pub(crate) fn weight_at(&self, data: *const c_void) -> Option<Arc<Weight>> {
        let offset = (data as usize).checked_sub(self.base() as usize)?;
        self.weights.read().unwrap_or_else(PoisonError::into_inner).get(&offset).cloned()
    }

    /// Why nobody may multiply by the weight whose bytes are at a tensor's address, if that is so.
    pub(crate) fn failure_at(&self, data: *const c_void) -> Option<Arc<BackendError>> {
        let offset = (data as usize).checked_sub(self.base() as usize)?;
        let offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        let here = |(start, offer): &(&usize, &Offer)| (**start..**start + offer.bytes).contains(&offset);
        offered.iter().find(here)?.1.failed.clone()
    }

    /// Matrix `index` of the stack at a tensor's address, if it was taken.
    pub(crate) fn matrix_at(&self, data: *const c_void, stack: &Shape, index: usize) -> Option<Arc<Weight>> {
        self.weight_at(data.cast::<u8>().wrapping_add(index * stack.matrix_bytes()).cast())
    }

    /// Drops every weight some of whose bytes are in the range: its source is about to change.
    fn forget(&self, offset: usize, len: usize) {
        let outside = |at: usize, bytes: usize| at + bytes.max(1) <= offset || at >= offset + len;
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        let before = offered.len();
        offered.retain(|at, offer| outside(*at, offer.bytes));
        // Nothing was taken that had not been offered.
        if offered.len() < before {
            let mut weights = self.weights.write().unwrap_or_else(PoisonError::into_inner);
            weights.retain(|at, _| offered.iter().any(|(start, of)| (*start..start + of.bytes).contains(at)));
        }
    }

    /// The address of byte `offset` of `tensor`, and how many bytes of our memory follow it.
    fn locate(&self, tensor: &abi::Tensor, offset: usize) -> (usize, usize) {
        let at = (tensor.data as usize).wrapping_sub(self.base() as usize).wrapping_add(offset);
        (at, self.memory.size.saturating_sub(at))
    }

    /// ggml's `set_tensor`.
    ///
    /// # Safety
    /// `source` must hold `size` readable bytes, and `tensor` must live in this buffer.
    pub(crate) unsafe fn write(
        &self,
        tensor: &abi::Tensor,
        usage: i32,
        source: *const u8,
        offset: usize,
        size: usize,
    ) -> Result<(), BackendError> {
        let (at, room) = self.locate(tensor, offset);
        self.check_writable(tensor)?;
        if size > room {
            let what = format!("write of {size} bytes past the end of its buffer");
            return Err(BackendError::Operand { name: name_of(tensor), what });
        }
        // SAFETY: `tensor` is a live tensor of the host.
        let total = unsafe { (self.backend.host().ggml_nbytes)(tensor) };
        let taken_now = usage == abi::USAGE_WEIGHTS && self.residency != Residency::Node;
        let shape = taken_now.then(|| self.as_weight(tensor)).flatten();
        let Some(shape) = shape else {
            self.forget(at, size.max(1));
            // SAFETY: `at + size` is inside our memory, checked above; the host hands us `size` bytes.
            unsafe { self.memory.write(at, source, size) };
            return Ok(());
        };
        let start = at - offset;
        self.forget(start, total.max(1));
        if offset == 0 && size == total {
            // SAFETY: `source` holds the whole matrix.
            return unsafe { self.take_stack(&shape, start, source) };
        }
        // In pieces: collect them in our memory, take the weight when the last one is there.
        let written = {
            let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
            let written = partial.entry(start).or_default();
            if offset == 0 {
                *written = 0;
            }
            if offset != *written {
                let error = BackendError::WriteOutOfOrder { name: shape.name, offset, expected: *written };
                drop(partial);
                self.not_taken(start, total, error.clone());
                return Err(error);
            }
            *written += size;
            *written
        };
        // SAFETY: inside our memory, checked above.
        unsafe { self.memory.write(at, source, size) };
        if written < total {
            let what = format!("{written} of its {total} bytes were written");
            self.not_taken(start, total, BackendError::Operand { name: shape.name, what });
            return Ok(());
        }
        self.partial.lock().unwrap_or_else(PoisonError::into_inner).remove(&start);
        // SAFETY: the matrix is complete at `start`.
        let staged = unsafe { self.memory.start.as_ptr().add(start) };
        // SAFETY: as above; `take` copes with a source that already is our memory.
        unsafe { self.take_stack(&shape, start, staged) }
    }

    /// Nobody may multiply by a weight, until it is written again.
    fn not_taken(&self, start: usize, bytes: usize, error: BackendError) {
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        offered.insert(start, Offer::failed(bytes, error));
    }

    /// Packs all matrices of a complete weight, or none of them.
    ///
    /// # Safety
    /// `source` must hold the bytes of all matrices, one after the other.
    unsafe fn take_stack(&self, shape: &Shape, start: usize, source: *const u8) -> Result<(), BackendError> {
        let bytes = shape.matrix_bytes();
        let total = shape.matrices * bytes;
        // Held until all is done, so that two contexts do not pack one weight twice.
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        if offered.contains_key(&start) {
            return Ok(());
        }
        // What counts if the accelerator panics.
        let what = "loading it was not finished".to_owned();
        offered.insert(start, Offer::failed(total, BackendError::Operand { name: shape.name.clone(), what }));
        let taken = (0..shape.matrices).try_for_each(|index| {
            // SAFETY: inside the weight.
            let source = unsafe { source.add(index * bytes) };
            // SAFETY: passed on from the caller.
            unsafe { self.take(shape, index, start + index * bytes, bytes, source) }
        });
        // A stack of which only some matrices found room is of no use: the CPU computes the whole of it.
        let mut weights = self.weights.write().unwrap_or_else(PoisonError::into_inner);
        let all = || (0..shape.matrices).all(|index| weights.contains_key(&(start + index * bytes)));
        if taken.is_err() || (self.residency != Residency::Resident && !all()) {
            weights.retain(|at, _| *at < start || *at >= start + total);
        }
        drop(weights);
        if taken.is_err() {
            // Whoever reads the tensor reads what the host wrote.
            // SAFETY: `start + total` is inside our memory, as in `take`; the caller vouches for the source.
            unsafe { self.memory.write(start, source, total) };
        }
        let failed = taken.as_ref().err().map(|error| Arc::new(error.clone()));
        offered.insert(start, Offer { bytes: total, failed });
        taken
    }

    /// Whether the matrices of a stack at a tensor's address were all taken, with the same bounds.
    pub(crate) fn holds_stack(&self, data: *const c_void, shape: &Shape) -> bool {
        let Some(start) = (data as usize).checked_sub(self.base() as usize) else { return false };
        let weights = self.weights.read().unwrap_or_else(PoisonError::into_inner);
        let matrix = |index| weights.get(&(start + index * shape.matrix_bytes()));
        (0..shape.matrices).all(|index| matrix(index).is_some_and(|weight| weight.is_of(shape)))
    }

    /// Whether a tensor of a resident buffer can be multiplied by: the accelerator holds its matrices, or none of its bytes.
    pub(crate) fn can_multiply(&self, tensor: &abi::Tensor) -> bool {
        let held =
            |shape: Shape| self.holds_stack(tensor.data, &shape) || !self.holds_some(self.bytes_of(tensor));
        self.as_weight(tensor).is_some_and(held)
    }

    /// Whether bytes of a tensor exist on the accelerator only.
    pub(crate) fn is_unreadable(&self, tensor: &abi::Tensor) -> bool {
        self.exists_packed_only(self.bytes_of(tensor))
    }

    fn exists_packed_only(&self, span: Range<usize>) -> bool {
        self.residency == Residency::Resident && self.memory.owned.is_some() && self.holds_some(span)
    }

    /// Whether weights that were taken have bytes in the range.
    fn holds_some(&self, span: Range<usize>) -> bool {
        let weights = self.weights.read().unwrap_or_else(PoisonError::into_inner);
        weights.iter().any(|(start, weight)| *start < span.end && span.start < start + weight.source_bytes())
    }

    fn bytes_of(&self, tensor: &abi::Tensor) -> Range<usize> {
        // SAFETY: live tensor.
        self.span(tensor, unsafe { (self.backend.host().ggml_nbytes)(tensor) })
    }

    /// Whether the accelerator was to take the matrices of a stack at a tensor's address, and could not.
    pub(crate) fn has_failed(&self, data: *const c_void, shape: &Shape) -> bool {
        !self.holds_stack(data, shape) && self.failure_at(data).is_some()
    }

    /// Memory of the host is only read.
    fn check_writable(&self, tensor: &abi::Tensor) -> Result<(), BackendError> {
        match self.memory.owned {
            Some(_) => Ok(()),
            None => Err(BackendError::MappedWrite { name: name_of(tensor) }),
        }
    }

    /// Packs matrix `index` of a complete weight, or takes it from the backend's pack, which leaves `source` unread unless the CPU needs it.
    ///
    /// # Safety
    /// `source` must hold the `total` bytes of the matrix.
    unsafe fn take(
        &self,
        stack: &Shape,
        index: usize,
        start: usize,
        total: usize,
        source: *const u8,
    ) -> Result<(), BackendError> {
        let backend = self.backend;
        let shape = &stack.matrix(index);
        let wanted = backend.exclusion(shape.stem()).is_none()
            && backend.accelerator()?.limits(shape.k, shape.n).is_ok();
        let experts = backend.experts().filter(|experts| experts.holds(stack));
        let taken = match experts {
            _ if !wanted => None,
            Some(experts) => {
                let hot = experts.is_hot(&stack.name, index)?;
                // SAFETY: passed on from the caller.
                Some(unsafe { shape.take_expert(backend, experts, self.pack.clone(), source, hot) }?)
            }
            None => {
                let loaded = match shape.load_from_pack(backend, self.pack.clone()) {
                    // SAFETY: passed on from the caller.
                    Ok(None) => unsafe { shape.load(backend, source) },
                    Ok(Some(loaded)) => Ok(loaded),
                    Err(error) => Err(error),
                };
                match loaded {
                    Ok(loaded) => Some(Weight::on_accelerator(backend, shape, loaded)),
                    Err(BackendError::Load { source, name, .. })
                        if self.residency != Residency::Resident
                            && source.kind() == AccelErrorKind::NoRoom =>
                    {
                        backend.counters().no_room();
                        tracing::warn!(weight = %name, reason = %source, "no room on the accelerator, left to the CPU");
                        None
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        if self.residency != Residency::Resident || taken.is_none() {
            // SAFETY: `start + total` is inside our memory: ggml allocates tensors inside their buffer, and `write`
            // checked the last piece.
            unsafe { self.memory.write(start, source, total) };
        }
        if let Some(weight) = taken {
            self.weights.write().unwrap_or_else(PoisonError::into_inner).insert(start, Arc::new(weight));
        }
        Ok(())
    }

    /// Matrix `index` of a weight of this buffer that the accelerator did not take, as plain bytes; for resident buffers
    /// only, where the CPU backend cannot help.
    pub(crate) fn software_weight(&self, tensor: &abi::Tensor, index: usize) -> Option<Weight> {
        let shape = self.as_weight(tensor)?.matrix(index);
        let (start, room) = self.locate(tensor, index * shape.matrix_bytes());
        if shape.matrix_bytes() > room {
            return None;
        }
        // SAFETY: in range, checked above.
        let bytes = unsafe { self.memory.start.as_ptr().add(start) };
        // SAFETY: the matrix lies in our memory, which outlives the graph that names its tensor.
        let software = unsafe { SoftwareWeight::new(bytes, shape.element.clone(), shape.k, shape.n) };
        Some(Weight::new(self.backend, &shape, Held::Software(software)))
    }

    /// ggml's `get_tensor`. The bytes of a resident weight no longer exist: `out` is zeroed and the error says so.
    ///
    /// # Safety
    /// `out` must have room for `size` bytes, and `tensor` must live in this buffer.
    pub(crate) unsafe fn read(
        &self,
        tensor: &abi::Tensor,
        out: *mut u8,
        offset: usize,
        size: usize,
    ) -> Result<(), BackendError> {
        let (at, room) = self.locate(tensor, offset);
        if size > room || self.exists_packed_only(at..at + size) {
            // SAFETY: the host gives room for `size` bytes.
            unsafe { std::ptr::write_bytes(out, 0, size) };
            return Err(BackendError::Unreadable { name: name_of(tensor) });
        }
        // SAFETY: in range, checked above.
        let from = unsafe { self.memory.start.as_ptr().add(at) };
        // SAFETY: the host's buffer cannot overlap ours.
        unsafe { std::ptr::copy_nonoverlapping(from, out, size) };
        Ok(())
    }

    /// Sets bytes of a tensor, or of the whole buffer; it must be our memory.
    fn fill(&self, at: usize, size: usize, value: u8) {
        let size = size.min(self.memory.size.saturating_sub(at));
        self.forget(at, size.max(1));
        // SAFETY: clamped to our memory.
        let start = unsafe { self.memory.start.as_ptr().add(at.min(self.memory.size)) };
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(start, value, size) };
    }

    /// ggml's `memset_tensor`.
    pub(crate) fn fill_tensor(
        &self,
        tensor: &abi::Tensor,
        offset: usize,
        size: usize,
        value: u8,
    ) -> Result<(), BackendError> {
        self.check_writable(tensor)?;
        let (at, _) = self.locate(tensor, offset);
        self.fill(at, size, value);
        Ok(())
    }

    /// ggml's `clear`.
    pub(crate) fn clear(&self, value: u8) -> Result<(), BackendError> {
        if self.memory.owned.is_none() {
            return Err(BackendError::MappedWrite { name: "a whole buffer".to_owned() });
        }
        // Zeroing memory that was never written would only touch pages that already read as zero.
        let untouched = value == 0
            && self.residency == Residency::Resident
            && self.offered.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if !untouched {
            self.fill(0, self.memory.size, value);
        }
        Ok(())
    }
}
