// SPDX-License-Identifier: MIT OR Apache-2.0
//! A board in the process: the kernel drivers of the NPU, in front of simulated cores.
//!
//! A [`Board`] is the machine: memory, address spaces, cores, what went wrong. Its device nodes are
//!
//! - [`Board::open`] and [`Board::open_render`]: the vendor's `rknpu` (versions 0.9.2 to 0.9.8, see
//!   [`EmuOptions::driver_version`]), as a [`VirtualRknpu`];
//! - [`Board::open_rocket`]: mainline `rocket`, as a [`VirtualRocket`];
//! - [`Board::open_heap`]: the dma-heap, as a [`VirtualHeap`].
//!
//! Each is a [`Transport`](ork_drm::Transport), so everything above the ioctl is the code that also drives silicon;
//! and an [`EmulatedFile`], which an embedder that stands in for the kernel of an unmodified program needs. Files
//! that the kernel makes itself (dma-bufs, fences) are [`KernelFile`]s and get their numbers from an [`FdTable`].
//!
//! **Memory.** A buffer's DRAM is what the NPU sees. With [`Coherency::Strict`] a cacheable buffer has a CPU view
//! besides, which exists while it is mapped; only cache maintenance moves bytes between the two, in 64-byte lines,
//! so a forgotten call shows as stale data. (Stricter than silicon, where a line may also be written back by
//! itself; what was never flushed is gone when the last mapping goes.) With [`Coherency::Shared`] there is one
//! memory, behind memfds, and the highest line of each buffer that a job writes arrives last.
//!
//! **Jobs** run on one thread per core, in the order of their submission; a call that blocks only waits for them. The
//! threads are those of the process that made the board: a child of `fork` leaves the parent's boards alone (not even
//! dropping them) and makes its own.
//!
//! **What silicon suffers in silence** is kept as a [`Finding`] and sent to `tracing`. At the ioctl it looks as it
//! does on silicon: a hang is `ETIMEDOUT`, a bad `rocket` job is nothing at all. One exception: what the model does
//! not know is `EOPNOTSUPP` from a blocking `rknpu` submit, which the real driver never returns, so that ignorance
//! does not look like a hang. A [`FaultPlan`] makes things go wrong on purpose.
//!
//! Not emulated: fences of dma-bufs (they always poll ready), RK3576's NBUF, debugfs and sysfs, several processes on
//! one board. The NPU model is that of the RK3588 for every [`Soc`].

mod action;
mod board;
mod bus;
mod busy;
mod call;
mod chain;
mod chip;
mod dma_buf;
mod domain;
mod fault;
mod fd_table;
mod fence;
mod finding;
mod gem_file;
mod grant;
mod job;
mod lane;
mod lock;
mod memory;
mod object;
mod options;
mod pages;
mod rknpu_file;
mod rocket_file;
mod rocket_job;
mod submit;
mod user_memory;

pub use board::{Board, DomainHold, Engine, Live};
pub use chip::Soc;
pub use dma_buf::{DmaBuf, VirtualHeap};
pub use fault::{Fault, FaultPlan, When};
pub use fd_table::{FdTable, HostFds, KernelFile};
pub use fence::SyncFile;
pub use finding::{Finding, FindingKind, Vanishing};
pub use grant::{EmulatedFile, Grant};
pub use options::{Coherency, EmuOptions, RocketOptions, TimePolicy};
pub use ork_sim::{
    Access, Bus, BusFault, Category, Diagnosis, Effect, JobEnd, JobOutcome, JobStats, PcJob, SimOptions, Span,
};
pub use pages::MEMORY_FILE_NAME;
pub use rknpu_file::VirtualRknpu;
pub use rocket_file::VirtualRocket;

/// Cores of the largest chip.
pub const CORES: usize = ork_isa::soc::RK3588.cores as usize;
