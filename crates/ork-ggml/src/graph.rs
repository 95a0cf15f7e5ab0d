// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a subgraph: matmuls that follow one another and share an activation become one submission.

use crate::abi;
use crate::accelerator::{AccelError, LoadedWeight};
use crate::backend::OrkBackend;
use crate::buffer::{Held, OrkBuffer, Residency, Shape, Weight, name_of};
use crate::census::MatMulRecord;
use crate::claim::buffer_of;
use crate::error::BackendError;
use crate::options::ForeignWeights;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of a stream for activations that must be gathered.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    rows: Mutex<Vec<f32>>,
}

/// The activation of a matmul, as ggml describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Activation {
    data: *const u8,
    ne: [usize; 4],
    nb: [usize; 4],
}

impl Activation {
    fn rows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// The addresses from the first to the last element, gaps included.
    fn span(&self) -> Range<usize> {
        let last: usize = self.ne.iter().zip(self.nb).map(|(ne, nb)| (ne - 1) * nb).sum();
        let start = self.data as usize;
        start..start + last + size_of::<f32>()
    }

    fn contiguous(&self) -> bool {
        let mut expected = size_of::<f32>();
        self.ne.iter().zip(self.nb).all(|(&ne, nb)| {
            let fits = ne == 1 || nb == expected;
            expected *= ne;
            fits
        })
    }

    /// Copies the rows one after the other.
    ///
    /// # Safety
    /// The described elements must be readable.
    unsafe fn gather(&self, out: &mut Vec<f32>) {
        let [k, m, ne2, ne3] = self.ne;
        out.clear();
        out.reserve(k * self.rows());
        for i3 in 0..ne3 {
            for i2 in 0..ne2 {
                for i1 in 0..m {
                    let offset = i1 * self.nb[1] + i2 * self.nb[2] + i3 * self.nb[3];
                    for i0 in 0..k {
                        // SAFETY: inside the described elements.
                        let at = unsafe { self.data.add(offset + i0 * self.nb[0]) };
                        // SAFETY: as above; strides need not respect alignment.
                        out.push(unsafe { at.cast::<f32>().read_unaligned() });
                    }
                }
            }
        }
    }
}

/// One matmul of a group.
#[derive(Debug)]
struct MatMul {
    weight: Arc<Weight>,
    out: *mut f32,
    out_len: usize,
}

impl MatMul {
    fn span(&self) -> Range<usize> {
        let start = self.out as usize;
        start..start + self.out_len * size_of::<f32>()
    }
}

