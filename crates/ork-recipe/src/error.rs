// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_pack::{PackError, TileError};
use ork_quant::{BasisError, GptqError, QuantError, StatisticsError};

use crate::RecipeParseError;

/// Why weights cannot be planned, packed, measured or calibrated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The recipe must know activations that nothing tells about.
    #[error("the scheme `{recipe}` needs {what}")]
    Unknown {
        /// The recipe.
        recipe: String,
        /// What is missing.
        what: &'static str,
    },
    /// What is known does not reach every weight.
    #[error("weight `{weight}`: {what}")]
    Knowledge {
        /// Which weight.
        weight: String,
        /// What is missing or does not fit.
        what: String,
    },
    /// The NPU cannot have this weight in this form.
    #[error("weight `{weight}` cannot be packed as {tier}: {why}")]
    Refused {
        /// Which weight.
        weight: String,
        /// As what.
        tier: String,
        /// The law and its numbers.
        why: String,
    },
    /// There is nothing to pack.
    #[error("the model has no weight that the NPU would take")]
    NoWeights,
    /// A weight cannot be quantised.
    #[error("weight `{weight}`: {source}")]
    Quant {
        /// Which weight.
        weight: String,
        /// Where and why.
        source: QuantError,
    },
    /// A basis cannot be made.
    #[error("weight `{weight}`: {source}")]
    Basis {
        /// Which weight.
        weight: String,
        /// Why.
        source: BasisError,
    },
    /// GPTQ failed.
    #[error("weight `{weight}`: {source}")]
    Gptq {
        /// Which weight.
        weight: String,
        /// Why.
        source: GptqError,
    },
    /// A weight cannot be tiled.
    #[error("weight `{weight}`: {source}")]
    Tile {
        /// Which weight.
        weight: String,
        /// Why.
        source: TileError,
    },
    /// Statistics would take more memory than allowed.
    #[error("statistics of {inputs} inputs take up to {needed} bytes, and {allowed} are allowed")]
    Memory {
        /// Distinct inputs.
        inputs: usize,
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        allowed: u64,
    },
    /// Activations cannot be added.
    #[error("activations of `{weight}`: {source}")]
    Statistics {
        /// Which weight.
        weight: String,
        /// Why.
        source: StatisticsError,
    },
    /// The caller asked to stop. What is finished is kept.
    #[error("stopped after {weights} weights; the same command continues there")]
    Stopped {
        /// Weights that are finished.
        weights: usize,
    },
    /// The recipe contradicts what it comes with.
    #[error(transparent)]
    Recipe(#[from] RecipeParseError),
    /// The file.
    #[error(transparent)]
    Pack(#[from] PackError),
}

impl RecipeError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "run `ork calibrate` on the model and name the file with --stats",
            Self::Knowledge { .. } => {
                "statistics, guide and pack must be of this model and of these settings: name others, or make them again"
            }
            Self::Refused { .. } => "exclude the weight (offload.exclude), or use another scheme",
            Self::NoWeights => "check the model, and the setting offload.exclude",
            Self::Quant { source, .. } => source.hint(),
            Self::Basis { .. } => "the statistics are damaged or of another model: calibrate again",
            Self::Gptq { source, .. } => source.hint(),
            Self::Tile { .. } => "check the weight in the model file",
            Self::Memory { .. } => {
                "raise calibrate.memory_bytes_max, or keep sums only (--collect sums) if no scheme with gptq is planned"
            }
            Self::Statistics { .. } => "the model computes numbers that are not finite: check the model file",
            Self::Stopped { .. } => "run the command again to continue",
            Self::Recipe(_) => "`ork pack --help` lists the schemes and their steps",
            Self::Pack(error) => error.hint(),
        }
    }
}
