// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a command fails: one line that says what happened, one that says what to do, and an exit code.

use std::error::Error;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use ork_bench::{FormatError, PlacementError, ReadError};
use ork_config::ConfigError;
use ork_corpus::CorpusError;
use ork_device::OpenError;
use ork_driver::DriverError;
use ork_engine::EngineError;
use ork_ggml::{BackendError, InitError, PackUseError};
use ork_pack::PackError;
use ork_recipe::RecipeError;

/// Exit codes.
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const DEVICE: u8 = 4;

/// Why a command ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something is wrong; `message` has the whole chain of causes.
    Failed {
        /// Exit code.
        code: u8,
        /// What happened.
        message: String,
        /// What to do.
        hint: Option<String>,
    },
    /// The reader of stdout went away: nothing is wrong and nothing is said.
    ClosedStdout,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Failed { code: USAGE, message: message.into(), hint: None }
    }

    fn from_error(code: u8, error: &(dyn Error + 'static), hint: Option<String>) -> Self {
        Self::Failed { code, message: chain(error), hint }
    }

    /// Prints the failure and gives its exit code.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Self::ClosedStdout => ExitCode::SUCCESS,
            Self::Failed { code, message, hint } => {
                let hint = hint.map(|hint| format!(" · hint: {hint}")).unwrap_or_default();
                eprintln!("error: {message}{hint}");
                ExitCode::from(code)
            }
        }
    }
}

/// All causes in one line; a cause that its parent already quotes is not said twice.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let line = cause.to_string();
        if !text.contains(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        next = cause.source();
    }
    text.replace('\n', " ")
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::from_error(USAGE, &error, None)
    }
}

impl From<CorpusError> for Failure {
    fn from(error: CorpusError) -> Self {
        Self::from_error(USAGE, &error, None)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let code = if matches!(error, OpenError::Option { .. }) { USAGE } else { DEVICE };
        let hint = error.hint();
        Self::from_error(code, &error, hint)
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        let hint = error.hint();
        Self::from_error(DEVICE, &error, hint)
    }
}

impl From<PackUseError> for Failure {
    fn from(error: PackUseError) -> Self {
        let hint = error.hint();
        Self::from_error(FAILED, &error, Some(hint))
    }
}

impl From<InitError> for Failure {
    fn from(error: InitError) -> Self {
        Self::from_error(FAILED, &error, None)
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        let hint = error.hint();
        Self::from_error(DEVICE, &error, hint)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let code = if matches!(error, EngineError::InvalidOption { .. }) { USAGE } else { FAILED };
        let hint = error.hint();
        Self::from_error(code, &error, hint)
    }
}

impl From<PlacementError> for Failure {
    fn from(error: PlacementError) -> Self {
        Self::from_error(FAILED, &error, None)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self::from_error(USAGE, &error, None)
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        Self::from_error(FAILED, &error, None)
    }
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Self {
        let hint = Some(error.hint().to_owned());
        Self::from_error(FAILED, &error, hint)
    }
}

impl From<RecipeError> for Failure {
    fn from(error: RecipeError) -> Self {
        let hint = Some(error.hint().to_owned());
        let code = if matches!(error, RecipeError::Recipe(_) | RecipeError::Unknown { .. }) {
            USAGE
        } else {
            FAILED
        };
        Self::from_error(code, &error, hint)
    }
}

/// Writes to stdout and flushes. A closed pipe ends the command quietly.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::ClosedStdout,
        _ => Failure::from_error(FAILED, &error, None),
    })
}
