// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ork_isa::soc::Soc;
use ork_layout::{ColumnSegment, FeatureLayout, Format, OutputLayout};

use crate::cost::{self, Modelled};
use crate::explain::{Note, Outcome, Scope};
use crate::laws::{self, Violation, address_window, chain_length};
use crate::plan::{Chain, PassShape, Plan, TileProgram};
use crate::problem::{PlanOptions, Problem};
use crate::rules::{self, ColumnQuery, Propose, RowQuery, Rule, Status};
use crate::tiling::{self, NoTiling, RowTiling};

/// A plan, or the reason why there is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// How to compute it.
    Accept(Plan),
    /// Why the NPU is not to be asked; the caller chooses what to do instead.
    Decline(Decline),
}

/// A matmul that the NPU is not to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decline {
    /// Rows.
    pub m: u32,
    /// Channels.
    pub k: u32,
    /// Columns.
    pub n: u32,
    /// Precisions.
    pub format: Format,
    /// Why.
    pub reason: Reason,
}

/// Why a problem is declined.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A law forbids it.
    Law {
        /// The rule whose proposal was refused, if the law speaks of a proposal.
        rule: Option<&'static str>,
        /// The law and its numbers.
        violation: Violation,
    },
    /// No rule speaks of such a matmul.
    NoRule,
    /// The options name a rule that the table does not have.
    UnknownRule(String),
}

impl Decline {
    /// A stable word for counters: the law's name, `no-rule` or `unknown-rule`.
    #[must_use]
    pub fn law(&self) -> &'static str {
        match &self.reason {
            Reason::Law { violation, .. } => violation.law,
            Reason::NoRule => "no-rule",
            Reason::UnknownRule(_) => "unknown-rule",
        }
    }
}

impl fmt::Display for Decline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "matmul {}x{}x{} {} declined: ", self.m, self.k, self.n, self.format)?;
        match &self.reason {
            Reason::Law { rule: Some(rule), violation } => write!(f, "{violation} (rule {rule})"),
            Reason::Law { rule: None, violation } => write!(f, "{violation}"),
            Reason::NoRule => f.write_str("no tiling rule applies"),
            Reason::UnknownRule(name) => {
                write!(f, "there is no rule `{name}`; the rules are")?;
                rules::TABLE.iter().try_for_each(|rule| write!(f, " {}", rule.name))
            }
        }
    }
}

/// Plans a matmul, or says which law forbids it. Pure and deterministic.
#[must_use]
pub fn decide(problem: &Problem, soc: &Soc, options: &PlanOptions) -> Decision {
    decide_noting(problem, soc, options, &mut Vec::new())
}

pub(crate) fn decide_noting(
    problem: &Problem,
    soc: &Soc,
    options: &PlanOptions,
    notes: &mut Vec<Note>,
) -> Decision {
    match Planner::new(problem, soc, options).and_then(|mut planner| planner.plan(notes)) {
        Ok(plan) => Decision::Accept(plan),
        Err(reason) => Decision::Decline(Decline {
            m: problem.m,
            k: problem.weight.k(),
            n: problem.weight.n(),
            format: problem.weight.format(),
            reason,
        }),
    }
}

impl From<Violation> for Reason {
    fn from(violation: Violation) -> Self {
        Self::Law { rule: None, violation }
    }
}

/// One decision in progress.
struct Planner<'a> {
    problem: &'a Problem,
    soc: &'a Soc,
    options: &'a PlanOptions,
    named: Vec<&'static Rule>,
    defaults: Vec<&'static Rule>,
    column_rule: Option<&'static str>,
    /// Tilings found so far, by (rows, K, N); the same few come back for every segment and slice.
    tilings: BTreeMap<(u32, u32, u32), RowTiling>,
}

impl<'a> Planner<'a> {
    fn new(problem: &'a Problem, soc: &'a Soc, options: &'a PlanOptions) -> Result<Self, Reason> {
        let find = |name: &String| rules::find(name).ok_or_else(|| Reason::UnknownRule(name.clone()));
        Ok(Self {
            problem,
            soc,
            options,
            named: options.rules.iter().map(find).collect::<Result<_, _>>()?,
            defaults: rules::TABLE.iter().filter(|rule| rule.status == Status::Default).collect(),
            column_rule: None,
            tilings: BTreeMap::new(),
        })
    }

