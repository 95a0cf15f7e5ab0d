// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operands of a matmul node: the activation, the matrices, and which rows meet which matrix.

use std::ops::Range;
use std::sync::Arc;

use crate::abi;
use crate::backend::OrkBackend;
use crate::buffer::{OrkBuffer, Residency};
use crate::claim::{buffer_of, route_per_call};
use crate::error::BackendError;
use crate::host::Host;
use crate::weight::{Shape, Weight, name_of};

fn size(ne: i64) -> usize {
    usize::try_from(ne).unwrap_or(0)
}

/// What is wrong with a view that is not the weight as it was loaded.
const PART: &str = "it is a weight in other bounds than those that it was loaded with";

fn bad(tensor: &abi::Tensor, what: &str) -> BackendError {
    BackendError::Operand { name: name_of(tensor), what: what.to_owned() }
}

/// Whether a tensor's bytes can be read by the CPU as they are.
fn readable(backend: &OrkBackend, tensor: &abi::Tensor) -> bool {
    !tensor.data.is_null() && buffer_of(tensor).is_none_or(|buffer| backend.host().is_host(buffer.buft))
}

/// The activation of a matmul, as ggml describes it. Its rows are numbered with the second dimension fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Activation {
    data: *const u8,
    type_: i32,
    element_bytes: usize,
    ne: [usize; 4],
    nb: [usize; 4],
}

impl Activation {
    fn of(backend: &OrkBackend, tensor: &abi::Tensor) -> Result<Self, BackendError> {
        let element = backend.host().element_type(tensor.type_);
        if !readable(backend, tensor) || element.block != 1 || element.decode.is_none() {
            return Err(bad(tensor, "the activation is not numbers in host memory"));
        }
        Ok(Self {
            data: tensor.data.cast(),
            type_: tensor.type_,
            element_bytes: element.block_bytes,
            ne: tensor.ne.map(size),
            nb: tensor.nb,
        })
    }

    pub(crate) fn k(&self) -> usize {
        self.ne[0]
    }

    pub(crate) fn rows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// The addresses from the first to the last element, gaps included.
    pub(crate) fn span(&self) -> Range<usize> {
        let last: usize = self.ne.iter().zip(self.nb).map(|(ne, nb)| (ne - 1) * nb).sum();
        let start = self.data as usize;
        start..start + last + self.element_bytes
    }

    /// Its rows as they lie, if they are f32 one after the other.
    ///
    /// # Safety
    /// The described elements must be readable, and nobody may write them while the slice lives.
    pub(crate) unsafe fn in_place<'a>(&self) -> Option<&'a [f32]> {
        let mut expected = size_of::<f32>();
        let contiguous = self.ne.iter().zip(self.nb).all(|(&ne, nb)| {
            let fits = ne == 1 || nb == expected;
            expected *= ne;
            fits
        });
        let aligned = (self.data as usize).is_multiple_of(align_of::<f32>());
        if self.type_ != abi::TYPE_F32 || !contiguous || !aligned {
            return None;
        }
        // SAFETY: passed on from the caller; contiguous and aligned, see above.
        Some(unsafe { std::slice::from_raw_parts(self.data.cast(), self.rows() * self.k()) })
    }

    /// Copies the rows one after the other, as f32.
    ///
    /// # Safety
    /// The described elements must be readable.
    pub(crate) unsafe fn gather(&self, host: &Host, out: &mut Vec<f32>) {
        let element = host.element_type(self.type_);
        let [k, m, ne2, ne3] = self.ne;
        out.clear();
        out.resize(k * self.rows(), 0.0);
        let mut rows = out.chunks_exact_mut(k);
        for i3 in 0..ne3 {
            for i2 in 0..ne2 {
                for i1 in 0..m {
                    let Some(row) = rows.next() else { return };
                    // SAFETY: inside the described elements.
                    let at = unsafe { self.data.add(i1 * self.nb[1] + i2 * self.nb[2] + i3 * self.nb[3]) };
                    if self.nb[0] == self.element_bytes {
                        // SAFETY: k elements in one piece.
                        unsafe { element.decode_row(at, row) };
                    } else {
                        for (i0, value) in row.chunks_exact_mut(1).enumerate() {
                            // SAFETY: inside the described elements.
                            let at = unsafe { at.add(i0 * self.nb[0]) };
                            // SAFETY: one element.
                            unsafe { element.decode_row(at, value) };
                        }
                    }
                }
            }
        }
    }
}

