// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pass on the device: which cells it writes, how its end is known, and the round that runs it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Weak};

use ork_device::{
    Cells, Chain, Completed, Device, DmaBuffer, DomainId, Feature, Input, Round, Seed, Spread, Submission,
    SubmitError, SubmitMode, Task, Witness,
};
use ork_isa::Precision;
use ork_layout::{Format, OutputLayout};
use ork_plan::{PassShape, Plan, TileProgram};
use ork_synth::ProgramSet;
use serde::{Deserialize, Serialize};

/// How the end of a product on the NPU is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompletionMode {
    /// By the kernel's word where that is enough, else by a seed.
    #[default]
    Auto,
    /// By a seed in every cell that the product writes.
    Seed,
}

/// A thread for each chain: the caller's own, and those of a pool.
#[derive(Debug)]
pub(crate) struct Pool<'a>(pub(crate) &'a rayon::ThreadPool);

impl Spread for Pool<'_> {
    fn spread(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        if count == 1 {
            return work(0);
        }
        debug_assert!(count <= self.0.current_num_threads());
        // The calling thread waits anyway: it takes the first chain, and only the others wake a thread.
        self.0.in_place_scope(|scope| {
            for index in 1..count {
                scope.spawn(move |_| work(index));
            }
            work(0);
        });
    }
}

/// The cells of passes, kept as long as their plans.
#[derive(Debug, Default)]
pub(crate) struct KnownCells(HashMap<(usize, usize, u8), (Weak<Plan>, ChainCells)>);

/// What each program of a chain writes.
pub(crate) type ChainCells = Arc<[Vec<Cells>]>;

/// Chains that are kept before all are forgotten.
const CHAINS_MAX: usize = 4096;

impl KnownCells {
    fn of(&mut self, plan: &Arc<Plan>, shape_index: usize, core: u8) -> ChainCells {
        let key = (Arc::as_ptr(plan) as usize, shape_index, core);
        if let Some((known, cells)) = self.0.get(&key)
            && known.upgrade().is_some_and(|known| Arc::ptr_eq(&known, plan))
        {
            return Arc::clone(cells);
        }
        let shape = &plan.shapes()[shape_index];
        let programs = shape.chain(core).into_iter().flat_map(|chain| &chain.programs);
        let cells: ChainCells = programs.map(|tile| cells_of(&shape.outputs, tile)).collect();
        if self.0.len() >= CHAINS_MAX {
            self.0.clear();
        }
        self.0.insert(key, (Arc::downgrade(plan), Arc::clone(&cells)));
        cells
    }
}

/// What one program writes, in few descriptions.
pub(crate) fn cells_of(outputs: &OutputLayout, tile: &TileProgram) -> Vec<Cells> {
    let mut ranges: Vec<Range<u64>> =
        outputs.written(tile.segment as usize, tile.k_slice, tile.m0, tile.rows).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => runs.push(range),
        }
    }
    let mut cells: Vec<Cells> = Vec::new();
    for run in runs {
        let bytes = (run.end - run.start) as u32;
        match cells.last_mut() {
            // A second run decides about the distance, and later ones keep it.
            Some(last) if last.row_bytes == bytes && last.rows == 1 => {
                (last.rows, last.pitch_bytes) = (2, run.start - last.offset);
            }
            Some(last)
                if last.row_bytes == bytes
                    && run.start == last.offset + u64::from(last.rows) * last.pitch_bytes =>
            {
                last.rows += 1;
            }
            _ => cells.push(Cells::run(run.start, bytes)),
        }
    }
    cells
}

/// The buffers of a pass, bound to its programs already.
pub(crate) struct Bound<'a, 'b> {
    pub(crate) features: &'a DmaBuffer,
    pub(crate) features_live: Range<u64>,
    pub(crate) weights: Option<Input<'a>>,
    pub(crate) outputs: &'a mut DmaBuffer,
    /// By core, with the programs in them.
    pub(crate) regcmds: &'a mut [&'b mut DmaBuffer],
    pub(crate) programs: &'a [ProgramSet],
}

/// A pass of a plan.
#[derive(Clone, Copy)]
pub(crate) struct Here<'a> {
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) shape_index: usize,
    pub(crate) completion: CompletionMode,
}

impl Here<'_> {
    fn shape(&self) -> &PassShape {
        &self.plan.shapes()[self.shape_index]
    }

    /// Runs the pass; its results are readable in the output's live range then.
    pub(crate) fn run(
        self,
        device: &Device,
        known: &mut KnownCells,
        spread: &dyn Spread,
        bound: Bound<'_, '_>,
    ) -> Result<Vec<Completed>, SubmitError> {
        let shape = self.shape();
        let domain = bound.outputs.domain();
        let tiles = shape.chains.iter().flat_map(|chain| &chain.programs);
        let depth = tiles.map(|tile| tile.k).max().unwrap_or(0);
        let witness = witness_of(device, self.plan.format(), depth.into(), self.completion);
        let submissions: Vec<Submission> =
            bound.programs.iter().map(|programs| submission(programs, domain)).collect();
        let mut chains = Vec::with_capacity(submissions.len());
        for (core, regcmd) in (0_u8..).zip(bound.regcmds.iter_mut()) {
            let at = submissions.iter().position(|submission| submission.core() == core);
            let Some((submission, programs)) = at.map(|at| (&submissions[at], &bound.programs[at])) else {
                continue;
            };
            let writes = match witness {
                Witness::KernelWord => ChainCells::default(),
                Witness::Seed(_) => known.of(self.plan, self.shape_index, core),
            };
            let programs_live = 0..programs.bytes().len() as u64;
            chains.push(Chain {
                submission,
                writes,
                programs: regcmd,
                programs_live,
                geometry: geometry(shape, core),
            });
        }
        device.run(
            Round {
                chains,
                output: bound.outputs,
                live: 0..shape.outputs.bytes(),
                witness,
                inputs: std::iter::once(Input::Host(bound.features, bound.features_live))
                    .chain(bound.weights)
                    .collect(),
            },
            spread,
        )
    }
}

