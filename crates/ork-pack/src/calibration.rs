// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a pack says of its calibration, so that nobody measures on the same text by mistake.

use std::fmt;
use std::fs::File;
use std::path::Path;

use ork_corpus::Origin;
use serde::{Deserialize, Serialize};

use crate::{Hash, PackError};

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
    pub text: Option<Origin>,
}

impl Calibration {
    /// Names a file by its content.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn of(path: &Path, text: Option<Origin>) -> Result<Self, PackError> {
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
