// SPDX-License-Identifier: MIT OR Apache-2.0
use std::path::PathBuf;

/// Why a case cannot be run. Every message names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// A file or folder cannot be read.
    #[error("{}: cannot be read", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is larger than any recorded case.
    #[error("{}: larger than the {limit} bytes that a case may have", path.display())]
    TooLarge {
        /// Which one.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The description is no JSON, or lacks something.
    #[error("{}: not the description of a case", path.display())]
    Json {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The data file is no zip archive, or a damaged one.
    #[error("{}: not a readable archive", path.display())]
    Archive {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: zip::result::ZipError,
    },
    /// An array of the data file is not what the format says.
    #[error("{}: array {array}: {what}", path.display())]
    Array {
        /// Which file.
        path: PathBuf,
        /// Name of the array.
        array: String,
        /// What is wrong.
        what: String,
    },
    /// The parts of a case contradict each other.
    #[error("{}: {what}", path.display())]
    Inconsistent {
        /// Which description.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The case asks for something that the runner does not do.
    #[error("{}: {what} is not supported", path.display())]
    Unsupported {
        /// Which description.
        path: PathBuf,
        /// What it asks for.
        what: String,
    },
}
