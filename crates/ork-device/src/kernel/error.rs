// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_drm::Errno;
use ork_rknpu::RknpuError;
use ork_rocket::RocketError;

use crate::kernel::Unsupported;

/// A call to a kernel driver that failed, or that the driver does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A call of the vendor's driver.
    #[error(transparent)]
    Rknpu(#[from] RknpuError),
    /// A call of the mainline driver.
    #[error(transparent)]
    Rocket(#[from] RocketError),
    /// A call that both drivers take from DRM, or one on a file of the kernel.
    #[error("{doing}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// The errno.
        source: Errno,
    },
    /// The driver cannot do it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

impl KernelError {
    /// The kernel's errno; `None` where no call was made.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Rknpu(error) => Some(error.errno()),
            Self::Rocket(error) => Some(error.errno()),
            Self::File { source, .. } => Some(*source),
            Self::Unsupported(_) => None,
        }
    }

    /// What it means, and what to do.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Rknpu(error) => error.hint(),
            Self::Rocket(error) => error.hint(),
            Self::File { source: Errno::EMFILE, .. } => {
                Some("too many open files: raise the limit (ulimit -n)")
            }
            Self::File { .. } => None,
            Self::Unsupported(_) => Some("use the other kernel driver, or leave the option at its default"),
        }
    }

    /// Whether the address window is full or memory is out, rather than something wrong with the call.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), Some(Errno::EFAULT | Errno::ENOMEM | Errno::ENOSPC))
    }
}
