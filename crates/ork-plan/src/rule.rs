// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a rule is, what it is asked, and what it proposes.

use std::fmt;

use ork_isa::soc::Soc;
use ork_layout::{ColumnSegment, FeatureForm, Format, OutputForm};

use crate::form::Form;
use crate::schedule::Schedule;

/// Whether a rule is used without being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Used wherever it applies.
    Default,
    /// Used only when named.
    Candidate,
}

/// Why a rule does not apply.
pub type Applies = Result<(), &'static str>;

/// The stage of a rule, by its proposal. `applies` gives the reason when it does not.
#[derive(Clone, Copy)]
pub enum Propose {
    /// Lengths of the K slices of a weight.
    KSlices {
        /// Where the rule applies.
        applies: fn(&WeightQuery) -> Applies,
        /// Channels of each slice, together at least K padded.
        propose: fn(&WeightQuery) -> Vec<u32>,
    },
    /// Form of the programs and operands of a pass.
    Forms {
        /// Where the rule applies.
        applies: fn(&FormQuery<'_>) -> Applies,
        /// How everything lies and is cut.
        propose: fn(&FormQuery<'_>) -> Forms,
    },
    /// Column segments of each core.
    Columns {
        /// Where the rule applies.
        applies: fn(&ColumnQuery) -> Applies,
        /// For each core its segments; all together follow each other from column 0.
        propose: fn(&ColumnQuery) -> Vec<Vec<ColumnSegment>>,
    },
    /// Schedule of a tile with a given number of rows.
    Rows {
        /// Where the rule applies.
        applies: fn(&RowQuery) -> Applies,
        /// The schedule of a tile of so many rows.
        propose: fn(&RowQuery, u32, &Soc) -> Option<Schedule>,
    },
    /// Order of the tiles of a core, and what they take from the buffer.
    Order {
        /// Where the rule applies.
        applies: fn(&OrderQuery) -> Applies,
        /// The order.
        order: LoopOrder,
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

/// Asked once per pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormQuery<'a> {
    /// Precisions.
    pub format: Format,
    /// Rows of the pass.
    pub rows: u32,
    /// Channels of each K slice.
    pub k_slices: &'a [u32],
}

/// The form of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forms {
    /// How `A` lies.
    pub features: FeatureForm,
    /// How `C` lies.
    pub outputs: OutputForm,
    /// For each K slice, its programs and the rows that they cover.
    pub slices: Vec<TileForm>,
}

/// The programs of one K slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileForm {
    /// Kind of program.
    pub form: Form,
    /// Rows that the tiles cover, padding included.
    pub rows: u32,
    /// Heights that tiles may have.
    pub heights: Heights,
}

/// Heights of tiles: all but the last have one height, and the last has the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heights {
    /// Any.
    Any,
    /// Multiples of this.
    MultiplesOf(u32),
    /// This one, whatever it costs.
    Exactly(u32),
    /// Those of the fold.
    OfTheFold,
}

/// Asked once per form of a pass, with a growing number of segments until the laws are content.
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
    /// Programs and rows to cut.
    pub tiles: TileForm,
    /// Channels of the slice.
    pub k: u32,
    /// Columns of the segment.
    pub n: u32,
    /// Slices that K is cut into.
    pub k_slices: u32,
    /// Cores that compute at the same time.
    pub cores: u8,
}

/// Asked once per form of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderQuery {
    /// Precisions.
    pub format: Format,
    /// Kind of program of the first K slice.
    pub form: Form,
}

/// Order of the tiles of a core. In each, K slices lie between: the partial surfaces that the host adds together are
/// finished together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoopOrder {
    /// Column segments outermost, rows innermost.
    RowsInnermost,
    /// The same; a tile keeps the weights of the tile before it where the laws let it.
    KeepWeights,
    /// Rows outermost, column segments innermost; a tile keeps the features of the tile before it where the laws let
    /// it.
    KeepFeatures,
}

impl fmt::Debug for Propose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KSlices { .. } => "KSlices",
            Self::Forms { .. } => "Forms",
            Self::Columns { .. } => "Columns",
            Self::Rows { .. } => "Rows",
            Self::Order { .. } => "Order",
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
