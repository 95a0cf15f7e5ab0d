// SPDX-License-Identifier: MIT OR Apache-2.0
use std::path::PathBuf;

use crate::census::Discrepancy;
use crate::container::Version;

/// Why a file of the quantiser cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// The refusal.
        source: std::io::Error,
    },
    /// Not such a file at all.
    #[error("{} is no {wanted}: it starts with {found:02x?}", path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// Another version than this library reads.
    #[error("{} has format version {found}; this ork reads {reads} and older minor versions of it", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: Version,
        /// The newest version that can be read.
        reads: Version,
    },
    /// The bytes contradict themselves: damaged, cut off, or not written by ork.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// The contradiction.
        what: String,
    },
    /// Made for something else than it is to be used for.
    #[error("{} is of {kind} `{found}`, not `{wanted}`", path.display())]
    Mismatch {
        /// Which file.
        path: PathBuf,
        /// What differs: SoC, layout, model.
        kind: &'static str,
        /// What the file says.
        found: String,
        /// What was wanted.
        wanted: String,
    },
    /// Another writer has the file.
    #[error("{} is being written by another process", path.display())]
    Busy {
        /// The journal.
        path: PathBuf,
    },
    /// The unfinished file was started with another plan.
    #[error("{} belongs to plan {found}, not to plan {wanted}", path.display())]
    OtherPlan {
        /// The journal.
        path: PathBuf,
        /// Plan of the journal.
        found: String,
        /// Plan given.
        wanted: String,
    },
    /// A plan, or a tensor of it, that cannot be packed.
    #[error("tensor `{name}`: {what}")]
    Tensor {
        /// Which tensor.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// What was written is not what was asked for.
    #[error("{} of the pack's tensors are not what was asked for; the first: {}", .0.len(), first(.0))]
    Census(Vec<Discrepancy>),
}

impl PackError {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Io { .. } => "check the path, its permissions and the free space",
            Self::Foreign { .. } => "name a file that ork has written",
            Self::Version { .. } => "use an ork that knows this version, or pack the model again",
            Self::Damaged { .. } => "pack the model again, or copy the file again and compare",
            Self::Mismatch { .. } => {
                "name the file that belongs to it, or delete this one and make it again (ork pack, ork calibrate)"
            }
            Self::Busy { .. } => "wait for the other process, or end it",
            Self::OtherPlan { .. } => {
                "finish with the first plan, or delete the journal and the partial files"
            }
            Self::Tensor { .. } => "correct the plan",
            Self::Census(_) => "the pack is not finished: write what is missing, or correct the plan",
        }
    }
}

fn first(discrepancies: &[Discrepancy]) -> String {
    discrepancies.first().map_or_else(String::new, ToString::to_string)
}
