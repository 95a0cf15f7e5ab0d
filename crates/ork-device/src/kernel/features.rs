// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use serde::{Deserialize, Serialize};

/// A kernel driver for the NPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverKind {
    /// The vendor's.
    #[default]
    Rknpu,
    /// The mainline one.
    Rocket,
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rknpu => ork_rknpu::DRIVER_NAME,
            Self::Rocket => ork_rocket::DRIVER_NAME,
        })
    }
}

/// Something that one driver does and another does not (`uapi.md` F).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Feature {
    /// More than one address space for one file.
    Domains,
    /// Several programs in one start of the hardware, linked in memory.
    Chains,
    /// The caller chooses the core.
    CoreChoice,
    /// A call that returns when the job has ended, and says how.
    BlockingSubmit,
    /// A job can be left behind and forgotten by a later one on its core.
    Reap,
    /// Fences as file descriptors. The driver may have been built without: only the first try tells.
    Fences,
    /// Cache maintenance of a range, instead of whole buffers.
    RangeSync,
    /// Reset on demand.
    Reset,
    /// Foreign dma-bufs.
    ImportDmaBuf,
    /// On-chip memory.
    Sram,
    /// The driver never says that a job failed. A defect, listed so that it can be asked for.
    HiddenErrors,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Domains => "several address spaces",
            Self::Chains => "chains of programs",
            Self::CoreChoice => "a choice of the core",
            Self::BlockingSubmit => "a submit that waits",
            Self::Reap => "reaping of lost jobs",
            Self::Fences => "fences",
            Self::RangeSync => "cache maintenance of a range",
            Self::Reset => "a reset on demand",
            Self::ImportDmaBuf => "import of foreign dma-bufs",
            Self::Sram => "on-chip memory",
            Self::HiddenErrors => "errors that are hidden",
        })
    }
}

/// A feature that the driver does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{driver} does not offer {feature}")]
pub struct Unsupported {
    /// What was asked for.
    pub feature: Feature,
    /// The driver, with its version if it has one.
    pub driver: String,
}

/// What a driver offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    pub(crate) driver: DriverKind,
    pub(crate) name: String,
    pub(crate) list: Vec<Feature>,
    pub(crate) domains: u8,
}

impl Features {
    /// The driver.
    #[must_use]
    pub fn driver(&self) -> DriverKind {
        self.driver
    }

    /// The driver, with its version if it has one.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the driver offers something.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.list.contains(&feature)
    }

    /// Refuses what the driver does not offer.
    ///
    /// # Errors
    /// [`Unsupported`], which names feature and driver.
    pub fn need(&self, feature: Feature) -> Result<(), Unsupported> {
        if self.has(feature) { Ok(()) } else { Err(Unsupported { feature, driver: self.name.clone() }) }
    }

    /// Address spaces of 4 GiB that one file can use.
    #[must_use]
    pub fn domains(&self) -> u8 {
        self.domains
    }
}
