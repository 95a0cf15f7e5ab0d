// SPDX-License-Identifier: MIT OR Apache-2.0
//! When the tasks of a pass run, as modelled: the sums of [`PassShape::modelled`] laid out one after the other.

use ork_isa::soc::Soc;
use ork_layout::Format;
use ork_timing::TaskCost;

use crate::cost::{self, Modelled, Work};
use crate::plan::{PassShape, TileProgram};

/// One task on the modelled clock, which starts at 0 with the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskTime {
    /// Its place in its chain.
    pub index: usize,
    /// When it begins.
    pub start: Modelled,
    /// When it ends, and the next one begins.
    pub end: Modelled,
    /// What its blocks take of that. Loader, array and output stage work at the same time.
    pub blocks: TaskCost,
}

impl TaskTime {
    /// When the arithmetic begins: behind the weights, unless they stream meanwhile.
    #[must_use]
    pub fn compute_start(&self) -> Modelled {
        if self.blocks.overlapped { self.start } else { self.start + self.blocks.weight_stream }
    }
}

/// The tasks of one core.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainTime {
    /// Which core, counted from 0.
    pub core: u8,
    /// The tasks, in order.
    pub tasks: Vec<TaskTime>,
}

impl PassShape {
    /// When the tasks of each core run. All chains begin when they are submitted, behind the fixed cost of that
    /// ([`cost::submit`]); the last task to end ends at [`PassShape::modelled`].
    #[must_use]
    pub fn timeline(&self, format: Format, soc: &Soc) -> Vec<ChainTime> {
        let cores = u8::try_from(self.chains.len()).unwrap_or(u8::MAX);
        let of_chain = |programs: &[TileProgram]| {
            let mut now = cost::submit();
            let tasks = programs.iter().enumerate().map(|(index, tile)| {
                let &TileProgram { form, rows, k, n, split, reuse, .. } = tile;
                let work = Work { format, form, rows, k, n, split, reuse, cores };
                let start = now;
                now = now + cost::task(&work, soc);
                TaskTime { index, start, end: now, blocks: cost::blocks(&work, soc) }
            });
            tasks.collect()
        };
        self.chains
            .iter()
            .map(|chain| ChainTime { core: chain.core, tasks: of_chain(&chain.programs) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use ork_isa::soc::RK3588;

    use super::*;
    use crate::{Decision, PlanOptions, Problem, decide, weight_layout};

    #[test]
    fn the_last_task_ends_with_the_pass() {
        for (m, k, n) in
            [(1, 576, 1536), (37, 576, 576), (512, 1536, 576), (300, 18_944, 3584), (100, 64, 32)]
        {
            for format in [Format::INT8_INT32, Format::INT4_INT16, Format::FP16_FP32] {
                for cores in 1..=3 {
                    let Ok(weight) = weight_layout(format, k, n, &RK3588) else { continue };
                    let options = PlanOptions { cores, ..PlanOptions::default() };
                    let Decision::Accept(plan) = decide(&Problem { m, weight }, &RK3588, &options) else {
                        continue;
                    };
                    for shape in plan.shapes() {
                        let chains = shape.timeline(format, &RK3588);
                        assert_eq!(chains.len(), shape.chains.len());
                        let mut last = Modelled::default();
                        for (chain, planned) in chains.iter().zip(&shape.chains) {
                            assert_eq!(
                                (chain.core, chain.tasks.len()),
                                (planned.core, planned.programs.len())
                            );
                            assert_eq!(chain.tasks[0].start, cost::submit());
                            for pair in chain.tasks.windows(2) {
                                assert_eq!(pair[0].end, pair[1].start);
                            }
                            for task in &chain.tasks {
                                let blocks = &task.blocks;
                                let compute = blocks.mac.max(blocks.write_back).max(blocks.feature_stream);
                                for end in [task.compute_start() + compute, task.start + blocks.weight_stream]
                                {
                                    assert!(end.us <= task.end.us + 1e-9, "{format} {m}x{k}x{n}: {task:?}");
                                }
                                last = last.max(task.end);
                            }
                        }
                        let difference = (last.us - shape.modelled.us).abs();
                        assert!(
                            difference < 1e-6 * last.us,
                            "{format} {m}x{k}x{n}: {last}, {}",
                            shape.modelled
                        );
                    }
                }
            }
        }
    }
}
