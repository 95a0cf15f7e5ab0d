// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this library prints, all of it to standard error: the log, and the report when the program ends.
#![expect(clippy::print_stderr, reason = "an artefact: it has no caller that could print for it")]

use std::error::Error;
use std::sync::{Arc, OnceLock};

use ork_config::{PluginLog, PluginReport};
use ork_ggml::OrkBackend;
use tracing::level_filters::LevelFilter;

/// Prints a failure with its causes.
pub(crate) fn complain(error: &dyn Error) {
    let mut text = format!("ork: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    eprintln!("{text}");
}

/// Sends the libraries' log events to standard error.
pub(crate) fn log_to_stderr(log: PluginLog) {
    let level = match log {
        PluginLog::Off => LevelFilter::OFF,
        PluginLog::Error => LevelFilter::ERROR,
        PluginLog::Warn => LevelFilter::WARN,
        PluginLog::Info => LevelFilter::INFO,
        PluginLog::Debug => LevelFilter::DEBUG,
        PluginLog::Trace => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_ansi(false)
        .without_time()
        .finish();
    // Only a second call could fail, and there is none: the caller runs once.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// What is printed when the program ends.
static AT_EXIT: OnceLock<(Arc<OrkBackend>, PluginReport)> = OnceLock::new();

/// Asks for a report when the program ends.
pub(crate) fn at_exit(backend: &Arc<OrkBackend>, report: PluginReport) {
    if report == PluginReport::Off || AT_EXIT.set((Arc::clone(backend), report)).is_err() {
        return;
    }
    // SAFETY: the function stays mapped (see build.rs) and does not unwind.
    if unsafe { libc::atexit(print_report) } != 0 {
        tracing::warn!("no report: the C library takes no more functions to call at exit");
    }
}

extern "C" fn print_report() {
    let printed = std::panic::catch_unwind(|| {
        let Some((backend, report)) = AT_EXIT.get() else { return };
        let census = backend.census();
        eprint!("ork report\n{census}");
        if *report == PluginReport::Table {
            eprint!("{}\n{}", census.table(), census.route_table());
        }
    });
    // A closed standard error is no reason to abort a program that is ending well.
    drop(printed);
}
