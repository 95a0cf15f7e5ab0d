// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_drm::Errno;

/// A call that failed: one variant per operation, with the kernel's errno as source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RocketError {
    /// `CREATE_BO` failed.
    #[error("cannot allocate {size} bytes")]
    CreateBo {
        /// Bytes asked for.
        size: u32,
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
    /// `GEM_CLOSE` failed.
    #[error("cannot free buffer {handle}")]
    Close {
        /// The handle.
        handle: u32,
        /// The errno.
        source: Errno,
    },
    /// `PREP_BO` failed.
    #[error("cannot take buffer {handle} back from the NPU")]
    PrepBo {
        /// The handle.
        handle: u32,
        /// The errno.
        source: Errno,
    },
    /// `FINI_BO` failed.
    #[error("cannot hand buffer {handle} to the NPU")]
    FiniBo {
        /// The handle.
        handle: u32,
        /// The errno.
        source: Errno,
    },
    /// `SUBMIT` failed as a whole.
    #[error("cannot submit {jobs} jobs")]
    Submit {
        /// Jobs of the call.
        jobs: usize,
        /// The errno.
        source: Errno,
    },
}

impl RocketError {
    /// The kernel's errno.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::CreateBo { source, .. }
            | Self::Mmap { source, .. }
            | Self::Close { source, .. }
            | Self::PrepBo { source, .. }
            | Self::FiniBo { source, .. }
            | Self::Submit { source, .. } => *source,
        }
    }

    /// What the errno means for this operation, and what to do.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match (self, self.errno()) {
            (_, Errno::ENODEV) => "the device is gone (driver unbound); reopen it",
            (Self::CreateBo { .. }, Errno::ENOSPC) => {
                "the 4 GiB address window of this file is full: free buffers or open the device again"
            }
            (Self::CreateBo { .. }, Errno::ENOMEM) => "the system is out of memory",
            (Self::PrepBo { .. }, Errno::EBUSY) => {
                "a job that writes the buffer is in flight and the time lies in the past: PREP_BO takes an \
                 absolute CLOCK_MONOTONIC time, not a duration"
            }
            (Self::PrepBo { .. }, Errno::ETIMEDOUT) => {
                "a job that writes the buffer is still queued; the kernel gives a running one 500 ms"
            }
            (Self::PrepBo { .. } | Self::FiniBo { .. }, Errno::ENOENT) => "no such handle in this file",
            (Self::Mmap { .. }, Errno::EINVAL) => "not the offset of a buffer, or longer than the buffer",
            _ => return None,
        })
    }
}