/// Which rows of the activation meet which matrix of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// There is one matrix.
    One,
    /// Matrices repeat over the third and fourth dimension of the activation.
    Batched { stack: [usize; 2] },
    /// A table names a matrix for each row of the result: `MUL_MAT_ID`.
    Chosen {
        table: *const u8,
        slots: usize,
        tokens: usize,
        slot_stride: usize,
        token_stride: usize,
        matrices: usize,
    },
}

/// The rows that meet one matrix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) matrix: usize,
    pub(crate) rows: Rows,
}

/// Rows of the activation and of the result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// As many rows from these two on.
    Run { x: usize, out: usize, count: usize },
    /// Pairs.
    List(Vec<(usize, usize)>),
}

impl Rows {
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Run { count, .. } => *count,
            Self::List(list) => list.len(),
        }
    }

    /// A run, if the pairs are one.
    fn from_list(list: Vec<(usize, usize)>) -> Self {
        let Some(&(x, out)) = list.first() else { return Self::List(list) };
        if list.iter().enumerate().all(|(i, &pair)| pair == (x + i, out + i)) {
            return Self::Run { x, out, count: list.len() };
        }
        Self::List(list)
    }
}

impl Selection {
    /// The addresses of the table, if there is one.
    pub(crate) fn span(&self) -> Range<usize> {
        match *self {
            Self::One | Self::Batched { .. } => 0..0,
            Self::Chosen { table, slots, tokens, slot_stride, token_stride, .. } => {
                let start = table as usize;
                let last = slots.saturating_sub(1) * slot_stride + tokens.saturating_sub(1) * token_stride;
                start..start + last + size_of::<i32>()
            }
        }
    }

    /// The parts, in the order of their matrices; matrices without rows are left out. `Err` is an entry of the table
    /// that names no matrix.
    ///
    /// # Safety
    /// The table must be readable.
    pub(crate) unsafe fn parts(&self, activation: &Activation) -> Result<Vec<Part>, i32> {
        let [_, m, ne2, ne3] = activation.ne;
        match *self {
            Self::One => {
                Ok(vec![Part { matrix: 0, rows: Rows::Run { x: 0, out: 0, count: activation.rows() } }])
            }
            Self::Batched { stack: [stack2, stack3] } => {
                let mut lists = vec![Vec::new(); stack2 * stack3];
                let (repeat2, repeat3) = (ne2 / stack2, ne3 / stack3);
                for i3 in 0..ne3 {
                    for i2 in 0..ne2 {
                        let first = (i3 * ne2 + i2) * m;
                        let list = &mut lists[i3 / repeat3 * stack2 + i2 / repeat2];
                        list.extend((first..first + m).map(|row| (row, row)));
                    }
                }
                Ok(into_parts(lists))
            }
            Self::Chosen { table, slots, tokens, slot_stride, token_stride, matrices } => {
                let mut lists = vec![Vec::new(); matrices];
                for token in 0..tokens {
                    for slot in 0..slots {
                        // SAFETY: inside the table.
                        let entry = unsafe { table.add(token * token_stride + slot * slot_stride) };
                        // SAFETY: as above; strides need not respect alignment.
                        let chosen = unsafe { entry.cast::<i32>().read_unaligned() };
                        let list = usize::try_from(chosen).ok().and_then(|chosen| lists.get_mut(chosen));
                        // The activation has one row per token for all slots, or one for each.
                        list.ok_or(chosen)?.push((token * m + slot % m, token * slots + slot));
                    }
                }
                Ok(into_parts(lists))
            }
        }
    }
}

