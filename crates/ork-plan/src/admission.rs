// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a weight can be on the NPU at all: the question that is asked before one is packed, loaded or claimed.

use ork_isa::soc::Soc;
use ork_layout::{Format, LayoutError, WeightLayout};

use crate::{Decision, Decline, PlanOptions, Problem, decide, weight_layout_with};

/// Row counts that meet every kind of tile: one row, one odd tile, many tiles.
const ROWS: [u32; 3] = [1, 31, 1025];

/// Why a weight cannot be on the NPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no layout.
    Layout(LayoutError),
    /// Some product of it has no plan.
    Declined(Decline),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Layout(error) => error.fmt(f),
            Self::Declined(decline) => decline.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}

/// The layout of a K x N weight that is multiplied at any number of rows.
///
/// # Errors
/// [`Refusal`]: the weight has no layout, or a product of it has no plan.
pub fn admit(
    format: Format,
    k: usize,
    n: usize,
    soc: &Soc,
    options: &PlanOptions,
) -> Result<WeightLayout, Refusal> {
    // A dimension beyond 32 bits is too large in any case; the layout says so with its numbers.
    let narrow = |dimension: usize| u32::try_from(dimension).unwrap_or(u32::MAX);
    let layout = weight_layout_with(format, narrow(k), narrow(n), soc, options).map_err(Refusal::Layout)?;
    for m in ROWS {
        let problem = Problem { m, weight: layout.clone() };
        if let Decision::Decline(decline) = decide(&problem, soc, options) {
            return Err(Refusal::Declined(decline));
        }
    }
    Ok(layout)
}
