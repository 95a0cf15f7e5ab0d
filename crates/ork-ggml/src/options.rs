// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of the backend: plain values, no reads of the world.

use ork_quant::Codebook;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// Who multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Route {
    /// Weights are on the accelerator *and* readable by the CPU, and each matmul goes to the one that is modelled to be
    /// faster: as a rule many rows (prefill) to the NPU, few rows (decode) to the CPU. Costs the model's size in host memory.
    Auto {
        /// Which matmuls the NPU takes.
        #[serde(default)]
        min_rows: MinRows,
    },
    /// Weights are on the accelerator only: every matmul of a claimed weight runs there, whatever its rows.
    Npu,
    /// Nothing is claimed; weights of models loaded from now on go to the CPU's own buffers.
    Cpu,
}

/// Which matmuls [`Route::Auto`] gives to the NPU. As text `by-cost`, or a number of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MinRows {
    /// Those that are modelled to be faster there (docs/routing.md). For accelerators without a model:
    /// [`MinRows::WITHOUT_MODEL`] rows.
    #[default]
    ByCost,
    /// Those where each matrix meets so many rows or more: all rows of the activation, or of an expert those that it
    /// is expected to be chosen for.
    Rows(u32),
}

impl MinRows {
    /// The rows that are enough for an accelerator that has no model of its time.
    pub const WITHOUT_MODEL: u32 = 32;
    const BY_COST: &str = "by-cost";
}

impl fmt::Display for MinRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByCost => f.write_str(Self::BY_COST),
            Self::Rows(rows) => write!(f, "{rows}"),
        }
    }
}

impl Serialize for MinRows {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::ByCost => serializer.serialize_str(Self::BY_COST),
            Self::Rows(rows) => serializer.serialize_u32(*rows),
        }
    }
}

impl<'de> Deserialize<'de> for MinRows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(WordOrNumber { word: Self::BY_COST })? {
            None => Ok(Self::ByCost),
            Some(rows) => u32::try_from(rows).map(Self::Rows).map_err(D::Error::custom),
        }
    }
}

/// A value that is one word, `None`, or a number.
struct WordOrNumber {
    word: &'static str,
}

impl Visitor<'_> for WordOrNumber {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` or a number", self.word)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        if text == self.word { Ok(None) } else { Err(E::invalid_value(Unexpected::Str(text), &self)) }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Some(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        u64::try_from(number).map(Some).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// Which experts of a mixture are on the accelerator. As text `all`, or the bytes that they may take there in int8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExpertCache {
    /// Every one, as every other weight.
    #[default]
    All,
    /// As many as these bytes hold, the most used of each layer; the others are multiplied by on the CPU, by four-bit codes.
    /// Those on the accelerator have the same codes then, so that results do not depend on where an expert is.
    Bytes(u64),
}

impl ExpertCache {
    const ALL: &str = "all";
}

impl fmt::Display for ExpertCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str(Self::ALL),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl Serialize for ExpertCache {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str(Self::ALL),
            Self::Bytes(bytes) => serializer.serialize_u64(*bytes),
        }
    }
}

impl<'de> Deserialize<'de> for ExpertCache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = deserializer.deserialize_any(WordOrNumber { word: Self::ALL })?;
        Ok(found.map_or(Self::All, Self::Bytes))
    }
}

/// The four-bit codes of experts, where there is an expert cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpertCodes {
    /// The sixteen levels of NF4.
    #[default]
    Nf4,
    /// Integers from -7 to 7.
    Int4,
}

impl ExpertCodes {
    pub(crate) fn codebook(self) -> Codebook {
        match self {
            Self::Nf4 => Codebook::Nf4,
            Self::Int4 => Codebook::Uniform,
        }
    }
}

/// Where the experts of a mixture live.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpertOptions {
    /// Which are on the accelerator.
    pub cache: ExpertCache,
    /// A file of `ork moe-skew`, which says which experts are used most; a cache of more than 0 bytes needs it.
    pub skew: Option<PathBuf>,
    /// Codes of experts where there is a cache and the pack has none.
    pub codes: ExpertCodes,
}

/// Who computes the SwiGLU between the products of a feed-forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Swiglu {
    /// llama.cpp's CPU backend, after both products.
    Off,
    /// This backend, where both products are its own: `silu(gate)` by the host's threads while the accelerator computes
    /// `up`.
    #[default]
    Overlap,
}

/// Who computes products of two computed matrices: those of attention with the keys and values of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// The CPU.
    #[default]
    Off,
    /// The accelerator, where it is modelled to be faster although the matrix is quantised and tiled for the one product.
    ByCost,
    /// The accelerator, whenever it can.
    On,
}

impl Default for Route {
    fn default() -> Self {
        Self::Auto { min_rows: MinRows::ByCost }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto { min_rows: MinRows::ByCost } => f.write_str("auto (by cost)"),
            Self::Auto { min_rows: MinRows::Rows(rows) } => write!(f, "auto (npu from {rows} rows)"),
            Self::Npu => f.write_str("npu"),
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

/// What to do with weights in plain CPU buffers, which this backend did not pack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignWeights {
    /// Leave them to the CPU.
    #[default]
    Decline,
    /// Pack them for each call and drop the packed copy afterwards. Slow; for ggml's own backend test, which keeps
    /// all its tensors in plain buffers. Nothing is cached, so nothing can go stale.
    PackPerCall,
}

/// Options of an [`crate::OrkBackend`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackendOptions {
    /// Who multiplies; can be changed later by [`crate::OrkBackend::set_route`].
    pub route: Route,
    /// Weights never to claim, by name; `*` stands for any run of characters (`blk.0.*`, `*.ffn_down.weight`).
    pub exclude: Vec<String>,
    /// Weights in plain CPU buffers.
    pub foreign_weights: ForeignWeights,
    /// Experts of mixtures.
    pub experts: ExpertOptions,
    /// SwiGLU.
    pub swiglu: Swiglu,
    /// Products of two computed matrices.
    pub attention: Attention,
}

impl BackendOptions {
    /// The first exclusion pattern that matches `name`.
    pub(crate) fn exclusion(&self, name: &str) -> Option<&str> {
        self.exclude.iter().map(String::as_str).find(|pattern| matches(pattern, name))
    }
}

/// `*` matches any run of characters, everything else itself.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let yes = [
            ("output.weight", "output.weight"),
            ("*", "anything"),
            ("blk.0.*", "blk.0.ffn_up.weight"),
            ("*.ffn_down.weight", "blk.12.ffn_down.weight"),
            ("blk.*.attn_*.weight", "blk.3.attn_q.weight"),
            ("a*a", "aa"),
        ];
        let no = [
            ("output.weight", "output.weight2"),
            ("output.weight", "output"),
            ("blk.0.*", "blk.10.ffn_up.weight"),
            ("blk.*.attn_*.weight", "blk.3.ffn_up.weight"),
            ("a*a", "a"),
            ("", "x"),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern, text), "{pattern} should match {text}");
        }
        for (pattern, text) in no {
            assert!(!matches(pattern, text), "{pattern} should not match {text}");
        }
    }
}