/// How the end of programs is known on a device that add `depth` products for each result.
pub(crate) fn witness_of(device: &Device, format: Format, depth: u64, completion: CompletionMode) -> Witness {
    let enough = completion == CompletionMode::Auto
        && device.submit_mode() != SubmitMode::Polled
        && !device.features().has(Feature::HiddenErrors)
        && !lags(format);
    if enough { Witness::KernelWord } else { Witness::Seed(seed_of(format, depth)) }
}

/// Whether results become visible after the interrupt: seen for int4 (`isa-int4-sdp.md` §1.10).
fn lags(format: Format) -> bool {
    format.input() == Precision::Int4
}

/// A seed for the results of a format, whose programs add `depth` products each.
pub(crate) fn seed_of(format: Format, depth: u64) -> Seed {
    match (format.input(), format.output()) {
        (Precision::Int8, Precision::Int32) => {
            Seed::int32_sum(depth, 128 * 128).unwrap_or_else(|_| Seed::in_band(4))
        }
        // Codes from -8 to 7.
        (Precision::Int4, Precision::Int16) => Seed::int16(depth * 64),
        (_, Precision::Fp32) => Seed::fp32(),
        (_, output) => Seed::in_band((output.bits() / 8) as u8),
    }
}

/// What the time of a chain depends on.
pub(crate) fn geometry(shape: &PassShape, core: u8) -> u64 {
    let mut hasher = DefaultHasher::new();
    shape.features.format().hash(&mut hasher);
    shape.chains.len().hash(&mut hasher);
    for tile in shape.chain(core).into_iter().flat_map(|chain| &chain.programs) {
        (tile.rows, tile.k, tile.n, tile.form).hash(&mut hasher);
    }
    hasher.finish()
}

/// What the kernel is told of programs.
pub(crate) fn tasks(programs: &ProgramSet) -> impl Iterator<Item = Task> + '_ {
    (0..programs.len()).map(|index| Task {
        regcmd: programs.program_address(index),
        body_words: programs.fetch_words(),
        enable_mask: ProgramSet::ENABLE_MASK,
        int_mask: ProgramSet::INTERRUPT_MASK,
    })
}

fn submission(programs: &ProgramSet, domain: DomainId) -> Submission {
    Submission::new(programs.core(), tasks(programs).collect()).in_domain(domain)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ork_device::Reach;
    use ork_isa::soc::RK3588;
    use ork_plan::{Decision, PlanOptions, Problem, decide, weight_layout};

    use super::*;

    #[test]
    fn cells_are_exactly_what_the_layout_says() {
        for format in Format::ALL {
            for (m, k, n) in [(1, 64, 64), (5, 512, 320), (70, 2048, 128), (33, 4096, 64)] {
                let Ok(weight) = weight_layout(format, k, n, &RK3588) else { continue };
                let problem = Problem { m, weight };
                let Decision::Accept(plan) = decide(&problem, &RK3588, &PlanOptions::default()) else {
                    continue;
                };
                for shape in plan.shapes() {
                    for tile in shape.chains.iter().flat_map(|chain| &chain.programs) {
                        let told = |tile: &TileProgram| {
                            shape.outputs.written(tile.segment as usize, tile.k_slice, tile.m0, tile.rows)
                        };
                        let expected: BTreeSet<u64> = told(tile).flatten().collect();
                        let cells = cells_of(&shape.outputs, tile);
                        let mut found = BTreeSet::new();
                        for cell in &cells {
                            for row in 0..u64::from(cell.rows) {
                                let start = cell.offset + row * cell.pitch_bytes;
                                found.extend(start..start + u64::from(cell.row_bytes));
                            }
                        }
                        assert_eq!(found, expected, "{format} {m}x{k}x{n}");
                        let bytes: u64 = cells.iter().map(Cells::bytes).sum();
                        assert_eq!(bytes, expected.len() as u64, "no byte twice");
                        assert!(cells.len() <= 1 + told(tile).count() / 4, "{} cells", cells.len());
                    }
                }
            }
        }
    }

    #[test]
    fn seeds_know_their_reach() {
        assert_eq!(seed_of(Format::INT8_INT32, 10_752).reach(), Reach::Unreachable);
        assert_eq!(seed_of(Format::INT8_INT32, 1 << 20).reach(), Reach::InBand);
        assert_eq!(seed_of(Format::FP16_FP32, 4096).reach(), Reach::Unreachable);
        assert_eq!(seed_of(Format::INT8_INT8, 64).reach(), Reach::InBand);
        let int4 = Format::new(Precision::Int4, Precision::Int16).unwrap();
        assert_eq!(seed_of(int4, 511).reach(), Reach::Unreachable);
        assert_eq!(seed_of(int4, 512).reach(), Reach::InBand, "saturation");
    }
}
