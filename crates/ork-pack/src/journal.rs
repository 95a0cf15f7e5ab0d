// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a writer has done so far, one line per step: a hash of the rest of the line, a space, JSON. A line that was torn
//! by the end of the process has a wrong hash and counts as not written, with all behind it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::header::{PartEntry, TensorEntry};
use crate::{Hash, PackError};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Record {
    /// The first line.
    Start { plan: Hash, part_bytes_max: u64 },
    /// A tensor is complete in a part's partial file. Boxed only for size.
    Tensor { part: u32, entry: Box<TensorEntry> },
    /// All parts are complete and on the disk; only the renaming is left.
    Sealed { parts: Vec<PartEntry> },
}

#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens or creates a journal, locks it against other processes, and reads its intact lines.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<(u64, Record)>), PackError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(PackError::io("open", path))?;
        let busy = || PackError::Busy { path: path.to_owned() };
        file.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => busy(),
            std::fs::TryLockError::Error(source) => PackError::io("lock", path)(source),
        })?;
        // A writer that finished between open and lock has removed the file we hold.
        let ours = file.metadata().map_err(PackError::io("read", path))?.ino();
        if std::fs::metadata(path).map_err(PackError::io("read", path))?.ino() != ours {
            return Err(busy());
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(PackError::io("read", path))?;
        let mut records = Vec::new();
        let mut end = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let Some(record) = parse(line) else { break };
            end += line.len() as u64;
            records.push((end, record));
        }
        Ok((Self { path: path.to_owned(), file }, records))
    }

    /// Forgets everything behind `end`.
    pub(crate) fn truncate(&mut self, end: u64) -> Result<(), PackError> {
        self.file.set_len(end).map_err(PackError::io("shorten", &self.path))?;
        self.file.seek(SeekFrom::Start(end)).map_err(PackError::io("shorten", &self.path))?;
        Ok(())
    }

    pub(crate) fn append(&mut self, record: &Record) -> Result<(), PackError> {
        let json = serde_json::to_vec(record).map_err(std::io::Error::from);
        let json = json.map_err(PackError::io("write", &self.path))?;
        let mut line = Hash::of(&json).to_string().into_bytes();
        line.push(b' ');
        line.extend_from_slice(&json);
        line.push(b'\n');
        self.file.write_all(&line).map_err(PackError::io("write", &self.path))
    }

    pub(crate) fn sync(&self) -> Result<(), PackError> {
        self.file.sync_all().map_err(PackError::io("write", &self.path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn remove(self) -> Result<(), PackError> {
        std::fs::remove_file(&self.path).map_err(PackError::io("remove", &self.path))
    }
}

fn parse(line: &[u8]) -> Option<Record> {
    let line = line.strip_suffix(b"\n")?;
    let (hash, json) = line.split_at_checked(64)?;
    let json = json.strip_prefix(b" ")?;
    let hash: Hash = std::str::from_utf8(hash).ok()?.parse().ok()?;
    (Hash::of(json) == hash).then(|| serde_json::from_slice(json).ok()).flatten()
}