fn into_parts(lists: Vec<Vec<(usize, usize)>>) -> Vec<Part> {
    let used = lists.into_iter().enumerate().filter(|(_, list)| !list.is_empty());
    used.map(|(matrix, list)| Part { matrix, rows: Rows::from_list(list) }).collect()
}

/// The matrices of a weight tensor.
#[derive(Debug)]
pub(crate) struct Stack<'g> {
    tensor: &'g abi::Tensor,
    home: Home<'g>,
}

#[derive(Debug)]
enum Home<'g> {
    Ours(&'g OrkBuffer),
    /// Packed when it is needed, dropped afterwards.
    Foreign(Shape),
}

impl<'g> Stack<'g> {
    fn of(backend: &OrkBackend, tensor: &'g abi::Tensor) -> Result<Self, BackendError> {
        let buffer = buffer_of(tensor).ok_or_else(|| bad(tensor, "the weight has no buffer"))?;
        let per_call = backend.packs_per_call(tensor);
        let ours = backend.tables().residency_of(buffer.buft).and_then(|_| OrkBuffer::of(buffer));
        if let Some(ours) = ours {
            let packed = ours.weight_at(tensor.data).is_some();
            if !packed && let Some(source) = ours.failure_at(tensor.data) {
                return Err(BackendError::NotLoaded { name: name_of(tensor), source });
            }
            if packed || ours.residency == Residency::Resident {
                // SAFETY: live tensor.
                if !unsafe { (backend.host().ggml_is_contiguous)(tensor) } {
                    return Err(bad(tensor, PART));
                }
                return Ok(Self { tensor, home: Home::Ours(ours) });
            }
            if !per_call {
                return Err(bad(tensor, "the weight was never loaded"));
            }
        }
        if !per_call || !readable(backend, tensor) {
            return Err(bad(tensor, "the weight is in a foreign buffer"));
        }
        let shape = Shape::of(backend, tensor).ok_or_else(|| bad(tensor, "the weight is not plain rows"))?;
        Ok(Self { tensor, home: Home::Foreign(shape) })
    }

    /// Whether nobody else can read the weight.
    pub(crate) fn is_resident(&self) -> bool {
        matches!(&self.home, Home::Ours(buffer) if buffer.residency == Residency::Resident)
    }

    /// The addresses that are read when a product is computed: none for weights that were packed before.
    pub(crate) fn span(&self) -> Range<usize> {
        let Home::Foreign(shape) = &self.home else { return 0..0 };
        let start = self.tensor.data as usize;
        let last: usize = (1..4).map(|i| (size(self.tensor.ne[i]).max(1) - 1) * self.tensor.nb[i]).sum();
        start..start + last + shape.element.row_bytes(shape.k).unwrap_or(0)
    }

    fn matrices(&self) -> [usize; 2] {
        [size(self.tensor.ne[2]).max(1), size(self.tensor.ne[3]).max(1)]
    }

    /// One matrix, ready to multiply by.
    pub(crate) fn matrix(
        &self,
        backend: &'static OrkBackend,
        index: usize,
    ) -> Result<Arc<Weight>, BackendError> {
        let tensor = self.tensor;
        let [stack2, _] = self.matrices();
        let offset = index % stack2 * tensor.nb[2] + index / stack2 * tensor.nb[3];
        let data = tensor.data.cast::<u8>().wrapping_add(offset);
        match &self.home {
            Home::Ours(buffer) => match buffer.weight_at(data.cast()) {
                Some(weight) => {
                    let same = weight.type_ == tensor.type_
                        && weight.k == size(tensor.ne[0])
                        && weight.n == size(tensor.ne[1]);
                    if same { Ok(weight) } else { Err(bad(tensor, PART)) }
                }
                None if buffer.is_unreadable(tensor) => Err(bad(tensor, PART)),
                None if buffer.residency == Residency::Resident => {
                    let weight = buffer.software_weight(tensor, index);
                    weight.map(Arc::new).ok_or_else(|| bad(tensor, "the weight was never loaded"))
                }
                None => Err(bad(tensor, "the weight was never loaded")),
            },
            Home::Foreign(shape) => {
                let shape = shape.matrix(index);
                // SAFETY: a matrix of a live tensor in host memory.
                let loaded = unsafe { shape.load(backend, data) }?;
                let route = route_per_call(backend, tensor);
                Ok(Arc::new(Weight::for_one_product(backend, &shape, loaded, route)))
            }
        }
    }
}