    fn plan(&mut self, notes: &mut Vec<Note>) -> Result<Plan, Reason> {
        let (m, weight) = (self.problem.m, &self.problem.weight);
        address_window::check("bytes of the weight", weight.bytes())?;
        let slices = u32::try_from(weight.slices().len()).expect("slices of a 32-bit K");
        chain_length::check(slices.into(), self.soc)?;
        if m == 0 {
            return Err(laws::no_rows().into());
        }
        let mut passes = m.div_ceil(self.rows_of_a_pass());
        let (rows, shape) = loop {
            let rows = m.div_ceil(passes);
            match self.shape(rows, notes) {
                Ok(shape) => break (rows, shape),
                // Fewer rows make shorter chains.
                Err(Reason::Law { violation, .. }) if violation.law == chain_length::NAME && rows > 1 => {
                    let fitting =
                        u64::from(passes) * violation.found / u64::from(self.soc.tasks_per_chain_max);
                    // At least a quarter more each time, because the first chain says nothing of the others.
                    let more = fitting.max(u64::from(passes) * 5 / 4 + 1);
                    passes = u32::try_from(more).unwrap_or(m).min(m);
                }
                Err(reason) => return Err(reason),
            }
        };
        let mut shapes = vec![shape];
        let left = m % rows;
        if left != 0 {
            shapes.push(self.shape(left, notes)?);
        }
        let mut rules = BTreeSet::from_iter(self.column_rule);
        for shape in &shapes {
            let programs = shape.chains.iter().flat_map(|chain| &chain.programs);
            rules.extend(
                programs.filter_map(|tile| self.tilings.get(&(shape.rows, tile.k, tile.n))).map(|t| t.rule),
            );
        }
        let rules = rules.into_iter().collect();
        Ok(Plan {
            m,
            k: weight.k(),
            n: weight.n(),
            format: weight.format(),
            k_slices: slices,
            weight_bytes: weight.bytes(),
            shapes,
            rules,
        })
    }

    /// Rows whose features and results stay below the scratch limit; at least one.
    fn rows_of_a_pass(&self) -> u32 {
        let weight = &self.problem.weight;
        let format = weight.format();
        let a_row = u64::from(weight.k_padded()) * u64::from(format.input_bytes());
        let c_row =
            u64::from(weight.n_padded()) * u64::from(format.output_bytes()) * weight.slices().len() as u64;
        let rows = self.options.scratch_bytes_max.min(address_window::BYTES) / a_row.max(c_row);
        u32::try_from(rows).unwrap_or(u32::MAX).clamp(1, self.problem.m)
    }

    fn cores(&self) -> u8 {
        match self.options.cores {
            0 => self.soc.cores,
            some => some.min(self.soc.cores),
        }
    }

    fn shape(&mut self, rows: u32, notes: &mut Vec<Note>) -> Result<PassShape, Reason> {
        let mut query = ColumnQuery {
            format: self.problem.weight.format(),
            kernel_groups: self.problem.weight.kernel_groups(),
            cores: self.cores(),
            segments: 1,
        };
        let mut chosen = None;
        for &rule in self.named.iter().chain(&self.defaults) {
            let Propose::Columns { applies, propose } = rule.propose else { continue };
            match applies(&query) {
                Ok(()) => {
                    notes.push(Note { rule: rule.name, scope: Scope::Columns, outcome: Outcome::Taken });
                    self.column_rule = Some(rule.name);
                    chosen = Some(propose);
                    break;
                }
                Err(reason) => {
                    let outcome = Outcome::NotApplicable(reason);
                    notes.push(Note { rule: rule.name, scope: Scope::Columns, outcome });
                }
            }
        }
        let propose = chosen.ok_or(Reason::NoRule)?;
        // More segments until each is narrow enough for the laws.
        loop {
            let segments = propose(&query);
            let narrower = segments.iter().flatten().any(|s| s.cols > query.format.kernel_group());
            let noted = notes.len();
            match self.lay_out(rows, segments, notes) {
                Err(Reason::Law { violation, .. }) if narrower && about_columns(violation) => {
                    notes.truncate(noted);
                    query.segments += 1;
                }
                outcome => return outcome,
            }
        }
    }

