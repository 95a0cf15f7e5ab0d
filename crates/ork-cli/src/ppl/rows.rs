// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is to be evaluated: rows of the command line and of a file.

use std::path::{Path, PathBuf};

use ork_config::Override;
use ork_corpus::{Part, SplitRule};
use serde::Deserialize;

use crate::failure::Failure;

/// The setting that says which pack a model is run from.
const PACK_KEY: &str = "offload.pack";

/// One row of the table: a model file, how it is computed, and what it was calibrated with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// First column.
    pub(crate) name: String,
    /// Model file.
    pub(crate) model: PathBuf,
    /// How the weights are stored and multiplied, in a word; unset: the file's main type.
    pub(crate) scheme: Option<String>,
    /// `npu`, `cpu` or `auto`.
    pub(crate) route: Option<String>,
    /// Pack to run from, as the setting has it.
    pub(crate) pack: Option<String>,
    /// Text that the weights were calibrated with, all of it.
    pub(crate) calibrated: Option<PathBuf>,
    /// Said below the table.
    pub(crate) note: Option<String>,
    /// More settings, `KEY=VALUE`.
    #[serde(default)]
    pub(crate) set: Vec<String>,
}

impl Row {
    /// From `NAME=MODEL[,route=R][,pack=P][,scheme=S][,calibrated=TEXT][,note=N][,KEY=VALUE...]`.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::usage(format!("--row {text}: {why}"));
        let mut fields = text.split(',');
        let (name, model) = fields
            .next()
            .and_then(|first| first.split_once('='))
            .filter(|(name, model)| !name.trim().is_empty() && !model.trim().is_empty())
            .ok_or_else(|| wrong("a row starts with NAME=MODEL"))?;
        let mut row = Self { name: name.trim().into(), model: model.trim().into(), ..Self::default() };
        for field in fields {
            let (key, value) =
                field.split_once('=').ok_or_else(|| wrong("after the model come KEY=VALUE"))?;
            let value = value.trim().to_owned();
            match key.trim() {
                "route" => row.route = Some(value),
                "pack" => row.pack = Some(value),
                "scheme" => row.scheme = Some(value),
                "calibrated" => row.calibrated = Some(value.into()),
                "note" => row.note = Some(value),
                key if key.contains('.') => row.set.push(format!("{key}={value}")),
                key => return Err(wrong(&format!("there is no field {key}"))),
            }
        }
        Ok(row)
    }

    /// The settings that the row replaces.
    pub(crate) fn overrides(&self) -> Result<Vec<Override>, Failure> {
        let origin = || format!("row {}", self.name);
        let named = [("offload.route", &self.route), (PACK_KEY, &self.pack)];
        let mut overrides: Vec<Override> = named
            .into_iter()
            .filter_map(|(key, value)| {
                Some(Override { key: key.into(), value: value.clone()?, origin: origin() })
            })
            .collect();
        for text in &self.set {
            overrides.push(Override { origin: origin(), ..Override::from_set(text)? });
        }
        Ok(overrides)
    }
}

/// A file of rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RowFile {
    /// Heading of the report.
    pub(crate) title: Option<String>,
    /// Said above the table.
    pub(crate) note: Option<String>,
    /// The text.
    pub(crate) text: Option<TextSpec>,
    /// What the rows are compared with.
    pub(crate) reference: Option<Row>,
    /// The rows.
    #[serde(default, rename = "row")]
    pub(crate) rows: Vec<Row>,
}

/// A text and what is taken of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextSpec {
    /// UTF-8 file.
    pub(crate) file: Option<PathBuf>,
    /// Where it is from, and its licence.
    pub(crate) source: Option<String>,
    /// Part of it to evaluate.
    pub(crate) part: Option<Part>,
    /// How it is split.
    pub(crate) rule: Option<SplitRule>,
    /// Tokens of a window.
    pub(crate) context: Option<u32>,
    /// Windows.
    pub(crate) windows: Option<u32>,
}

impl RowFile {
    /// Reads one; paths in it are relative to the working directory.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let wrong =
            |why: String| Failure::usage(format!("cannot read the rows of {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        toml::from_str(&text).map_err(|error| wrong(error.to_string().replace('\n', " ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_command_line() {
        let row =
            Row::parse("W8A8=m/a.gguf, route=npu,scheme=w8a8,driver.verify=product,note=a = b").unwrap();
        let expected = Row {
            name: "W8A8".into(),
            model: "m/a.gguf".into(),
            scheme: Some("w8a8".into()),
            route: Some("npu".into()),
            note: Some("a = b".into()),
            set: vec!["driver.verify=product".into()],
            ..Row::default()
        };
        assert_eq!(row, expected);
        let keys: Vec<String> = row.overrides().unwrap().into_iter().map(|one| one.key).collect();
        assert_eq!(keys, ["offload.route", "driver.verify"]);
        for wrong in ["", "name", "=model", "name=", "a=b,route", "a=b,colour=red"] {
            assert!(Row::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_of_a_file() {
        let file: RowFile = toml::from_str(
            r#"
            title = "t"
            [text]
            file = "a.txt"
            part = "held-out"
            rule = { block_bytes = 100, cycle = 3 }
            [reference]
            name = "F16"
            model = "f16.gguf"
            [[row]]
            name = "one"
            model = "one.gguf"
            set = ["driver.verify=off"]
            "#,
        )
        .unwrap();
        assert_eq!(file.rows.len(), 1);
        let text = file.text.unwrap();
        assert_eq!((text.part, text.rule.map(|rule| rule.cycle)), (Some(Part::HeldOut), Some(3)));
        assert!(toml::from_str::<RowFile>("rows = 3").is_err());
    }
}
