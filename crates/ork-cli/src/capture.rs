// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork capture`: records what a program says to the NPU driver.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::emulate::{BoardArgs, ProgramArgs, Session, end_as};
use crate::failure::Failure;

#[derive(clap::Args)]
pub(crate) struct CaptureArgs {
    /// The trace; an existing file is replaced
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Record on the emulated board instead of this machine's
    #[arg(long)]
    emulate: bool,
    #[command(flatten)]
    board: BoardArgs,
    #[command(flatten)]
    program: ProgramArgs,
}

pub(crate) fn run(args: &CaptureArgs) -> Result<(), Failure> {
    let emulation = if args.emulate { Some(args.board.emulation()?) } else { None };
    let unusable =
        |error: std::io::Error| Failure::usage(format!("cannot write {}: {error}", args.output.display()));
    match std::fs::remove_file(&args.output) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(unusable(error)),
        _ => {}
    }
    let mut session = Session::new(emulation)?;
    session.capture(std::path::absolute(&args.output).map_err(unusable)?);
    let status = session.run(&args.program)?;
    session.print(false, false);
    drop(session);
    if !args.output.exists() {
        return Err(Failure::Failed {
            code: 1,
            message: "nothing was recorded: the program has not opened an NPU".into(),
            hint: Some(
                "`ork devices` shows what this machine has; --emulate records on the emulated board".into(),
            ),
        });
    }
    end_as(status)
}
