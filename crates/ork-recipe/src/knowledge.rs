// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of the activations of weights.

use ork_pack::{Imatrix, PackError, SourceSample, StatisticsFile};
use ork_quant::{Collect, Hessian};

use crate::{Recipe, RecipeError, WeightInfo};

/// What is known of the activations of a model's weights.
#[derive(Debug)]
pub enum Knowledge {
    /// Nothing.
    Nothing,
    /// Statistics of `ork calibrate`.
    Statistics(Box<StatisticsFile>),
    /// An importance matrix of llama.cpp: mean squares only.
    Imatrix(Imatrix),
}

impl Knowledge {
    /// Checks that statistics are of this model and complete.
    ///
    /// # Errors
    /// [`PackError::Mismatch`], [`RecipeError::Unknown`].
    pub fn check_model(&self, recipe: &Recipe, model: &SourceSample) -> Result<(), RecipeError> {
        let Self::Statistics(file) = self else { return Ok(()) };
        let run = file.run();
        if run.model != *model {
            let text =
                |sample: &SourceSample| format!("{} bytes, sample {}", sample.bytes, sample.hash.short());
            return Err(RecipeError::Pack(PackError::Mismatch {
                path: file.path().to_owned(),
                kind: "model",
                found: text(&run.model),
                wanted: text(model),
            }));
        }
        if !file.is_complete() {
            let what =
                "a calibration that is complete; this one was interrupted, and the same command continues it";
            return Err(RecipeError::Unknown { recipe: recipe.to_string(), what });
        }
        Ok(())
    }

    /// Checks that enough is known of a weight, before hours are spent on others.
    pub(crate) fn check(&self, recipe: &Recipe, weight: &WeightInfo) -> Result<(), RecipeError> {
        if !recipe.needs_activations() {
            return Ok(());
        }
        let unknown = |what| Err(RecipeError::Unknown { recipe: recipe.to_string(), what });
        match self {
            Self::Nothing if recipe.needs_hessian() => unknown("statistics with Hessians (--stats)"),
            Self::Nothing => unknown("statistics (--stats) or an importance matrix (--imatrix)"),
            Self::Imatrix(_) if recipe.needs_hessian() => {
                unknown("statistics with Hessians (--stats); an importance matrix has none")
            }
            Self::Imatrix(imatrix) => {
                let entry = imatrix.entries.get(&weight.name);
                let known = entry.and_then(|entry| entry.importance(0)).filter(|sums| sums.len() == weight.k);
                known
                    .map(|_| ())
                    .ok_or_else(|| missing(weight, "the importance matrix has nothing that fits it"))
            }
            Self::Statistics(file) => match file.entry(&weight.name) {
                None => Err(missing(weight, "there are no statistics of it")),
                Some((_, k, _)) if k as usize != weight.k => {
                    Err(missing(weight, "its statistics have another number of channels"))
                }
                Some((_, _, Collect::Sums)) if recipe.needs_hessian() => {
                    Err(missing(weight, "its statistics have no Hessian"))
                }
                Some(_) => Ok(()),
            },
        }
    }

    /// Names the activations of a weight: equal for weights that share them.
    pub(crate) fn key(&self, weight: &WeightInfo) -> String {
        match self {
            Self::Statistics(file) => file.entry(&weight.name).map(|(key, ..)| key.to_owned()),
            Self::Nothing | Self::Imatrix(_) => None,
        }
        .unwrap_or_else(|| weight.name.clone())
    }

    /// Mean squares of the channels.
    pub(crate) fn mean_squares(&self, weight: &WeightInfo) -> Result<Vec<f64>, RecipeError> {
        let found = match self {
            Self::Nothing => None,
            Self::Imatrix(imatrix) => imatrix
                .entries
                .get(&weight.name)
                .and_then(|entry| entry.importance(0))
                .map(|sums| sums.into_iter().map(f64::from).collect()),
            Self::Statistics(file) => file.tensor(&weight.name)?.map(|tensor| tensor.mean_squares()),
        };
        found.ok_or_else(|| missing(weight, "nothing is known of its activations"))
    }

    /// The Hessian.
    pub(crate) fn hessian(&self, weight: &WeightInfo) -> Result<Hessian, RecipeError> {
        let found = match self {
            Self::Nothing | Self::Imatrix(_) => None,
            Self::Statistics(file) => file.tensor(&weight.name)?.and_then(|tensor| tensor.hessian()),
        };
        found.ok_or_else(|| missing(weight, "its statistics have no Hessian"))
    }
}

fn missing(weight: &WeightInfo, what: &str) -> RecipeError {
    RecipeError::Knowledge { weight: weight.name.clone(), what: what.to_owned() }
}
