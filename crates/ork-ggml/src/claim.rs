// SPDX-License-Identifier: MIT OR Apache-2.0
//! Claim or decline: the answer to ggml's `supports_op`.
//!
//! ggml asks three ways, and the answers must agree:
//! 1. while placing weights, with a probe: no data, no activation buffer, a zero-sized dummy of our buffer type, 512
//!    rows. The answer decides where the weight will live;
//! 2. while planning each graph, with the real weight and the real number of rows;
//! 3. for leaves in our buffers, which must have an owner.
//!
//! A weight in a resident buffer can be read by nobody else, so (2) must accept it whatever its shape and rows.

use crate::abi;
use crate::accelerator::ModelledTime;
use crate::backend::OrkBackend;
use crate::buffer::{OrkBuffer, Residency};
use crate::cost;
use crate::decline::Decline;
use crate::device::buffer_type_name;
use crate::options::{Attention, MinRows, Route, Swiglu};
use crate::routing::{self, Place, Question, Verdict};
use crate::weight::{Shape, name_of};

/// Fewest results of a product with a matrix that is packed for it alone. Packing costs more than such a product, and its
/// error, which is small beside the results together, may be large beside a single one that is near zero.
const FOREIGN_RESULTS_MIN: u64 = 16;

/// What an accepted question was about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// A leaf or a view: nothing to compute.
    Structural,
    /// A matmul.
    MatMul,
    /// A SwiGLU of two matmuls.
    Swiglu,
}

