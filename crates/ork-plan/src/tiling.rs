// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the rows of one column segment and K slice are cut: by asking for every number of tiles.

use ork_isa::soc::Soc;

use crate::cost::{self, Modelled, Work};
use crate::explain::{Note, Outcome, Scope};
use crate::laws::{self, Geometry, Violation};
use crate::rules::{Propose, RowQuery, Rule};
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
    pub(crate) modelled: Modelled,
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
    /// Rules apply, and this is what the laws say of one row under the first of them.
    Law(&'static str, Violation),
}

/// The legal tiling with the least modelled time among these rules; earlier rules and taller tiles win ties.
pub(crate) fn best(
    rules: &[&'static Rule],
    query: &RowQuery,
    cores: u8,
    soc: &Soc,
    notes: &mut Vec<Note>,
) -> Result<RowTiling, NoTiling> {
    let scope = Scope::Rows { rows: query.rows, k: query.k, n: query.n };
    let mut found: Option<RowTiling> = None;
    let mut refused = None;
    for rule in rules {
        let Propose::Rows { applies, propose } = rule.propose else { continue };
        let outcome = match applies(query) {
            Err(reason) => Outcome::NotApplicable(reason),
            Ok(()) => match search(rule.name, query, cores, soc, |rows| propose(query, rows, soc)) {
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
    cores: u8,
    soc: &Soc,
    schedule: impl Fn(u32) -> Option<Schedule>,
) -> Result<RowTiling, Violation> {
    let tile = |rows: u32| -> Result<Tile, Violation> {
        let schedule = schedule(rows).ok_or(no_schedule(rows))?;
        laws::check(&geometry(query, rows, schedule), soc).map(|()| Tile { rows, schedule })
    };
    let modelled = |tile: &Tile| {
        let Tile { rows, schedule } = *tile;
        let split = schedule.split;
        cost::task(&Work { format: query.format, rows, k: query.k, n: query.n, split, cores }, soc)
    };
    let tiling = |height: u32| -> Result<RowTiling, Violation> {
        let (whole_tiles, left) = (query.rows / height, query.rows % height);
        let whole = tile(height)?;
        let rest = if left == 0 { None } else { Some(tile(left)?) };
        let total = modelled(&whole) * f64::from(whole_tiles) + rest.iter().map(modelled).sum();
        Ok(RowTiling { rule, whole, whole_tiles, rest, modelled: total })
    };
    // The least height of its number of tiles.
    let even = |height: &u32| query.rows.div_ceil(query.rows.div_ceil(*height)) == *height;
    let mut found: Option<RowTiling> = None;
    let mut refused = no_schedule(query.rows);
    for height in (1..=query.rows.min(HEIGHT_MAX)).rev().filter(even) {
        match tiling(height) {
            Ok(tiling) if found.is_none_or(|best| tiling.modelled < best.modelled) => found = Some(tiling),
            Ok(_) => {}
            Err(violation) => refused = violation,
        }
    }
    // If nothing is legal, the last height asked for was one row, and its violation is the plainest.
    found.ok_or(refused)
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
        rows,
        k: query.k,
        n: query.n,
        row_stride: query.n,
        split: schedule.split,
        grains: schedule.grains,
        k_slices: query.k_slices,
    }
}
