// SPDX-License-Identifier: MIT OR Apache-2.0
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map, Num, Value};
use figment::{Figment, Metadata, Profile, Provider};

use crate::{Config, ConfigError, OPTIONS, OptionDef, option};

/// The variable that names the configuration file where the command line does not.
pub const FILE_VARIABLE: &str = "ORK_CONFIG";
/// Variables of ork that are no options: that one, and the one of the preloaded library.
const NOT_OPTIONS: [&str; 2] = [FILE_VARIABLE, "ORK_SHIM"];

/// A setting given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The option's key.
    pub key: String,
    /// The value as typed.
    pub value: String,
    /// What set it, for messages: `--route`, `--set`.
    pub origin: String,
}

impl Override {
    /// From the argument of `--set`.
    ///
    /// # Errors
    /// [`ConfigError::BadSet`] without a key and a value.
    pub fn from_set(text: &str) -> Result<Self, ConfigError> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => Ok(Self {
                key: key.trim().into(),
                value: value.trim().into(),
                origin: format!("--set {text}"),
            }),
            _ => Err(ConfigError::BadSet { text: text.into() }),
        }
    }
}

/// All layers of settings, merged but not yet interpreted.
#[derive(Debug)]
pub struct Layers {
    figment: Figment,
}

/// One value with its origin, as a layer.
struct Layer {
    origin: String,
    key: &'static str,
    value: Value,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let dict = figment::util::nest(self.key, self.value.clone()).into_dict().unwrap_or_default();
        Ok(Map::from([(Profile::Default, dict)]))
    }
}

impl Layers {
    /// Reads the configuration file, the environment of this process and the overrides.
    ///
    /// `file` must exist if given, or what [`FILE_VARIABLE`] names; otherwise `ork.toml` in the working directory and `ork/ork.toml` in the user's
    /// configuration folder are read where they exist, the former over the latter.
    ///
    /// # Errors
    /// [`ConfigError`].
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn read(file: Option<&Path>, overrides: &[Override]) -> Result<Self, ConfigError> {
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
        let user = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
        let named = std::env::var_os(FILE_VARIABLE).map(PathBuf::from);
        let files = match file.map(Path::to_owned).or(named) {
            Some(file) => vec![file],
            None => {
                let all = [user.map(|folder| folder.join("ork/ork.toml")), Some(PathBuf::from("ork.toml"))];
                all.into_iter().flatten().filter(|path| path.is_file()).collect()
            }
        };
        Self::merge(&files, std::env::vars_os(), overrides)
    }

    /// The same from given files and variables.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn merge(
        files: &[PathBuf],
        variables: impl Iterator<Item = (OsString, OsString)>,
        overrides: &[Override],
    ) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(Config::default()));
        for path in files {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::File { path: path.clone(), source })?;
            let layer = Figment::from(NamedToml { path: path.clone(), text });
            let data = layer.data().map_err(|error| ConfigError::Value(Box::new(error)))?;
            for key in data.get(&Profile::Default).map(leaves).unwrap_or_default() {
                known(&key, &path.display().to_string())?;
            }
            figment = figment.merge(layer);
        }
        let mut layer = Vec::new();
        for (name, value) in variables {
            let Some(rest) = name.to_str().and_then(|name| name.strip_prefix("ORK_")) else { continue };
            let name = format!("ORK_{rest}");
            if NOT_OPTIONS.contains(&name.as_str()) {
                continue;
            }
            let Some(value) = value.to_str() else { return Err(ConfigError::NotText { name }) };
            if value.trim().is_empty() {
                return Err(ConfigError::EmptyVariable { name });
            }
            let key = rest.to_lowercase().replace("__", ".");
            layer.push(Override { key, value: value.to_owned(), origin: name });
        }
        figment = merge_one_layer(figment, &layer)?;
        figment = merge_one_layer(figment, overrides)?;
        Ok(Self { figment })
    }

    /// The settings.
    ///
    /// # Errors
    /// [`ConfigError::Value`] naming key, value and origin.
    pub fn config(&self) -> Result<Config, ConfigError> {
        self.figment.extract().map_err(|error| ConfigError::Value(Box::new(error)))
    }

    /// Every setting with its value and origin, one line each.
    #[must_use]
    pub fn show(&self) -> String {
        let mut out = String::new();
        for option in OPTIONS {
            let value = self.figment.find_value(option.key).ok();
            let origin = self
                .figment
                .find_metadata(option.key)
                .map(|metadata| metadata.name.to_string())
                .filter(|name| !name.contains("ork_config"))
                .unwrap_or_else(|| "default".into());
            let text = match &value {
                None => "(unset)".into(),
                Some(value) => text(value),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{:<40} = {text:<24} # {origin}", option.key);
        }
        out
    }
}

