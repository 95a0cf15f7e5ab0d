// SPDX-License-Identifier: MIT OR Apache-2.0
use std::path::PathBuf;

/// The settings do not make a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A key that no option has.
    #[error("{origin}: there is no option {key}{}", nearest.map(|name| format!("; did you mean {name}?")).unwrap_or_default())]
    UnknownKey {
        /// Where it was set.
        origin: String,
        /// The key.
        key: String,
        /// The option whose name is closest, if any is close.
        nearest: Option<&'static str>,
    },
    /// A variable that is set to nothing.
    #[error("environment variable {name} is empty: unset it, or give it a value")]
    EmptyVariable {
        /// The variable.
        name: String,
    },
    /// A variable whose value is not text.
    #[error("environment variable {name} is not valid UTF-8")]
    NotText {
        /// The variable.
        name: String,
    },
    /// `--set` without a value.
    #[error("--set wants key=value, not {text:?}")]
    BadSet {
        /// What was given.
        text: String,
    },
    /// Two overrides of the command line disagree.
    #[error(
        "{first} and {second} contradict each other: one sets {key} to {first_value}, the other to {second_value}"
    )]
    Contradiction {
        /// The key.
        key: &'static str,
        /// First flag.
        first: String,
        /// Its value.
        first_value: String,
        /// Second flag.
        second: String,
        /// Its value.
        second_value: String,
    },
    /// A value has the wrong type or is out of range.
    #[error("{}", describe(.0))]
    Value(Box<figment::Error>),
}

fn describe(error: &figment::Error) -> String {
    let origin =
        error.metadata.as_ref().map_or_else(|| "configuration".into(), |metadata| metadata.name.clone());
    let key = error.path.join(".");
    if key.is_empty() {
        format!("{origin}: {}", error.kind)
    } else {
        format!("{origin}: {key}: {}", error.kind)
    }
}
