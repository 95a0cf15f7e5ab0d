// SPDX-License-Identifier: MIT OR Apache-2.0
//! One capture file: what a program said to an NPU kernel driver, what its buffers held, and what came back.
//!
//! - [`Event`] and [`Header`] are the content, [`Writer`] and [`Reader`] the bytes (docs/reference/trace.md);
//! - [`Recorder`] sits beside a running program and decides what has to be written down, and when;
//! - [`programs`] are the register programs that it submitted;
//! - [`replay`] does the same calls on another device and compares every buffer that the program looked at.
//!
//! Not here: how a program's calls are seen (`ork-shim`), and which device a replay uses (`ork-cli`).

mod error;
mod event;
mod programs;
mod reader;
mod recorder;
mod replay;
mod writer;

pub use error::{ReplayError, TraceError};
pub use event::{Event, Header, MAJOR, MINOR, Nested, Source, limit};
pub use programs::{TracedProgram, programs};
pub use reader::Reader;
pub use recorder::{BufferMemory, FileId, ReadMemory, RecordedMapping, Recorder};
pub use replay::{Difference, DifferenceKind, Report, replay};
pub use writer::Writer;
