// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of the backend: plain values, no reads of the world.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Who multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Route {
    /// Weights are on the accelerator *and* readable by the CPU: many rows (prefill) go to the NPU, few rows (decode)
    /// to the CPU. Costs the model's size in host memory.
    Auto {
        /// Rows of the activation from which the NPU takes a matmul.
        #[serde(default = "Route::default_min_rows")]
        min_rows: u32,
    },
    /// Weights are on the accelerator only: every matmul of a claimed weight runs there, whatever its rows.
    Npu,
    /// Nothing is claimed; weights of models loaded from now on go to the CPU's own buffers.
    Cpu,
}

impl Route {
    /// Threshold of [`Route::Auto`] unless configured.
    pub const DEFAULT_MIN_ROWS: u32 = 32;

    fn default_min_rows() -> u32 {
        Self::DEFAULT_MIN_ROWS
    }
}

impl Default for Route {
    fn default() -> Self {
        Self::Auto { min_rows: Self::DEFAULT_MIN_ROWS }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto { min_rows } => write!(f, "auto (npu from {min_rows} rows)"),
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
