// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reference's distributions in a file.
//!
//! ```text
//! "ORKREF\0\0"  8 bytes
//! version       u32, 1
//! header bytes  u32
//! header        JSON: the identity
//! window 0      scored × row (see `compact`), then the first 16 bytes of their BLAKE3
//! window 1 …
//! ```
//! All little-endian. A file under its final name is complete; while it is written it is called `NAME.part`, and a later
//! run continues it.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::compact;
use super::moments::{Moments, Perplexity};
use super::score::Table;
use super::windows::Windows;
use crate::error::EngineError;

const MAGIC: &[u8; 8] = b"ORKREF\0\0";
const VERSION: u32 = 1;
const CHECK_BYTES: usize = 16;
/// Longest header accepted.
const HEADER_MAX: u32 = 1 << 16;

/// What a reference file is of. A file of anything else is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceIdentity {
    /// Name of the model, for messages.
    pub model: String,
    /// Hash of the model file and of whatever else changes what it computes.
    pub model_digest: String,
    /// [`Windows::digest`].
    pub windows_digest: String,
    /// Windows.
    pub windows: u32,
    /// Scored positions of a window.
    pub scored: u32,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
}

impl ReferenceIdentity {
    /// Of a model's distributions over these windows.
    #[must_use]
    pub fn of(model: impl Into<String>, model_digest: impl Into<String>, windows: &Windows) -> Self {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            model: model.into(),
            model_digest: model_digest.into(),
            windows_digest: windows.digest(),
            windows: number(windows.count()),
            scored: number(windows.scored().len()),
            vocabulary: number(windows.vocabulary()),
        }
    }

    /// Bytes of the file without its header.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        u64::from(self.windows) * (self.window_bytes() + CHECK_BYTES) as u64
    }

    fn window_bytes(&self) -> usize {
        self.scored as usize * compact::row_bytes(self.vocabulary as usize)
    }

    /// What differs, in words.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let Self { model: _, model_digest, windows_digest, windows, scored, vocabulary } = self;
        if *model_digest != other.model_digest {
            Some("another model, or another way of computing it")
        } else if (windows, scored, vocabulary) != (&other.windows, &other.scored, &other.vocabulary)
            || *windows_digest != other.windows_digest
        {
            Some("another text or other windows")
        } else {
            None
        }
    }
}

/// A complete file, open for reading.
#[derive(Debug)]
pub struct ReferenceFile {
    path: PathBuf,
    file: BufReader<File>,
    identity: ReferenceIdentity,
    data: u64,
}

impl ReferenceFile {
    /// Opens a file that holds what `expected` says.
    ///
    /// # Errors
    /// [`EngineError::Reference`] if there is none, or it is of something else, incomplete or no such file.
    pub fn open(path: &Path, expected: &ReferenceIdentity) -> Result<Self, EngineError> {
        let file = File::open(path).map_err(|error| wrong(path, format!("cannot be opened: {error}")))?;
        let (identity, data, bytes, file) = read_header(path, file)?;
        if let Some(what) = identity.difference(expected) {
            return Err(wrong(path, format!("is of {what} (it was made from {})", identity.model)));
        }
        if bytes != data + identity.data_bytes() {
            return Err(wrong(
                path,
                format!("has {bytes} bytes instead of {}", data + identity.data_bytes()),
            ));
        }
        Ok(Self { path: path.to_owned(), file: BufReader::new(file), identity, data })
    }

    /// What it is of.
    #[must_use]
    pub fn identity(&self) -> &ReferenceIdentity {
        &self.identity
    }

    /// The distributions of a window.
    pub(crate) fn window(&mut self, index: usize) -> Result<Table, EngineError> {
        let bytes = self.bytes(index)?;
        compact::decode(&bytes, self.identity.vocabulary as usize)
    }

    /// Perplexity of the reference itself.
    ///
    /// # Errors
    /// [`EngineError::Reference`] if the file is damaged.
    pub fn perplexity(&mut self) -> Result<Perplexity, EngineError> {
        let mut moments = Moments::default();
        for index in 0..self.identity.windows as usize {
            let bytes = self.bytes(index)?;
            for row in bytes.chunks_exact(compact::row_bytes(self.identity.vocabulary as usize)) {
                moments.add(-compact::target(row));
            }
        }
        Ok(moments.perplexity())
    }

