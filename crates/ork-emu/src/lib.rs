// SPDX-License-Identifier: MIT OR Apache-2.0
//! A board in the process: the `rknpu` kernel driver, behaving like version 0.9.8, in front of three simulated NPU
//! cores.
//!
//! A [`Board`] is the machine: address spaces, cores, what went wrong. [`Board::open`] opens its device node; the
//! [`VirtualRknpu`] that it gives is a [`Transport`](ork_drm::Transport), so everything above the ioctl is the
//! code that also drives silicon.
//!
//! Memory has two sides. A buffer's DRAM is what the NPU sees. A cacheable buffer has a CPU view besides, which
//! exists while it is mapped; only `MEM_SYNC` moves bytes between the two, in 64-byte lines, so a forgotten call
//! shows as stale data. (Stricter than silicon, where a line may also be written back by itself; what was never
//! flushed is gone when the last mapping goes.) Other buffers have one copy.
//!
//! What silicon suffers in silence is kept as a [`Finding`] and sent to `tracing`. At the ioctl it looks as it does
//! on silicon: a hang is `ETIMEDOUT`. One exception: what the model does not know is `EOPNOTSUPP`, which the real
//! driver never returns from a submit, so that ignorance does not look like a hang.
//!
//! Not emulated yet: non-blocking jobs, fences, PRIME and FLINK, dma-heap imports, on-chip SRAM.

mod board;
mod dispatch;
mod domain;
mod finding;
mod job;
mod memory;
mod object;
mod options;

pub use board::{Board, DomainHold, Engine, Live};
pub use dispatch::VirtualRknpu;
pub use finding::{Finding, FindingKind};
pub use options::{EmuOptions, TimePolicy};
pub use ork_sim::{
    Access, Bus, BusFault, Category, Diagnosis, Effect, JobEnd, JobOutcome, JobStats, PcJob, SimOptions, Span,
};

/// Cores of the emulated chip.
pub const CORES: usize = ork_isa::soc::RK3588.cores as usize;
