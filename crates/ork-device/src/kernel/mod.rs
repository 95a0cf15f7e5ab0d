// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a kernel driver does for a device, and the two drivers that do it.
//!
//! [`Kernel`] is small on purpose: objects, cache maintenance, one chain of programs at a time, a reset. What a
//! driver cannot do it says by name ([`Unsupported`]); nothing is imitated behind the caller's back.

mod error;
mod features;
mod rknpu;
mod rocket;

use std::fmt;
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;

use ork_drm::{Errno, Mapping};

use crate::buffer::DomainId;
use crate::submission::Task;

pub use error::KernelError;
pub use features::{DriverKind, Feature, Features, Unsupported};
pub(crate) use rknpu::RknpuKernel;
pub(crate) use rocket::RocketKernel;

/// Which way bytes become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// What the CPU wrote, to the NPU.
    ToDevice,
    /// What the NPU wrote, to the CPU.
    FromDevice,
}

/// What to allocate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// 1 to 4 GiB.
    pub(crate) len: u64,
    pub(crate) domain: DomainId,
    /// The kernel reads it too.
    pub(crate) kernel_mapping: bool,
    /// Try on-chip memory first.
    pub(crate) sram: bool,
}

/// A buffer object of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// GEM handle of this file.
    pub(crate) handle: u32,
    /// What the driver's other calls name it by: `rknpu`'s object address, `rocket`'s mmap offset.
    pub(crate) name: u64,
    /// Address for the NPU.
    pub(crate) dma_addr: u64,
    /// Bytes, in whole pages.
    pub(crate) size: u64,
    /// What of it lies in on-chip memory.
    pub(crate) sram_bytes: u64,
}

/// A chain of programs for one core.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) core: u8,
    pub(crate) tasks: &'a [Task],
    pub(crate) domain: DomainId,
    pub(crate) timeout_ms: u32,
    /// Of a job that nobody waits for: how long before it is taken for lost, and the next one on its core may throw
    /// it away.
    pub(crate) patience: Duration,
    pub(crate) ping_pong: bool,
    /// Filled with the descriptors of `tasks`, if the driver wants them in memory
    /// ([`Kernel::wants_task_array`]).
    pub(crate) task_array: Option<&'a Object>,
    /// What the programs write, if the driver wants to know ([`Feature::HiddenErrors`]).
    pub(crate) output: Option<&'a Object>,
}

/// How a job ended, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It completed.
    Done {
        /// Tasks that ran.
        tasks: u32,
        /// Nanoseconds on the NPU; 0 when the driver does not measure.
        ns: u64,
    },
    /// Its time limit passed, and the kernel has reset the NPU.
    TimedOut {
        /// Tasks that ran.
        tasks: u32,
    },
    /// The emulated NPU met something that nobody knows.
    Unmodelled,
}

/// Whether a job that was started still runs, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The driver cannot tell.
    Silent,
    /// It runs or waits.
    Busy,
    /// It has ended, well or not.
    Ended,
}

/// A fence that a driver gave for a job; the caller closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence(pub(crate) RawFd);

/// A kernel driver.
pub(crate) trait Kernel: Send + Sync + fmt::Debug {
    fn features(&self) -> &Features;

    /// Whether a job's descriptors must lie in a buffer that the kernel reads.
    fn wants_task_array(&self) -> bool;

    fn alloc(&self, request: &Request) -> Result<Object, KernelError>;

    fn map(&self, object: &Object, len: usize) -> Result<Mapping, KernelError>;

    fn free(&self, object: &Object) -> Result<(), KernelError>;

    /// Cache maintenance of a range, or of more; gives the bytes that were maintained.
    ///
    /// # Safety
    /// The object is alive.
    unsafe fn sync(
        &self,
        object: &Object,
        range: Range<u64>,
        direction: Direction,
    ) -> Result<u64, KernelError>;

    /// Maps a dma-buf of `len` bytes into a domain; no other domain may be in use.
    fn import(&self, fd: RawFd, domain: DomainId) -> Result<Object, KernelError>;

    /// Runs a job and waits for it.
    ///
    /// # Safety
    /// The task array is alive and holds the tasks; nothing borrows what the programs write.
    unsafe fn run(&self, job: &Job<'_>) -> Result<Ended, KernelError>;

    /// Queues a job.
    ///
    /// # Safety
    /// As for [`run`](Self::run), until the job has ended.
    unsafe fn start(&self, job: &Job<'_>, fenced: Fenced) -> Result<Option<Fence>, KernelError>;

    /// Waits for the jobs that write an object, at most so long, if the driver can; the bytes that became readable by
    /// that.
    ///
    /// # Safety
    /// The object is alive.
    unsafe fn wait(&self, object: &Object, limit: Duration) -> Result<(Word, u64), KernelError>;

    /// How long a job whose output is there may still look to the driver as if it ran, where starting another one behind
    /// it would throw it away for that.
    fn lingers(&self, _flown: Duration, _patience: Duration, _timeout_ms: u32) -> Duration {
        Duration::ZERO
    }

    /// How long after its start a job that nobody waits for, and that is lost, is thrown away for the next one.
    fn reaps_after(&self, _patience: Duration, _timeout_ms: u32) -> Duration {
        Duration::ZERO
    }

    fn reset(&self) -> Result<(), KernelError>;

    /// The domain that is live, where the driver tells.
    fn live_domain(&self) -> Option<u32>;

    fn try_lock(&self) -> Result<bool, Errno>;

    /// Calls that a signal interrupted and that were repeated.
    fn interruptions(&self) -> u64;
}

/// Whether a job gets a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fenced {
    Yes,
    No,
}
