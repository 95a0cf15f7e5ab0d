// SPDX-License-Identifier: MIT OR Apache-2.0
//! How often each expert of a mixture is chosen, and which of them a budget of memory keeps on the accelerator.
//!
//! `ork moe-skew` measures it and writes the file; the expert cache reads it.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// The only version of the file.
const FORMAT: u32 = 1;

/// Measured use of the experts of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertSkew {
    /// Version of the file: 1.
    pub format: u32,
    /// Name of the model's file.
    pub model: String,
    /// Where the text comes from.
    pub text: String,
    /// Tokens that were evaluated.
    pub tokens: u64,
    /// The layers that have experts.
    #[serde(rename = "layer")]
    pub layers: Vec<LayerSkew>,
}

/// One layer of [`ExpertSkew`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSkew {
    /// Number of the layer.
    pub layer: u32,
    /// Names of the weights that hold its experts.
    pub stacks: Vec<String>,
    /// Bytes of one expert in int8, all stacks together.
    pub expert_bytes: u64,
    /// How often each expert was chosen.
    pub counts: Vec<u64>,
}

/// Why a file of [`ExpertSkew`] cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SkewError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is not such a file.
    #[error("{path} is no file of ork moe-skew: {what}")]
    Format {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// A budget is to be filled and nothing says with what.
    #[error("an expert cache of {bytes} bytes needs to know which experts are used")]
    Unknown {
        /// The budget.
        bytes: u64,
    },
}

impl SkewError {
    /// What the user can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "ork moe-skew -m MODEL -f TEXT -o skew.toml measures it; offload.experts.skew names the file"
    }
}

impl ExpertSkew {
    /// Without any layer yet.
    #[must_use]
    pub fn new(model: String, text: String) -> Self {
        Self { format: FORMAT, model, text, tokens: 0, layers: Vec::new() }
    }

    /// The text of the file.
    #[must_use]
    pub fn to_text(&self) -> String {
        // The struct holds numbers and texts only, which TOML can write; integers are far below its 63 bits.
        toml::to_string(self).unwrap_or_default()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`SkewError::Read`], [`SkewError::Format`].
    pub fn read(path: &Path) -> Result<Self, SkewError> {
        let name = || path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| SkewError::Read { path: name(), source })?;
        Self::parse(&text).map_err(|what| SkewError::Format { path: name(), what })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let skew: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if skew.format != FORMAT {
            return Err(format!("format {}, and this program knows {FORMAT}", skew.format));
        }
        if let Some(layer) =
            skew.layers.iter().find(|layer| layer.counts.is_empty() || layer.expert_bytes == 0)
        {
            return Err(format!("layer {} has no experts", layer.layer));
        }
        Ok(skew)
    }

    /// Bytes of all experts in int8.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.expert_bytes * layer.counts.len() as u64).sum()
    }

    /// How many experts of each layer a budget holds: the same number in every layer, and of what is left one more where it
    /// is used most. (A cache that pins the most used experts of the whole model measured worse elsewhere.)
    #[must_use]
    pub fn kept(&self, budget: u64) -> Vec<usize> {
        let mut kept = vec![0; self.layers.len()];
        let mut left = budget;
        loop {
            let open = |layer: &LayerSkew, kept: usize| kept < layer.counts.len();
            let round: u64 = self
                .layers
                .iter()
                .zip(&kept)
                .filter(|(layer, kept)| open(layer, **kept))
                .map(|(layer, _)| layer.expert_bytes)
                .sum();
            if round == 0 || round > left {
                break;
            }
            left -= round;
            for (layer, kept) in self.layers.iter().zip(&mut kept) {
                *kept += usize::from(open(layer, *kept));
            }
        }
        // Which layers gain most by their next expert.
        let mut next: Vec<(f64, usize)> = self
            .layers
            .iter()
            .enumerate()
            .filter_map(|(index, layer)| {
                let count = *layer.counts.get(*layer.by_use().get(kept[index])?)?;
                Some((count as f64 / layer.chosen().max(1) as f64, index))
            })
            .collect();
        next.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, index) in next {
            if self.layers[index].expert_bytes <= left {
                left -= self.layers[index].expert_bytes;
                kept[index] += 1;
            }
        }
        kept
    }

    /// The experts that a budget keeps, by the name of their stack.
    #[must_use]
    pub fn hot(&self, budget: u64) -> HashMap<String, BTreeSet<usize>> {
        let mut hot = HashMap::new();
        for (layer, kept) in self.layers.iter().zip(self.kept(budget)) {
            let experts: BTreeSet<usize> = layer.by_use().into_iter().take(kept).collect();
            for stack in &layer.stacks {
                hot.insert(stack.clone(), experts.clone());
            }
        }
        hot
    }

    /// Share of all choices that meet an expert which a budget keeps.
    #[must_use]
    pub fn hit_rate(&self, budget: u64) -> f64 {
        let (mut met, mut all) = (0, 0);
        for (layer, kept) in self.layers.iter().zip(self.kept(budget)) {
            met += layer.by_use().into_iter().take(kept).map(|expert| layer.counts[expert]).sum::<u64>();
            all += layer.chosen();
        }
        if all == 0 { 0.0 } else { met as f64 / all as f64 }
    }
}

