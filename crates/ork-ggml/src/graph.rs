// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a subgraph: matmuls that follow one another and share an activation become one submission, and the SwiGLU
//! behind them is computed beside the last.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi;
use crate::accelerator::{AccelError, AccelErrorKind, Accelerator, LoadedWeight};
use crate::backend::OrkBackend;
use crate::census::MatMulRecord;
use crate::error::BackendError;
use crate::operands::{Activation, GluNode, Node, Part, Rows, Selection, read_glu, read_node};
use crate::options::Route;
use crate::routing::{self, Place, Verdict, Why};
use crate::swiglu;
use crate::weight::{Held, Weight, name_of};

/// Memory of a stream.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// The activation, if it must be gathered.
    rows: Vec<f32>,
    /// Rows of the activation that meet one matrix, and what becomes of them.
    part: Vec<f32>,
    results: Vec<Vec<f32>>,
    /// `silu` of a gate.
    silu: Vec<f32>,
}

/// Matmuls that read one activation, choose matrices alike, and write to disjoint places, none of which is read.
#[derive(Debug, Default)]
struct Group<'g> {
    shared: Option<(Activation, Selection)>,
    members: Vec<Node<'g>>,
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Group<'_> {
    /// May `next` join without changing what it or the members compute? Dependencies through views are covered: all
    /// operands are host memory, so what matters is whose bytes overlap.
    fn admits(&self, next: &Node<'_>) -> bool {
        let Some((activation, selection)) = &self.shared else {
            return true;
        };
        // The members' results are written only after everything was read, so a member that overwrites what `next`
        // reads would hide that from it; and `next` may overwrite a matrix that a member has not read yet.
        let reads = [next.span(), activation.span(), selection.span(), next.stack.span()];
        (activation, selection) == (&next.activation, &next.selection)
            && !self.members.iter().any(|member| {
                reads.iter().any(|span| overlap(&member.span(), span))
                    || overlap(&member.stack.span(), &next.span())
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
        if backend.is_glu(node.op) {
            let glu = read_glu(backend, node)?;
            run_swiglu(backend, scratch, &mut group, &glu)?;
            continue;
        }
        if node.op != codes.mul_mat && node.op != codes.mul_mat_id {
            let error = BackendError::UnexpectedOperation { op: host.op_name(node.op), name: name_of(node) };
            return Err(error);
        }
        if !counted {
            counted = true;
            backend.counters().graph();
        }
        let node = read_node(backend, node).inspect_err(|_| backend.counters().failed(1))?;
        if !group.admits(&node) {
            run(backend, scratch, &mut group, None)?;
        }
        group.shared = Some((node.activation, node.selection));
        group.members.push(node);
    }
    run(backend, scratch, &mut group, None)
}

/// Computes a SwiGLU, and the group that is waiting before it: beside it, if that makes both operands.
fn run_swiglu(
    backend: &'static OrkBackend,
    scratch: &Scratch,
    group: &mut Group<'_>,
    glu: &GluNode,
) -> Result<(), BackendError> {
    let member = |of: *const f32| {
        let found = |member: &Node<'_>| member.out.cast_const() == of && member.out_len == glu.len;
        group.members.iter().position(found)
    };
    let one = matches!(group.shared, Some((_, Selection::One)));
    let gate = if member(glu.up).is_some() && one { member(glu.gate) } else { None };
    let mut silu = SiluOf { gate, glu, started: Started::NotYet };
    run(backend, scratch, group, Some(&mut silu))?;
    let mut memory = scratch.memory.lock().unwrap_or_else(PoisonError::into_inner);
    let values = &mut memory.silu;
    values.resize(glu.len, 0.0);
    if silu.started == Started::NotYet {
        // SAFETY: `read_glu` checked the operand; ggml allocated it, and nobody writes to it now.
        let gate = unsafe { std::slice::from_raw_parts(glu.gate, glu.len) };
        swiglu::silu_parallel(gate, values, glu.width);
    }
    // SAFETY: as above.
    let up = unsafe { std::slice::from_raw_parts(glu.up, glu.len) };
    // SAFETY: as above; ggml gives a GLU no place that one of its operands has.
    let out = unsafe { std::slice::from_raw_parts_mut(glu.out, glu.len) };
    swiglu::multiply(values, up, out, glu.width);
    backend.counters().swiglu(silu.started == Started::Beside);
    Ok(())
}

/// A `silu` that is computed as soon as its gate is there.
struct SiluOf<'g> {
    /// The gate's place in the group, if that makes both operands.
    gate: Option<usize>,
    glu: &'g GluNode,
    started: Started,
}

