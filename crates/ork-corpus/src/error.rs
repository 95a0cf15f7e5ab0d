// SPDX-License-Identifier: MIT OR Apache-2.0

use std::io;
use std::path::PathBuf;

/// Why a text cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// The file could not be read.
    #[error("cannot read the text {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not UTF-8.
    #[error("{} is not UTF-8 text: byte {offset} does not fit; convert it first", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Where it stops being text.
        offset: usize,
    },
    /// Nothing but white space.
    #[error("the text {name} is empty")]
    Empty {
        /// Name of the text.
        name: String,
    },
    /// A rule that splits nothing.
    #[error(
        "a split needs blocks of at least 1 byte and a cycle of at least 2 blocks, not {block_bytes} and {cycle}"
    )]
    Rule {
        /// Bytes of a block.
        block_bytes: u32,
        /// Blocks of a cycle.
        cycle: u32,
    },
    /// Too little text for both parts.
    #[error(
        "the text {name} has {blocks} blocks of {block_bytes} bytes, and a split needs {cycle}; \
         take a longer text or smaller blocks"
    )]
    TooShort {
        /// Name of the text.
        name: String,
        /// Blocks that it has.
        blocks: usize,
        /// Bytes of a block.
        block_bytes: u32,
        /// Blocks that are needed.
        cycle: u32,
    },
}
