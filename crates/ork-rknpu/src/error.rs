// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_drm::Errno;

/// A call that failed: one variant per operation, with the kernel's errno as source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RknpuError {
    /// `RKNPU_ACTION` failed.
    #[error("rknpu action {action} failed")]
    Action {
        /// The action code.
        action: u32,
        /// The errno.
        source: Errno,
    },
    /// `RKNPU_MEM_CREATE` failed.
    #[error("cannot allocate {size} bytes in domain {domain}")]
    MemCreate {
        /// Bytes asked for.
        size: u64,
        /// Domain asked for.
        domain: i32,
        /// The errno.
        source: Errno,
    },
    /// `RKNPU_MEM_MAP` failed.
    #[error("cannot get the map offset of buffer {handle}")]
    MemMap {
        /// The handle.
        handle: u32,
        /// The errno.
        source: Errno,
    },
    /// mmap failed.
    #[error("cannot map {len} bytes at offset {offset:#x}")]
    Mmap {
        /// The fake offset.
        offset: u64,
        /// Bytes.
        len: usize,
        /// The errno.
        source: Errno,
    },
    /// `RKNPU_MEM_DESTROY` failed.
    #[error("cannot free buffer {handle}")]
    MemDestroy {
        /// The handle.
        handle: u32,
        /// The errno.
        source: Errno,
    },
    /// `RKNPU_MEM_SYNC` failed.
    #[error("cache maintenance of {size} bytes at offset {offset:#x} failed")]
    MemSync {
        /// First byte.
        offset: u64,
        /// Bytes.
        size: u64,
        /// The errno.
        source: Errno,
    },
    /// `RKNPU_SUBMIT` failed.
    #[error("job on core mask {core_mask:#x} failed after {task_counter} of {task_number} tasks")]
    Submit {
        /// Cores asked for.
        core_mask: u32,
        /// Tasks of the job.
        task_number: u32,
        /// Tasks that the hardware counted as done.
        task_counter: u32,
        /// The errno.
        source: Errno,
    },
}

impl RknpuError {
    /// The kernel's errno.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Action { source, .. }
            | Self::MemCreate { source, .. }
            | Self::MemMap { source, .. }
            | Self::Mmap { source, .. }
            | Self::MemDestroy { source, .. }
            | Self::MemSync { source, .. }
            | Self::Submit { source, .. } => *source,
        }
    }

    /// What the errno means for this operation, and what to do.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match (self, self.errno()) {
            (_, Errno::ENODEV) => "the device is gone (driver unbound); reopen it",
            (Self::Action { .. }, Errno::EINVAL) => "this driver version or chip does not have the action",
            (Self::MemCreate { .. }, Errno::EFAULT) => {
                "the 4 GiB address window of the domain is full: free buffers or use another domain"
            }
            (Self::MemCreate { .. }, Errno::ENOMEM) => {
                "the system is out of memory; on drivers before 0.9 it can also be the address window"
            }
            (Self::MemCreate { .. } | Self::MemDestroy { .. }, Errno::EINVAL) => {
                "size 0, an unknown handle, a domain id outside 0..15, or a job in another domain kept the switch \
                 waiting for 6 s"
            }
            (Self::MemSync { .. }, Errno::EINVAL) => {
                "the buffer is not cacheable, or a job in another domain kept the switch waiting for 6 s"
            }
            (Self::Mmap { .. }, Errno::EINVAL) => "not the offset of a buffer, or longer than the buffer",
            (Self::Submit { .. }, Errno::ETIMEDOUT) => {
                "the program never completed; run it on the simulated device for a diagnosis"
            }
            (Self::Submit { .. }, Errno::EINVAL) => {
                "bad task range or flags, a domain that did not become live, or a reset by another job or process"
            }
            _ => return None,
        })
    }
}
