// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of tiling rules.
//!
//! A rule has a stage, says where it applies, and proposes. It holds no hardware limit: each proposal goes through
//! [`crate::laws`], so a rule can be slow but not illegal. To try an idea, add one function and one row with
//! [`Status::Candidate`]; naming it in [`crate::PlanOptions::rules`] selects it.
//!
//! Stages, in order: how K is cut (once per weight), how columns are cut over the cores, how rows are cut and the
//! convolution buffer is split (for each column segment and K slice).

use std::fmt;

use ork_isa::Precision;
use ork_isa::soc::Soc;
use ork_layout::{ColumnSegment, Format};

use crate::schedule::{self, Schedule};

/// Whether a rule is used without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Used wherever it applies.
    Default,
    /// Used only when named.
    Candidate,
}

/// The stage of a rule, by its proposal. `applies` gives the reason when it does not.
#[derive(Clone, Copy)]
pub enum Propose {
    /// Lengths of the K slices of a weight.
    KSlices {
        /// Where the rule applies.
        applies: fn(&WeightQuery) -> Result<(), &'static str>,
        /// Channels of each slice, adding up to K padded.
        propose: fn(&WeightQuery) -> Vec<u32>,
    },
    /// Column segments of each core.
    Columns {
        /// Where the rule applies.
        applies: fn(&ColumnQuery) -> Result<(), &'static str>,
        /// For each core its segments; all together follow each other from column 0.
        propose: fn(&ColumnQuery) -> Vec<Vec<ColumnSegment>>,
    },
    /// Schedule of a tile with a given number of rows.
    Rows {
        /// Where the rule applies.
        applies: fn(&RowQuery) -> Result<(), &'static str>,
        /// The schedule of a tile of so many rows.
        propose: fn(&RowQuery, u32, &Soc) -> Option<Schedule>,
    },
}

/// Asked once per weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightQuery {
    /// Precisions.
    pub format: Format,
    /// K, padded to the channel block.
    pub k: u32,
}

/// Asked once per problem, with a growing number of segments until the laws are content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnQuery {
    /// Precisions.
    pub format: Format,
    /// Kernel groups of N padded.
    pub kernel_groups: u32,
    /// Cores at hand.
    pub cores: u8,
    /// Segments that each core should have.
    pub segments: u32,
}

/// Asked for each different pair of K slice and column segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowQuery {
    /// Precisions.
    pub format: Format,
    /// Rows to cut.
    pub rows: u32,
    /// Channels of the slice.
    pub k: u32,
    /// Columns of the segment.
    pub n: u32,
    /// Slices that K is cut into.
    pub k_slices: u32,
}

impl fmt::Debug for Propose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KSlices { .. } => "KSlices",
            Self::Columns { .. } => "Columns",
            Self::Rows { .. } => "Rows",
        })
    }
}

/// One row of the table.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Name for options, plans and declines.
    pub name: &'static str,
    /// The idea in one line.
    pub idea: &'static str,
    /// Whether it is used without being asked for.
    pub status: Status,
    /// Where the idea comes from.
    pub source: &'static str,
    /// Stage, domain and proposal.
    pub propose: Propose,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({})", self.name)
    }
}

