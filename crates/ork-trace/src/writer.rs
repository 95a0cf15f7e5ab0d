// SPDX-License-Identifier: MIT OR Apache-2.0
use std::io::Write;

use crate::error::TraceError;
use crate::event::{Event, Header, MAGIC, MAJOR, MINOR, kind, limit};

/// Writes a trace.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    events: u64,
    record: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// [`TraceError`] when the file cannot be written or the header is too long.
    pub fn new(mut out: W, header: &Header) -> Result<Self, TraceError> {
        let text = serde_json::to_vec(header).map_err(TraceError::Header)?;
        let len = text.len() as u64;
        if len > limit::HEADER_BYTES {
            return Err(TraceError::Limit {
                record: 0,
                what: "header",
                value: len,
                limit: limit::HEADER_BYTES,
            });
        }
        out.write_all(&MAGIC)?;
        out.write_all(&MAJOR.to_le_bytes())?;
        out.write_all(&MINOR.to_le_bytes())?;
        out.write_all(&(text.len() as u32).to_le_bytes())?;
        out.write_all(&text)?;
        Ok(Self { out, events: 0, record: Vec::new() })
    }

    /// Events written so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Writes one event.
    ///
    /// # Errors
    /// [`TraceError`] when the file cannot be written or the event is beyond a [`limit`].
    pub fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        self.record.clear();
        let kind = encode(event, &mut self.record);
        let len = self.record.len() as u64;
        if len > limit::RECORD_BYTES {
            let (record, limit) = (self.events + 1, limit::RECORD_BYTES);
            return Err(TraceError::Limit { record, what: "record", value: len, limit });
        }
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&(self.record.len() as u32).to_le_bytes())?;
        self.out.write_all(&self.record)?;
        self.events += 1;
        Ok(())
    }

    /// Hands all bytes to the file.
    ///
    /// # Errors
    /// [`TraceError::Io`].
    pub fn flush(&mut self) -> Result<(), TraceError> {
        Ok(self.out.flush()?)
    }
}

/// Appends an event's payload; its kind.
fn encode(event: &Event, out: &mut Vec<u8>) -> u32 {
    match event {
        Event::Open { file, node } => {
            number(out, *file);
            bytes(out, node.as_bytes());
            kind::OPEN
        }
        Event::Close { file } => {
            number(out, *file);
            kind::CLOSE
        }
        Event::Buffer { file, buffer, offset, len } => {
            number(out, *file);
            number(out, *buffer);
            long(out, *offset);
            long(out, *len);
            kind::BUFFER
        }
        Event::Drop { buffer } => {
            number(out, *buffer);
            kind::DROP
        }
        Event::Call { file, thread, request, errno, input, output, nested } => {
            number(out, *file);
            number(out, *thread);
            number(out, *request);
            number(out, *errno as u32);
            bytes(out, input);
            bytes(out, output);
            number(out, nested.len() as u32);
            for piece in nested {
                long(out, piece.address);
                bytes(out, &piece.bytes);
            }
            kind::CALL
        }
        Event::Written { buffer, at, bytes: content } => {
            content_of(out, *buffer, *at, content);
            kind::WRITTEN
        }
        Event::Changed { buffer, at, bytes: content } => {
            content_of(out, *buffer, *at, content);
            kind::CHANGED
        }
        Event::Visible { buffer, at, len } => {
            number(out, *buffer);
            long(out, *at);
            long(out, *len);
            kind::VISIBLE
        }
        Event::End { events } => {
            long(out, *events);
            kind::END
        }
    }
}

fn content_of(out: &mut Vec<u8>, buffer: u32, at: u64, content: &[u8]) {
    number(out, buffer);
    long(out, at);
    bytes(out, content);
}

fn number(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn long(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    number(out, value.len() as u32);
    out.extend_from_slice(value);
}
