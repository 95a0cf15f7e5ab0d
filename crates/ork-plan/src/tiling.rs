// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the rows of one column segment and K slice are cut: by asking for every number of tiles.

use std::iter::once;

use ork_isa::soc::Soc;

use crate::cost::{self, Modelled, Work};
use crate::explain::{Note, Outcome, Scope};
use crate::form::Reuse;
use crate::laws::{self, Geometry, Violation};
use crate::rules::{Heights, Propose, RowQuery, Rule};
use crate::schedule::Schedule;

/// Tallest tile worth asking for: the row fields of the feature loader have 11 bits.
const HEIGHT_MAX: u32 = 2047;

/// Tiles of one height, and a shorter one if rows are left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowTiling {
    pub(crate) rule: &'static str,
    whole: Tile,
    whole_tiles: u32,
    rest: Option<Tile>,
    modelled: Modelled,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Tile {
    rows: u32,
    schedule: Schedule,
}

impl RowTiling {
    pub(crate) fn count(&self) -> u32 {
        self.whole_tiles + u32::from(self.rest.is_some())
    }

    /// (first row, rows, schedule) of each tile.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = (u32, u32, Schedule)> + '_ {
        let whole =
            (0..self.whole_tiles).map(|i| (i * self.whole.rows, self.whole.rows, self.whole.schedule));
        let rest = self.rest.map(|tile| (self.whole_tiles * self.whole.rows, tile.rows, tile.schedule));
        whole.chain(rest)
    }
}

/// Why no tiling was found.
pub(crate) enum NoTiling {
    /// No rule applies.
    NoRule,
    /// Rules apply, and this is what the laws say of the shortest tile under the first of them.
    Law(&'static str, Violation),
}

/// The legal tiling with the least modelled time among these rules; earlier rules and taller tiles win ties.
pub(crate) fn best(
    rules: &[&'static Rule],
    query: &RowQuery,
    soc: &Soc,
    notes: &mut Vec<Note>,
) -> Result<RowTiling, NoTiling> {
    let scope = Scope::Rows { rows: query.tiles.rows, k: query.k, n: query.n };
    let mut found: Option<RowTiling> = None;
    let mut refused = None;
    for rule in rules {
        let Propose::Rows { applies, propose } = rule.propose else { continue };
        let outcome = match applies(query) {
            Err(reason) => Outcome::NotApplicable(reason),
            Ok(()) => match search(rule.name, query, soc, |rows| propose(query, rows, soc)) {
                Ok(tiling) => {
                    if found.is_none_or(|best| tiling.modelled < best.modelled) {
                        found = Some(tiling);
                    }
                    Outcome::Legal(tiling.modelled)
                }
                Err(violation) => {
                    refused = refused.or(Some((rule.name, violation)));
                    Outcome::Refused(violation)
                }
            },
        };
        notes.push(Note { rule: rule.name, scope, outcome });
    }
    match (found, refused) {
        (Some(tiling), _) => Ok(tiling),
        (None, Some((rule, violation))) => Err(NoTiling::Law(rule, violation)),
        (None, None) => Err(NoTiling::NoRule),
    }
}

/// Asks for every number of tiles, rows shared evenly. A law that holds at one height says nothing of the next, so
/// nothing is bisected.
fn search(
    rule: &'static str,
    query: &RowQuery,
    soc: &Soc,
    schedule: impl Fn(u32) -> Option<Schedule>,
) -> Result<RowTiling, Violation> {
    let tile = |rows: u32| -> Result<Tile, Violation> {
        let schedule = schedule(rows).ok_or(no_schedule(rows))?;
        laws::check(&geometry(query, rows, schedule), soc).map(|()| Tile { rows, schedule })
    };
    let modelled = |tile: &Tile| {
        let &RowQuery { format, tiles, k, n, cores, .. } = query;
        let Tile { rows, schedule } = *tile;
        let work = Work {
            format,
            form: tiles.form,
            rows,
            k,
            n,
            split: schedule.split,
            reuse: Reuse::Nothing,
            cores,
        };
        cost::task(&work, soc)
    };
    let tiling = |height: u32| -> Result<RowTiling, Violation> {
        let (whole_tiles, left) = (query.tiles.rows / height, query.tiles.rows % height);
        let whole = tile(height)?;
        let rest = if left == 0 { None } else { Some(tile(left)?) };
        let total = modelled(&whole) * f64::from(whole_tiles) + rest.iter().map(modelled).sum();
        Ok(RowTiling { rule, whole, whole_tiles, rest, modelled: total })
    };
    let mut found: Option<RowTiling> = None;
    let mut refused = no_schedule(query.tiles.rows);
    for height in heights(query.tiles.heights, query.tiles.rows) {
        match tiling(height) {
            Ok(tiling) if found.is_none_or(|best| tiling.modelled < best.modelled) => found = Some(tiling),
            Ok(_) => {}
            Err(violation) => refused = violation,
        }
    }
    // If nothing is legal, the last height asked for was the least, and its violation is the plainest.
    found.ok_or(refused)
}

/// Heights to ask for, falling.
fn heights(heights: Heights, rows: u32) -> Box<dyn Iterator<Item = u32>> {
    match heights {
        Heights::Any => evenly(rows, 1),
        Heights::MultiplesOf(step) => evenly(rows, step),
        Heights::Exactly(height) => Box::new(once(height.min(rows))),
        Heights::OfTheFold => Box::new(laws::fold::TILES.into_iter().filter(move |size| *size <= rows)),
    }
}

/// For each number of tiles, the least multiple of `step` that needs no more tiles.
fn evenly(rows: u32, step: u32) -> Box<dyn Iterator<Item = u32>> {
    let (steps, most) = (rows.div_ceil(step), HEIGHT_MAX / step);
    let least = move |height: &u32| steps.div_ceil(steps.div_ceil(*height)) == *height;
    Box::new((1..=steps.min(most)).rev().filter(least).map(move |height| rows.min(height * step)))
}

fn no_schedule(rows: u32) -> Violation {
    Violation {
        law: "schedule",
        what: "rows that the rule has no schedule for",
        found: rows.into(),
        bound: laws::Bound::AtMost(0),
    }
}

fn geometry(query: &RowQuery, rows: u32, schedule: Schedule) -> Geometry {
    Geometry {
        format: query.format,
        form: query.tiles.form,
        rows,
        k: query.k,
        n: query.n,
        row_stride: query.n,
        split: schedule.split,
        grains: schedule.grains,
        k_slices: query.k_slices,
        cores: query.cores,
    }
}
