// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use ork_isa::Precision;
use ork_isa::soc::Soc;
use ork_layout::{ColumnSegment, FeatureLayout, Format, OutputLayout};
use serde::Serialize;

use crate::cost::{self, Modelled, Work};
use crate::explain::{Note, Outcome, Scope};
use crate::form::Reuse;
use crate::laws::reuse::{self, Placed};
use crate::laws::{self, Bound, Geometry, Violation, address_window, chain_length};
use crate::plan::{Chain, PassShape, Plan, TileProgram};
use crate::problem::{PlanOptions, Problem};
use crate::rules::{
    self, ColumnQuery, FormQuery, Forms, LoopOrder, OrderQuery, Propose, RowQuery, Rule, Status,
};
use crate::tiling::{self, NoTiling, RowTiling};

/// A plan, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// How to compute it.
    Accept(Plan),
    /// Why the NPU is not to be asked; the caller chooses what to do instead.
    Decline(Decline),
}

/// A matmul that the NPU is not to be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
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
    k_slices: Vec<u32>,
    /// Tilings and times found so far; the same few come back for every segment and slice.
    tilings: HashMap<RowQuery, RowTiling>,
    times: HashMap<Work, Modelled>,
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
            k_slices: problem.weight.slices().iter().map(|slice| slice.len).collect(),
            tilings: HashMap::new(),
            times: HashMap::new(),
        })
    }

    fn plan(&mut self, notes: &mut Vec<Note>) -> Result<Plan, Reason> {
        let (m, weight) = (self.problem.m, &self.problem.weight);
        address_window::check("bytes of the weight", weight.bytes())?;
        let slices = u32::try_from(self.k_slices.len()).expect("slices of a 32-bit K");
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
        Ok(Plan {
            m,
            k: weight.k(),
            n: weight.n(),
            format: weight.format(),
            k_slices: slices,
            weight_bytes: weight.bytes(),
            rules: shapes.iter().flat_map(|shape| shape.rules.iter().copied()).collect(),
            shapes,
        })
    }

    /// Rows whose features and results stay below the scratch limit; at least one.
    fn rows_of_a_pass(&self) -> u32 {
        let weight = &self.problem.weight;
        let format = weight.format();
        // int4 batches take every second line of A and every fourth block of C.
        let (a_lines, c_blocks) = if format.input() == Precision::Int4 { (2, 4) } else { (1, 1) };
        let a_row = a_lines * format.input_bytes(weight.k_padded().into());
        let c_row = c_blocks
            * u64::from(weight.n_padded())
            * u64::from(format.output_bytes())
            * self.k_slices.len() as u64;
        let rows = self.options.scratch_bytes_max.min(address_window::BYTES) / a_row.max(c_row);
        u32::try_from(rows).unwrap_or(u32::MAX).clamp(1, self.problem.m)
    }

    fn cores(&self) -> u8 {
        match self.options.cores {
            0 => self.soc.cores,
            some => some.min(self.soc.cores),
        }
    }

    /// The best form of a pass, by modelled time.
    fn shape(&mut self, rows: u32, notes: &mut Vec<Note>) -> Result<PassShape, Reason> {
        let scope = Scope::Pass { rows };
        let k_slices = self.k_slices.clone();
        let query = FormQuery { format: self.problem.weight.format(), rows, k_slices: &k_slices };
        let proposals = self.applying(scope, notes, |rule| match rule.propose {
            Propose::Forms { applies, propose } => Some(applies(&query).map(|()| propose)),
            _ => None,
        });
        let mut best: Option<PassShape> = None;
        let mut refused = None;
        for (rule, propose) in proposals {
            match self.in_form(rule.name, rows, &propose(&query), notes) {
                Ok(shape) => {
                    notes.push(Note { rule: rule.name, scope, outcome: Outcome::Legal(shape.modelled) });
                    if best.as_ref().is_none_or(|best| shape.modelled < best.modelled) {
                        best = Some(shape);
                    }
                }
                Err(reason) => {
                    if let Reason::Law { violation, .. } = &reason {
                        notes.push(Note { rule: rule.name, scope, outcome: Outcome::Refused(*violation) });
                    }
                    refused = refused.or(Some(reason));
                }
            }
        }
        best.ok_or(refused.unwrap_or(Reason::NoRule))
    }

    /// The rules of one stage that apply: the named ones if any does, or the default ones. `ask` gives `None` for rules
    /// of another stage.
    fn applying<P>(
        &self,
        scope: Scope,
        notes: &mut Vec<Note>,
        ask: impl Fn(&Rule) -> Option<Result<P, &'static str>>,
    ) -> Vec<(&'static Rule, P)> {
        let mut among = |rules: &[&'static Rule]| {
            let mut found = Vec::new();
            for &rule in rules {
                match ask(rule) {
                    Some(Ok(proposal)) => found.push((rule, proposal)),
                    Some(Err(reason)) => {
                        let outcome = Outcome::NotApplicable(reason);
                        notes.push(Note { rule: rule.name, scope, outcome });
                    }
                    None => {}
                }
            }
            found
        };
        let named = among(&self.named);
        if named.is_empty() { among(&self.defaults) } else { named }
    }

    /// The first rule of one stage that applies.
    fn taken<P>(
        &self,
        scope: Scope,
        notes: &mut Vec<Note>,
        ask: impl Fn(&Rule) -> Option<Result<P, &'static str>>,
    ) -> Result<(&'static Rule, P), Reason> {
        let first = self.applying(scope, notes, ask).into_iter().next().ok_or(Reason::NoRule)?;
        notes.push(Note { rule: first.0.name, scope, outcome: Outcome::Taken });
        Ok(first)
    }

    /// Columns and order of a pass in one form.
    fn in_form(
        &mut self,
        rule: &'static str,
        rows: u32,
        forms: &Forms,
        notes: &mut Vec<Note>,
    ) -> Result<PassShape, Reason> {
        let weight = &self.problem.weight;
        let mut query = ColumnQuery {
            format: weight.format(),
            kernel_groups: weight.kernel_groups(),
            cores: self.cores(),
            segments: 1,
        };
        let (columns, propose) = self.taken(Scope::Columns, notes, |rule| match rule.propose {
            Propose::Columns { applies, propose } => Some(applies(&query).map(|()| propose)),
            _ => None,
        })?;
        let order_query = OrderQuery { format: weight.format(), form: forms.slices[0].form };
        let (order, loops) = self.taken(Scope::Order, notes, |rule| match rule.propose {
            Propose::Order { applies, order } => Some(applies(&order_query).map(|()| order)),
            _ => None,
        })?;
        let rules = BTreeSet::from([rule, columns.name, order.name]);
        // More segments until each is narrow enough for the laws.
        loop {
            let segments = propose(&query);
            let narrower = segments.iter().flatten().any(|s| s.cols > query.format.kernel_group());
            let noted = notes.len();
            match self.lay_out(rows, segments, forms, loops, rules.clone(), notes) {
                Err(Reason::Law { violation, .. }) if narrower && laws::about_columns(&violation) => {
                    notes.truncate(noted);
                    query.segments = more_segments(query.segments, &violation);
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
        forms: &Forms,
        loops: LoopOrder,
        mut rules: BTreeSet<&'static str>,
        notes: &mut Vec<Note>,
    ) -> Result<PassShape, Reason> {
        let weight = &self.problem.weight;
        let slices = weight.slices().len();
        let cores = u8::try_from(columns.len()).expect("no more shares than cores");
        // Each pair of segment and slice has at least one program: refuse before laying out more than a chain holds.
        for segments in &columns {
            chain_length::check(segments.len() as u64 * slices as u64, self.soc)?;
        }
        let features = FeatureLayout::in_form(weight, rows, forms.features);
        let all: Vec<_> = columns.iter().flatten().copied().collect();
        let k_slices = slices as u32;
        let outputs =
            OutputLayout::in_form(weight.format(), rows, weight.n(), k_slices, all, forms.outputs.clone());
        address_window::check("bytes of the features", features.bytes())?;
        address_window::check("bytes of the output surfaces", outputs.bytes())?;

        let mut chains = Vec::with_capacity(columns.len());
        let mut slowest = Modelled::default();
        let mut segment = 0usize;
        for (core, segments) in columns.iter().enumerate() {
            let mut programs = Vec::new();
            for ColumnSegment { n0, cols } in segments {
                for (index, slice) in weight.slices().iter().enumerate() {
                    let tiles = forms.slices[index];
                    let tiling = self.tiling(
                        RowQuery { format: weight.format(), tiles, k: slice.len, n: *cols, k_slices, cores },
                        notes,
                    )?;
                    rules.insert(tiling.rule);
                    chain_length::check(programs.len() as u64 + u64::from(tiling.count()), self.soc)?;
                    programs.extend(tiling.tiles().map(|(m0, tile_rows, schedule)| TileProgram {
                        form: tiles.form,
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
                        reuse: Reuse::Nothing,
                        a_offset: features.row_offset(index, m0),
                        b_offset: weight.segment_offset(index, *n0),
                        c_offset: outputs.row_offset(segment, index as u32, m0),
                    }));
                }
                segment += 1;
            }
            if loops == LoopOrder::KeepFeatures {
                programs.sort_by_key(|tile| (tile.k_slice, tile.m0, tile.n0));
            }
            let common = |tile: &TileProgram| tile.geometry(weight.format(), k_slices, cores);
            keep_operands(&mut programs, loops, common, self.soc);
            let modelled = self.chain_time(&programs, weight.format(), cores);
            if modelled > slowest {
                slowest = modelled;
            }
            chains.push(Chain { core: core as u8, programs });
        }
        let modelled = cost::submit() + slowest;
        Ok(PassShape { rows, features, outputs, chains, modelled, rules })
    }

    fn chain_time(&mut self, programs: &[TileProgram], format: Format, cores: u8) -> Modelled {
        let time = |tile: &TileProgram| {
            let &TileProgram { form, rows, k, n, split, reuse, .. } = tile;
            let work = Work { format, form, rows, k, n, split, reuse, cores };
            *self.times.entry(work).or_insert_with(|| cost::task(&work, self.soc))
        };
        programs.iter().map(time).sum()
    }

    fn tiling(&mut self, query: RowQuery, notes: &mut Vec<Note>) -> Result<RowTiling, Reason> {
        if let Some(tiling) = self.tilings.get(&query) {
            return Ok(*tiling);
        }
        let ask = |rules: &[&'static Rule], notes: &mut Vec<Note>| {
            tiling::best(rules, &query, self.soc, notes).map_err(|none| match none {
                NoTiling::NoRule => Reason::NoRule,
                NoTiling::Law(rule, violation) => Reason::Law { rule: Some(rule), violation },
            })
        };
        // Named rules take the place of the defaults where they apply.
        let found = match ask(&self.named, notes) {
            Err(Reason::NoRule) => ask(&self.defaults, notes)?,
            other => other?,
        };
        self.tilings.insert(query, found);
        Ok(found)
    }
}

/// Sets the reuse bits wherever the loop order wants them and the laws allow them.
fn keep_operands(
    programs: &mut [TileProgram],
    loops: LoopOrder,
    geometry: impl Fn(&TileProgram) -> Geometry,
    soc: &Soc,
) {
    let placed = |tile: &TileProgram| Placed {
        geometry: geometry(tile),
        a_offset: tile.a_offset,
        b_offset: tile.b_offset,
    };
    for index in 1..programs.len() {
        let (before, task) = (placed(&programs[index - 1]), placed(&programs[index]));
        programs[index].reuse = match loops {
            LoopOrder::KeepWeights if reuse::check_weights(&before, &task, soc).is_ok() => Reuse::Weights,
            LoopOrder::KeepFeatures if reuse::check_features(&before, &task).is_ok() => Reuse::Features,
            _ => Reuse::Nothing,
        };
    }
}

/// The fewest segments that could satisfy a law about columns, by its numbers.
fn more_segments(segments: u32, violation: &Violation) -> u32 {
    let needed = match violation.bound {
        Bound::AtMost(most) => (u64::from(segments) * violation.found).div_ceil(most.max(1)),
        _ => 0,
    };
    u32::try_from(needed).unwrap_or(u32::MAX).max(segments + 1)
}
