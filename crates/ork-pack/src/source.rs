// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Hash, PackError};

/// Bytes at the start of a model file that a sample always holds: its metadata and list of tensors, or most of it.
const FRONT: u64 = 1 << 20;
/// Windows of a sample, evenly spread.
const WINDOWS: u64 = 64;
/// Bytes of a window.
const WINDOW: u64 = 64 << 10;

/// A quick look at a model file: its size and a hash of its first MiB and of 64 windows of 64 KiB, evenly
/// spread, the last at its end. Cheap enough for every start. It tells models and quantisations apart, not a single
/// changed weight; [`SourceId::content`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSample {
    /// Size of the file.
    pub bytes: u64,
    /// Of the sampled bytes.
    pub hash: Hash,
}

/// What a pack was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceId {
    /// Name of the file, for messages.
    pub name: String,
    /// The quick look.
    pub sample: SourceSample,
    /// Hash of the whole file.
    pub content: Hash,
}

impl SourceSample {
    /// Looks at a file.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn of(path: &Path) -> Result<Self, PackError> {
        let file = File::open(path).map_err(PackError::io("open", path))?;
        let bytes = file.metadata().map_err(PackError::io("read", path))?.len();
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; FRONT as usize];
        let mut add = |offset: u64, length: u64| {
            let window = &mut buffer[..length as usize];
            file.read_exact_at(window, offset).map_err(PackError::io("read", path))?;
            hasher.update(window);
            Ok(())
        };
        add(0, FRONT.min(bytes))?;
        let length = WINDOW.min(bytes);
        for index in 0..WINDOWS {
            // In 128 bits: the product passes 64 for files that do not exist, and must not panic for them.
            let spread = u128::from(bytes - length) * u128::from(index) / u128::from(WINDOWS - 1);
            add(spread as u64, length)?;
        }
        Ok(Self { bytes, hash: hasher.into() })
    }
}

impl SourceId {
    /// Reads a whole model file.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn of(path: &Path) -> Result<Self, PackError> {
        let sample = SourceSample::of(path)?;
        let file = File::open(path).map_err(PackError::io("open", path))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file).map_err(PackError::io("read", path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, sample, content: hasher.into() })
    }
}
