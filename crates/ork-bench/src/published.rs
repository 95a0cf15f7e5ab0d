// SPDX-License-Identifier: MIT OR Apache-2.0
//! Speeds that others measured and published, with their sources (`data/published.toml`).

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::Row;

/// One published row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Name of the model.
    pub model: String,
    /// `general.architecture` of its GGUF.
    pub architecture: String,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub embedding: u32,
    /// What ran it, and the types of weights and activations.
    pub runtime: String,
    /// The chip.
    pub chip: String,
    /// Prefill in tokens per second, if it was published.
    pub prefill: Option<f64>,
    /// Tokens of the prompt, if that was published.
    pub prefill_tokens: Option<u32>,
    /// Decode in tokens per second, if it was published.
    pub decode: Option<f64>,
    /// Who says so.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    row: Vec<Published>,
}

/// All rows; a test reads the file, so there is always something.
#[must_use]
pub fn all() -> &'static [Published] {
    static ROWS: LazyLock<Vec<Published>> = LazyLock::new(|| {
        toml::from_str::<File>(include_str!("../data/published.toml"))
            .map(|file| file.row)
            .unwrap_or_default()
    });
    &ROWS
}

/// The rows of a row's model, known by its shape: files of one model have many names.
pub fn of(row: &Row) -> impl Iterator<Item = &'static Published> {
    let shape = (row.architecture.clone().unwrap_or_default(), row.layers, row.embedding);
    all().iter().filter(move |published| {
        (published.architecture.as_str(), published.layers, published.embedding)
            == (shape.0.as_str(), shape.1, shape.2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_can_be_read_and_says_where_it_is_from() {
        let file: File = toml::from_str(include_str!("../data/published.toml")).unwrap();
        assert_eq!(file.row.len(), all().len());
        for row in all() {
            assert!(!row.source.is_empty() && (row.prefill.is_some() || row.decode.is_some()), "{row:?}");
            assert!(
                row.prefill.is_none_or(|speed| speed > 0.0) && row.decode.is_none_or(|speed| speed > 0.0)
            );
        }
    }
}
