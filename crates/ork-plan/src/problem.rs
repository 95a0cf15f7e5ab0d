// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::soc::Soc;
use ork_layout::{Format, LayoutError, WeightLayout};
use serde::{Deserialize, Serialize};

use crate::explain::{Note, Outcome, Scope};
use crate::rules::{self, Propose, Rule, Status, WeightQuery};

/// A matmul: `C[m][n] = sum over k of A[m][k] * B[k][n]`.
///
/// The layout of `B` is part of the problem, because one packed weight serves every M and no plan may assume another
/// layout than the one in memory. K, N and the precisions are the weight's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Rows of `A` and `C`.
    pub m: u32,
    /// How `B` lies in memory.
    pub weight: WeightLayout,
}

/// What the caller may choose.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlanOptions {
    /// Cores to use at most; 0 means all of the chip. Default 0.
    pub cores: u8,
    /// Upper limit of the feature buffer and of the output buffer, each, in bytes. A matmul that needs more is done
    /// in several passes of fewer rows. The padding rows of cubes (up to 3, in the fold up to 35) come on top. Default
    /// 64 MiB.
    pub scratch_bytes_max: u64,
    /// Names of rules that take the place of the default rules of their stage wherever they apply. Default empty.
    pub rules: Vec<String>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { cores: 0, scratch_bytes_max: 64 << 20, rules: Vec::new() }
    }
}

impl PlanOptions {
    /// The same without the fold, whose programs must not be the first behind a reset.
    #[must_use]
    pub fn without_fold(&self) -> Self {
        let others = self.rules.iter().filter(|rule| !rules::FOLDS.contains(&rule.as_str()));
        Self { rules: others.cloned().chain(["rows".to_owned()]).collect(), ..self.clone() }
    }
}

/// The layout in which a weight is stored when nothing else is asked for.
/// It depends on nothing but the weight and the chip, so that one packed weight serves every M.
///
/// # Errors
/// [`LayoutError`] when the weight is empty or too large to describe.
pub fn weight_layout(format: Format, k: u32, n: u32, soc: &Soc) -> Result<WeightLayout, LayoutError> {
    weight_layout_with(format, k, n, soc, &PlanOptions::default())
}

/// The layout that the first applicable rule of the K-slice stage gives: named rules first, then default rules, and
/// one slice where none applies. Names of no rule are left for [`crate::decide`] to complain about.
///
/// The chip is part of the question, although all known chips give the same answer.
///
/// # Errors
/// As [`weight_layout`].
pub fn weight_layout_with(
    format: Format,
    k: u32,
    n: u32,
    _soc: &Soc,
    options: &PlanOptions,
) -> Result<WeightLayout, LayoutError> {
    let query = weight_query(format, k)?;
    let taken = slicing(&query, options).into_iter().find_map(|(_, lens)| lens.ok());
    WeightLayout::new(format, k, n, &taken.unwrap_or_else(|| vec![query.k]))
}

fn weight_query(format: Format, k: u32) -> Result<WeightQuery, LayoutError> {
    let block = format.channel_block();
    let k = k.checked_next_multiple_of(block).ok_or(LayoutError::TooLarge { value: k, multiple: block })?;
    Ok(WeightQuery { format, k })
}

/// What each rule of the K-slice stage says, named rules first, then default rules; the first slicing is taken.
fn slicing(
    query: &WeightQuery,
    options: &PlanOptions,
) -> Vec<(&'static Rule, Result<Vec<u32>, &'static str>)> {
    let named = options.rules.iter().filter_map(|name| rules::find(name));
    let defaults = rules::TABLE.iter().filter(|rule| rule.status == Status::Default);
    let ask = |rule: &'static Rule| match rule.propose {
        Propose::KSlices { applies, propose } => Some((rule, applies(query).map(|()| propose(query)))),
        _ => None,
    };
    named.chain(defaults).filter_map(ask).collect()
}

/// The rules of the K-slice stage and what became of them.
pub(crate) fn slicing_notes(format: Format, k: u32, options: &PlanOptions) -> Result<Vec<Note>, LayoutError> {
    let mut taken = false;
    let mut notes = Vec::new();
    for (rule, lens) in slicing(&weight_query(format, k)?, options) {
        let outcome = match lens {
            Err(reason) => Outcome::NotApplicable(reason),
            Ok(_) if taken => Outcome::NotAsked("another rule cut K"),
            Ok(_) => Outcome::Taken,
        };
        taken |= outcome == Outcome::Taken;
        notes.push(Note { rule: rule.name, scope: Scope::Weight, outcome });
    }
    Ok(notes)
}
