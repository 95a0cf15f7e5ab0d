// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_emu::Finding;
use ork_isa::Iova;

use crate::buffer::DomainId;

/// Most tasks of one chain on RK3588.
pub const TASKS_MAX: usize = ork_isa::soc::RK3588.tasks_per_chain_max as usize;

/// One task of a chain: what the kernel is told of a register program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Where the program lies.
    pub regcmd: Iova,
    /// Words of the program without its trailer (`Program::body_words`).
    pub body_words: u32,
    /// Op-enable mask of the program; for the record, the hardware takes it from the program.
    pub enable_mask: u32,
    /// Events that end the task, in whole pairs of bits.
    pub int_mask: u32,
}

impl Task {
    /// `int_mask` of a program that ends in the output stage.
    pub const DPU_DONE: u32 = 0x300;
    /// `int_mask` of a program that ends in the pooling unit.
    pub const PPU_DONE: u32 = 0xC00;

    /// A task that ends when the output stage has written its result.
    #[must_use]
    pub const fn dpu(regcmd: Iova, body_words: u32, enable_mask: u32) -> Self {
        Self { regcmd, body_words, enable_mask, int_mask: Self::DPU_DONE }
    }
}

/// A chain of programs for one core. The programs must be linked to each other in this order: the kernel starts
/// the first and tells the hardware how many follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    pub(crate) core: u8,
    pub(crate) tasks: Vec<Task>,
    pub(crate) domain: DomainId,
    pub(crate) timeout_ms: Option<u32>,
    pub(crate) ping_pong: bool,
}

impl Submission {
    /// Runs `tasks` on `core`, in domain 0, with ping-pong register groups and the device's time limit.
    #[must_use]
    pub fn new(core: u8, tasks: Vec<Task>) -> Self {
        Self { core, tasks, domain: DomainId::default(), timeout_ms: None, ping_pong: true }
    }

    /// All addresses of the programs belong to `domain`.
    #[must_use]
    pub fn in_domain(self, domain: DomainId) -> Self {
        Self { domain, ..self }
    }

    /// Another time limit than the device's.
    #[must_use]
    pub fn with_timeout_ms(self, timeout_ms: u32) -> Self {
        Self { timeout_ms: Some(timeout_ms), ..self }
    }

    /// Without alternating register groups, as programs that load lookup tables need it.
    #[must_use]
    pub fn without_ping_pong(self) -> Self {
        Self { ping_pong: false, ..self }
    }

    /// The core.
    #[must_use]
    pub fn core(&self) -> u8 {
        self.core
    }

    /// The tasks.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The same with its first task alone.
    pub(crate) fn first_task(&self) -> Self {
        Self { tasks: self.tasks.first().copied().into_iter().collect(), ..self.clone() }
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.domain
    }
}

/// Proof that a job completed: what it wrote may now be fetched with
/// [`DmaBuffer::invalidate`](crate::DmaBuffer::invalidate). Only [`Device::submit`](crate::Device::submit) and the
/// rounds of a device ([`Device::run`](crate::Device::run)) make one.
#[derive(Clone, Debug)]
pub struct Completed {
    pub(crate) core: u8,
    pub(crate) tasks: u32,
    pub(crate) elapsed: Elapsed,
    pub(crate) findings: Vec<Finding>,
}

/// How long a job took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elapsed {
    /// By the driver of a real device, from start to interrupt.
    Measured {
        /// Nanoseconds; 0 before rknpu 0.9.6.
        ns: u64,
    },
    /// By this side, from submit to the moment at which the output was seen to be complete.
    Waited {
        /// Nanoseconds of the device's clock.
        ns: u64,
    },
    /// Predicted by the simulator's timing model.
    Modelled {
        /// Nanoseconds; 0 while nothing is modelled.
        ns: u64,
    },
}

impl Elapsed {
    /// Nanoseconds, whoever counted them.
    #[must_use]
    pub fn ns(self) -> u64 {
        let (Self::Measured { ns } | Self::Waited { ns } | Self::Modelled { ns }) = self;
        ns
    }
}

impl Completed {
    /// The core that ran the job.
    #[must_use]
    pub fn core(&self) -> u8 {
        self.core
    }

    /// Tasks that ran.
    #[must_use]
    pub fn tasks(&self) -> u32 {
        self.tasks
    }

    /// How long it took on the NPU.
    #[must_use]
    pub fn elapsed(&self) -> Elapsed {
        self.elapsed
    }

    /// What the emulated board noticed although the job completed: wrong values, hazards, wild writes. Empty on a
    /// real device, which cannot tell.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}