/// Where the left operand of a matmul lives.
#[derive(Debug, Clone, Copy)]
enum Home {
    /// A probe: the weight would go into a buffer of ours.
    Probe,
    /// A buffer of ours.
    Ours(&'static OrkBuffer),
    /// Readable host memory that holds no packed weight, and we were told to use it.
    Foreign,
}

/// Answers `supports_op` and keeps the books.
pub(crate) fn supports(backend: &OrkBackend, op: &abi::Tensor) -> bool {
    match decide(backend, op) {
        Ok(Accepted::Structural) => {
            backend.counters().structural();
            true
        }
        Ok(Accepted::MatMul) => {
            backend.counters().claimed();
            true
        }
        Ok(Accepted::Swiglu) => {
            backend.counters().swiglu_claimed();
            true
        }
        Err(decline) => {
            // SAFETY: operands of a live tensor are live or null.
            let weight = unsafe { op.src[0].as_ref() };
            let subject = weight.map_or_else(|| name_of(op), name_of);
            tracing::trace!(%subject, %decline, "declined");
            backend.counters().declined(&backend.host().op_name(op.op), &subject, &decline);
            false
        }
    }
}

/// The decision itself: reads types, shapes, strides and buffer types, never data.
pub(crate) fn decide(backend: &OrkBackend, op: &abi::Tensor) -> Result<Accepted, Decline> {
    let codes = backend.ops();
    if op.op == codes.none || codes.views.contains(&op.op) {
        return Ok(Accepted::Structural);
    }
    let host = backend.host();
    if backend.is_glu(op.op) {
        return swiglu(backend, op);
    }
    if op.op != codes.mul_mat && op.op != codes.mul_mat_id {
        return Err(Decline::Operation { op: host.op_name(op.op) });
    }
    // SAFETY: operands of a live tensor are live or null.
    let (weight, activation) = unsafe { (op.src[0].as_ref(), op.src[1].as_ref()) };
    let (Some(weight), Some(activation)) = (weight, activation) else {
        return Err(Decline::Malformed);
    };
    match op.op_params[abi::OP_PARAM_HINT] {
        0 => {}
        hint => return Err(Decline::Hint { hint }),
    }
    // A weight that is looked at in another way is still a weight; where the CPU can read it, that is left to the CPU.
    let computed = weight.op != codes.none && !(codes.views.contains(&weight.op) && is_resident(weight));
    if computed && !backend.packs_per_call(weight) {
        return Err(Decline::ComputedOperand);
    }
    let home = home(backend, weight)?;
    // Someone else's matrix may be part of a larger one; ours were taken as a whole.
    // SAFETY: live tensor.
    let whole = matches!(home, Home::Foreign) || unsafe { (host.ggml_is_contiguous)(weight) };
    if host.element_type(weight.type_).decode.is_none() {
        return Err(Decline::WeightType { type_name: host.element_type(weight.type_).name });
    }
    if let Home::Ours(buffer) = home
        && buffer.residency == Residency::Resident
        && !buffer.can_multiply(weight)
    {
        // Others would get zeros instead of bytes that are not there; taken, the product fails and says so.
        return if buffer.is_unreadable(weight) { Ok(Accepted::MatMul) } else { Err(Decline::WeightLayout) };
    }
    let shape = Shape::of(backend, weight).filter(|_| whole).ok_or(Decline::WeightLayout)?;
    let element = host.element_type(activation.type_);
    if element.block != 1 || element.decode.is_none() {
        return Err(Decline::ActivationType { type_name: element.name });
    }
    if op.op == codes.mul_mat_id {
        // SAFETY: as above.
        let choice = unsafe { op.src[2].as_ref() }.ok_or(Decline::Malformed)?;
        if choice.type_ != abi::TYPE_I32 {
            return Err(Decline::Malformed);
        }
    }
    // SAFETY: live tensor.
    if op.type_ != abi::TYPE_F32 || !unsafe { (host.ggml_is_contiguous)(op) } {
        return Err(Decline::ResultLayout);
    }
    // Rows of the result: a row of the activation may meet several experts.
    let rows = u64::try_from(op.ne[1..].iter().product::<i64>()).unwrap_or(0);
    let precise = || match op.op_params[abi::OP_PARAM_ACTIVATION_PRECISION] {
        1..abi::PREC_Q8 => Err(Decline::Precision),
        _ => Ok(()),
    };
    match home {
        Home::Ours(buffer) if buffer.residency == Residency::Resident => Ok(Accepted::MatMul),
        // The product fails and says why; the CPU's would hide it.
        Home::Ours(buffer) if backend.route() != Route::Cpu && buffer.has_failed(weight.data, &shape) => {
            Ok(Accepted::MatMul)
        }
        Home::Ours(buffer) => {
            precise()?;
            let one = |index: usize, m| match buffer.matrix_at(weight.data, &shape, index) {
                Some(weight) => weight.modelled(m),
                None => backend.accelerator().ok()?.modelled(shape.k, shape.n, m),
            };
            // Where nothing is asked before a weight is written, it is taken below, and must be known as what it is.
            if let Some(experts) = backend.experts() {
                experts.asked(&shape, op.op == codes.mul_mat_id);
            }
            let time = |m| match backend.experts().filter(|experts| experts.holds(&shape)) {
                Some(experts) => experts.mean_time(&shape, m, &|index| one(index, m)),
                None => one(0, m),
            };
            // A host that reads a file straight into memory shared with the CPU tells nobody.
            let loaded = || {
                buffer.holds_stack(weight.data, &shape)
                    || buffer.adopt(weight, &shape)
                    || buffer.has_failed(weight.data, &shape)
            };
            worth_it(backend, op, backend.route(), &question(&shape, rows, &time, false), &shape, &loaded)
        }
        Home::Probe => {
            within_limits(backend, weight)?;
            if let Some(experts) = backend.experts() {
                experts.asked(&shape, op.op == codes.mul_mat_id);
            }
            if let Ok(accelerator) = backend.accelerator() {
                for index in 0..shape.matrices {
                    accelerator.claimed(&shape.matrix(index).name, shape.k, shape.n);
                }
            }
            Ok(Accepted::MatMul)
        }
        Home::Foreign => {
            precise()?;
            let results = u64::try_from(op.ne.iter().product::<i64>()).unwrap_or(0);
            if results < FOREIGN_RESULTS_MIN {
                return Err(Decline::FewResults { results, min: FOREIGN_RESULTS_MIN });
            }
            within_limits(backend, weight)?;
            let time = |m| backend.accelerator().ok()?.modelled(shape.k, shape.n, m);
            let route = route_per_call(backend, weight);
            worth_it(backend, op, route, &question(&shape, rows, &time, true), &shape, &|| true)
        }
    }
}

/// The route of a product with a matrix that is packed for it alone: attention has its own.
pub(crate) fn route_per_call(backend: &OrkBackend, weight: &abi::Tensor) -> Route {
    match (backend.route(), backend.attention()) {
        (Route::Cpu, _) => Route::Cpu,
        (route, _) if weight.op == backend.ops().none => route,
        (_, Attention::On) => Route::Npu,
        (_, Attention::ByCost) => Route::Auto { min_rows: MinRows::ByCost },
        (route, Attention::Off) => route,
    }
}

/// A GLU is taken where both its operands are: its values come from memory that this backend has just written.
fn swiglu(backend: &OrkBackend, op: &abi::Tensor) -> Result<Accepted, Decline> {
    let decline = || Decline::Operation { op: backend.host().op_name(op.op) };
    // SAFETY: operands of a live tensor are live or null.
    let (gate, up) = unsafe { (op.src[0].as_ref(), op.src[1].as_ref()) };
    let (Some(gate), Some(up)) = (gate, up) else { return Err(decline()) };
    let plain = |tensor: &abi::Tensor| {
        // SAFETY: live tensor.
        tensor.type_ == abi::TYPE_F32 && unsafe { (backend.host().ggml_is_contiguous)(tensor) }
    };
    let ours = |tensor: &abi::Tensor| {
        tensor.op == backend.ops().mul_mat && decide(backend, tensor) == Ok(Accepted::MatMul)
    };
    let wanted = backend.swiglu() == Swiglu::Overlap
        && op.op_params[abi::OP_PARAM_GLU_KIND] == abi::GLU_SWIGLU
        && op.op_params[abi::OP_PARAM_GLU_SWAPPED] == 0
        && [op, gate, up].into_iter().all(plain)
        && op.ne == gate.ne
        && op.ne == up.ne;
    if wanted && ours(gate) && ours(up) { Ok(Accepted::Swiglu) } else { Err(decline()) }
}

/// The product with one of the matrices that `rows` rows with a stack use, if they share them evenly. All of them cost as
/// many times more on either side.
pub(crate) fn question(
    shape: &Shape,
    rows: u64,
    time: &dyn Fn(usize) -> Option<ModelledTime>,
    packed_for_it: bool,
) -> Question {
    let matrices = (shape.matrices as u64).min(rows).max(1);
    let m = rows.div_ceil(matrices).max(1);
    Question {
        size: cost::Size { m, k: shape.k as u64, n: shape.n as u64 },
        stored: shape.stored(),
        time: time(usize::try_from(m).unwrap_or(usize::MAX)),
        packed_for_it,
    }
}

/// The route's opinion on a matmul that the CPU could run as well.
fn worth_it(
    backend: &OrkBackend,
    op: &abi::Tensor,
    route: Route,
    question: &Question,
    shape: &Shape,
    loaded: &dyn Fn() -> bool,
) -> Result<Accepted, Decline> {
    let verdict = routing::decide(route, question);
    if verdict.place == Place::Npu && !loaded() {
        return Err(Decline::NotLoaded);
    }
    let op_name = backend.host().op_name(op.op);
    backend.counters().judged(&op_name, shape, question.size.m, &verdict);
    let m = question.size.m;
    let Verdict { npu_us, cpu_us, place, .. } = verdict;
    match (place, route, npu_us) {
        (Place::Npu, ..) => Ok(Accepted::MatMul),
        (_, Route::Cpu, _) => Err(Decline::RouteIsCpu),
        (_, Route::Auto { min_rows: MinRows::Rows(min_rows) }, _) => {
            Err(Decline::BelowMinRows { m, min_rows })
        }
        (_, _, Some(npu_us)) => {
            Err(Decline::CpuFaster { m, npu_us: npu_us.round() as u64, cpu_us: cpu_us.round() as u64 })
        }
        (_, _, None) => Err(Decline::BelowMinRows { m, min_rows: MinRows::WITHOUT_MODEL }),
    }
}

/// Exclusions of the options and limits of the accelerator, for a weight that is not taken yet.
fn within_limits(backend: &OrkBackend, weight: &abi::Tensor) -> Result<(), Decline> {
    let name = name_of(weight);
    if let Some(pattern) = backend.exclusion(&name) {
        return Err(Decline::Excluded { pattern: pattern.to_owned(), name });
    }
    let size = |ne: i64| usize::try_from(ne).map_err(|_| Decline::Malformed);
    let accelerator = backend.accelerator().map_err(|_| Decline::RouteIsCpu)?;
    accelerator.limits(size(weight.ne[0])?, size(weight.ne[1])?)
}

fn home(backend: &OrkBackend, weight: &abi::Tensor) -> Result<Home, Decline> {
    let Some(buffer) = buffer_of(weight) else {
        // A computed matrix gets its memory after the plan. ggml's backend test asks before it allocates, too; what it gets
        // then is the weight type of our device.
        let computed = backend.attention() != Attention::Off && weight.op != backend.ops().none;
        if computed || (backend.packs_per_call(weight) && backend.route() != Route::Npu) {
            return Ok(Home::Foreign);
        }
        return Err(Decline::ForeignBuffer { buffer_type: "none".to_owned() });
    };
    if backend.tables().residency_of(buffer.buft).is_some() {
        return match OrkBuffer::of(buffer) {
            Some(ours)
                if (ours.residency == Residency::Shared
                    || (ours.residency == Residency::Node && weight.op != backend.ops().none))
                    && ours.weight_at(weight.data).is_none()
                    && backend.packs_per_call(weight) =>
            {
                Ok(Home::Foreign)
            }
            Some(ours) => Ok(Home::Ours(ours)),
            // Zero-sized buffers are made by ggml itself and have no state of ours.
            None => Ok(Home::Probe),
        };
    }
    if backend.host().is_host(buffer.buft) && backend.packs_per_call(weight) {
        return Ok(Home::Foreign);
    }
    Err(Decline::ForeignBuffer { buffer_type: buffer_type_name(buffer.buft) })
}

/// Whether a tensor's bytes are in a resident buffer of ours.
fn is_resident(tensor: &abi::Tensor) -> bool {
    let ours = buffer_of(tensor).and_then(OrkBuffer::of);
    ours.is_some_and(|ours| ours.residency == Residency::Resident)
}

/// The buffer a tensor's bytes are in; a view has its source's.
pub(crate) fn buffer_of(tensor: &abi::Tensor) -> Option<&abi::Buffer> {
    // SAFETY: `view_src` and `buffer` of a live tensor are live or null.
    let view = unsafe { tensor.view_src.as_ref() };
    let buffer = view.map_or(tensor.buffer, |source| source.buffer);
    // SAFETY: as above.
    unsafe { buffer.as_ref() }
}
