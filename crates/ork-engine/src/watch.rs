// SPDX-License-Identifier: MIT OR Apache-2.0
//! llama.cpp's callback for nodes of a graph, as calls of a [`Watcher`].

use llama_cpp_sys_2 as sys;
use std::ffi::c_void;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// A product of a weight in a graph of the CPU backend.
#[derive(Debug)]
pub(crate) struct WeightProduct<'a> {
    weight: &'a sys::ggml_tensor,
    input: &'a sys::ggml_tensor,
}

impl<'a> WeightProduct<'a> {
    /// `None` if the node is something else than a `MUL_MAT` of a matrix and `f32` activations.
    ///
    /// # Safety
    /// `node` must be a live tensor of a graph, with live operands.
    unsafe fn of(node: *const sys::ggml_tensor) -> Option<Self> {
        // SAFETY: passed on.
        let tensor = unsafe { node.as_ref() }.filter(|tensor| tensor.op == sys::GGML_OP_MUL_MAT)?;
        // SAFETY: passed on.
        let (weight, input) = unsafe { (tensor.src[0].as_ref()?, tensor.src[1].as_ref()?) };
        (input.type_ == sys::GGML_TYPE_F32 && input.nb[0] == size_of::<f32>())
            .then_some(Self { weight, input })
    }

    /// Name of the weight.
    pub(crate) fn weight(&self) -> String {
        let bytes = self.weight.name.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0);
        String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
    }

    /// Names the activations inside one graph: equal for products that share them.
    pub(crate) fn input(&self) -> usize {
        std::ptr::from_ref(self.input).addr()
    }

    /// Channels of the activations.
    pub(crate) fn k(&self) -> usize {
        usize::try_from(self.input.ne[0]).unwrap_or(0)
    }

    /// Appends all rows of the activations.
    ///
    /// # Safety
    /// The product must just have been computed, by a backend whose memory the host can read.
    unsafe fn rows(&self, out: &mut Vec<f32>) {
        let [k, ne1, ne2, ne3] = self.input.ne.map(|ne| usize::try_from(ne).unwrap_or(0));
        let [_, nb1, nb2, nb3] = self.input.nb;
        for (i3, i2) in (0..ne3).flat_map(|i3| (0..ne2).map(move |i2| (i3, i2))) {
            for i1 in 0..ne1 {
                let offset = i1 * nb1 + i2 * nb2 + i3 * nb3;
                // SAFETY: inside the tensor by its own sizes and strides; elements of a row lie behind each other (`of`).
                let row = unsafe {
                    std::slice::from_raw_parts(self.input.data.cast::<u8>().add(offset).cast::<f32>(), k)
                };
                out.extend_from_slice(row);
            }
        }
    }

    /// Whether the operands lie where the host can read them.
    fn is_readable(&self) -> bool {
        let buffer = if self.input.view_src.is_null() {
            self.input.buffer
        } else {
            // SAFETY: the source of a live view is live.
            unsafe { (*self.input.view_src).buffer }
        };
        // SAFETY: a buffer of a live tensor is live or null.
        !self.input.data.is_null() && !buffer.is_null() && unsafe { sys::ggml_backend_buffer_is_host(buffer) }
    }
}

/// Whoever looks at activations while a graph is computed.
pub(crate) trait Watcher: Send {
    /// Whether the activations of a product are to be handed over. Asked for every product of every graph.
    fn wants(&mut self, product: &WeightProduct<'_>) -> bool;

    /// Told that the evaluation is being ended: by a `Break`, or because a call here panicked. llama.cpp reports such an
    /// evaluation as a success.
    fn ended(&self);

    /// The activations of a wanted product. `Break` ends the evaluation.
    fn take(&mut self, product: &WeightProduct<'_>, rows: &[f32]) -> ControlFlow<()>;
}

struct Watch {
    watcher: Box<dyn Watcher>,
    rows: Vec<f32>,
}

/// llama.cpp's `cb_eval`.
pub(crate) unsafe extern "C" fn on_node(node: *mut sys::ggml_tensor, ask: bool, user: *mut c_void) -> bool {
    // SAFETY: the context owns the `Watch` that it was given; graphs of one context are computed one after the other, under
    // `&mut`.
    let watch = unsafe { &mut *user.cast::<Watch>() };
    // A panic ends the evaluation instead of unwinding into C++.
    let answer = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the scheduler gives nodes of the graph it computes.
        let Some(product) = (unsafe { WeightProduct::of(node) }) else { return !ask };
        if ask {
            return watch.watcher.wants(&product);
        }
        watch.rows.clear();
        if product.is_readable() {
            // SAFETY: the node was just computed, and the buffer is the host's.
            unsafe { product.rows(&mut watch.rows) };
        }
        watch.watcher.take(&product, &watch.rows).is_continue()
    }));
    let go_on = answer.as_ref().is_ok_and(|go_on| *go_on || ask);
    if !go_on {
        watch.watcher.ended();
    }
    answer.unwrap_or(false)
}

/// A watch that llama.cpp points to. Not a box, which would promise that nobody else does.
pub(crate) struct WatchHandle(NonNull<Watch>);

impl WatchHandle {
    pub(crate) fn new(watcher: Box<dyn Watcher>) -> Self {
        Self(NonNull::from(Box::leak(Box::new(Watch { watcher, rows: Vec::new() }))))
    }

    /// What [`on_node`] is to be given.
    pub(crate) fn user_data(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        // SAFETY: leaked in `new`, freed once; the context that used it is gone, see the order of fields in `RawContext`.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
