// SPDX-License-Identifier: MIT OR Apache-2.0
//! Carrying a plan out.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use ork_pack::{NewTensor, Pack, PackError, PackPlan, PackWriter, PackWritten, WriteOptions};
use ork_quant::{
    Basis, ClipReport, ClipRule, Factor, Method, SMOOTH_ALPHA, Scheme, Step, StepKind, smoothing,
};

use crate::tensor::{Aids, channel_max, pack_tensor, smoothed_importance};
use crate::{Choice, Knowledge, ModelPlan, RecipeError, WeightInfo, WeightSource};

/// How far packing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackProgress<'a> {
    /// The weight that is due.
    pub weight: &'a str,
    /// Weights (single numbers) that are packed, and all of them.
    pub done: u64,
    /// All.
    pub total: u64,
}

/// Tensors of one scheme.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemeCount {
    /// Asked for.
    pub asked: usize,
    /// In the finished file.
    pub written: usize,
}

/// What packing has made.
#[derive(Clone, Debug, PartialEq)]
pub struct PackReport {
    /// The files.
    pub written: PackWritten,
    /// Tensors that an earlier, interrupted run had written.
    pub continued: usize,
    /// The census: by scheme, what was asked for and what the finished file holds.
    pub schemes: BTreeMap<String, SchemeCount>,
    /// What the self-tuning clip searches of this run found.
    pub clip: ClipReport,
}

/// Writes a pack, weight by weight, and compares the finished file with the plan. A run that was interrupted is
/// continued, to the same bytes.
///
/// `progress` is told before every weight; `Break` stops there, and what is finished is kept.
///
/// # Errors
/// [`RecipeError`]. Nothing that loads is left behind under the pack's name.
pub fn pack_model(
    source: &dyn WeightSource,
    plan: &ModelPlan,
    pack_plan: &PackPlan,
    knowledge: &Knowledge,
    (path, options): (&Path, WriteOptions),
    progress: &mut dyn FnMut(PackProgress<'_>) -> ControlFlow<()>,
) -> Result<PackReport, RecipeError> {
    let weights = source.weights();
    let mut writer = PackWriter::open(path, pack_plan.clone(), options)?;
    let continued = writer.tensors_written();
    let numbers = |choice: &Choice| u64::from(choice.layout.k()) * u64::from(choice.layout.n());
    let total = plan.choices.iter().map(numbers).sum();
    let mut done = plan.choices.iter().take(continued).map(numbers).sum();
    let mut clip = ClipReport::default();
    let mut packer = Packer { source, plan, knowledge, group: None };
    for (place, choice) in plan.choices.iter().enumerate().skip(continued) {
        let weight = &weights[choice.index];
        if progress(PackProgress { weight: &weight.name, done, total }).is_break() {
            return Err(RecipeError::Stopped { weights: place });
        }
        clip.merge(&packer.write(&mut writer, choice)?);
        source.release(choice.index);
        done += numbers(choice);
    }
    let written = writer.finish()?;
    // The writer has compared what it was given; this compares what a reader finds.
    let pack = Pack::open_any(path)?;
    pack.check(pack_plan)?;
    if pack.plan() != pack_plan.hash().map_err(|error| not_json(path, error))? {
        let what = "it was written by another plan meanwhile".to_owned();
        return Err(PackError::Damaged { path: path.to_owned(), what }.into());
    }
    let mut schemes: BTreeMap<String, SchemeCount> = BTreeMap::new();
    for request in &pack_plan.tensors {
        schemes.entry(request.scheme.to_string()).or_default().asked += 1;
    }
    for entry in pack.entries() {
        schemes.entry(entry.scheme.to_string()).or_default().written += 1;
    }
    Ok(PackReport { written, continued, schemes, clip })
}

fn not_json(path: &Path, error: impl Into<std::io::Error>) -> PackError {
    PackError::Io { doing: "name the plan of", path: path.to_owned(), source: error.into() }
}

struct Packer<'a> {
    source: &'a dyn WeightSource,
    plan: &'a ModelPlan,
    knowledge: &'a Knowledge,
    /// What weights of the same activations share; they lie behind each other in a plan.
    group: Option<Group>,
}

