// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small files below `/sys`.

use std::path::{Path, PathBuf};

/// The root of a sysfs tree; tests make their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::at("/sys")
    }
}

impl Sysfs {
    /// A tree with this root.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The text of a file without white space around it; `None` if it cannot be read or says nothing.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The number in a file.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Names of the entries of a folder, in the order of their numbers, then of the alphabet.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.root.join(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }
}
