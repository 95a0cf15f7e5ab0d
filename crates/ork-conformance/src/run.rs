// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replays a case: what each kernel driver tells the program controller.

use ork_isa::{CmdKind, Iova};
use ork_sim::{Bus, Core, Diagnosis, JobEnd, PcJob, SimOptions};

use crate::case::{Call, RknpuSubmit, RknpuTask, RocketTask, Submit};
use crate::compare::compare;
use crate::memory::Memory;
use crate::{Case, CaseError, Report};

/// Cores of the chip.
const CORES: u8 = 3;
/// Words of the trailer, which the vendor driver fetches on top of `regcfg_amount`.
const TRAILER_WORDS: u32 = 4;
/// Words per beat of the program controller.
const WORDS_PER_BEAT: u32 = 2;
const TASK_BYTES: usize = 40;
/// The vendor driver's action that resets the NPU.
const ACTION_RESET: u32 = 6;
/// Interrupt bits of the DPU, which both drivers wait for.
const DPU_EVENTS: u32 = 0x300;
/// Interrupt bits of the PPU. The mainline driver knows none; the recorded pooling programs are for one that is
/// told of them.
const PPU_EVENTS: u32 = 0xC00;
const CLEAR_ALL: u32 = 0x1_FFFF;

/// A job of one core.
pub(crate) struct CoreJob {
    pub(crate) core: u8,
    pub(crate) job: PcJob,
}

impl Case {
    /// Replays the case on cores in reset state, which keep their registers from submit to submit, and compares
    /// the result.
    ///
    /// # Errors
    /// [`CaseError`] when the case contradicts itself or asks for something else than a blocking submit.
    pub fn run(&self, options: &SimOptions) -> Result<Report, CaseError> {
        let memory = Memory::map(&self.buffers).map_err(|what| self.inconsistent(what))?;
        let mut cores: Vec<Core> = (0..CORES).map(|index| Core::new(index, options)).collect();
        let mut findings: Vec<Diagnosis> = Vec::new();
        for (index, submit) in self.submits.iter().enumerate() {
            self.prepare(&memory, index, submit)?;
            for CoreJob { core, job } in self.jobs(&memory, &mut cores, submit)? {
                let Some(core) = cores.get_mut(usize::from(core)) else { continue };
                let outcome = core.run(&memory, &job);
                findings.extend(outcome.diagnoses);
                match outcome.end {
                    JobEnd::Done => {}
                    JobEnd::Hang(diagnosis) | JobEnd::Unmodelled(diagnosis) => {
                        findings.push(diagnosis);
                        return Ok(Report::stopped(&self.name, texts(&findings)));
                    }
                }
            }
        }
        let output = self.buffer(&self.output.buffer)?;
        let bytes = self.bytes(&memory, output.iova, output.size)?;
        compare(self, &bytes, texts(&findings))
    }

    /// What the CPU does before submit `index`; the programs must then be those that are described.
    pub(crate) fn prepare(&self, memory: &Memory, index: usize, submit: &Submit) -> Result<(), CaseError> {
        for write in &submit.cpu_writes {
            self.write(memory, &write.buffer, &self.array(&write.key)?.bytes)?;
        }
        self.check_programs(memory, index, submit)
    }

    fn write(&self, memory: &Memory, id: &str, bytes: &[u8]) -> Result<(), CaseError> {
        memory.write(self.buffer(id)?.iova, bytes).map_err(|fault| self.inconsistent(fault.to_string()))
    }

    fn bytes(&self, memory: &Memory, at: Iova, len: u64) -> Result<Vec<u8>, CaseError> {
        match memory.read(at, len) {
            Ok(span) => Ok(span.to_vec()),
            Err(fault) => Err(self.inconsistent(fault.to_string())),
        }
    }

    /// The words that the description gives must be those in memory.
    fn check_programs(&self, memory: &Memory, submit: usize, described: &Submit) -> Result<(), CaseError> {
        for (number, program) in described.programs.iter().enumerate() {
            let words: Vec<u8> = program.words().flat_map(|word| word.0.to_le_bytes()).collect();
            let stored = self.bytes(memory, program.iova, words.len() as u64)?;
            if let Some(word) = stored.chunks(8).zip(words.chunks(8)).position(|(a, b)| a != b) {
                return Err(self.inconsistent(format!(
                    "word {word} of program {number} of submit {submit} is not the one described"
                )));
            }
        }
        Ok(())
    }

    /// What the driver makes of a submit.
    pub(crate) fn jobs(
        &self,
        memory: &Memory,
        cores: &mut [Core],
        submit: &Submit,
    ) -> Result<Vec<CoreJob>, CaseError> {
        match &submit.call {
            Call::Rknpu { submit, tasks, actions_before } => {
                if actions_before.iter().any(|(action, _)| *action == ACTION_RESET) {
                    cores.iter_mut().for_each(Core::reset);
                }
                self.rknpu_jobs(memory, submit, tasks)
            }
            Call::Rocket { jobs } => {
                let tasks = jobs.iter().flat_map(|job| &job.tasks);
                tasks.map(|task| self.rocket_job(memory, task)).collect()
            }
        }
    }

