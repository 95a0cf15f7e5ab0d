// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork replay`: does the calls of a trace again and compares what comes out.

use std::fmt::Write;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;

use ork_drm::{Errno, Transport};
use ork_emu::{Board, Coherency, EmuOptions, Soc};
use ork_trace::{Header, Reader, ReplayError, TraceError};

use crate::failure::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct ReplayArgs {
    /// A trace, as `ork capture` writes it
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// At the end, print what silicon would have suffered in silence
    #[arg(long)]
    explain: bool,
}

/// The board that a trace was made on, as far as the emulation has it.
fn board(header: &Header) -> Board {
    let options = EmuOptions {
        // What the program did for the caches is in the trace, and has to be enough.
        coherency: Coherency::Strict,
        soc: match &header.soc[..] {
            "rk3576" => Soc::Rk3576,
            "rk3566" | "rk3568" => Soc::Rk3568,
            _ => Soc::Rk3588,
        },
        ..EmuOptions::default()
    };
    let version = header.driver_version.map(|part| u32::try_from(part).unwrap_or(0));
    let driver_version = if header.driver == "rknpu" { version } else { options.driver_version };
    Board::new(&EmuOptions { driver_version, ..options })
}

fn failed(path: &std::path::Path, error: &ReplayError) -> Failure {
    let code = if matches!(error, ReplayError::Trace(_) | ReplayError::Driver(_)) { 2 } else { 1 };
    let mut message = format!("{}: {error}", path.display());
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        // Writing to a string cannot fail.
        let _ = write!(message, ": {next}");
        cause = next.source();
    }
    Failure::Failed { code, message, hint: error.hint().map(Into::into) }
}

pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let path = &args.trace;
    let fail = |error: TraceError| failed(path, &error.into());
    let file = File::open(path).map_err(|error| fail(error.into()))?;
    let mut reader = Reader::new(BufReader::new(file)).map_err(fail)?;
    let header = reader.header().clone();
    let board = board(&header);
    let rocket = header.driver == "rocket";
    let open = || -> Result<Arc<dyn Transport>, Errno> {
        Ok(if rocket { Arc::new(board.open_rocket()) } else { Arc::new(board.open()) })
    };
    let report = ork_trace::replay(&mut reader, &open).map_err(|error| failed(path, &error))?;

    let mut text = String::new();
    let [major, minor, patch] = header.driver_version;
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(format!("recorded   {} {major}.{minor}.{patch}, {}", header.driver, header.program.join(" ")));
    line(format!(
        "replayed   {} calls, {} of them submits; {} calls need no replay",
        report.calls, report.submits, report.skipped
    ));
    line(format!("compared   {} bytes", report.compared_bytes));
    if !report.complete {
        line("warning    the program was killed: the trace ends early".into());
    }
    for difference in &report.differences {
        line(format!("difference {difference}"));
    }
    line(match report.difference_count {
        0 => "equal".into(),
        count => format!("{count} differences"),
    });
    print(&text)?;
    if args.explain {
        for finding in board.take_findings() {
            eprintln!("ork: {finding}");
        }
    }
    match report.difference_count {
        0 => Ok(()),
        count => Err(Failure::Failed {
            code: 1,
            message: format!("the replay differs from the trace in {count} places"),
            hint: None,
        }),
    }
}