/// When a `silu` was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Started {
    NotYet,
    /// While products were still to come.
    Beside,
    /// After the last.
    After,
}

/// Computes a group and empties it.
fn run(
    backend: &'static OrkBackend,
    scratch: &Scratch,
    group: &mut Group<'_>,
    mut silu: Option<&mut SiluOf<'_>>,
) -> Result<(), BackendError> {
    let Some((activation, selection)) = group.shared.take() else {
        return Ok(());
    };
    let members = std::mem::take(&mut group.members);
    // SAFETY: ggml allocated the table, and nobody writes to it during the call; results that overlap it do not exist
    // yet.
    let parts = unsafe { selection.parts(&activation) }.map_err(|entry| BackendError::Operand {
        name: members.first().map(|member| member.name.clone()).unwrap_or_default(),
        what: format!("it chooses matrix {entry}, which does not exist"),
    })?;
    let mut memory = scratch.memory.lock().unwrap_or_else(PoisonError::into_inner);
    let Memory { rows, part: part_rows, results, silu: values } = &mut *memory;
    let overwritten = members.iter().any(|member| overlap(&member.span(), &activation.span()));
    // SAFETY: ggml allocated the operand, nobody writes to it during the call, and no result overlaps it.
    let in_place = if overwritten { None } else { unsafe { activation.in_place() } };
    let x: &[f32] = match in_place {
        Some(x) => x,
        None => {
            // SAFETY: ggml allocated the operand.
            unsafe { activation.gather(backend.host(), rows) };
            rows
        }
    };
    results.resize_with(members.len().max(results.len()), Vec::new);
    for part in &parts {
        let silu = silu.as_deref_mut().map(|silu| (silu, &mut *values));
        run_part(backend, part, &activation, x, &members, (part_rows, results), silu)?;
    }
    Ok(())
}

