// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_isa::Iova;
use ork_sim::Diagnosis;

use crate::fault::Fault;

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
    /// A job read bytes that the CPU has written, and that are still in its caches. Seen with strict coherency; of
    /// long ranges only some lines are compared.
    NotFlushed {
        /// Where the job read old bytes, the first time in a buffer.
        iova: Iova,
    },
    /// A job wrote to pages of a file, which are mapped for reading: the IOMMU stopped the write.
    WriteToReadOnly {
        /// Where.
        iova: Iova,
    },
    /// A domain was made live under a job of another one (drivers 0.9.6 and 0.9.7 do not wait): the job's
    /// addresses mean other buffers from now on.
    DomainSwitchedUnderJob {
        /// The job's domain.
        job_domain: u8,
        /// The live one.
        live: u8,
    },
    /// A job was thrown away by a later non-blocking submit on its core, which took it for overdue.
    Reaped,
    /// A job was still stuck on its core when its file was closed. A real kernel would free it twice.
    ClosedWhileStuck,
    /// A job was accepted for a set of cores that no core ever serves.
    NeverDispatched {
        /// The cores asked for.
        core_mask: u32,
    },
    /// A job of a `rocket` submit vanished, and the call returned 0.
    Vanished {
        /// Index of the job in its submit.
        index: u32,
        /// Why.
        why: Vanishing,
    },
    /// A buffer is listed as read and as written by one `rocket` job: it counts as done, and nothing runs.
    ReadAndWritten {
        /// The buffer.
        handle: u32,
    },
    /// A `rocket` job ran into its time limit; for its program it looks finished.
    HiddenTimeout {
        /// Tasks that had completed.
        tasks_done: u32,
    },
    /// An imported buffer serves as a task array. A real kernel would follow a null pointer.
    ImportedTaskArray {
        /// The buffer.
        obj_addr: u64,
    },
    /// The NPU model failed.
    ModelPanicked,
    /// A fault of the plan happened.
    Injected {
        /// Which one.
        fault: Fault,
    },
    /// Valid on a real kernel, not emulated yet; or unknown.
    NotEmulated {
        /// What.
        what: &'static str,
    },
}

/// Why a `rocket` job never became one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Vanishing {
    /// It has no task.
    NoTasks,
    /// The distance of its tasks is smaller than a task.
    Stride,
    /// A task has no words.
    EmptyTask,
    /// It lists a handle that the file does not have.
    UnknownHandle,
    /// An array of it cannot be read.
    BadPointer,
}

impl fmt::Display for Vanishing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTasks => "it has no task",
            Self::Stride => "task_struct_size is smaller than a task",
            Self::EmptyTask => "a task has no words",
            Self::UnknownHandle => "it lists an unknown handle",
            Self::BadPointer => "an array of it cannot be read",
        })
    }
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
            Self::NotFlushed { iova } => write!(
                f,
                "the job read old bytes at {:#x}: what the CPU wrote there is still in its caches. Flush it before \
                 the submit: MEM_SYNC to the device, FINI_BO, or the end of a write access to a dma-buf",
                iova.0
            ),
            Self::WriteToReadOnly { iova } => write!(
                f,
                "the job wrote to {:#x}, in pages of a file that are mapped for reading: the IOMMU stopped it",
                iova.0
            ),
            Self::DomainSwitchedUnderJob { job_domain, live } => write!(
                f,
                "domain {live} became live under a job of domain {job_domain}, whose addresses now mean other \
                 buffers; this driver version does not wait"
            ),
            Self::Reaped => {
                f.write_str("a later non-blocking submit on this core threw the job away as overdue")
            }
            Self::ClosedWhileStuck => f.write_str(
                "the file was closed while the job was stuck: a real kernel would corrupt memory here",
            ),
            Self::NeverDispatched { core_mask } => {
                write!(f, "the driver has no case for core mask {core_mask:#x}: the job is never dispatched")
            }
            Self::Vanished { index, why } => {
                write!(f, "job {index} of the submit vanished although the call succeeded: {why}")
            }
            Self::ReadAndWritten { handle } => write!(
                f,
                "buffer {handle} is listed as read and as written: the job counts as done, and nothing ran"
            ),
            Self::HiddenTimeout { tasks_done } => {
                write!(f, "the job timed out after {tasks_done} tasks; PREP_BO will not tell")
            }
            Self::ImportedTaskArray { obj_addr } => write!(
                f,
                "the task array {obj_addr:#x} is an imported buffer without a kernel address: a real kernel would \
                 crash here"
            ),
            Self::ModelPanicked => f.write_str("the NPU model failed; this is a defect of ork"),
            Self::Injected { fault } => write!(f, "injected fault: {fault}"),
            Self::NotEmulated { what } => write!(f, "{what} is not emulated"),
        }
    }
}