    fn bytes(&mut self, index: usize) -> Result<Vec<u8>, EngineError> {
        let size = self.identity.window_bytes();
        let at = self.data + (index * (size + CHECK_BYTES)) as u64;
        let mut bytes = vec![0u8; size];
        let mut check = [0u8; CHECK_BYTES];
        self.file
            .seek(SeekFrom::Start(at))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .and_then(|()| self.file.read_exact(&mut check))
            .map_err(|error| wrong(&self.path, format!("window {index} cannot be read: {error}")))?;
        if check != check_of(&bytes) {
            return Err(wrong(&self.path, format!("window {index} is damaged: delete the file")));
        }
        Ok(bytes)
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct ReferenceWriter {
    path: PathBuf,
    part: PathBuf,
    file: File,
    identity: ReferenceIdentity,
    written: u32,
}

impl ReferenceWriter {
    /// Starts a file, or continues the one that an earlier run left.
    pub(crate) fn open(path: &Path, identity: &ReferenceIdentity) -> Result<Self, EngineError> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        if let Some((file, written)) = continued(&part, identity) {
            return Ok(Self { path: path.to_owned(), part, file, identity: identity.clone(), written });
        }
        let header = serde_json::to_vec(identity).map_err(|error| wrong(&part, error.to_string()))?;
        let mut start = MAGIC.to_vec();
        start.extend(VERSION.to_le_bytes());
        start.extend(u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes());
        start.extend(header);
        let mut file =
            File::create(&part).map_err(|error| wrong(&part, format!("cannot be created: {error}")))?;
        file.write_all(&start).map_err(|error| wrong(&part, format!("cannot be written: {error}")))?;
        Ok(Self { path: path.to_owned(), part, file, identity: identity.clone(), written: 0 })
    }

    /// Windows that are there.
    pub(crate) fn written(&self) -> usize {
        self.written as usize
    }

    pub(crate) fn add(&mut self, table: &Table) -> Result<(), EngineError> {
        let mut bytes = compact::encode(table);
        if bytes.len() != self.identity.window_bytes() {
            return Err(wrong(&self.part, "a window has another size than the file is for".to_owned()));
        }
        bytes.extend(check_of(&bytes));
        self.file
            .write_all(&bytes)
            .map_err(|error| wrong(&self.part, format!("cannot be written: {error}")))?;
        self.written += 1;
        Ok(())
    }

    /// Gives the file its final name.
    pub(crate) fn finish(self) -> Result<ReferenceFile, EngineError> {
        self.file
            .sync_all()
            .and_then(|()| std::fs::rename(&self.part, &self.path))
            .map_err(|error| wrong(&self.part, format!("cannot be finished: {error}")))?;
        ReferenceFile::open(&self.path, &self.identity)
    }
}

/// An unfinished file of the same identity, cut after its last whole window.
fn continued(part: &Path, identity: &ReferenceIdentity) -> Option<(File, u32)> {
    let file = OpenOptions::new().read(true).write(true).open(part).ok()?;
    let (found, data, bytes, mut file) = read_header(part, file).ok()?;
    if found.difference(identity).is_some() {
        return None;
    }
    let whole = (bytes - data) / (identity.window_bytes() + CHECK_BYTES) as u64;
    let end = data + whole * (identity.window_bytes() + CHECK_BYTES) as u64;
    file.set_len(end).and_then(|()| file.seek(SeekFrom::End(0))).ok()?;
    Some((file, u32::try_from(whole).ok()?.min(identity.windows)))
}

/// Identity, start of the data, length of the file.
fn read_header(path: &Path, mut file: File) -> Result<(ReferenceIdentity, u64, u64, File), EngineError> {
    let mut start = [0u8; 16];
    let cannot = |error: std::io::Error| wrong(path, format!("cannot be read: {error}"));
    let bytes = file.metadata().map_err(cannot)?.len();
    file.read_exact(&mut start).map_err(cannot)?;
    let word = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
    if &start[..8] != MAGIC {
        return Err(wrong(path, "is no reference file".to_owned()));
    }
    if word(8) != VERSION {
        return Err(wrong(path, format!("has version {}, this program reads {VERSION}", word(8))));
    }
    let length = word(12);
    if length > HEADER_MAX {
        return Err(wrong(path, format!("has a header of {length} bytes")));
    }
    let mut header = vec![0u8; length as usize];
    file.read_exact(&mut header).map_err(cannot)?;
    let identity = serde_json::from_slice(&header)
        .map_err(|error| wrong(path, format!("has a header that cannot be read: {error}")))?;
    Ok((identity, 16 + u64::from(length), bytes, file))
}

fn check_of(bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let mut check = [0u8; CHECK_BYTES];
    check.copy_from_slice(&blake3::hash(bytes).as_bytes()[..CHECK_BYTES]);
    check
}

fn wrong(path: &Path, why: String) -> EngineError {
    EngineError::Reference { path: path.to_owned(), why }
}
