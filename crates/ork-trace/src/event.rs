// SPDX-License-Identifier: MIT OR Apache-2.0
use serde::{Deserialize, Serialize};

/// First bytes of a trace.
pub(crate) const MAGIC: [u8; 8] = *b"ORKTRACE";
/// Version of the layout: another number means that this build cannot read the file.
pub const MAJOR: u16 = 1;
/// Version of additions: record kinds and header fields that older readers skip.
pub const MINOR: u16 = 0;

/// Bounds of everything in a trace that has a length.
pub mod limit {
    /// Header bytes.
    pub const HEADER_BYTES: u64 = 1 << 16;
    /// Bytes of one record.
    pub const RECORD_BYTES: u64 = 1 << 22;
    /// Bytes of buffer content in one record; longer pieces are several records.
    pub const PIECE_BYTES: u64 = 1 << 20;
    /// Bytes of one buffer.
    pub const BUFFER_BYTES: u64 = 1 << 32;
    /// Bytes of an ioctl's struct: all that a request can encode.
    pub const ARGUMENT_BYTES: u64 = (1 << 14) - 1;
    /// Pieces of memory that one ioctl names by address.
    pub const NESTED: u64 = 1 << 16;
}

/// Where a trace comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A real board.
    #[default]
    Device,
    /// The emulated board.
    Emulated,
}

/// First part of a trace, as JSON. Readers skip fields that they do not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Where the trace comes from.
    pub source: Source,
    /// Driver name, as `DRM_IOCTL_VERSION` gives it; empty when the program never opened an NPU.
    pub driver: String,
    /// Driver version, `[major, minor, patch]`.
    pub driver_version: [i32; 3],
    /// Chip, where known: `rk3588`.
    #[serde(default)]
    pub soc: String,
    /// The program and its arguments.
    #[serde(default)]
    pub program: Vec<String>,
    /// Who wrote the file.
    #[serde(default)]
    pub writer: String,
}

/// Memory that an ioctl's struct names by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nested {
    /// Address in the recorded program.
    pub address: u64,
    /// What was there when the call was made.
    pub bytes: Vec<u8>,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A device node was opened.
    Open {
        /// Number of the open file, given by the recorder.
        file: u32,
        /// Path of the node.
        node: String,
    },
    /// The last fd of an open file was closed.
    Close {
        /// The file.
        file: u32,
    },
    /// A buffer was mapped for the first time.
    Buffer {
        /// The file.
        file: u32,
        /// Number of the buffer, given by the recorder.
        buffer: u32,
        /// mmap offset.
        offset: u64,
        /// Bytes that are mapped.
        len: u64,
    },
    /// A buffer's last mapping is gone, and so is its handle: the number is not used again.
    Drop {
        /// The buffer.
        buffer: u32,
    },
    /// An ioctl.
    Call {
        /// The file.
        file: u32,
        /// Number of the calling thread, given by the recorder.
        thread: u32,
        /// The request.
        request: u32,
        /// 0, or how it failed.
        errno: i32,
        /// The struct before the call.
        input: Vec<u8>,
        /// The struct after the call.
        output: Vec<u8>,
        /// Memory that the struct names by address.
        nested: Vec<Nested>,
    },
    /// The CPU has written into a buffer since the last event about it.
    Written {
        /// The buffer.
        buffer: u32,
        /// First byte.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The device has written into a buffer.
    Changed {
        /// The buffer.
        buffer: u32,
        /// First byte.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// At this point the program may look at these bytes: they are what the events so far say.
    Visible {
        /// The buffer.
        buffer: u32,
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// The program ended in good order.
    End {
        /// Number of events before this one.
        events: u64,
    },
}

/// Record kinds.
pub(crate) mod kind {
    pub(crate) const OPEN: u32 = 1;
    pub(crate) const CLOSE: u32 = 2;
    pub(crate) const BUFFER: u32 = 3;
    pub(crate) const DROP: u32 = 4;
    pub(crate) const CALL: u32 = 5;
    pub(crate) const WRITTEN: u32 = 6;
    pub(crate) const CHANGED: u32 = 7;
    pub(crate) const VISIBLE: u32 = 8;
    pub(crate) const END: u32 = 9;
}
