// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_isa::soc::Soc;
use serde::Serialize;

use crate::cost::Modelled;
use crate::decide::{Decision, decide_noting};
use crate::laws::Violation;
use crate::plan::microseconds;
use crate::problem::{PlanOptions, Problem};
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
        for note in &self.notes {
            let idea = rules::find(note.rule).map_or("", |rule| rule.idea);
            writeln!(f, "{:<20} {:<26} {}", note.rule, note.scope.to_string(), note.outcome)?;
            writeln!(f, "{:<20} {idea}", "")?;
        }
        match &self.decision {
            Decision::Accept(plan) => write!(f, "{plan}"),
            Decision::Decline(decline) => writeln!(f, "{decline}"),
        }
    }
}