/// A matmul node.
#[derive(Debug)]
pub(crate) struct Node<'g> {
    pub(crate) name: String,
    /// ggml's name of the operation.
    pub(crate) op: String,
    pub(crate) activation: Activation,
    pub(crate) selection: Selection,
    pub(crate) stack: Stack<'g>,
    /// Elements of a row of the result.
    pub(crate) n: usize,
    pub(crate) out: *mut f32,
    pub(crate) out_len: usize,
}

impl Node<'_> {
    pub(crate) fn span(&self) -> Range<usize> {
        let start = self.out as usize;
        start..start + self.out_len * size_of::<f32>()
    }
}

/// Finds the operands of a matmul node.
pub(crate) fn read_node<'g>(backend: &OrkBackend, node: &'g abi::Tensor) -> Result<Node<'g>, BackendError> {
    // SAFETY: operands of a live node are live or null.
    let (weight, x, table) = unsafe { (node.src[0].as_ref(), node.src[1].as_ref(), node.src[2].as_ref()) };
    let (Some(weight), Some(x)) = (weight, x) else {
        return Err(bad(node, "an operand is missing"));
    };
    let activation = Activation::of(backend, x)?;
    // SAFETY: live node.
    let contiguous = unsafe { (backend.host().ggml_is_contiguous)(node) };
    if !readable(backend, node) || node.type_ != abi::TYPE_F32 || !contiguous {
        return Err(bad(node, "the result is not contiguous f32 in host memory"));
    }
    let stack = Stack::of(backend, weight)?;
    let [stack2, stack3] = stack.matrices();
    let (selection, rows) = if node.op == backend.ops().mul_mat_id {
        let table = table.filter(|table| table.type_ == abi::TYPE_I32 && readable(backend, table));
        let table = table.ok_or_else(|| bad(node, "the choice of matrices is not i32 in host memory"))?;
        let (slots, tokens) = (size(table.ne[0]), size(table.ne[1]));
        let fits =
            tokens == activation.ne[2] && activation.ne[3] == 1 && slots.is_multiple_of(activation.ne[1]);
        if !fits {
            return Err(bad(node, "the choice of matrices does not fit the activation"));
        }
        let selection = Selection::Chosen {
            table: table.data.cast(),
            slots,
            tokens,
            slot_stride: table.nb[0],
            token_stride: table.nb[1],
            matrices: stack2 * stack3,
        };
        (selection, slots * tokens)
    } else {
        if !activation.ne[2].is_multiple_of(stack2) || !activation.ne[3].is_multiple_of(stack3) {
            return Err(bad(node, "the matrices do not repeat a whole number of times"));
        }
        let selection = match [stack2, stack3] {
            [1, 1] => Selection::One,
            stack => Selection::Batched { stack },
        };
        (selection, activation.rows())
    };
    let n = size(weight.ne[1]);
    let out_len: usize = node.ne.iter().map(|&ne| size(ne)).product();
    if activation.k() != size(weight.ne[0]) || out_len != rows * n {
        return Err(bad(node, "the sizes of the operands do not match"));
    }
    if !(node.data as usize).is_multiple_of(align_of::<f32>()) {
        return Err(bad(node, "the result is not aligned"));
    }
    let op = backend.host().op_name(node.op);
    Ok(Node { name: name_of(node), op, activation, selection, stack, n, out: node.data.cast(), out_len })
}

/// A SwiGLU node: `silu(gate) * up`, all of them rows of f32 one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GluNode {
    pub(crate) gate: *const f32,
    pub(crate) up: *const f32,
    pub(crate) out: *mut f32,
    pub(crate) len: usize,
    /// Numbers of a row.
    pub(crate) width: usize,
}

