// SPDX-License-Identifier: MIT OR Apache-2.0
//! A folder that goes when the test ends.

use std::path::PathBuf;

pub(crate) struct Folder(pub(crate) tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