/// The key that a setting is about: without a device, everything stays on the CPU.
fn meant<'k>(key: &'k str, value: &str) -> &'k str {
    if key == DEVICE && value == "cpu" { ROUTE } else { key }
}

const DEVICE: &str = "device.kind";
const ROUTE: &str = "offload.route";

/// Adds settings of equal rank, which may not contradict each other.
fn merge_one_layer(mut figment: Figment, layer: &[Override]) -> Result<Figment, ConfigError> {
    let mut seen: Vec<(&'static str, &Override)> = Vec::new();
    for one in layer {
        let option = known(meant(&one.key, &one.value), &one.origin)?;
        if let Some((key, other)) =
            seen.iter().find(|(key, other)| *key == option.key && other.value != one.value)
        {
            return Err(ConfigError::Contradiction {
                key,
                first: other.origin.clone(),
                first_value: other.value.clone(),
                second: one.origin.clone(),
                second_value: one.value.clone(),
            });
        }
        seen.push((option.key, one));
        let origin = one.origin.clone();
        figment = figment.merge(Layer { origin, key: option.key, value: parse(&one.value) });
    }
    Ok(figment)
}

impl Config {
    /// The settings that differ from the defaults, as `key=value`, in order of their keys.
    #[must_use]
    pub fn changed(&self) -> Vec<String> {
        let (own, defaults) =
            (Figment::from(Serialized::defaults(self)), Figment::from(Serialized::defaults(Self::default())));
        let value = |figment: &Figment, key| figment.find_value(key).ok().as_ref().map(text);
        let mut changed: Vec<String> = OPTIONS
            .iter()
            .filter(|option| value(&own, option.key) != value(&defaults, option.key))
            .map(|option| format!("{}={}", option.key, value(&own, option.key).unwrap_or_default()))
            .collect();
        changed.sort();
        changed
    }
}

/// A TOML file that is called by its path in messages.
struct NamedToml {
    path: PathBuf,
    text: String,
}

impl Provider for NamedToml {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.path.display().to_string())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let mut data = Toml::string(&self.text).data()?;
        for dict in data.values_mut() {
            let Some(Value::Dict(_, device)) = dict.get_mut("device") else { continue };
            let Some(value) = device.get("kind").and_then(Value::as_str).map(str::to_owned) else { continue };
            if meant(DEVICE, &value) != ROUTE {
                continue;
            }
            device.remove("kind");
            let offload = dict.entry("offload".to_owned()).or_insert_with(|| Dict::new().into());
            let Value::Dict(_, offload) = offload else { continue };
            if let Some(other) = offload.get("route").and_then(Value::as_str).filter(|other| *other != value)
            {
                let path = self.path.display();
                let why =
                    format!("{path}: {DEVICE} = {value:?} and {ROUTE} = {other:?} contradict each other");
                return Err(why.into());
            }
            offload.insert("route".to_owned(), value.into());
        }
        Ok(data)
    }
}

/// The option with this key, or the error that names the nearest one.
fn known(key: &str, origin: &str) -> Result<&'static OptionDef, ConfigError> {
    option(key).ok_or_else(|| ConfigError::UnknownKey {
        origin: origin.to_owned(),
        key: key.to_owned(),
        nearest: nearest(key),
    })
}

fn nearest(key: &str) -> Option<&'static str> {
    OPTIONS
        .iter()
        .map(|option| (strsim::jaro_winkler(key, option.key), option.key))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(similarity, _)| *similarity > 0.8)
        .map(|(_, key)| key)
}

/// A value as typed: a TOML value where it reads as one, else a string.
fn parse(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::from(text))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(_, text) => format!("{text:?}"),
        Value::Num(_, Num::F32(float)) => float.to_string(),
        Value::Num(_, num) => match (num.to_i128(), num.to_u128(), num.to_f64()) {
            (Some(integer), ..) => integer.to_string(),
            (_, Some(integer), _) => integer.to_string(),
            (.., float) => float.map_or_else(String::new, |float| float.to_string()),
        },
        Value::Bool(_, flag) => flag.to_string(),
        Value::Array(_, items) => {
            format!("[{}]", items.iter().map(self::text).collect::<Vec<_>>().join(", "))
        }
        Value::Empty(..) => "(unset)".into(),
        other => format!("{other:?}"),
    }
}