    /// The vendor driver: one chain per core of the mask, its range of the task array in that core's entry (with
    /// three cores in the one two further on); address and amount of the first task, interrupt mask of the last.
    fn rknpu_jobs(
        &self,
        memory: &Memory,
        submit: &RknpuSubmit,
        described: &[RknpuTask],
    ) -> Result<Vec<CoreJob>, CaseError> {
        let array = self.buffer(&submit.task_buffer)?;
        let task = |index: u32| -> Result<RknpuTask, CaseError> {
            let at = u64::from(index) * TASK_BYTES as u64;
            if at + TASK_BYTES as u64 > array.size {
                return Err(self.inconsistent(format!("task {index} lies behind the task buffer")));
            }
            let bytes = self.bytes(memory, Iova(array.iova.0 + at as u32), TASK_BYTES as u64)?;
            let task = parse_task(&bytes);
            if described.get(index as usize).is_some_and(|described| *described != task) {
                return Err(self.inconsistent(format!("task {index} in memory is not the one described")));
            }
            Ok(task)
        };
        // Mask 0 leaves the choice to the driver: the first idle core.
        let mask = if submit.core_mask == 0 { 1 } else { submit.core_mask };
        let chosen: Vec<u8> = (0..32).filter(|core| mask & (1 << core) != 0).collect();
        if ![&[0u8][..], &[1], &[2], &[0, 1], &[0, 1, 2]].contains(&&chosen[..]) {
            return Err(self.unsupported(format!("core mask {mask:#x}")));
        }
        let shift = if chosen.len() == 3 { 2 } else { 0 };
        let mut jobs = Vec::new();
        for core in chosen {
            let range = submit.subcore_task.get(usize::from(core) + shift);
            let (start, count) = *range.ok_or_else(|| self.inconsistent("subcore_task is too short"))?;
            let tasks = u16::try_from(count)
                .ok()
                .filter(|tasks| (1..=ork_isa::soc::RK3588.tasks_per_chain_max).contains(&u32::from(*tasks)))
                .ok_or_else(|| self.unsupported(format!("a chain of {count} tasks")))?;
            let last = start.checked_add(count - 1).ok_or_else(|| self.inconsistent("no such task range"))?;
            let (first, last) = (task(start)?, task(last)?);
            let address = |address| {
                u32::try_from(address)
                    .map(Iova)
                    .map_err(|_| self.inconsistent("an address has more than 32 bits"))
            };
            let job = PcJob {
                base: address(first.regcmd_addr)?,
                amount: self.amount(first.regcfg_amount.saturating_add(TRAILER_WORDS))?,
                tasks,
                dma_base: address(submit.task_base_addr)?,
                int_mask: last.int_mask,
                int_clear: first.int_mask,
                s_pointer: Some(PcJob::s_pointer_of(core)),
            };
            jobs.push(CoreJob { core, job });
        }
        Ok(jobs)
    }

    /// The mainline driver starts each task of a job by itself.
    fn rocket_job(&self, memory: &Memory, task: &RocketTask) -> Result<CoreJob, CaseError> {
        let amount = self.amount(task.regcmd_count)?;
        let words = self.bytes(memory, task.regcmd, u64::from(task.regcmd_count) * 8)?;
        let pools = words.as_chunks().0.iter().any(|word| {
            let kind = ork_isa::Cmd(u64::from_le_bytes(*word)).kind();
            matches!(kind, CmdKind::OpEnable { mask } if mask & 0x60 != 0)
        });
        let job = PcJob {
            base: task.regcmd,
            amount,
            tasks: 1,
            dma_base: Iova(0),
            int_mask: if pools { PPU_EVENTS } else { DPU_EVENTS },
            int_clear: CLEAR_ALL,
            s_pointer: Some(PcJob::s_pointer_of(0)),
        };
        Ok(CoreJob { core: 0, job })
    }

    /// What the program controller is given to fetch so many words.
    fn amount(&self, words: u32) -> Result<u16, CaseError> {
        words
            .div_ceil(WORDS_PER_BEAT)
            .checked_sub(1)
            .and_then(|amount| u16::try_from(amount).ok())
            .ok_or_else(|| self.inconsistent(format!("a program of {words} words cannot be fetched")))
    }
}

/// A descriptor as it lies in memory (40 bytes, little endian).
fn parse_task(bytes: &[u8]) -> RknpuTask {
    let word = |index: usize| bytes.as_chunks().0.get(index).map_or(0, |word| u32::from_le_bytes(*word));
    RknpuTask {
        flags: word(0),
        op_idx: word(1),
        enable_mask: word(2),
        int_mask: word(3),
        int_clear: word(4),
        int_status: word(5),
        regcfg_amount: word(6),
        regcfg_offset: word(7),
        regcmd_addr: u64::from(word(8)) | u64::from(word(9)) << 32,
    }
}

fn texts(findings: &[Diagnosis]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}
