// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_sim::Diagnosis;

/// Something that silicon or a real kernel would have suffered in silence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Core, if a job was running on one.
    pub core: Option<u8>,
    /// Number of the job on this board, from 1; 0 outside jobs.
    pub job: u64,
    /// What happened.
    pub kind: FindingKind,
}

/// Who found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// The NPU model.
    Simulator(Diagnosis),
    /// The job ran, but its interrupt status never equals the mask that the last task asks for: bits must come in
    /// whole pairs, and the events must occur.
    NeverCompletes {
        /// `int_mask` of the last task.
        int_mask: u32,
        /// Status that the hardware reached, widened to pairs.
        int_status: u32,
    },
    /// The call names an object address that no live buffer has. A real kernel would crash.
    UnknownObject {
        /// The address.
        obj_addr: u64,
    },
    /// The task array's buffer has no kernel mapping (flag 0x8). A real kernel would crash.
    NoKernelMapping {
        /// The buffer.
        obj_addr: u64,
    },
    /// A task range is empty, or reaches beyond the task array's buffer. A real kernel would read foreign memory.
    TaskRange {
        /// First entry.
        start: u32,
        /// Entries.
        count: u32,
        /// Entries that the buffer holds.
        capacity: u64,
    },
    /// A cache maintenance range reaches beyond its buffer; the rest was done.
    SyncRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        size: u64,
        /// Bytes of the buffer.
        buffer: u64,
    },
    /// Valid on a real kernel, not emulated yet.
    NotEmulated {
        /// What.
        what: &'static str,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.job != 0 {
            write!(f, "job {}", self.job)?;
            if let Some(core) = self.core {
                write!(f, " on core {core}")?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}", self.kind)
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulator(diagnosis) => write!(f, "{diagnosis}"),
            Self::NeverCompletes { int_mask, int_status } => write!(
                f,
                "the program ran, but its interrupt status {int_status:#x} never equals the last task's int_mask \
                 {int_mask:#x}: the driver compares whole pairs of bits, so the job never completes"
            ),
            Self::UnknownObject { obj_addr } => {
                write!(f, "no live buffer has object address {obj_addr:#x}: a real kernel would crash here")
            }
            Self::NoKernelMapping { obj_addr } => write!(
                f,
                "the task array's buffer {obj_addr:#x} lacks KERNEL_MAPPING (0x8): a real kernel would crash here"
            ),
            Self::TaskRange { start, count, capacity } => write!(
                f,
                "task range {start}+{count} is empty or leaves the task array of {capacity} entries: a real kernel \
                 would read foreign memory here"
            ),
            Self::SyncRange { offset, size, buffer } => {
                write!(f, "cache maintenance of {offset:#x}+{size:#x} leaves the buffer of {buffer:#x} bytes")
            }
            Self::NotEmulated { what } => write!(f, "{what} is not emulated"),
        }
    }
}