/// The dotted keys of all values below `dict`.
fn leaves(dict: &Dict) -> Vec<String> {
    let mut found = Vec::new();
    for (name, value) in dict {
        match value {
            Value::Dict(_, inner) => found.extend(leaves(inner).iter().map(|rest| format!("{name}.{rest}"))),
            _ => found.push(name.clone()),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RouteKind;
    use ork_device::DeviceKind;

    fn merge(variables: &[(&str, &str)], overrides: &[(&str, &str)]) -> Result<Layers, ConfigError> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let overrides: Vec<Override> = overrides
            .iter()
            .map(|(key, value)| Override {
                key: (*key).into(),
                value: (*value).into(),
                origin: format!("--{}", option(key).and_then(|option| option.flag).unwrap_or("set")),
            })
            .collect();
        Layers::merge(&[], variables, &overrides)
    }

    fn message(result: Result<Layers, ConfigError>) -> String {
        result.and_then(|layers| layers.config()).unwrap_err().to_string()
    }

    #[test]
    fn the_list_and_the_tree_have_the_same_keys() {
        let data = Serialized::defaults(Config::default()).data().unwrap();
        let mut tree = leaves(&data[&Profile::Default]);
        tree.sort();
        let mut list: Vec<String> = OPTIONS.iter().map(|option| option.key.to_owned()).collect();
        list.sort();
        assert_eq!(list, tree);
    }

    #[test]
    fn changed_settings_are_those_that_are_no_defaults() {
        assert!(Config::default().changed().is_empty());
        let overrides = [("offload.route", "npu"), ("context.threads", "3"), ("load.mmap", "true")];
        let config = merge(&[], &overrides).unwrap().config().unwrap();
        assert_eq!(config.changed(), ["context.threads=3", "offload.route=\"npu\""], "true is the default");
    }

    #[test]
    fn defaults_are_the_default_configuration() {
        assert_eq!(merge(&[], &[]).unwrap().config().unwrap(), Config::default());
    }

    #[test]
    fn later_layers_win() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ork.toml");
        std::fs::write(
            &file,
            "[generate]\nmax_tokens = 1\n[device]\ncores = 1\n[offload]\nexclude = [\"a*\"]\n",
        )
        .unwrap();
        let variables = [("ORK_GENERATE__MAX_TOKENS".into(), "2".into()), ("PATH".into(), "".into())];
        let overrides = [Override::from_set("generate.max_tokens=3").unwrap()];
        let config = |overrides: &[Override]| {
            Layers::merge(std::slice::from_ref(&file), variables.clone().into_iter(), overrides).unwrap()
        };
        assert_eq!(config(&[]).config().unwrap().generate.max_tokens, 2);
        let layers = config(&overrides);
        let merged = layers.config().unwrap();
        assert_eq!(merged.generate.max_tokens, 3);
        assert_eq!(merged.device.cores, 1);
        assert_eq!(merged.offload.exclude, ["a*"]);
        let shown = layers.show();
        let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        assert!(line("generate.max_tokens").ends_with("# --set generate.max_tokens=3"), "{shown}");
        assert!(line("device.cores").ends_with("ork.toml"), "{shown}");
        assert_eq!(
            line("device.timeout_ms").split_whitespace().collect::<Vec<_>>()[1..],
            ["=", "6000", "#", "default"]
        );
        assert!(line("generate.sampling.top_p").contains("= 0.95 "), "{shown}");
        assert!(line("device.emulated.driver_version").contains("[0, 9, 8]"), "{shown}");
    }

    #[test]
    fn every_kind_of_value_can_be_typed() {
        let config = merge(
            &[("ORK_OFFLOAD__EXCLUDE", "[\"blk.0.*\"]"), ("ORK_LOAD__MMAP", "false")],
            &[
                ("device.kind", "sim"),
                ("device.node", "/dev/dri/card9"),
                ("context.threads", "2"),
                ("generate.sampling.temperature", "0.5"),
                ("device.emulated.driver_version", "[0, 9, 6]"),
            ],
        )
        .unwrap()
        .config()
        .unwrap();
        assert_eq!(config.device.kind, DeviceKind::Sim);
        assert_eq!(config.device.node, Some("/dev/dri/card9".into()));
        assert_eq!(config.context.threads, Some(2));
        assert_eq!(config.generate.sampling.temperature, 0.5);
        assert_eq!(config.device.emulated.driver_version, [0, 9, 6]);
        assert_eq!(config.offload.exclude, ["blk.0.*"]);
        assert!(!config.load.mmap);
    }

    #[test]
    fn mistakes_are_errors_that_name_key_and_origin() {
        let text = message(merge(&[("ORK_DEVICE__CORE", "1")], &[]));
        assert_eq!(text, "ORK_DEVICE__CORE: there is no option device.core; did you mean device.cores?");
        assert!(message(merge(&[("ORK_DEVICE__CORES", " ")], &[])).contains("is empty"));
        let text = message(merge(&[("ORK_DEVICE__CORES", "many")], &[]));
        assert!(text.contains("ORK_DEVICE__CORES: device.cores") && text.contains("many"), "{text}");
        let text = message(merge(&[], &[("offload.route", "gpu")]));
        assert!(text.contains("--route") && text.contains("gpu") && text.contains("npu"), "{text}");
        assert!(matches!(Override::from_set("x"), Err(ConfigError::BadSet { .. })));
        assert!(matches!(Override::from_set("device.cores="), Err(ConfigError::BadSet { .. })));
    }

    #[test]
    fn unknown_keys_of_a_file_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ork.toml");
        std::fs::write(&file, "[device]\ntimeout = 5\n").unwrap();
        let text = message(Layers::merge(&[file], std::iter::empty(), &[]));
        assert!(text.contains("ork.toml") && text.contains("device.timeout_ms"), "{text}");
        let missing = Layers::merge(&[folder.path().join("none.toml")], std::iter::empty(), &[]);
        assert!(message(missing).contains("none.toml"));
    }

    #[test]
    fn device_cpu_means_the_same_in_files_and_variables() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ork.toml");
        let read = |text: &str, variables: &[(&str, &str)]| {
            std::fs::write(&file, text).unwrap();
            let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            Layers::merge(std::slice::from_ref(&file), variables, &[])
        };
        let config = |text, variables: &[(&str, &str)]| read(text, variables).unwrap().config().unwrap();
        for (text, variables) in [
            ("[device]\nkind = \"cpu\"\n", &[][..]),
            ("[device]\nkind = \"cpu\"\n[offload]\nswiglu = \"off\"\n", &[]),
            ("[device]\nkind = \"cpu\"\n[offload]\nroute = \"cpu\"\n", &[]),
            ("[offload]\nroute = \"npu\"\n", &[("ORK_DEVICE__KIND", "cpu")]),
        ] {
            let found = config(text, variables);
            assert_eq!(
                (found.offload.route, found.device.kind),
                (RouteKind::Cpu, DeviceKind::Auto),
                "{text}"
            );
        }
        // A later layer has the last word.
        let found = config("[device]\nkind = \"cpu\"\n", &[("ORK_OFFLOAD__ROUTE", "npu")]);
        assert_eq!(found.offload.route, RouteKind::Npu);
        let text = message(read("[device]\nkind = \"cpu\"\n[offload]\nroute = \"npu\"\n", &[]));
        assert!(text.contains("ork.toml") && text.contains("contradict"), "{text}");
        let text = message(read("", &[("ORK_DEVICE__KIND", "cpu"), ("ORK_OFFLOAD__ROUTE", "npu")]));
        assert!(text.contains("ORK_DEVICE__KIND and ORK_OFFLOAD__ROUTE contradict"), "{text}");
    }

    #[test]
    fn device_cpu_means_route_cpu_and_may_not_contradict_it() {
        let config = merge(&[], &[("device.kind", "cpu")]).unwrap().config().unwrap();
        assert_eq!(config.offload.route, RouteKind::Cpu);
        assert_eq!(config.device.kind, DeviceKind::Auto);
        assert!(merge(&[], &[("device.kind", "cpu"), ("offload.route", "cpu")]).is_ok());
        let text = message(merge(&[], &[("device.kind", "cpu"), ("offload.route", "npu")]));
        assert!(text.contains("--device and --route contradict"), "{text}");
    }
}
