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
    result: &'a sys::ggml_tensor,
}

/// What of a product is to be handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Nothing,
    /// What the weight is multiplied by.
    Activations,
    /// What comes out.
    Results,
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
        (input.type_ == sys::GGML_TYPE_F32 && input.nb[0] == size_of::<f32>()).then_some(Self {
            weight,
            input,
            result: tensor,
        })
    }

    /// Name of the weight.
    pub(crate) fn weight(&self) -> String {
        name_of(self.weight)
    }

    /// Names the activations inside one graph: equal for products that share them.
    pub(crate) fn input(&self) -> usize {
        std::ptr::from_ref(self.input).addr()
    }

    /// Channels of the activations.
    pub(crate) fn k(&self) -> usize {
        usize::try_from(self.input.ne[0]).unwrap_or(0)
    }

    /// What is wanted of it, if there is anything.
    fn part(&self, wanted: Wanted) -> Option<&'a sys::ggml_tensor> {
        match wanted {
            Wanted::Nothing => None,
            Wanted::Activations => Some(self.input),
            Wanted::Results => Some(self.result),
        }
    }
}

/// The choice of experts that a `MUL_MAT_ID` of a graph of the CPU backend obeys.
#[derive(Debug)]
pub(crate) struct ExpertChoice<'a> {
    stack: &'a sys::ggml_tensor,
    table: &'a sys::ggml_tensor,
}

impl<'a> ExpertChoice<'a> {
    /// `None` if the node is something else.
    ///
    /// # Safety
    /// `node` must be a live tensor of a graph, with live operands.
    unsafe fn of(node: *const sys::ggml_tensor) -> Option<Self> {
        // SAFETY: passed on.
        let tensor = unsafe { node.as_ref() }.filter(|tensor| tensor.op == sys::GGML_OP_MUL_MAT_ID)?;
        // SAFETY: passed on.
        let (stack, table) = unsafe { (tensor.src[0].as_ref()?, tensor.src[2].as_ref()?) };
        (table.type_ == sys::GGML_TYPE_I32).then_some(Self { stack, table })
    }

    /// Name of the weight that holds the experts.
    pub(crate) fn stack(&self) -> String {
        name_of(self.stack)
    }

    /// How many there are.
    pub(crate) fn experts(&self) -> usize {
        usize::try_from(self.stack.ne[2]).unwrap_or(0)
    }

    /// Elements of an expert: of a row, and rows.
    pub(crate) fn size(&self) -> [usize; 2] {
        [self.stack.ne[0], self.stack.ne[1]].map(|ne| usize::try_from(ne).unwrap_or(0))
    }

    /// Appends the chosen experts, token by token. The table is, as a rule, the start of each row of a longer one, after a
    /// sort: only its strides tell where the next token's begins.
    ///
    /// # Safety
    /// The node must have been computed, and the table be [readable](is_readable).
    unsafe fn append(&self, out: &mut Vec<i32>) {
        let [slots, tokens, ..] = self.table.ne.map(|ne| usize::try_from(ne).unwrap_or(0));
        let [slot_stride, token_stride, ..] = self.table.nb;
        for token in 0..tokens {
            for slot in 0..slots {
                // SAFETY: inside the tensor by its own sizes and strides.
                let entry =
                    unsafe { self.table.data.cast::<u8>().add(token * token_stride + slot * slot_stride) };
                // SAFETY: as above; strides need not respect alignment.
                out.push(unsafe { entry.cast::<i32>().read_unaligned() });
            }
        }
    }
}