struct Group {
    key: String,
    scheme: Scheme,
    basis: Basis,
    factor: Option<Factor>,
    importance: Option<Vec<f32>>,
}

impl Packer<'_> {
    fn write(&mut self, writer: &mut PackWriter, choice: &Choice) -> Result<ClipReport, RecipeError> {
        let source = self.source;
        let weight = &source.weights()[choice.index];
        let group = self.group_of(choice)?;
        let (basis, aids) =
            (&group.basis, Aids { factor: group.factor.as_ref(), importance: group.importance.as_deref() });
        let plain = basis.steps().is_empty();
        let rows = |row: usize, out: &mut [f32]| {
            source.row(choice.index, row, out);
            if !plain {
                basis.weight_row(out);
            }
        };
        let (tiled, report) = pack_tensor(&weight.name, &choice.layout, &choice.scheme, aids, &rows)?;
        writer.write(&NewTensor {
            scheme: &choice.scheme,
            layout: &tiled.layout,
            basis,
            data: &tiled.data,
            scales: &tiled.scales,
        })?;
        Ok(report)
    }

    fn group_of(&mut self, choice: &Choice) -> Result<&Group, RecipeError> {
        let weight = &self.source.weights()[choice.index];
        let key = self.knowledge.key(weight);
        let kept = self.group.take().filter(|group| {
            (&group.key, &group.scheme) == (&key, &choice.scheme) && group.basis.k() == weight.k
        });
        let group = match kept {
            Some(group) => group,
            None => self.new_group(key, choice, weight)?,
        };
        Ok(self.group.insert(group))
    }

    fn new_group(&self, key: String, choice: &Choice, weight: &WeightInfo) -> Result<Group, RecipeError> {
        let failed = |source| RecipeError::Basis { weight: weight.name.clone(), source };
        let scheme = &choice.scheme;
        let mut steps = Vec::new();
        for kind in &scheme.basis {
            steps.push(match kind {
                StepKind::Smooth => Step::Smooth(self.smoothing(&key, choice, weight)?),
                StepKind::Signs => Step::Signs,
                StepKind::Rotate => Step::Rotate,
            });
        }
        let basis = Basis::new(weight.k, steps).map_err(failed)?;
        let importance = match scheme.clip {
            ClipRule::Importance if scheme.basis.contains(&StepKind::Rotate) => {
                let hessian = self.knowledge.hessian(weight)?.in_basis(&basis);
                Some((0..weight.k).map(|channel| hessian.row(channel)[channel] as f32).collect())
            }
            ClipRule::Importance => Some(smoothed_importance(&self.knowledge.mean_squares(weight)?, &basis)),
            ClipRule::AbsMax | ClipRule::SelfTuning => None,
        };
        let factor = match scheme.method {
            Method::Gptq => {
                let hessian = self.knowledge.hessian(weight)?.in_basis(&basis);
                let failed = |source| RecipeError::Gptq { weight: weight.name.clone(), source };
                Some(Factor::new(hessian).map_err(failed)?)
            }
            Method::Nearest | Method::Stochastic => None,
        };
        Ok(Group { key, scheme: scheme.clone(), basis, factor, importance })
    }

    /// Channel factors of all weights that share these activations and are smoothed: one basis for all of them, so that
    /// the activations are brought into it once.
    fn smoothing(&self, key: &str, choice: &Choice, weight: &WeightInfo) -> Result<Vec<f32>, RecipeError> {
        let weights = self.source.weights();
        let mut max = vec![0f32; weight.k];
        let same = |other: &&Choice| {
            other.scheme == choice.scheme && self.knowledge.key(&weights[other.index]) == key
        };
        for member in self.plan.choices.iter().filter(same) {
            let own = channel_max(weight.k, weights[member.index].n, &|row, out| {
                self.source.row(member.index, row, out);
            });
            max.iter_mut().zip(&own).for_each(|(max, own)| *max = max.max(*own));
        }
        let mean_squares = self.knowledge.mean_squares(weight)?;
        smoothing(&mean_squares, &max, SMOOTH_ALPHA)
            .map_err(|source| RecipeError::Basis { weight: weight.name.clone(), source })
    }
}
