// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same calls again, on another device.
//!
//! Handles, object addresses and offsets are translated. Device addresses stand in the recorded programs, so the
//! device must give the same ones; where an allocator hands out addresses from the top, a filler takes what the
//! recorded board had given to others. Jobs that were submitted without waiting are waited for.

mod buffers;
mod calls;

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::sync::Arc;

use ork_drm::{Errno, Transport};

use crate::error::ReplayError;
use crate::event::Event;
use crate::reader::Reader;
use buffers::Buffers;
use calls::Driver;

/// Differences that are kept; further ones are only counted.
const DIFFERENCES_MAX: usize = 64;

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events of the trace.
    pub events: u64,
    /// Calls that were made again.
    pub calls: u64,
    /// Calls of kinds that a replay does not need.
    pub skipped: u64,
    /// Submits among the calls.
    pub submits: u64,
    /// Bytes that were compared.
    pub compared_bytes: u64,
    /// The first differences.
    pub differences: Vec<Difference>,
    /// All differences.
    pub difference_count: u64,
    /// Whether the trace ends in good order.
    pub complete: bool,
}

/// Something that came out differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Number of the event, from 1.
    pub event: u64,
    /// What.
    pub kind: DifferenceKind,
}

/// What came out differently.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DifferenceKind {
    /// Bytes of a buffer.
    Bytes {
        /// Number of the buffer in the trace.
        buffer: u32,
        /// First differing byte.
        at: u64,
        /// How many bytes of the compared range differ.
        count: u64,
        /// Bytes that were compared.
        compared: u64,
        /// The byte in the trace.
        recorded: u8,
        /// The byte now.
        now: u8,
    },
    /// A call's outcome; 0 is success.
    Outcome {
        /// Which call.
        call: &'static str,
        /// errno in the trace.
        recorded: i32,
        /// errno now.
        now: i32,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {}: ", self.event)?;
        match &self.kind {
            DifferenceKind::Bytes { buffer, at, count, compared, recorded, now } => write!(
                f,
                "buffer {buffer}: {count} of {compared} bytes differ, the first at {at:#x}: {recorded:#04x} was \
                 recorded, {now:#04x} came out"
            ),
            DifferenceKind::Outcome { call, recorded, now } => {
                write!(f, "{call}: {} was recorded, {} came out", outcome(*recorded), outcome(*now))
            }
        }
    }
}

fn outcome(errno: i32) -> String {
    if errno == 0 { "success".to_owned() } else { format!("{:?}", Errno(errno)) }
}

impl Report {
    fn note(&mut self, kind: DifferenceKind) {
        self.difference_count += 1;
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(Difference { event: self.events, kind });
        }
    }
}

/// State of a replay.
struct Replay<'a> {
    open: &'a dyn Fn() -> Result<Arc<dyn Transport>, Errno>,
    driver: Driver,
    files: HashMap<u32, calls::File>,
    buffers: Buffers,
    report: Report,
}

/// Replays a trace. `open` opens the node of a device whose driver is the one that the trace names.
///
/// # Errors
/// [`ReplayError`] when the replay cannot go on; differences are no errors.
pub fn replay<R: Read>(
    reader: &mut Reader<R>,
    open: &dyn Fn() -> Result<Arc<dyn Transport>, Errno>,
) -> Result<Report, ReplayError> {
    let driver = match reader.header().driver.as_str() {
        ork_rknpu::DRIVER_NAME => Driver::Rknpu,
        ork_rocket::DRIVER_NAME => Driver::Rocket,
        // A program that never opened an NPU: there is nothing to do again.
        "" => Driver::None,
        other => return Err(ReplayError::Driver(other.to_owned())),
    };
    let mut replay = Replay {
        open,
        driver,
        files: HashMap::new(),
        buffers: Buffers::default(),
        report: Report::default(),
    };
    while let Some(event) = reader.next_event()? {
        replay.report.events += 1;
        replay.step(event)?;
    }
    replay.report.complete = reader.is_complete();
    Ok(replay.report)
}

impl Replay<'_> {
    fn inconsistent(&self, what: &'static str) -> ReplayError {
        ReplayError::Inconsistent { event: self.report.events, what }
    }

    fn step(&mut self, event: Event) -> Result<(), ReplayError> {
        let unknown = "a buffer, or a range of one, that the trace does not have";
        match event {
            Event::Open { file, .. } => {
                let event = self.report.events;
                let device = (self.open)().map_err(|source| ReplayError::Open { event, source })?;
                self.files.insert(file, calls::File::new(device));
            }
            Event::Close { file } => _ = self.files.remove(&file),
            Event::Buffer { file, buffer, offset, len } => self.map(file, buffer, offset, len)?,
            Event::Drop { buffer } => self.buffers.drop(buffer),
            Event::Written { buffer, at, bytes } => {
                self.buffers.write(buffer, at, &bytes).ok_or_else(|| self.inconsistent(unknown))?;
            }
            Event::Changed { buffer, at, bytes } => {
                self.buffers.expect(buffer, at, &bytes).ok_or_else(|| self.inconsistent(unknown))?;
            }
            Event::Visible { buffer, at, len } => {
                let found =
                    self.buffers.compare(buffer, at, len).ok_or_else(|| self.inconsistent(unknown))?;
                self.report.compared_bytes += len;
                if let Some(kind) = found {
                    self.report.note(kind);
                }
            }
            Event::Call { file, request, errno, input, output, nested, .. } => {
                self.call(&calls::Recorded { file, request, errno, input, output, nested })?;
            }
            Event::End { .. } => {}
        }
        Ok(())
    }

    fn map(&mut self, file: u32, buffer: u32, offset: u64, len: u64) -> Result<(), ReplayError> {
        let event = self.report.events;
        let no_file = self.inconsistent("a file that is not open");
        let file = self.files.get(&file).ok_or(no_file)?;
        let offset =
            file.offset(offset).ok_or_else(|| self.inconsistent("an offset that no call has given"))?;
        let len = usize::try_from(len).map_err(|_| self.inconsistent("a buffer that is too large"))?;
        let mapping = file.device.mmap(offset, len).map_err(|source| ReplayError::Call {
            event,
            call: "mmap",
            source,
        })?;
        if self.buffers.insert(buffer, mapping) {
            Ok(())
        } else {
            Err(self.inconsistent("more buffers than a replay holds at once"))
        }
    }
}
