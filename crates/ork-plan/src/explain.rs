// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_isa::soc::Soc;
use ork_layout::LayoutError;
use serde::Serialize;

use crate::cost::Modelled;
use crate::decide::{Decision, decide_noting};
use crate::laws::Violation;
use crate::plan::microseconds;
use crate::problem::{PlanOptions, Problem, slicing_notes, weight_layout_with};
use crate::product::{HostWork, Lowered, Product};
use crate::rules;

/// What a rule was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// The weight's K slices, which were chosen when it was packed.
    Weight,
    /// The form of a pass.
    Pass {
        /// Rows of the pass.
        rows: u32,
    },
    /// The column split.
    Columns,
    /// The order of a core's tiles.
    Order,
    /// The row tiling of one kind of column segment and K slice.
    Rows {
        /// Rows of the pass.
        rows: u32,
        /// Channels of the slice.
        k: u32,
        /// Columns of the segment.
        n: u32,
    },
}

/// What became of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It does not speak of this case.
    NotApplicable(&'static str),
    /// It was not asked.
    NotAsked(&'static str),
    /// Its proposal breaks a law.
    Refused(Violation),
    /// Its proposal is legal; among several the least modelled time wins.
    Legal(#[serde(serialize_with = "microseconds")] Modelled),
    /// Its proposal was taken without comparison.
    Taken,
}

/// One rule in one place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Note {
    /// Name of the rule.
    pub rule: &'static str,
    /// What it was asked about.
    pub scope: Scope,
    /// What became of it.
    pub outcome: Outcome,
}

/// A decision with the reasons for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// What was decided.
    pub decision: Decision,
    /// Every rule of the table at least once, in the order in which they were considered.
    pub notes: Vec<Note>,
}

/// A product with how it is brought down to one matmul of the NPU, and that matmul explained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProductExplanation {
    /// What was asked for.
    pub product: Product,
    /// Rows of the product.
    pub m: u32,
    /// Channels.
    pub k: u32,
    /// Columns of the product.
    pub n: u32,
    /// What of it the NPU computes, and what the host.
    pub lowered: Lowered,
    /// The NPU's part.
    #[serde(flatten)]
    pub explanation: Explanation,
}

/// Explains a whole product: everything that `ork plan --explain` prints.
///
/// # Errors
/// [`LayoutError`] when the weight is empty or too large to describe.
pub fn explain_product(
    product: Product,
    (m, k, n): (u32, u32, u32),
    soc: &Soc,
    options: &PlanOptions,
) -> Result<ProductExplanation, LayoutError> {
    let lowered = product.lower(k);
    let weight = weight_layout_with(lowered.format, k, n.saturating_mul(lowered.columns), soc, options)?;
    let problem = Problem { m: m.saturating_mul(lowered.rows), weight };
    let mut explanation = explain(&problem, soc, options);
    let mut notes = slicing_notes(lowered.format, k, options)?;
    explanation.notes.retain(|note| notes.iter().all(|own| own.rule != note.rule));
    notes.append(&mut explanation.notes);
    explanation.notes = notes;
    Ok(ProductExplanation { product, m, k, n, lowered, explanation })
}

/// Decides as [`crate::decide`] does, and says for every rule why it was used or not.
#[must_use]
pub fn explain(problem: &Problem, soc: &Soc, options: &PlanOptions) -> Explanation {
    let mut notes = Vec::new();
    let decision = decide_noting(problem, soc, options, &mut notes);
    for rule in rules::TABLE {
        if notes.iter().all(|note| note.rule != rule.name) {
            let scope = match rule.propose {
                rules::Propose::KSlices { .. } => Scope::Weight,
                rules::Propose::Forms { .. } => Scope::Pass { rows: problem.m },
                rules::Propose::Columns { .. } => Scope::Columns,
                rules::Propose::Order { .. } => Scope::Order,
                rules::Propose::Rows { .. } => {
                    Scope::Rows { rows: problem.m, k: problem.weight.k(), n: problem.weight.n() }
                }
            };
            let reason = match (scope, rule.status) {
                (Scope::Weight, _) => "K slices are those of the packed weight",
                (_, rules::Status::Candidate) => "a candidate that the options do not name",
                (_, rules::Status::Default) => "another rule was named, or the problem was declined before",
            };
            notes.push(Note { rule: rule.name, scope, outcome: Outcome::NotAsked(reason) });
        }
    }
    Explanation { decision, notes }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight => f.write_str("weight"),
            Self::Pass { rows } => write!(f, "pass of {rows} rows"),
            Self::Columns => f.write_str("columns"),
            Self::Order => f.write_str("order of tiles"),
            Self::Rows { rows, k, n } => write!(f, "{rows} rows, K {k}, N {n}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotApplicable(reason) => write!(f, "does not apply: {reason}"),
            Self::NotAsked(reason) => write!(f, "not asked: {reason}"),
            Self::Refused(violation) => write!(f, "refused: {violation}"),
            Self::Legal(modelled) => write!(f, "legal, {modelled}"),
            Self::Taken => f.write_str("taken"),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.decision {
            Decision::Accept(plan) => {
                write!(f, "{plan}")?;
                let weight = self.notes.iter().filter(|note| note.scope == Scope::Weight);
                let cut = weight.filter(|note| note.outcome == Outcome::Taken).map(|note| note.rule);
                for rule in cut.chain(plan.rules()).filter_map(rules::find) {
                    writeln!(f, "  {:<20} {}", rule.name, rule.idea)?;
                }
            }
            Decision::Decline(decline) => writeln!(f, "{decline}")?,
        }
        writeln!(f, "rules, in the order in which they were considered:")?;
        let mut said = Vec::new();
        for note in self.notes.iter().filter(|note| !matches!(note.outcome, Outcome::NotAsked(_))) {
            let line = format!("  {:<20} {:<26} {}", note.rule, note.scope.to_string(), note.outcome);
            // The same question comes back for each form and pass.
            if !said.contains(&line) {
                writeln!(f, "{line}")?;
                said.push(line);
            }
        }
        writeln!(f, "rules that were not asked:")?;
        for note in &self.notes {
            if let Outcome::NotAsked(reason) = note.outcome {
                let idea = rules::find(note.rule).map_or("", |rule| rule.idea);
                writeln!(f, "  {:<20} {reason}: {idea}", note.rule)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for ProductExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { product, m, k, n, lowered, explanation } = self;
        writeln!(f, "product {m}x{k}x{n} {product}")?;
        if (lowered.rows, lowered.columns) != (1, 1) {
            writeln!(
                f,
                "as one matmul of {} times the rows and {} times the columns",
                lowered.rows, lowered.columns
            )?;
        }
        if lowered.host != HostWork::Nothing {
            writeln!(f, "then the host {}", lowered.host)?;
        }
        write!(f, "{explanation}")
    }
}
