// SPDX-License-Identifier: MIT OR Apache-2.0
//! A case as it stands when its first submit reaches the hardware.

use ork_isa::Iova;
use ork_sim::{Bus, Core, PcJob, SimOptions};

use crate::memory::Memory;
use crate::{Case, CaseError};

/// Memory and jobs of a first submit: what a test needs that runs changed programs.
#[derive(Debug)]
pub struct Start {
    /// Each buffer in whole pages, after the CPU's writes: address and bytes.
    pub memory: Vec<(Iova, Vec<u8>)>,
    /// What each core is started with.
    pub jobs: Vec<(u8, PcJob)>,
    /// Where the described programs lie, and how many words they have.
    pub programs: Vec<(Iova, usize)>,
}

impl Case {
    /// The state before the first submit runs.
    ///
    /// # Errors
    /// [`CaseError`] when the case contradicts itself, has no submit, or asks for something else than a blocking submit.
    pub fn start(&self) -> Result<Start, CaseError> {
        let submit = self.submits.first().ok_or_else(|| self.inconsistent("there is no submit"))?;
        let memory = Memory::map(&self.buffers).map_err(|what| self.inconsistent(what))?;
        self.prepare(&memory, 0, submit)?;
        // A reset before the first submit changes nothing: its cores are new.
        let mut cores: Vec<Core> = (0..3).map(|index| Core::new(index, &SimOptions::default())).collect();
        let jobs = self.jobs(&memory, &mut cores, submit)?;
        let image = |buffer: &crate::Buffer| {
            let bytes = memory.read(buffer.iova, buffer.size.next_multiple_of(4096));
            bytes.map(|span| (buffer.iova, span.to_vec()))
        };
        let images: Result<Vec<_>, _> = self.buffers.iter().map(image).collect();
        Ok(Start {
            memory: images.map_err(|fault| self.inconsistent(fault.to_string()))?,
            jobs: jobs.into_iter().map(|job| (job.core, job.job)).collect(),
            programs: submit.programs.iter().map(|program| (program.iova, program.words().count())).collect(),
        })
    }
}
