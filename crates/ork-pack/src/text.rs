// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which text calibration has read, so that nobody measures on it by mistake.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Hash, PackError};

/// A piece of a text file, named by content: what calibration has read of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextUse {
    /// Name of the file, for messages.
    pub name: String,
    /// Size of the file.
    pub bytes: u64,
    /// Hash of the whole file, whatever part of it was read.
    pub content: Hash,
    /// First byte read.
    pub from: u64,
    /// Behind the last byte read; rounded up where tokens do not end at a known byte.
    pub to: u64,
}

impl TextUse {
    /// The bytes `range` of a text of this content.
    pub fn of(name: impl Into<String>, text: &[u8], range: Range<u64>) -> Self {
        let bytes = text.len() as u64;
        Self {
            name: name.into(),
            bytes,
            content: Hash::of(text),
            from: range.start.min(bytes),
            to: range.end.min(bytes),
        }
    }

    /// Bytes of the file that both have read; nothing if the files have different contents. A copy that was edited is
    /// another file, whose overlap this cannot see.
    pub fn overlap(&self, other: &Self) -> Option<Range<u64>> {
        let both = self.from.max(other.from)..self.to.min(other.to);
        (self.content == other.content && !both.is_empty()).then_some(both)
    }
}

impl fmt::Display for TextUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {} to {} of {} ({})", self.from, self.to, self.name, self.content.short())
    }
}

/// What a pack's weights were calibrated with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Name of the file, of statistics or of an importance matrix.
    pub file: String,
    /// Hash of the file.
    pub content: Hash,
    /// The text behind it; nothing if the file does not say (importance matrices name texts, but not their content).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextUse>,
}

impl Calibration {
    /// Names a file by its content.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn of(path: &Path, text: Option<TextUse>) -> Result<Self, PackError> {
        let mut hasher = blake3::Hasher::new();
        let file = File::open(path).map_err(PackError::io("open", path))?;
        hasher.update_reader(file).map_err(PackError::io("read", path))?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { file, content: hasher.into(), text })
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.file, self.content.short())?;
        match &self.text {
            Some(text) => write!(f, ", {text}"),
            None => f.write_str(", text unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_are_of_content_and_of_bytes() {
        let text = b"0123456789".as_slice();
        let seen = TextUse::of("a", text, 2..5);
        let other = |range| TextUse::of("b", text, range);
        assert_eq!(seen.overlap(&other(0..3)), Some(2..3));
        assert_eq!(seen.overlap(&other(4..99)), Some(4..5));
        assert_eq!(other(4..99).to, 10);
        for apart in [0..2, 5..9, 3..3] {
            assert_eq!(seen.overlap(&other(apart)), None);
        }
        assert_eq!(seen.overlap(&TextUse::of("a", b"0123456788", 2..5)), None);
    }
}