    /// Programs and layouts of a pass with these columns.
    fn lay_out(
        &mut self,
        rows: u32,
        columns: Vec<Vec<ColumnSegment>>,
        notes: &mut Vec<Note>,
    ) -> Result<PassShape, Reason> {
        let weight = &self.problem.weight;
        let slices = weight.slices().len();
        let cores = u8::try_from(columns.len()).expect("no more shares than cores");
        // Each pair of segment and slice has at least one program: refuse before laying out more than a chain holds.
        for segments in &columns {
            chain_length::check(segments.len() as u64 * slices as u64, self.soc)?;
        }
        let features = FeatureLayout::for_weight(weight, rows);
        let all: Vec<_> = columns.iter().flatten().copied().collect();
        let outputs = OutputLayout::new(weight.format(), rows, weight.n(), slices as u32, all);
        address_window::check("bytes of the features", features.bytes())?;
        address_window::check("bytes of the output surfaces", outputs.bytes())?;

        let mut chains = Vec::with_capacity(columns.len());
        let mut slowest = Modelled::default();
        let mut segment = 0usize;
        for (core, segments) in columns.iter().enumerate() {
            let mut programs = Vec::new();
            let mut modelled = Modelled::default();
            for ColumnSegment { n0, cols } in segments {
                for (index, slice) in weight.slices().iter().enumerate() {
                    let tiling = self.tiling(rows, slice.len, *cols, cores, notes)?;
                    modelled = modelled + tiling.modelled;
                    chain_length::check(programs.len() as u64 + u64::from(tiling.count()), self.soc)?;
                    programs.extend(tiling.tiles().map(|(m0, tile_rows, schedule)| TileProgram {
                        m0,
                        rows: tile_rows,
                        k_slice: index as u32,
                        k: slice.len,
                        segment: segment as u32,
                        n0: *n0,
                        n: *cols,
                        row_stride: *cols,
                        split: schedule.split,
                        grains: schedule.grains,
                        a_offset: features.row_offset(index, m0),
                        b_offset: weight.segment_offset(index, *n0),
                        c_offset: outputs.row_offset(segment, index as u32, m0),
                    }));
                }
                segment += 1;
            }
            if modelled > slowest {
                slowest = modelled;
            }
            chains.push(Chain { core: core as u8, programs });
        }
        Ok(PassShape { rows, features, outputs, chains, modelled: cost::submit() + slowest })
    }

    fn tiling(
        &mut self,
        rows: u32,
        k: u32,
        n: u32,
        cores: u8,
        notes: &mut Vec<Note>,
    ) -> Result<RowTiling, Reason> {
        if let Some(tiling) = self.tilings.get(&(rows, k, n)) {
            return Ok(*tiling);
        }
        let weight = &self.problem.weight;
        let query = RowQuery { format: weight.format(), rows, k, n, k_slices: weight.slices().len() as u32 };
        let ask = |rules: &[&'static Rule], notes: &mut Vec<Note>| {
            tiling::best(rules, &query, cores, self.soc, notes).map_err(|none| match none {
                NoTiling::NoRule => Reason::NoRule,
                NoTiling::Law(rule, violation) => Reason::Law { rule: Some(rule), violation },
            })
        };
        // Named rules take the place of the defaults where they apply.
        let found = match ask(&self.named, notes) {
            Err(Reason::NoRule) => ask(&self.defaults, notes)?,
            other => other?,
        };
        self.tilings.insert((rows, k, n), found);
        Ok(found)
    }
}

/// Whether narrower segments could help.
fn about_columns(violation: Violation) -> bool {
    violation.law == laws::COLUMNS
}
