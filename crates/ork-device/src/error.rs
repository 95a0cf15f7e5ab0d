// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use ork_drm::Errno;
use ork_emu::Finding;

use crate::buffer::DomainId;
use crate::found::Found;
use crate::kernel::{KernelError, Unsupported};
use crate::occupancy::OccupancyError;

/// No device could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option has an impossible value.
    #[error("device option {option}: {reason}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// No node could be used.
    #[error("no usable NPU device: {}", list(.found))]
    NoDevice {
        /// Every node that was looked at, with its reason.
        found: Vec<Found>,
    },
    /// Another process has the device.
    #[error("{node} is in use by another program")]
    Locked {
        /// The node.
        node: String,
    },
    /// The lock could not be taken.
    #[error("cannot lock {node}")]
    Lock {
        /// The node.
        node: String,
        /// The errno of flock.
        source: Errno,
    },
    /// Another process uses the NPU, perhaps by another node.
    #[error("cannot have {node} to ourselves")]
    Occupied {
        /// The node.
        node: String,
        /// Who has it, or why that cannot be told.
        source: OccupancyError,
    },
    /// The device failed while it was opened.
    #[error("cannot open {node}")]
    Call {
        /// The node.
        node: String,
        /// The call.
        source: KernelError,
    },
    /// An option asks for something that the driver does not have.
    #[error("device option {option} cannot be met")]
    Unsupported {
        /// Name of the option.
        option: &'static str,
        /// What is missing.
        source: Unsupported,
    },
}

fn list(found: &[Found]) -> String {
    if found.is_empty() {
        return "no device node exists".to_owned();
    }
    found.iter().map(Found::to_string).collect::<Vec<_>>().join("; ")
}

impl OpenError {
    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoDevice { found } => {
                // The nearest miss helps most: an rknpu node before anything else.
                let best = found.iter().max_by_key(|found| found.nearness());
                Some(best.and_then(Found::hint).unwrap_or_else(|| {
                    "this machine has no NPU driver that ork knows; use device.kind = \"sim\" for the simulated \
                     board"
                        .to_owned()
                }))
            }
            Self::Locked { .. } | Self::Occupied { source: OccupancyError::Held { .. }, .. } => Some(
                "two programs on one NPU can crash the kernel: stop the other one, wait for it \
                 (device.lock_wait_ms), or set device.exclusive = false if you know that both behave"
                    .to_owned(),
            ),
            Self::Occupied { .. } => {
                Some("name a folder for the lock file that you may write to (device.lock_dir)".to_owned())
            }
            Self::Call { source, .. } => source.hint().map(str::to_owned),
            Self::Unsupported { option, .. } => {
                Some(format!("leave device.{option} at its default, or use the other kernel driver"))
            }
            Self::Option { .. } | Self::Lock { .. } => None,
        }
    }
}

/// A buffer operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A kernel call failed.
    #[error("{doing}")]
    Call {
        /// What was being done, with numbers.
        doing: String,
        /// The call.
        source: KernelError,
    },
    /// A range leaves its buffer.
    #[error("range {}..{} leaves a buffer of {len} bytes", range.start, range.end)]
    Range {
        /// The range.
        range: Range<u64>,
        /// Length of the buffer.
        len: u64,
    },
    /// A length that cannot be allocated.
    #[error("cannot allocate {len} bytes: a buffer has 1 byte to 4 GiB")]
    Length {
        /// The length.
        len: u64,
    },
    /// A domain that the driver does not have.
    #[error("domain {domain} does not exist: {driver} has {domains}")]
    Domain {
        /// The domain asked for.
        domain: u8,
        /// The driver.
        driver: String,
        /// Number of domains.
        domains: u8,
    },
    /// A job of another domain is in flight.
    #[error("domain {wanted} cannot be used: domain {live} stayed in use for {} ms", waited.as_millis())]
    DomainBusy {
        /// The domain asked for.
        wanted: DomainId,
        /// The one in use.
        live: DomainId,
        /// How long it was waited for.
        waited: Duration,
    },
    /// No address space has room for more weights.
    #[error(
        "no room for a weight of {bytes} bytes: {held} bytes in {domains} address spaces of at most {limit} bytes each"
    )]
    NoRoom {
        /// Size of the weight.
        bytes: u64,
        /// Bytes of weights that are held.
        held: u64,
        /// Address spaces.
        domains: u8,
        /// Most bytes of weights in each.
        limit: u64,
    },
    /// The buffer shares its object with others, and the NPU does not write it.
    #[error("a pooled buffer cannot be read back")]
    Pooled,
    /// The device gave back everything because the program ends.
    #[error("the device is closed: the program is ending")]
    Closed,
    /// The kernel gave a device address that the NPU cannot hold.
    #[error("buffer of {len} bytes lies at {address:#x}, beyond the NPU's 32-bit addresses")]
    Address {
        /// Device address.
        address: u64,
        /// Length of the buffer.
        len: u64,
    },
}

