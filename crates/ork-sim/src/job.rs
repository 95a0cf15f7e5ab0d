// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::Iova;

use crate::Diagnosis;

/// What the kernel gives the program controller when it starts it (`isa.md` §2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcJob {
    /// Address of the first program.
    pub base: Iova,
    /// First value of `PC.REGISTER_AMOUNTS`: 16-byte beats to fetch, minus 1.
    pub amount: u16,
    /// `TASK_NUMBER`: how many programs to run.
    pub tasks: u16,
    /// `PC.TASK_DMA_BASE_ADDR`, added to every data address. 0 in all known drivers.
    pub dma_base: Iova,
    /// `PC.INTERRUPT_MASK`.
    pub int_mask: u32,
    /// `PC.INTERRUPT_CLEAR`.
    pub int_clear: u32,
    /// What the driver writes to the `S_POINTER` of CNA and CORE before the start (see [`Self::s_pointer_of`]); `None`
    /// where it writes none, as the vendor driver on chips with one core.
    pub s_pointer: Option<u32>,
}

impl PcJob {
    /// The value of [`Self::s_pointer`] that both drivers use for a core: ping-pong on (`uapi.md` A.9, B.2).
    #[must_use]
    pub const fn s_pointer_of(core: u8) -> u32 {
        0xE + 0x1000_0000 * core as u32
    }
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobOutcome {
    /// Programs that completed (`TASK_STATUS` bits 11:0).
    pub tasks_done: u16,
    /// Raw interrupt status at the end.
    pub int_status: u32,
    /// How it ended.
    pub end: JobEnd,
    /// Findings that did not stop the job: wrong values, hazards, wild writes.
    pub diagnoses: Vec<Diagnosis>,
    /// Predicted time on silicon, in microseconds (*modelled*, not measured); 0 while nothing is modelled.
    pub modelled_us: f64,
    /// What was moved and computed.
    pub stats: JobStats,
}

impl JobOutcome {
    /// All programs of a job completed, in no time and with nothing to say of them: for cores that compute nothing.
    #[must_use]
    pub fn done(job: &PcJob) -> Self {
        Self {
            tasks_done: job.tasks,
            int_status: job.int_mask,
            end: JobEnd::Done,
            diagnoses: Vec::new(),
            modelled_us: 0.0,
            stats: JobStats::default(),
        }
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq)]
pub enum JobEnd {
    /// All tasks completed.
    Done,
    /// Silicon would never complete: the driver sees a timeout.
    Hang(Diagnosis),
    /// The model does not know what silicon does here.
    Unmodelled(Diagnosis),
}

/// Totals of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobStats {
    /// Register-command words carried out.
    pub words: u64,
    /// Multiply-adds of the MAC array.
    pub macs: u64,
    /// Feature bytes fetched from memory.
    pub feature_bytes: u64,
    /// Weight bytes fetched from memory.
    pub weight_bytes: u64,
    /// Bytes fetched by the other read DMAs.
    pub operand_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl JobStats {
    /// What came on top of `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            words: self.words - earlier.words,
            macs: self.macs - earlier.macs,
            feature_bytes: self.feature_bytes - earlier.feature_bytes,
            weight_bytes: self.weight_bytes - earlier.weight_bytes,
            operand_bytes: self.operand_bytes - earlier.operand_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
        }
    }
}

/// What one task of a job did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskTrace<'a> {
    /// Which task of the job, counted from 0.
    pub task: u16,
    /// Address of its program.
    pub program: Iova,
    /// What its units moved and computed.
    pub stats: JobStats,
    /// What there is to say about it.
    pub findings: &'a [Diagnosis],
}
