// SPDX-License-Identifier: MIT OR Apache-2.0
//! The weights of a model file, as the packer wants them.

use std::collections::BTreeMap;
use std::path::Path;

use ork_config::Config;
use ork_engine::{WeightFile, claimed_weights};
use ork_ggml::Survey;
use ork_recipe::{Guide, WeightInfo, WeightSource};

use crate::failure::Failure;

/// Those weights of a model file that the NPU would take.
#[derive(Debug)]
pub(crate) struct ModelWeights {
    file: WeightFile,
    infos: Vec<WeightInfo>,
}

impl ModelWeights {
    /// Asks llama.cpp and the backend which weights those are, and maps the file.
    pub(crate) fn open(path: &Path, config: &Config) -> Result<Self, Failure> {
        let survey = Survey::new(config.driver.clone());
        let claimed = claimed_weights(path, survey, &config.offload.exclude)?;
        let file = WeightFile::open(path)?;
        let mut infos = Vec::with_capacity(claimed.len());
        for weight in claimed {
            let matrix = file.matrix(&weight.name);
            let Some(matrix) = matrix.filter(|found| (found.k(), found.n()) == (weight.k, weight.n)) else {
                return Err(Failure::Failed {
                    code: 1,
                    message: format!(
                        "{}: llama.cpp makes `{}` of {} x {} from other tensors of the file",
                        path.display(),
                        weight.name,
                        weight.k,
                        weight.n
                    ),
                    hint: Some("exclude it: --set offload.exclude='[\"NAME\"]'".to_owned()),
                });
            };
            let info = matrix.info();
            infos.push(WeightInfo {
                type_name: info.type_name.to_owned(),
                bits_per_weight: bits(info.bytes, &info.sizes),
                name: weight.name,
                k: weight.k,
                n: weight.n,
            });
        }
        Ok(Self { file, infos })
    }

    /// What is to be said of a source that lost precision already.
    pub(crate) fn quantised_note(&self) -> Option<String> {
        let mut types: BTreeMap<&str, usize> = BTreeMap::new();
        for info in self.infos.iter().filter(|info| info.bits_per_weight < 16.0) {
            *types.entry(&info.type_name).or_default() += 1;
        }
        let list: Vec<String> = types.iter().map(|(name, count)| format!("{count} {name}")).collect();
        (!list.is_empty()).then(|| {
            format!(
                "note: {} of {} weights are quantised in the model file already ({}); no pack can be better than it",
                types.values().sum::<usize>(),
                self.infos.len(),
                list.join(", ")
            )
        })
    }
}

impl WeightSource for ModelWeights {
    fn weights(&self) -> &[WeightInfo] {
        &self.infos
    }

    fn row(&self, index: usize, row: usize, out: &mut [f32]) {
        // `open` has found every one of them.
        if let Some(matrix) = self.file.matrix(&self.infos[index].name) {
            matrix.row(row, out);
        }
    }

    fn release(&self, index: usize) {
        self.file.release(&self.infos[index].name);
    }
}

/// A model file as a guide to which weights deserve more bits.
pub(crate) fn guide(path: &Path) -> Result<Guide, Failure> {
    let tensors = ork_engine::inspect(path)?.directory;
    Ok(Guide::new(tensors.into_iter().map(|tensor| {
        let bits = bits(tensor.bytes, &tensor.sizes);
        (tensor.name, tensor.type_name.to_owned(), bits)
    })))
}

fn bits(bytes: u64, sizes: &[u64]) -> f64 {
    bytes as f64 * 8.0 / sizes.iter().product::<u64>().max(1) as f64
}
