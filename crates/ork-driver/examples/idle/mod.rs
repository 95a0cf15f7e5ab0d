// SPDX-License-Identifier: MIT OR Apache-2.0
//! An NPU that takes no time, for measurements of the host.

use ork_emu::{Bus, Engine, JobEnd, JobOutcome, JobStats, PcJob};

/// A core that is done at once, inside the call that gives it the job.
pub(crate) struct Idle;

impl Engine for Idle {
    fn reset(&mut self) {}

    fn run(&mut self, _: &dyn Bus, job: &PcJob) -> JobOutcome {
        JobOutcome {
            end: JobEnd::Done,
            tasks_done: job.tasks,
            int_status: job.int_mask,
            modelled_us: 0.0,
            diagnoses: Vec::new(),
            stats: JobStats::default(),
        }
    }

    fn is_instant(&self) -> bool {
        true
    }
}
