// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_isa::{FieldOverflow, Iova};
use ork_layout::Format;

/// A buffer that programs address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// Features, `A`.
    Features,
    /// Weights, `B`.
    Weights,
    /// Output surfaces, `C`.
    Output,
    /// Register commands.
    Regcmd,
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Features => "the feature buffer (A)",
            Self::Weights => "the weight buffer (B)",
            Self::Output => "the output buffer (C)",
            Self::Regcmd => "the register-command buffer",
        })
    }
}

/// A program that cannot be written. Each is a bug of the caller or of the planner: legal plans with bindings of the
/// plan's extents never meet one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// A range of addresses leaves its buffer. On silicon this hangs the NPU or overwrites foreign memory.
    #[error(
        "program {program} of core {core} needs bytes {start:#x}..{end:#x} of {buffer}, which is bound at {base} \
         with {len:#x} bytes"
    )]
    OutOfBinding {
        /// The core.
        core: u8,
        /// Position in the chain.
        program: usize,
        /// The buffer.
        buffer: Buffer,
        /// First byte, from the start of the binding.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Where the buffer is bound.
        base: Iova,
        /// Its length.
        len: u64,
    },
    /// A buffer reaches beyond the 32-bit window.
    #[error("{buffer} is bound at {base} with {len:#x} bytes and leaves the 4 GiB window")]
    OutsideWindow {
        /// The buffer.
        buffer: Buffer,
        /// Where it is bound.
        base: Iova,
        /// Its length.
        len: u64,
    },
    /// An address that is not a multiple of what its unit needs.
    #[error(
        "program {program} of core {core} would start {buffer} at {at}, which is not a multiple of {multiple} bytes"
    )]
    Misaligned {
        /// The core.
        core: u8,
        /// Position in the chain.
        program: usize,
        /// The buffer.
        buffer: Buffer,
        /// The address.
        at: Iova,
        /// What it must be a multiple of.
        multiple: u32,
    },
    /// A value does not fit its register field.
    #[error("program {program} of core {core}: {overflow}")]
    Field {
        /// The core.
        core: u8,
        /// Position in the chain.
        program: usize,
        /// Register, field and value.
        #[source]
        overflow: FieldOverflow,
    },
    /// An output stage that these results do not have.
    #[error("{format} leaves sums as they are; only int8 results are requantised")]
    OutputStage {
        /// Precisions.
        format: Format,
    },
    /// The plan gives this core nothing to do.
    #[error("core {core} has no programs in this pass")]
    NoChain {
        /// The core.
        core: u8,
    },
}
