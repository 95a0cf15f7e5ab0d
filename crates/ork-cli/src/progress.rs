// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress on a terminal, nothing in a pipe.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on stderr; indicatif hides it when stderr is no terminal.
pub(crate) fn bar(label: &str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:<18} [{bar:40}] {pos}/{len} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
        .with_style(style)
        .with_message(label.to_owned())
}
