// SPDX-License-Identifier: MIT OR Apache-2.0
//! Products of several precisions, given at once: put in the order that costs the fewest resets, and as many as may be in
//! one chain.
//!
//! A submit costs the host at least 134 us, one more program in a chain about 5 (`isa.md` §12.1): eight small products
//! take 465 us one by one and 41 us in one chain. [`transitions`](crate::join) says what may be chained.

use std::sync::Arc;

use ork_device::{CORES_MAX, Cells, Chain, DmaBuffer, Input, Round, Submission, TASKS_MAX, Task, Witness};
use ork_isa::{Block, Cmd, Iova, Register, regs};
use ork_layout::{Format, OutputLayout};
use ork_plan::{Datapath, PassShape, Plan, program_pitch_bytes};
use ork_synth::{Binding, Bindings, ProgramSet, emit};

use crate::accumulate::sum_output_row;
use crate::driver::{Driver, Engine};
use crate::execution::{Pool, cells_of, geometry, tasks, witness_of};
use crate::order::{Node, fewest_resets};
use crate::residency::{Pinned, Weights};
use crate::transitions::{Join, join};
use crate::{DriverError, Weight, Work};

/// Names an operation of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(usize);

/// Operations to run.
#[derive(Debug, Default)]
pub struct Queue<'a> {
    ops: Vec<Op<'a>>,
}

#[derive(Debug)]
struct Op<'a> {
    weight: &'a Weight,
    m: usize,
    after: Vec<usize>,
    work: Work<'a>,
}

/// What a queue came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueReport {
    /// The operations in the order in which they ran.
    pub order: Vec<OpId>,
    /// How many of them each batch had, in that order.
    pub batches: Vec<usize>,
    /// Resets for changes of the datapath's mode.
    pub resets: u64,
}

impl<'a> Queue<'a> {
    /// Nothing to do.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Operations so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Adds work of `m` rows with a weight, after some others.
    ///
    /// # Panics
    /// If `after` names an operation that this queue does not have.
    pub fn push(&mut self, weight: &'a Weight, m: usize, work: Work<'a>, after: &[OpId]) -> OpId {
        let id = OpId(self.ops.len());
        assert!(after.iter().all(|before| *before < id), "{after:?} before operation {}", id.0);
        self.ops.push(Op { weight, m, after: after.iter().map(|before| before.0).collect(), work });
        id
    }
}

impl Op<'_> {
    /// Whether the result passes the weight's check, if it has one.
    fn holds(&self) -> bool {
        let (Some(check), Work::Int8 { a, out }) = (self.weight.check(), &self.work) else {
            return true;
        };
        let mut rows = a.chunks_exact(self.weight.k()).zip(out.chunks_exact(self.weight.n()));
        rows.all(|(a, c)| check.holds(a, c))
    }
}

impl Driver {
    /// Runs all operations of a queue. Their order is free but for what the caller demanded; results do not depend on it.
    ///
    /// # Errors
    /// [`DriverError`]. Operands that do not fit and pairs that must not follow each other are refused before anything
    /// runs; after another error the results of operations that had not run are unspecified.
    pub fn run_queue(&self, queue: Queue<'_>) -> Result<QueueReport, DriverError> {
        let mut ops = queue.ops;
        for op in &ops {
            op.work.check(op.weight, op.m)?;
        }
        let nodes: Vec<Node> = ops
            .iter()
            .map(|op| Node { datapath: Datapath::of(op.work.format()), after: op.after.clone() })
            .collect();
        let start = self.engine.lock().datapath.state();
        let order = fewest_resets(&nodes, start);
        for pair in order.order.windows(2) {
            join(ops[pair[0]].work.operation(), ops[pair[1]].work.operation()).map_err(DriverError::NoWay)?;
        }
        let before = self.counters().resets;
        let mut report =
            QueueReport { order: order.order.iter().map(|op| OpId(*op)).collect(), ..QueueReport::default() };
        let mut rest = &order.order[..];
        while let Some(first) = rest.first() {
            let mut engine = self.engine.lock();
            let batch = self.batch(&mut engine, &ops, rest)?;
            let count = if batch.len() > 1 { self.run_batch(&mut engine, &mut ops, &batch)? } else { 0 };
            drop(engine);
            if count == 0 {
                let Op { weight, m, work, .. } = &mut ops[*first];
                self.work(weight, *m, work)?;
            } else {
                for planned in &batch[..count] {
                    let op = &mut ops[planned.index];
                    if !op.holds() {
                        // Computed again by itself, where a second failure is an error.
                        self.work(op.weight, op.m, &mut op.work)?;
                    }
                }
            }
            report.batches.push(count.max(1));
            rest = &rest[count.max(1)..];
        }
        report.resets = self.counters().resets - before;
        Ok(report)
    }

