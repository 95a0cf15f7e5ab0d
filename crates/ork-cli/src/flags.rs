// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings as command-line flags, made from the option list.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use ork_config::{Config, Layers, OPTIONS, OptionDef, Override};

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

impl Settings {
    /// Adds the flags of the wanted options.
    fn augment(command: Command, wanted: fn(&OptionDef) -> bool) -> Command {
        let mut command = command.next_help_heading("Settings");
        for option in OPTIONS.iter().filter(|option| wanted(option)) {
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

    /// What the command line says with these flags.
    fn from_flags(matches: &ArgMatches, wanted: fn(&OptionDef) -> bool) -> Result<Self, clap::Error> {
        let named = OPTIONS
            .iter()
            .filter(|option| wanted(option))
            .filter_map(|option| {
                let flag = option.flag?;
                let value = matches.get_one::<String>(option.key)?;
                Some(Override { key: option.key.into(), value: value.clone(), origin: format!("--{flag}") })
            })
            .collect();
        Ok(Self { keyed: Keyed::from_arg_matches(matches)?, named })
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        Self::augment(command, |_| true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_flags(matches, |_| true)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The settings without those of generation, whose flags a benchmark uses for itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineSettings(pub(crate) Settings);

fn is_engine(option: &OptionDef) -> bool {
    !option.key.starts_with("generate.")
}

impl Args for EngineSettings {
    fn augment_args(command: Command) -> Command {
        Settings::augment(command, is_engine)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for EngineSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Settings::from_flags(matches, is_engine).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
