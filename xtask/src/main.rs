// SPDX-License-Identifier: MIT OR Apache-2.0
//! Project tasks that need more than cargo: `cargo xtask codegen` rewrites the generated files.
#![expect(clippy::print_stdout, reason = "a command-line tool")]

mod codegen;
#[cfg(test)]
mod references;
#[cfg(test)]
mod tidy;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let task = std::env::args().nth(1);
    match task.as_deref() {
        Some("codegen") => {
            for (path, content) in codegen::generate(&root())? {
                std::fs::create_dir_all(path.parent().expect("generated files lie in a folder"))?;
                std::fs::write(&path, content)?;
                println!("wrote {}", path.display());
            }
            Ok(())
        }
        other => bail!("unknown task {other:?}; tasks: codegen"),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}