    /// The operations from the first on that can be one chain on each core.
    fn batch(
        &self,
        engine: &mut Engine,
        ops: &[Op<'_>],
        rest: &[usize],
    ) -> Result<Vec<Planned>, DriverError> {
        let mut batch: Vec<Planned> = Vec::new();
        let mut room = Room::default();
        for (place, index) in rest.iter().copied().enumerate() {
            let op = &ops[index];
            let joined = place == 0
                || matches!(
                    join(ops[rest[place - 1]].work.operation(), op.work.operation()),
                    Ok(Join::Chain)
                );
            let free = !op.after.iter().any(|before| batch.iter().any(|planned| planned.index == *before));
            // A streamed weight holds a slot while it is used, and there may be no second one.
            let plain = matches!(op.work, Work::Int8 { .. }) && !op.weight.is_streamed() && op.m != 0;
            if !(joined && free && plain) {
                break;
            }
            let may_fold = engine.datapath.may_fold(Datapath::Int8);
            let plan = self.plan(op.weight, op.m, may_fold)?;
            let limit = self.options.plan.scratch_bytes_max;
            let Some(planned) = room.take(index, plan, limit) else { break };
            batch.push(planned);
        }
        Ok(batch)
    }

    /// Runs those of a batch whose weights are in the first one's address space; gives how many.
    fn run_batch(
        &self,
        engine: &mut Engine,
        ops: &mut [Op<'_>],
        batch: &[Planned],
    ) -> Result<usize, DriverError> {
        let device = &self.device;
        let failed = |doing| move |source| DriverError::Batch { doing, source };
        let pins =
            batch.iter().map(|planned| ops[planned.index].weight.pin()).collect::<Result<Vec<_>, _>>()?;
        let weights: Vec<Weights<'_>> = pins.iter().map(Pinned::open).collect();
        let domain = weights[0].domain();
        // Weights of another address space are for another batch.
        let count = weights.iter().take_while(|weights| weights.domain() == domain).count();
        let batch = &batch[..count];

        let Engine { buffers, datapath, submitters, .. } = engine;
        let buffers = buffers.of(domain);
        let last = batch.last().expect("a batch has operations");
        let features = buffers
            .features
            .with_room(device, last.a + last.plan.extents().a_bytes)
            .map_err(failed("allocating"))?;
        let outputs = buffers
            .outputs
            .with_room(device, last.c + last.plan.extents().c_bytes)
            .map_err(failed("allocating"))?;
        for planned in batch {
            let op = &ops[planned.index];
            let Work::Int8 { a, .. } = &op.work else { continue };
            let layout = &planned.plan.shapes()[0].features;
            let place = &mut features.host_mut()[planned.a as usize..][..layout.bytes() as usize];
            for (row, codes) in a.chunks_exact(op.weight.k()).enumerate() {
                layout.write_row(row as u32, codes, place);
            }
            features.flush(planned.a..planned.a + layout.bytes()).map_err(failed("flushing features"))?;
        }
        let features = &*features;

        let mut lanes: Vec<(Submission, LanePrograms<'_>)> = Vec::new();
        for (core, scratch) in (0_u8..).zip(&mut buffers.regcmds) {
            let on_core =
                || batch.iter().zip(&weights).filter(|(planned, _)| planned.shape().chain(core).is_some());
            let bytes: u64 = on_core().map(|(planned, _)| planned.regcmd_bytes(core)).sum();
            if bytes == 0 {
                continue;
            }
            let regcmd = scratch.with_room(device, bytes).map_err(failed("allocating"))?;
            let mut lane = LanePrograms::new(regcmd);
            for (planned, weights) in on_core() {
                let bindings = Bindings {
                    a: part(features, planned.a),
                    b: Binding { iova: weights.iova(), len: weights.len() },
                    c: part(outputs, planned.c),
                    regcmd: part(lane.regcmd, lane.end),
                };
                let programs = emit(planned.shape(), core, &bindings).map_err(|source| {
                    DriverError::Synth { name: ops[planned.index].weight.name().to_owned(), source }
                })?;
                lane.append(&programs, planned);
            }
            lane.regcmd.flush(0..lane.end).map_err(failed("flushing programs"))?;
            lanes.push((Submission::new(core, std::mem::take(&mut lane.tasks)).in_domain(domain), lane));
        }

        let depth = batch.iter().map(|planned| planned.depth()).max().unwrap_or(0);
        let witness = witness_of(device, Format::INT8_INT32, depth, self.options.completion);
        let programs: usize = lanes.iter().map(|(submission, _)| submission.tasks().len()).sum();
        let live = 0..last.c + last.shape().outputs.bytes();
        let name = ops[batch[0].index].weight.name();
        let completed = datapath.run((device, &self.counters), (Datapath::Int8, name), || {
            let mut inputs: Vec<Input<'_>> =
                vec![Input::Host(features, 0..last.a + last.shape().features.bytes())];
            inputs.extend(weights.iter().take(count).filter_map(|weights| weights.input(weights.len())));
            let chains = lanes
                .iter_mut()
                .map(|(submission, lane)| Chain {
                    submission,
                    writes: match witness {
                        Witness::KernelWord => Arc::default(),
                        Witness::Seed(_) => lane.writes.as_slice().into(),
                    },
                    programs: lane.regcmd,
                    programs_live: 0..lane.end,
                    geometry: lane.geometry,
                })
                .collect();
            let round = Round { chains, output: &mut *outputs, live: live.clone(), witness, inputs };
            device
                .run(round, &Pool(submitters))
                .map_err(|source| DriverError::BatchSubmit { operations: count, source: Box::new(source) })
        })?;
        if let Some(finding) = completed.iter().flat_map(|done| done.findings()).next() {
            let op = &ops[batch[0].index];
            let (name, m, k, n) = (op.weight.name().to_owned(), op.m, op.weight.k(), op.weight.n());
            return Err(DriverError::Objection { name, m, k, n, finding: Box::new(finding.clone()) });
        }

        for planned in batch {
            let op = &mut ops[planned.index];
            let (weight, m) = (op.weight, op.m);
            let Work::Int8 { out, .. } = &mut op.work else { continue };
            let layout: &OutputLayout = &planned.shape().outputs;
            let surfaces = &outputs.host()[planned.c as usize..][..layout.bytes() as usize];
            for (row, target) in out.chunks_exact_mut(weight.n()).enumerate() {
                sum_output_row(layout, surfaces, row as u32, target);
            }
            let mut counters = self.counters.lock();
            counters.matmuls += 1;
            counters.rows += m as u64;
            counters.macs += (m * weight.k() * weight.n()) as u64;
            counters.modelled_ns += (planned.plan.modelled().us * 1e3).round() as u64;
        }
        let mut counters = self.counters.lock();
        counters.programs += programs as u64;
        Ok(count)
    }
}

/// An operation of a batch: its plan, and where its parts of the batch's buffers begin.
#[derive(Debug)]
struct Planned {
    index: usize,
    /// With one pass.
    plan: Arc<Plan>,
    a: u64,
    c: u64,
}

impl Planned {
    fn shape(&self) -> &PassShape {
        &self.plan.shapes()[0]
    }

    /// Products that a program of it adds.
    fn depth(&self) -> u64 {
        let tiles = self.shape().chains.iter().flat_map(|chain| &chain.programs);
        tiles.map(|tile| tile.k.into()).max().unwrap_or(0)
    }

    fn tasks(&self, core: u8) -> usize {
        self.shape().chain(core).map_or(0, |chain| chain.programs.len())
    }

    fn regcmd_bytes(&self, core: u8) -> u64 {
        self.tasks(core) as u64 * program_pitch_bytes(self.plan.format())
    }
}

/// What a batch has taken of its limits.
#[derive(Debug, Default)]
struct Room {
    a: u64,
    c: u64,
    tasks: [usize; CORES_MAX],
}

/// Parts of different operations share no page: a prefetch beyond the end of one must not meet another's lines.
const PART_BYTES: u64 = 4096;

impl Room {
    fn take(&mut self, index: usize, plan: Arc<Plan>, limit: u64) -> Option<Planned> {
        let extents = plan.extents();
        let planned = Planned { index, plan, a: self.a, c: self.c };
        let tasks: [usize; CORES_MAX] =
            std::array::from_fn(|core| self.tasks[core] + planned.tasks(core as u8));
        let (a, c) = (self.a + extents.a_bytes, self.c + extents.c_bytes);
        let fits = a <= limit && c <= limit && tasks.iter().all(|tasks| *tasks <= TASKS_MAX);
        // The first one is taken in any case: whether it fits is the planner's business.
        let first = self.tasks.iter().all(|tasks| *tasks == 0);
        if planned.plan.pass_count() != 1 || (!first && !fits) {
            return None;
        }
        (self.a, self.c) = (a.next_multiple_of(PART_BYTES), c.next_multiple_of(PART_BYTES));
        self.tasks = tasks;
        Some(planned)
    }
}

/// A part of a buffer, to its end.
fn part(buffer: &DmaBuffer, from: u64) -> Binding {
    let iova = buffer.iova().checked_add(from).unwrap_or_default();
    Binding { iova, len: buffer.len() - from }
}

/// The programs of one core, of several operations in one chain.
struct LanePrograms<'a> {
    regcmd: &'a mut DmaBuffer,
    end: u64,
    tasks: Vec<Task>,
    writes: Vec<Vec<Cells>>,
    geometry: u64,
    /// Where the trailer of the last program lies.
    trailer: Option<u64>,
}

impl<'a> LanePrograms<'a> {
    fn new(regcmd: &'a mut DmaBuffer) -> Self {
        Self { regcmd, end: 0, tasks: Vec::new(), writes: Vec::new(), geometry: 0, trailer: None }
    }

    /// Puts the programs of an operation behind those of the ones before, and links them.
    fn append(&mut self, programs: &ProgramSet, planned: &Planned) {
        let core = programs.core();
        let start = self.end as usize;
        self.regcmd.host_mut()[start..start + programs.bytes().len()].copy_from_slice(programs.bytes());
        if let Some(trailer) = self.trailer {
            self.link(trailer, programs.program_address(0));
        }
        self.tasks.extend(tasks(programs));
        let shape = planned.shape();
        let tiles = shape.chain(core).into_iter().flat_map(|chain| &chain.programs);
        self.writes.extend(tiles.map(|tile| {
            let cells = cells_of(&shape.outputs, tile);
            cells.into_iter().map(|cells| Cells { offset: cells.offset + planned.c, ..cells }).collect()
        }));
        self.geometry = self.geometry.rotate_left(7) ^ geometry(shape, core);
        self.end += programs.bytes().len() as u64;
        let last = programs.bytes().len() as u64 - program_pitch_bytes(planned.plan.format());
        self.trailer = Some(start as u64 + last + u64::from(programs.fetch_words()) * 8);
    }

    /// Makes a program that ended a chain go on with another one (`isa.md` §2.3).
    fn link(&mut self, trailer: u64, next: Iova) {
        let pc = Block::Pc.target().expect("the PC has a target");
        let words = [
            Cmd::new(pc, regs::pc::BaseAddress::DESC.offset, next.0),
            Cmd::new(pc, regs::pc::RegisterAmounts::DESC.offset, ProgramSet::FETCH_AMOUNT.into()),
        ];
        let place = &mut self.regcmd.host_mut()[trailer as usize..][..16];
        for (bytes, word) in place.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.0.to_le_bytes());
        }
    }
}
