// SPDX-License-Identifier: MIT OR Apache-2.0
use std::io;

use ork_drm::Errno;

use crate::event::{MAJOR, MINOR};

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read or written.
    #[error("trace file")]
    Io(#[from] io::Error),
    /// The first bytes are not those of a trace.
    #[error("not a trace: the file does not start with \"ORKTRACE\"")]
    NotATrace,
    /// Written by a later version with another layout.
    #[error(
        "trace version {major}.{minor} cannot be read; this build reads {MAJOR}.x (it writes {MAJOR}.{MINOR})"
    )]
    Version {
        /// Major version of the file.
        major: u16,
        /// Minor version of the file.
        minor: u16,
    },
    /// The header is no JSON object with the fields that it must have.
    #[error("trace header: {0}")]
    Header(#[source] serde_json::Error),
    /// A length in the file is beyond its limit.
    #[error("record {record}: {what} of {value} is beyond the limit of {limit}")]
    Limit {
        /// Number of the record, from 1; 0 is the header.
        record: u64,
        /// What is too large.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        limit: u64,
    },
    /// A record does not have the layout of its kind.
    #[error("record {record} (kind {kind}): {what}")]
    Malformed {
        /// Number of the record, from 1.
        record: u64,
        /// Its kind.
        kind: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// The file ends inside a record.
    #[error("the file ends inside record {record}")]
    Truncated {
        /// Number of the record, from 1; 0 is the header.
        record: u64,
    },
}

/// Why a replay cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace is of a driver that the replay does not know.
    #[error("the trace is of the driver {0:?}; rknpu and rocket can be replayed")]
    Driver(String),
    /// The device cannot be opened.
    #[error("event {event}: cannot open the device")]
    Open {
        /// Number of the event.
        event: u64,
        /// Why.
        source: Errno,
    },
    /// An event names a file or buffer that no earlier event has introduced, or a range outside one.
    #[error("event {event}: {what}")]
    Inconsistent {
        /// Number of the event.
        event: u64,
        /// What does not fit.
        what: &'static str,
    },
    /// The device did something else with a call on which the rest depends.
    #[error("event {event}: {call} failed, which it did not when the trace was made")]
    Call {
        /// Number of the event.
        event: u64,
        /// Which call.
        call: &'static str,
        /// How it failed.
        source: Errno,
    },
    /// The programs in the trace hold addresses that the device cannot give again.
    #[error("event {event}: the buffer was at address {wanted:#x}, and the device has given {given:#x}")]
    Address {
        /// Number of the event.
        event: u64,
        /// Address in the trace.
        wanted: u64,
        /// Address now.
        given: u64,
    },
}

impl ReplayError {
    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Trace(TraceError::Truncated { .. }) => {
                Some("the recorded program was killed; capture it again and let it end")
            }
            Self::Address { .. } => {
                Some("replay on the emulated board, with the driver and chip that the trace names")
            }
            _ => None,
        }
    }
}