/// All rules. Within a stage, earlier rows win ties.
pub const TABLE: &[Rule] = &[
    Rule {
        name: "full-k",
        idea: "K up to 4096 is one slice: no partial results for the host to add",
        status: Status::Default,
        source: "log: one submit per row tile over the full K removed the second slice's accumulation; isa.md §10.3",
        propose: Propose::KSlices {
            applies: |q| {
                int8(q.format)?;
                if q.k <= FULL_K { Ok(()) } else { Err("K is above 4096") }
            },
            propose: |q| vec![q.k],
        },
    },
    Rule {
        name: "slices-of-1024",
        idea: "deeper K is cut into slices of 1024 whose partial results the host adds",
        status: Status::Default,
        source: "log: of the slices 512, 896, 1024, 1184, 2048 and 4736 at K = 18944, 1024 is the fastest by 30 to 60 %; \
                 isa.md §12.3",
        propose: Propose::KSlices {
            applies: |q| {
                int8(q.format)?;
                if q.k > FULL_K { Ok(()) } else { Err("K is at most 4096") }
            },
            propose: |q| slices(q.k, 1024),
        },
    },
    Rule {
        name: "full-k-one-row",
        idea: "a weight that hardly ever meets more than one row keeps its whole K in one slice",
        status: Status::Candidate,
        source: "isa.md §10.4: M = 1 in one submit up to K = 10752. Not a default: beyond 4096 it \
                 serves other M only row by row",
        propose: Propose::KSlices { applies: |q| int8(q.format), propose: |q| vec![q.k] },
    },
    Rule {
        name: "even-columns",
        idea: "every core gets the same share of kernel groups and reads the whole A",
        status: Status::Default,
        source: "isa.md §2.7, captured: split by output columns in multiples of the kernel group",
        propose: Propose::Columns { applies: |_| Ok(()), propose: even_columns },
    },
    Rule {
        name: "one-core",
        idea: "all columns on one core",
        status: Status::Candidate,
        source: "log: small matmuls lost on three cores before the host's cache maintenance was bounded",
        propose: Propose::Columns {
            applies: |_| Ok(()),
            propose: |q| even_columns(&ColumnQuery { cores: 1, ..*q }),
        },
    },
    Rule {
        name: "one-row",
        idea: "decode, and the last resort for deep K: one row, one feature bank, all others for the weight stream",
        status: Status::Default,
        source: "isa.md §10.4: M = 1 works for any K tried (to 10752) with 0x1040 = 0xB1 and 0x1010 = 0x20",
        propose: Propose::Rows {
            applies: |q| int8(q.format),
            propose: |_, rows, soc| (rows == 1).then(|| schedule::single_row(soc)),
        },
    },
    Rule {
        name: "schedule-1",
        idea: "tall tiles: the split gives up weight banks for each further 64 rows",
        status: Status::Default,
        source: "isa.md §10.3: always used by the original for int8 with K a multiple of 512 up to 4096",
        propose: Propose::Rows {
            applies: |q| {
                int8(q.format)?;
                if q.k.is_multiple_of(512) { Ok(()) } else { Err("K is not a multiple of 512") }
            },
            propose: |q, rows, soc| Some(schedule::schedule_1(q.format, q.k, rows, soc)),
        },
    },
    Rule {
        name: "capacity",
        idea: "other K: just enough feature banks for the tile, the rest for weights",
        status: Status::Default,
        source: "isa.md §6 and §11: recipe 1 and the fold split this way; §10.2 for the rounding of rows",
        propose: Propose::Rows {
            applies: |q| {
                int8(q.format)?;
                if q.k.is_multiple_of(512) { Err("K is a multiple of 512") } else { Ok(()) }
            },
            propose: |q, rows, soc| schedule::by_capacity(q.format, q.k, rows, soc),
        },
    },
    Rule {
        name: "capacity-everywhere",
        idea: "the capacity split at multiples of 512 too: short tiles keep room for two kernel groups, so that the \
               weight stream overlaps the arithmetic",
        status: Status::Candidate,
        source: "isa.md §12.8: the two-group rule explains why the fold beats the normal form at K = 3584",
        propose: Propose::Rows {
            applies: |q| int8(q.format),
            propose: |q, rows, soc| schedule::by_capacity(q.format, q.k, rows, soc),
        },
    },
];

/// Deepest K that the original ran in one piece with many rows.
const FULL_K: u32 = 4096;

/// The rule of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Rule> {
    TABLE.iter().find(|rule| rule.name == name)
}

fn int8(format: Format) -> Result<(), &'static str> {
    if format.input() == Precision::Int8 && format.output() == Precision::Int32 {
        Ok(())
    } else {
        Err("only int8 operands with int32 results have rules")
    }
}

fn slices(k: u32, len: u32) -> Vec<u32> {
    let mut lens = vec![len; (k / len) as usize];
    lens.extend((!k.is_multiple_of(len)).then_some(k % len));
    lens
}

/// Deals kernel groups to cores, and each core's share to its segments, as evenly as whole groups allow. Cores that
/// would get nothing are left out.
fn even_columns(query: &ColumnQuery) -> Vec<Vec<ColumnSegment>> {
    let width = query.format.kernel_group();
    let mut next = 0;
    deal(query.kernel_groups, u32::from(query.cores))
        .map(|share| {
            deal(share, query.segments)
                .map(|groups| {
                    let segment = ColumnSegment { n0: next, cols: groups * width };
                    next += segment.cols;
                    segment
                })
                .collect()
        })
        .collect()
}

/// `total` in at most `parts` positive shares that differ by at most 1, larger ones first.
fn deal(total: u32, parts: u32) -> impl Iterator<Item = u32> {
    let parts = parts.clamp(1, total.max(1));
    (0..parts).map(move |part| total / parts + u32::from(part < total % parts)).filter(|&share| share > 0)
}