/// Computes the rows that meet one matrix of each member.
fn run_part(
    backend: &'static OrkBackend,
    part: &Part,
    activation: &Activation,
    x: &[f32],
    members: &[Node<'_>],
    (part_rows, results): (&mut Vec<f32>, &mut [Vec<f32>]),
    silu: Option<(&mut SiluOf<'_>, &mut Vec<f32>)>,
) -> Result<(), BackendError> {
    let (k, m) = (activation.k(), part.rows.count());
    let matrix = |member: &Node<'_>| member.stack.matrix(backend, part.matrix);
    let found: Result<Vec<Arc<Weight>>, _> = members.iter().map(matrix).collect();
    let weights = found.inspect_err(|_| backend.counters().failed(members.len()))?;
    let product = match &part.rows {
        Rows::Run { x: first, out, .. } => {
            let mut outs: Vec<&mut [f32]> = members
                .iter()
                .map(|member| {
                    // SAFETY: `read_node` checked that the result has all rows of the selection.
                    let start = unsafe { member.out.add(out * member.n) };
                    // SAFETY: ggml allocated the results; `Group::admits` made sure that no two overlap.
                    unsafe { std::slice::from_raw_parts_mut(start, m * member.n) }
                })
                .collect();
            multiply(backend, &weights, m, &x[first * k..][..m * k], &mut outs, silu)?
        }
        Rows::List(list) => {
            part_rows.clear();
            for (row, _) in list {
                part_rows.extend_from_slice(&x[row * k..][..k]);
            }
            let sized = results.iter_mut().zip(members).map(|(result, member)| {
                result.resize(m * member.n, 0.0);
                result.as_mut_slice()
            });
            let product = multiply(backend, &weights, m, part_rows, &mut sized.collect::<Vec<_>>(), None)?;
            if product.is_ok() {
                for (result, member) in results.iter().zip(members) {
                    for (from, (_, row)) in result.chunks_exact(member.n).zip(list) {
                        // SAFETY: as for runs: one row of a result that nobody else refers to.
                        let to = unsafe {
                            std::slice::from_raw_parts_mut(member.out.add(row * member.n), member.n)
                        };
                        to.copy_from_slice(from);
                    }
                }
            }
            product
        }
    };
    if let Err(source) = product {
        backend.counters().failed(members.len());
        let names: Vec<&str> = weights.iter().map(|weight| weight.name.as_str()).collect();
        let n = weights.iter().map(|weight| weight.n).sum();
        return Err(BackendError::MatMul { name: names.join("+"), m, k, n, source });
    }
    let op = members.first().map_or("", |member| member.op.as_str());
    let records: Vec<MatMulRecord<'_>> = weights
        .iter()
        .zip(members)
        .map(|(weight, member)| MatMulRecord {
            weight: &weight.name,
            type_name: &weight.type_name,
            k: weight.k,
            n: weight.n,
            m,
            op,
            verdict: verdict_of(weight, member.stack.is_resident(), m),
            bytes: weight.bytes(),
        })
        .collect();
    backend.counters().submission(&records);
    Ok(())
}

/// Where a product was computed, why, and what it is modelled to cost on either side.
fn verdict_of(weight: &Weight, resident: bool, m: usize) -> Verdict {
    let route = weight.route();
    let verdict = routing::decide(route, &weight.question(m));
    match weight.held {
        Held::Accelerator(_) if verdict.place == Place::Npu => verdict,
        // It was claimed for the rows that an expert was expected to meet, which another number did.
        Held::Accelerator(_) if !resident && matches!(route, Route::Auto { .. }) => {
            Verdict { place: Place::Npu, ..verdict }
        }
        // Nobody else can read the weight.
        Held::Accelerator(_) => Verdict { place: Place::Npu, why: Why::Route, ..verdict },
        Held::Cold(_) => Verdict { place: Place::Cold, why: Why::Expert, ..verdict },
        Held::Software(_) => Verdict { place: Place::Software, why: Why::Declined, ..verdict },
    }
}

/// The multiplication itself: one call for what the accelerator holds, the plain loop for the rest.
fn multiply(
    backend: &OrkBackend,
    members: &[Arc<Weight>],
    m: usize,
    x: &[f32],
    outs: &mut [&mut [f32]],
    silu: Option<(&mut SiluOf<'_>, &mut Vec<f32>)>,
) -> Result<Result<(), AccelError>, BackendError> {
    let accelerator = backend.accelerator()?;
    let mut weights: Vec<&dyn LoadedWeight> = Vec::with_capacity(members.len());
    let mut targets: Vec<&mut [f32]> = Vec::with_capacity(members.len());
    for (weight, out) in members.iter().zip(outs) {
        tracing::debug!(weight = %weight.name, m, k = weight.k, n = weight.n, "matmul");
        match &weight.held {
            Held::Accelerator(loaded) => {
                weights.push(loaded.as_ref());
                targets.push(out);
            }
            Held::Cold(codes) => {
                if let Err(error) = codes.product(m, x, out) {
                    let message = "the activation of an expert cannot be quantised";
                    return Ok(Err(AccelError::caused_by(AccelErrorKind::Device, message, error)));
                }
            }
            Held::Software(software) => {
                if let Err(error) = software.matmul(m, x, out) {
                    return Ok(Err(error));
                }
            }
        }
    }
    if let Some((silu, values)) = silu
        && let Some(gate) = silu.gate
        && weights.len() == members.len()
    {
        return Ok(beside(accelerator.as_ref(), &weights, m, x, targets, (gate, silu, values)));
    }
    Ok(match (weights.as_slice(), targets.as_mut_slice()) {
        ([], _) => Ok(()),
        ([weight], [out]) => weight.matmul(m, x, out),
        (weights, targets) => accelerator.matmul_group(weights, m, x, targets),
    })
}

/// The products of a group, and `silu` of the gate by the threads of the pool as soon as it is there.
fn beside(
    accelerator: &dyn Accelerator,
    weights: &[&dyn LoadedWeight],
    m: usize,
    x: &[f32],
    targets: Vec<&mut [f32]>,
    (gate, silu, values): (usize, &mut SiluOf<'_>, &mut Vec<f32>),
) -> Result<(), AccelError> {
    let GluNode { len, width, .. } = *silu.glu;
    values.resize(len, 0.0);
    let mut values = Some(values.as_mut_slice());
    let (mut done, started) = (0, &mut silu.started);
    rayon::in_place_scope(|scope| {
        accelerator.matmul_group_then(weights, m, x, targets, &mut |index, out| {
            done += 1;
            if index != gate {
                return;
            }
            if let Some(values) = values.take() {
                *started = if done < weights.len() { Started::Beside } else { Started::After };
                scope.spawn(move |_| swiglu::silu_parallel(out, values, width));
            }
        })
    })
}