fn name_of(tensor: &sys::ggml_tensor) -> String {
    let bytes = tensor.name.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Appends all rows of a tensor of `f32`.
///
/// # Safety
/// The tensor must be live and computed, [readable](is_readable), and the elements of its rows must lie behind each other.
unsafe fn append_rows(tensor: &sys::ggml_tensor, out: &mut Vec<f32>) {
    let [k, ne1, ne2, ne3] = tensor.ne.map(|ne| usize::try_from(ne).unwrap_or(0));
    let [_, nb1, nb2, nb3] = tensor.nb;
    for (i3, i2) in (0..ne3).flat_map(|i3| (0..ne2).map(move |i2| (i3, i2))) {
        for i1 in 0..ne1 {
            let offset = i1 * nb1 + i2 * nb2 + i3 * nb3;
            // SAFETY: inside the tensor by its own sizes and strides, and in one piece by the caller's promise.
            let row =
                unsafe { std::slice::from_raw_parts(tensor.data.cast::<u8>().add(offset).cast::<f32>(), k) };
            out.extend_from_slice(row);
        }
    }
}

/// Whether a live tensor lies where the host can read it.
fn is_readable(tensor: &sys::ggml_tensor) -> bool {
    let buffer = if tensor.view_src.is_null() {
        tensor.buffer
    } else {
        // SAFETY: the source of a live view is live.
        unsafe { (*tensor.view_src).buffer }
    };
    // SAFETY: a buffer of a live tensor is live or null.
    !tensor.data.is_null() && !buffer.is_null() && unsafe { sys::ggml_backend_buffer_is_host(buffer) }
}

/// Whoever looks at products while a graph is computed.
pub(crate) trait Watcher: Send {
    /// What of a product is to be handed over. Asked for every product of every graph.
    fn wants(&mut self, product: &WeightProduct<'_>) -> Wanted;

    /// Told that the evaluation is being ended: by a `Break`, or because a call here panicked. llama.cpp reports such an
    /// evaluation as a success.
    fn ended(&self);

    /// The rows that were wanted; none if the host cannot read them. `Break` ends the evaluation.
    fn take(&mut self, product: &WeightProduct<'_>, rows: &[f32]) -> ControlFlow<()>;

    /// Whether a choice of experts is wanted. Asked for every product with experts.
    fn wants_choice(&mut self, _choice: &ExpertChoice<'_>) -> bool {
        false
    }

    /// The experts that were chosen, token by token; none if the host cannot read them.
    fn take_choice(&mut self, _choice: &ExpertChoice<'_>, _experts: &[i32]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

struct Watch {
    watcher: Box<dyn Watcher>,
    /// Of the product that was asked for last, which is the next one to be handed over.
    wanted: Wanted,
    rows: Vec<f32>,
    chosen: Vec<i32>,
}

/// llama.cpp's `cb_eval`.
pub(crate) unsafe extern "C" fn on_node(node: *mut sys::ggml_tensor, ask: bool, user: *mut c_void) -> bool {
    // SAFETY: the context owns the `Watch` that it was given; graphs of one context are computed one after the other, under
    // `&mut`.
    let watch = unsafe { &mut *user.cast::<Watch>() };
    // A panic ends the evaluation instead of unwinding into C++.
    let answer = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the scheduler gives nodes of the graph it computes.
        if let Some(choice) = unsafe { ExpertChoice::of(node) } {
            if ask {
                return watch.watcher.wants_choice(&choice);
            }
            watch.chosen.clear();
            if is_readable(choice.table) {
                // SAFETY: the node was just computed, and its operands are there until the next one is.
                unsafe { choice.append(&mut watch.chosen) };
            }
            return watch.watcher.take_choice(&choice, &watch.chosen).is_continue();
        }
        // SAFETY: the scheduler gives nodes of the graph it computes.
        let Some(product) = (unsafe { WeightProduct::of(node) }) else { return !ask };
        if ask {
            watch.wanted = watch.watcher.wants(&product);
            return watch.wanted != Wanted::Nothing;
        }
        watch.rows.clear();
        if let Some(part) = product.part(watch.wanted).filter(|part| is_readable(part)) {
            // SAFETY: the node was just computed, so its operands are there too; rows of activations are in one piece (`of`), and a
            // product's result is contiguous.
            unsafe { append_rows(part, &mut watch.rows) };
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
        Self(NonNull::from(Box::leak(Box::new(Watch {
            watcher,
            wanted: Wanted::Nothing,
            rows: Vec::new(),
            chosen: Vec::new(),
        }))))
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