/// Matmuls that read one activation and write to disjoint places, none of which is the activation.
#[derive(Debug, Default)]
struct Group {
    activation: Option<Activation>,
    members: Vec<MatMul>,
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Group {
    /// May `next` join without changing what it or the members compute? Dependencies through views are covered: all
    /// operands are host memory, so what matters is whose bytes overlap.
    fn admits(&self, activation: &Activation, next: &MatMul) -> bool {
        let Some(shared) = &self.activation else {
            return true;
        };
        // The members' results are written only after the activation was read, so a member that overwrites it would
        // hide that from `next`.
        shared == activation
            && !self.members.iter().any(|member| {
                overlap(&member.span(), &next.span()) || overlap(&member.span(), &shared.span())
            })
    }
}

/// Computes every node of a subgraph.
///
/// # Safety
/// `graph` must be live, with all operands allocated and nobody else writing to them meanwhile.
pub(crate) unsafe fn compute(
    backend: &'static OrkBackend,
    scratch: &Scratch,
    graph: *mut abi::Graph,
) -> Result<(), BackendError> {
    let host = backend.host();
    let codes = *backend.ops();
    let mut group = Group::default();
    let mut counted = false;
    // SAFETY: live graph.
    let nodes = unsafe { (host.ggml_graph_n_nodes)(graph) };
    for index in 0..nodes {
        // SAFETY: index below the number of nodes; nodes of a live graph are live.
        let node = unsafe { &*(host.ggml_graph_node)(graph, index) };
        let skip = node.flags & abi::FLAG_COMPUTE == 0 || node.ne.contains(&0);
        if skip || node.op == codes.none || codes.views.contains(&node.op) {
            continue;
        }
        if node.op != codes.mul_mat {
            let error = BackendError::UnexpectedOperation { op: host.op_name(node.op), name: name_of(node) };
            return Err(error);
        }
        if !counted {
            counted = true;
            backend.counters().graph();
        }
        let (activation, matmul) = read_node(backend, node)?;
        if !group.admits(&activation, &matmul) {
            run(backend, scratch, &mut group)?;
        }
        group.activation = Some(activation);
        group.members.push(matmul);
    }
    run(backend, scratch, &mut group)
}

/// Finds the operands of a matmul node.
fn read_node(backend: &'static OrkBackend, node: &abi::Tensor) -> Result<(Activation, MatMul), BackendError> {
    let bad = |what: &str| BackendError::Operand { name: name_of(node), what: what.to_owned() };
    // SAFETY: operands of a live node are live or null.
    let (weight, x) = unsafe { (node.src[0].as_ref(), node.src[1].as_ref()) };
    let (Some(weight), Some(x)) = (weight, x) else {
        return Err(bad("an operand is missing"));
    };
    // Plain host memory, or a shared buffer of ours; resident memory holds no activations.
    let readable =
        |t: &abi::Tensor| !t.data.is_null() && buffer_of(t).is_none_or(|b| backend.host().is_host(b.buft));
    if !readable(x) || x.type_ != abi::TYPE_F32 {
        return Err(bad("the activation is not f32 in host memory"));
    }
    // SAFETY: live node.
    let contiguous = unsafe { (backend.host().ggml_is_contiguous)(node) };
    if !readable(node) || node.type_ != abi::TYPE_F32 || !contiguous {
        return Err(bad("the result is not contiguous f32 in host memory"));
    }
    let weight = find_weight(backend, weight)?;
    let size = |ne: i64| usize::try_from(ne).unwrap_or(0);
    let activation = Activation { data: x.data.cast(), ne: x.ne.map(size), nb: x.nb };
    let out_len: usize = node.ne.iter().map(|&ne| size(ne)).product();
    if activation.ne[0] != weight.k || out_len != activation.rows() * weight.n {
        return Err(bad("the sizes of the operands do not match"));
    }
    if !(node.data as usize).is_multiple_of(align_of::<f32>()) {
        return Err(bad("the result is not aligned"));
    }
    Ok((activation, MatMul { weight, out: node.data.cast(), out_len }))
}

/// The packed form of a weight tensor (or of a view of exactly that tensor).
fn find_weight(backend: &'static OrkBackend, tensor: &abi::Tensor) -> Result<Arc<Weight>, BackendError> {
    let bad = |what: &str| BackendError::Operand { name: name_of(tensor), what: what.to_owned() };
    let buffer = buffer_of(tensor).ok_or_else(|| bad("the weight has no buffer"))?;
    if let Some(ours) = backend.tables().residency_of(buffer.buft).and_then(|_| OrkBuffer::of(buffer)) {
        if let Some(weight) = ours.weight_at(tensor.data) {
            let same = weight.type_ == tensor.type_
                && i64::try_from(weight.k) == Ok(tensor.ne[0])
                && i64::try_from(weight.n) == Ok(tensor.ne[1]);
            return if same { Ok(weight) } else { Err(bad("only a part of the weight is used")) };
        }
        if ours.residency == Residency::Resident
            && let Some(weight) = ours.software_weight(tensor)
        {
            return Ok(Arc::new(weight));
        }
        return Err(bad("the weight was never loaded"));
    }
    if backend.host().is_host(buffer.buft)
        && !tensor.data.is_null()
        && backend.foreign_weights() == ForeignWeights::PackPerCall
    {
        let shape = Shape::of(backend, tensor).ok_or_else(|| bad("the weight is not a plain matrix"))?;
        // SAFETY: a live tensor in host memory.
        let loaded = unsafe { shape.load(backend, tensor.data.cast()) }?;
        return Ok(Arc::new(Weight::on_accelerator(backend, &shape, loaded)));
    }
    Err(bad("the weight is in a foreign buffer"))
}

/// Computes a group and empties it.
fn run(backend: &OrkBackend, scratch: &Scratch, group: &mut Group) -> Result<(), BackendError> {
    let Some(activation) = group.activation.take() else {
        return Ok(());
    };
    let members = std::mem::take(&mut group.members);
    let m = activation.rows();
    let mut gathered = scratch.rows.lock().unwrap_or_else(PoisonError::into_inner);
    let in_place = activation.contiguous()
        && (activation.data as usize).is_multiple_of(align_of::<f32>())
        && !members.iter().any(|member| overlap(&member.span(), &activation.span()));
    let x: &[f32] = if in_place {
        // SAFETY: ggml allocated the operand, nobody writes to it during the call, and no result overlaps it.
        unsafe { std::slice::from_raw_parts(activation.data.cast(), m * activation.ne[0]) }
    } else {
        // SAFETY: ggml allocated the operand.
        unsafe { activation.gather(&mut gathered) };
        &gathered
    };
    let mut outs: Vec<&mut [f32]> = members
        .iter()
        // SAFETY: ggml allocated the results; `Group::admits` made sure that no two overlap.
        .map(|member| unsafe { std::slice::from_raw_parts_mut(member.out, member.out_len) })
        .collect();
    if let Err(source) = multiply(backend, &members, m, x, &mut outs)? {
        backend.counters().failed(members.len());
        let names: Vec<&str> = members.iter().map(|member| member.weight.name.as_str()).collect();
        return Err(BackendError::MatMul {
            name: names.join("+"),
            m,
            k: activation.ne[0],
            n: members.iter().map(|member| member.weight.n).sum(),
            source,
        });
    }
    let records: Vec<MatMulRecord<'_>> = members
        .iter()
        .map(|MatMul { weight, .. }| MatMulRecord {
            weight: &weight.name,
            type_name: &weight.type_name,
            k: weight.k,
            n: weight.n,
            m,
            software: matches!(weight.held, Held::Software(_)),
        })
        .collect();
    backend.counters().submission(&records);
    Ok(())
}

/// The multiplication itself: one call for what the accelerator holds, the plain loop for the rest.
fn multiply(
    backend: &OrkBackend,
    members: &[MatMul],
    m: usize,
    x: &[f32],
    outs: &mut [&mut [f32]],
) -> Result<Result<(), AccelError>, BackendError> {
    let accelerator = backend.accelerator()?;
    let mut weights: Vec<&dyn LoadedWeight> = Vec::with_capacity(members.len());
    let mut targets: Vec<&mut [f32]> = Vec::with_capacity(members.len());
    for (member, out) in members.iter().zip(outs) {
        tracing::debug!(weight = %member.weight.name, m, k = member.weight.k, n = member.weight.n, "matmul");
        match &member.weight.held {
            Held::Accelerator(loaded) => {
                weights.push(loaded.as_ref());
                targets.push(out);
            }
            Held::Software(software) => {
                if let Err(error) = software.matmul(m, x, out) {
                    return Ok(Err(error));
                }
            }
        }
    }
    Ok(match (weights.as_slice(), targets.as_mut_slice()) {
        ([], _) => Ok(()),
        ([weight], [out]) => weight.matmul(m, x, out),
        (weights, targets) => accelerator.matmul_group(weights, m, x, targets),
    })
}
