// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NPU as a driver sees it: find it, own buffers, run jobs, wait a bounded time.
//!
//! [`Device::open`] takes the real device, or the emulated one, and says which and why. The emulated board sits
//! *below the ioctl*: everything above runs the same code either way.
//!
//! - A [`DmaBuffer`] owns a handle and a CPU mapping. What the CPU writes reaches the NPU only through
//!   [`flush`](DmaBuffer::flush), what the NPU writes reaches the CPU only through
//!   [`invalidate`](DmaBuffer::invalidate), which wants the [`Completed`] of a job. There is no maintenance of a
//!   whole buffer: callers name the live range. A [`ResidentBuffer`] has no CPU mapping.
//! - A [`Submission`] is built fresh, runs on one core and blocks; threads may drive the cores at once.
//! - [`enumerate`] lists every node with the reason why it can or cannot be used.
//!
//! Drop order: a buffer unmaps before it frees its handle, and keeps the device open until then.

mod board_files;
mod buffer;
mod clock;
mod cores;
mod counters;
mod device;
mod error;
mod events;
mod flight;
mod found;
mod gate;
mod heap;
mod kernel;
mod occupancy;
mod options;
mod pending;
mod placement;
mod pool;
mod proof;
mod recovery;
mod round;
mod settle;
mod shared;
mod single;
mod spread;
mod submission;

pub use buffer::{CACHE_LINE_BYTES, DmaBuffer, DomainId, Purpose, ResidentBuffer};
pub use clock::{BoardClock, Clock, HostClock, ManualClock};
pub use counters::{CORES_MAX, CoreCounters, DeviceCounters};
pub use device::{Device, DeviceInfo};
pub use error::{DeviceError, OpenError, SubmitError};
pub use events::{Event, EventCounts, EventKind};
pub use found::{Found, Unusable, enumerate};
pub use heap::HeapBuffer;
pub use kernel::{DriverKind, Feature, Features, KernelError, Unsupported};
pub use occupancy::{Occupancy, OccupancyError, Record};
pub use options::{DeviceKind, DeviceOptions, SramUse, SubmitMode};
pub use ork_drm::{Errno, Files, OpenNode, Transport};
pub use ork_emu::{
    Board, Coherency, EmuOptions, Fault, FaultPlan, Finding, FindingKind, Live, TimePolicy, When,
};
pub use pending::Pending;
pub use proof::{Cells, Census, Reach, Reachable, Seed, Verdict};
pub use recovery::RecoveryMode;
pub use round::{Chain, Input, Round, Witness};
pub use shared::{Closed, close_all};
pub use spread::{Spread, Threads};
pub use submission::{Completed, Elapsed, Submission, TASKS_MAX, Task};