/// Finds the operands of a SwiGLU node.
pub(crate) fn read_glu(backend: &OrkBackend, node: &abi::Tensor) -> Result<GluNode, BackendError> {
    // SAFETY: operands of a live node are live or null.
    let (gate, up) = unsafe { (node.src[0].as_ref(), node.src[1].as_ref()) };
    let (Some(gate), Some(up)) = (gate, up) else { return Err(bad(node, "an operand is missing")) };
    let plain = |tensor: &abi::Tensor| {
        // SAFETY: live tensor.
        let contiguous = unsafe { (backend.host().ggml_is_contiguous)(tensor) };
        let aligned = (tensor.data as usize).is_multiple_of(align_of::<f32>());
        tensor.type_ == abi::TYPE_F32
            && contiguous
            && aligned
            && tensor.ne == node.ne
            && readable(backend, tensor)
    };
    if ![node, gate, up].into_iter().all(plain) {
        return Err(bad(node, "it is not f32 rows in host memory"));
    }
    let len = node.ne.iter().map(|&ne| size(ne)).product();
    let width = size(node.ne[0]);
    Ok(GluNode { gate: gate.data.cast(), up: up.data.cast(), out: node.data.cast(), len, width })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activation(ne: [usize; 4]) -> Activation {
        Activation { data: std::ptr::null(), type_: abi::TYPE_F32, element_bytes: 4, ne, nb: [4; 4] }
    }

    fn parts(selection: Selection, ne: [usize; 4]) -> Result<Vec<Part>, i32> {
        // SAFETY: the tables below are readable.
        unsafe { selection.parts(&activation(ne)) }
    }

    #[test]
    fn one_matrix_meets_all_rows() {
        let rows = Rows::Run { x: 0, out: 0, count: 3 * 5 * 2 };
        assert_eq!(parts(Selection::One, [7, 3, 5, 2]), Ok(vec![Part { matrix: 0, rows }]));
    }

    #[test]
    fn matrices_repeat_over_the_batch() {
        let batched = parts(Selection::Batched { stack: [2, 1] }, [7, 3, 4, 2]).unwrap();
        // Activation matrices 0 and 1 of each half meet matrix 0, the others matrix 1.
        let rows_of = |matrices: [usize; 4]| -> Vec<(usize, usize)> {
            matrices.iter().flat_map(|&i| (3 * i..3 * i + 3).map(|row| (row, row))).collect()
        };
        assert_eq!(batched[0], Part { matrix: 0, rows: Rows::List(rows_of([0, 1, 4, 5])) });
        assert_eq!(batched[1], Part { matrix: 1, rows: Rows::List(rows_of([2, 3, 6, 7])) });
        let runs = parts(Selection::Batched { stack: [2, 1] }, [7, 3, 4, 1]).unwrap();
        assert_eq!(runs[1], Part { matrix: 1, rows: Rows::Run { x: 6, out: 6, count: 6 } });
    }

    #[test]
    fn a_table_chooses_matrices() {
        // Two slots in rows of three entries; entry 9 is no slot.
        let table: [i32; 9] = [4, 0, 9, 0, 2, 9, 4, 4, 9];
        let chosen = |matrices| Selection::Chosen {
            table: table.as_ptr().cast(),
            slots: 2,
            tokens: 3,
            slot_stride: 4,
            token_stride: 12,
            matrices,
        };
        let shared = parts(chosen(5), [7, 1, 3, 1]).unwrap();
        let expect = |matrix, list: &[(usize, usize)]| Part { matrix, rows: Rows::from_list(list.to_vec()) };
        let wanted =
            [expect(0, &[(0, 1), (1, 2)]), expect(2, &[(1, 3)]), expect(4, &[(0, 0), (2, 4), (2, 5)])];
        assert_eq!(shared, wanted);
        let own = parts(chosen(5), [7, 2, 3, 1]).unwrap();
        assert_eq!(own[2], expect(4, &[(0, 0), (4, 4), (5, 5)]));
        assert_eq!(parts(chosen(4), [7, 1, 3, 1]), Err(4));
    }
}