impl DeviceError {
    /// What can be done.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Call { source, .. } => source.hint(),
            Self::NoRoom { .. } => Some(
                "stream weights (driver.residency), use more address spaces (device.domains), or keep some on \
                      the CPU",
            ),
            _ => None,
        }
    }

    /// The kernel's errno, if a call failed.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Call { source, .. } => source.errno(),
            _ => None,
        }
    }

    /// Whether the process or the host has no descriptor left.
    #[must_use]
    pub fn is_out_of_files(&self) -> bool {
        matches!(self.errno(), Some(Errno::EMFILE | Errno::ENFILE))
    }

    /// Whether memory or addresses are out, rather than something wrong with the call.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Call { source, .. } => source.is_full(),
            Self::NoRoom { .. } => true,
            _ => false,
        }
    }
}

/// A job did not complete. No output of it may be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The core does not exist or is not in use.
    #[error("core {core} does not exist: {cores} in use")]
    Core {
        /// Core asked for.
        core: u8,
        /// Cores in use.
        cores: u8,
    },
    /// A chain has 1 to [`TASKS_MAX`](crate::TASKS_MAX) tasks.
    #[error("a chain of {tasks} tasks cannot be submitted: 1 to {} are possible", crate::TASKS_MAX)]
    Tasks {
        /// Tasks asked for.
        tasks: usize,
    },
    /// The time limit ended the job; the kernel has reset the NPU.
    #[error("job on core {core} timed out after {timeout_ms} ms with {tasks_done} of {tasks} tasks done{}", because(.findings))]
    TimedOut {
        /// Core.
        core: u8,
        /// Tasks that completed.
        tasks_done: u32,
        /// Tasks of the job.
        tasks: u32,
        /// The limit.
        timeout_ms: u32,
        /// Why, when the device is emulated.
        findings: Vec<Finding>,
    },
    /// The kernel says success, but the NPU did not run all tasks.
    #[error("job on core {core} was accepted but only {tasks_done} of {tasks} tasks ran")]
    Dropped {
        /// Core.
        core: u8,
        /// Tasks that completed.
        tasks_done: u32,
        /// Tasks of the job.
        tasks: u32,
    },
    /// The emulated NPU met something that nobody knows the silicon's answer to. Never a time-out.
    #[error("job on core {core}: the simulator does not model this program{}", because(.findings))]
    Unmodelled {
        /// Core.
        core: u8,
        /// What it met.
        findings: Vec<Finding>,
    },
    /// The kernel refused the job or gave it up.
    #[error("job on core {core} was refused{}", because(.findings))]
    Refused {
        /// Core.
        core: u8,
        /// The call.
        source: KernelError,
        /// Why, when the device is emulated.
        findings: Vec<Finding>,
    },
    /// The job ended, or its window passed, and cells of its output were never written.
    #[error(
        "job on core {core} left {missing} of {elements} elements of its output unwritten ({untouched} of {programs} \
         programs did not run) after {} ms{}", waited.as_millis(), because(.findings)
    )]
    Unwritten {
        /// Core.
        core: u8,
        /// Elements that still hold the seed.
        missing: u64,
        /// Elements that the job writes.
        elements: u64,
        /// Programs that wrote nothing.
        untouched: u32,
        /// Programs of the job.
        programs: u32,
        /// By the device's clock.
        waited: Duration,
        /// Why, when the device is emulated.
        findings: Vec<Finding>,
    },
    /// The driver cannot do it, or only with something that the submission lacks.
    #[error("job on core {core} cannot be submitted: {reason}")]
    Unsupported {
        /// Core.
        core: u8,
        /// What is missing on this side, or the driver's lack.
        reason: String,
    },
    /// A description of a round that cannot be right.
    #[error("round: {0}")]
    Round(String),
    /// A buffer of a round failed.
    #[error("round: {doing}")]
    Buffer {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: DeviceError,
    },
    /// The task array could not be prepared.
    #[error("cannot prepare the task array of core {core}")]
    TaskArray {
        /// Core.
        core: u8,
        /// The cause.
        source: DeviceError,
    },
}

fn because(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        // Writing to a string cannot fail.
        let _ = write!(text, " · {finding}");
    }
    text
}

impl SubmitError {
    /// What can be done.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::TimedOut { findings, .. } if findings.is_empty() => {
                Some("run the same program on the simulated device (device.kind = \"sim\") for a diagnosis")
            }
            Self::Dropped { .. } => Some("the driver is known to drop a job now and then: submit it again"),
            Self::Unmodelled { .. } => Some("this needs a board, or a probe that settles what silicon does"),
            Self::Unwritten { .. } => Some(
                "the driver is known to drop a job now and then: device.recovery = \"allow\" submits it again",
            ),
            Self::Refused { source, .. } => source.hint(),
            Self::TaskArray { source, .. } | Self::Buffer { source, .. } => source.hint(),
            _ => None,
        }
    }

    /// Findings of the emulated board.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        match self {
            Self::TimedOut { findings, .. }
            | Self::Unmodelled { findings, .. }
            | Self::Unwritten { findings, .. }
            | Self::Refused { findings, .. } => findings,
            _ => &[],
        }
    }
}
