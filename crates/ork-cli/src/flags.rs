// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings as command-line flags, made from the option list.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use ork_config::{Config, Layers, OPTIONS, Override};

use crate::failure::Failure;

/// Settings by key, for commands that have few of them.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Keyed {
    /// Set any setting by its key; `ork config` lists them
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Read settings from this file
    #[arg(long = "config", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Keyed {
    fn layers(&self, mut overrides: Vec<Override>) -> Result<Layers, Failure> {
        for text in &self.sets {
            overrides.push(Override::from_set(text)?);
        }
        Ok(Layers::read(self.file.as_deref(), &overrides)?)
    }

    /// The settings.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        Ok(self.layers(Vec::new())?.config()?)
    }
}

/// What the command line says about settings: by key, and by the flags that some of them have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    keyed: Keyed,
    named: Vec<Override>,
}

impl Settings {
    /// All layers.
    pub(crate) fn layers(&self) -> Result<Layers, Failure> {
        self.keyed.layers(self.named.clone())
    }

    /// The settings.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        Ok(self.layers()?.config()?)
    }

    /// The settings with some of them replaced.
    pub(crate) fn config_with(&self, replaced: &[Override]) -> Result<Config, Failure> {
        let mut settings = self.clone();
        let kept = |key: &str| !replaced.iter().any(|one| one.key == key);
        settings.named.retain(|one| kept(&one.key));
        settings.keyed.sets.retain(|text| text.split_once('=').is_none_or(|(key, _)| kept(key.trim())));
        settings.named.extend_from_slice(replaced);
        settings.config()
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        let mut command = command.next_help_heading("Settings");
        for option in OPTIONS {
            let Some(flag) = option.flag else { continue };
            let mut arg = Arg::new(option.key)
                .long(flag)
                .help(option.help)
                .value_name(option.value)
                .allow_negative_numbers(true);
            // A word in capitals stands for values of its kind.
            let open = option.value.split('|').any(|word| word.chars().all(|c| c.is_ascii_uppercase()));
            if option.value.contains('|') && !open {
                arg = arg.value_parser(PossibleValuesParser::new(option.value.split('|')));
            }
            if let Some(short) = option.short {
                arg = arg.short(short);
            }
            command = command.arg(arg);
        }
        Keyed::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.keyed = Keyed::from_arg_matches(matches)?;
        self.named = OPTIONS
            .iter()
            .filter_map(|option| {
                let flag = option.flag?;
                let value = matches.get_one::<String>(option.key)?;
                Some(Override { key: option.key.into(), value: value.clone(), origin: format!("--{flag}") })
            })
            .collect();
        Ok(())
    }
}