impl LayerSkew {
    /// Choices in all.
    #[must_use]
    pub fn chosen(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The experts, the most used first; of equals the first.
    #[must_use]
    pub fn by_use(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.counts.len()).collect();
        order.sort_by_key(|&expert| std::cmp::Reverse(self.counts[expert]));
        order
    }

    /// Share of the choices that meet one of the `count` most used experts.
    #[must_use]
    pub fn coverage(&self, count: usize) -> f64 {
        let met: u64 = self.by_use().into_iter().take(count).map(|expert| self.counts[expert]).sum();
        if self.chosen() == 0 { 0.0 } else { met as f64 / self.chosen() as f64 }
    }

    /// Entropy of the choice over that of equal use: 1 when all experts are used alike, 0 when it is always the same one.
    #[must_use]
    pub fn evenness(&self) -> f64 {
        let all = self.chosen() as f64;
        if all == 0.0 || self.counts.len() < 2 {
            return 1.0;
        }
        let shares = self.counts.iter().filter(|count| **count > 0).map(|count| *count as f64 / all);
        let entropy: f64 = shares.map(|share| -share * share.ln()).sum();
        entropy / (self.counts.len() as f64).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skew(layers: &[(u64, &[u64])]) -> ExpertSkew {
        let mut skew = ExpertSkew::new("m.gguf".to_owned(), "a text".to_owned());
        for (layer, (expert_bytes, counts)) in (0..).zip(layers) {
            let stacks = vec![format!("blk.{layer}.up"), format!("blk.{layer}.down")];
            skew.layers.push(LayerSkew {
                layer,
                stacks,
                expert_bytes: *expert_bytes,
                counts: counts.to_vec(),
            });
        }
        skew
    }

    #[test]
    fn a_budget_keeps_the_most_used_of_each_layer() {
        let skew = skew(&[(10, &[1, 7, 2, 0]), (10, &[3, 3, 3, 1])]);
        assert_eq!((skew.bytes(), skew.kept(0), skew.kept(19)), (80, vec![0, 0], vec![1, 0]));
        // What is left after one in each layer goes to the second layer, where the next expert has a larger share.
        assert_eq!(skew.kept(30), [1, 2]);
        let hot = skew.hot(30);
        assert_eq!(hot["blk.0.up"], BTreeSet::from([1]));
        assert_eq!(hot["blk.1.down"], BTreeSet::from([0, 1]));
        assert_eq!(skew.hit_rate(30), 13.0 / 20.0);
        assert_eq!((skew.kept(80), skew.kept(u64::MAX)), (vec![4, 4], vec![4, 4]));
        assert_eq!((skew.hit_rate(0), skew.hit_rate(80)), (0.0, 1.0));
    }

    #[test]
    fn coverage_and_evenness_by_hand() {
        let layer = |counts: &[u64]| skew(&[(1, counts)]).layers.remove(0);
        let skewed = layer(&[0, 6, 2, 0]);
        assert_eq!([0, 1, 2, 4].map(|count| skewed.coverage(count)), [0.0, 0.75, 1.0, 1.0]);
        let entropy = -(0.75 * 0.75f64.ln() + 0.25 * 0.25f64.ln()) / 4f64.ln();
        assert!((skewed.evenness() - entropy).abs() < 1e-12);
        assert!((layer(&[5, 5, 5]).evenness() - 1.0).abs() < 1e-12);
        assert_eq!(layer(&[9, 0]).evenness(), 0.0);
    }

    #[test]
    fn files_are_read_back_and_others_refused() {
        let skew = skew(&[(10, &[1, 7]), (12, &[3, 3])]);
        assert_eq!(ExpertSkew::parse(&skew.to_text()), Ok(skew.clone()));
        let other = skew.to_text().replace("format = 1", "format = 2");
        assert!(ExpertSkew::parse(&other).unwrap_err().contains("format 2"));
        assert!(ExpertSkew::parse("x = 1").is_err());
        let none = skew.to_text().replace("counts = [1, 7]", "counts = []");
        assert!(ExpertSkew::parse(&none).unwrap_err().contains("layer 0"));
    }
}
