// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every setting of ork, from defaults, file, environment and command line, each with its origin.
//!
//! The libraries expose plain option structs; [`Config`] nests them, and [`OPTIONS`] lists their keys once, with the
//! flag and the help text of each. Precedence, weakest first: defaults, configuration file, environment variables
//! (`ORK_SECTION__KEY`), `--set section.key=value` and named flags. Unknown keys, empty variables and contradictory
//! overrides are errors. `ORK_CONFIG` names the file where no command line does.
//!
//! This is the only crate that reads environment variables.
#![forbid(unsafe_code)]

mod error;
mod layers;
mod options;

pub use error::ConfigError;
pub use layers::{FILE_VARIABLE, Layers, Override};
pub use options::{Config, OPTIONS, Offload, OptionDef, Plugin, PluginLog, PluginReport, RouteKind, option};
