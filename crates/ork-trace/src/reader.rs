// SPDX-License-Identifier: MIT OR Apache-2.0
use std::io::{ErrorKind, Read};

use crate::error::TraceError;
use crate::event::{Event, Header, MAGIC, MAJOR, Nested, kind, limit};

/// Reads a trace, one event after the other, in bounded memory: no length in the file makes it allocate more than
/// [`limit::RECORD_BYTES`].
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    records: u64,
    complete: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`TraceError`]: no trace, a version that this build does not know, or a broken header.
    pub fn new(mut input: R) -> Result<Self, TraceError> {
        let mut fixed = [0; 16];
        let got = fill(&mut input, &mut fixed)?;
        if got < MAGIC.len() || fixed[..8] != MAGIC {
            return Err(TraceError::NotATrace);
        }
        if got < fixed.len() {
            return Err(TraceError::Truncated { record: 0 });
        }
        let major = u16::from_le_bytes([fixed[8], fixed[9]]);
        let minor = u16::from_le_bytes([fixed[10], fixed[11]]);
        if major != MAJOR {
            return Err(TraceError::Version { major, minor });
        }
        let len = u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]);
        let text = payload(&mut input, 0, "header", len, limit::HEADER_BYTES)?;
        let header = serde_json::from_slice(&text).map_err(TraceError::Header)?;
        Ok(Self { input, header, records: 0, complete: false })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether the last event said that the recorded program ended in good order.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The next event; `None` at the end of the file. Records of unknown kinds are skipped.
    ///
    /// # Errors
    /// [`TraceError`]; what follows cannot be read any more.
    pub fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        loop {
            let mut head = [0; 8];
            let record = self.records + 1;
            match fill(&mut self.input, &mut head)? {
                0 => return Ok(None),
                8 => {}
                _ => return Err(TraceError::Truncated { record }),
            }
            self.records = record;
            let kind = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
            let bytes = payload(&mut self.input, record, "record", len, limit::RECORD_BYTES)?;
            let mut fields = Fields { rest: &bytes, record, kind };
            let Some(event) = fields.event()? else { continue };
            fields.end()?;
            self.complete = matches!(event, Event::End { .. });
            return Ok(Some(event));
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().transpose()
    }
}

/// Reads until `out` is full or the file ends; the bytes read.
fn fill(input: &mut impl Read, out: &mut [u8]) -> Result<usize, TraceError> {
    let mut got = 0;
    while got < out.len() {
        match input.read(&mut out[got..]) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(got)
}

fn payload(
    input: &mut impl Read,
    record: u64,
    what: &'static str,
    len: u32,
    limit: u64,
) -> Result<Vec<u8>, TraceError> {
    let value = u64::from(len);
    if value > limit {
        return Err(TraceError::Limit { record, what, value, limit });
    }
    let mut bytes = vec![0; len as usize];
    if fill(input, &mut bytes)? < bytes.len() {
        return Err(TraceError::Truncated { record });
    }
    Ok(bytes)
}

/// The fields of one record.
struct Fields<'a> {
    rest: &'a [u8],
    record: u64,
    kind: u32,
}

impl Fields<'_> {
    fn malformed(&self, what: &'static str) -> TraceError {
        TraceError::Malformed { record: self.record, kind: self.kind, what }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], TraceError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.malformed("too short"));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, TraceError> {
        self.take(4).map(|bytes| bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    }

    fn long(&mut self) -> Result<u64, TraceError> {
        Ok(u64::from(self.number()?) | u64::from(self.number()?) << 32)
    }

    fn bytes(&mut self, what: &'static str, limit: u64) -> Result<Vec<u8>, TraceError> {
        let value = u64::from(self.number()?);
        if value > limit {
            return Err(TraceError::Limit { record: self.record, what, value, limit });
        }
        self.take(value as usize).map(<[u8]>::to_vec)
    }

    fn content(&mut self) -> Result<(u32, u64, Vec<u8>), TraceError> {
        Ok((self.number()?, self.long()?, self.bytes("buffer content", limit::PIECE_BYTES)?))
    }

    fn event(&mut self) -> Result<Option<Event>, TraceError> {
        Ok(Some(match self.kind {
            kind::OPEN => {
                let file = self.number()?;
                let node = self.bytes("node path", limit::ARGUMENT_BYTES)?;
                let node = String::from_utf8(node).map_err(|_| self.malformed("the path is not UTF-8"))?;
                Event::Open { file, node }
            }
            kind::CLOSE => Event::Close { file: self.number()? },
            kind::BUFFER => {
                let (file, buffer, offset, len) =
                    (self.number()?, self.number()?, self.long()?, self.long()?);
                if len > limit::BUFFER_BYTES {
                    let (record, limit) = (self.record, limit::BUFFER_BYTES);
                    return Err(TraceError::Limit { record, what: "buffer", value: len, limit });
                }
                Event::Buffer { file, buffer, offset, len }
            }
            kind::DROP => Event::Drop { buffer: self.number()? },
            kind::CALL => self.call()?,
            kind::WRITTEN => {
                let (buffer, at, bytes) = self.content()?;
                Event::Written { buffer, at, bytes }
            }
            kind::CHANGED => {
                let (buffer, at, bytes) = self.content()?;
                Event::Changed { buffer, at, bytes }
            }
            kind::VISIBLE => Event::Visible { buffer: self.number()?, at: self.long()?, len: self.long()? },
            kind::END => Event::End { events: self.long()? },
            _ => return Ok(None),
        }))
    }

    fn call(&mut self) -> Result<Event, TraceError> {
        let (file, thread, request) = (self.number()?, self.number()?, self.number()?);
        let errno = self.number()? as i32;
        let input = self.bytes("argument", limit::ARGUMENT_BYTES)?;
        let output = self.bytes("argument", limit::ARGUMENT_BYTES)?;
        let count = u64::from(self.number()?);
        if count > limit::NESTED {
            let (record, limit) = (self.record, limit::NESTED);
            return Err(TraceError::Limit { record, what: "number of pieces", value: count, limit });
        }
        let mut nested = Vec::new();
        for _ in 0..count {
            nested.push(Nested { address: self.long()?, bytes: self.bytes("piece", limit::PIECE_BYTES)? });
        }
        Ok(Event::Call { file, thread, request, errno, input, output, nested })
    }

    fn end(&self) -> Result<(), TraceError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed("too long")) }
    }
}
