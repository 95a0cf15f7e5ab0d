// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a driver does and when, told as it happens to whoever listens.
//!
//! Times are of this host, *measured*. What the NPU does meanwhile is not known to the driver; a listener gets the plan
//! and can model it ([`ork_plan::PassShape::timeline`]).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_plan::Plan;

/// What the host does for products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// A call of [`Driver::matmul`](crate::Driver::matmul), the wait for other products included; contains turns and
    /// products.
    Call,
    /// Bringing an activation into the basis of a weight.
    Turn,
    /// One product; contains all phases below.
    Product,
    /// Planning.
    Plan,
    /// Quantising and laying out an activation.
    Quantise,
    /// Making an activation visible to the NPU, or the programs of a pass: up to twice in a pass.
    Flush,
    /// Writing register programs.
    Synthesise,
    /// From submit to completion, with the NPU or its model and the invalidation of results in it.
    Submit,
    /// De-tiling results, adding K slices, applying scales.
    Dequantise,
}

impl Phase {
    /// All phases, outermost first, then in the order in which they begin.
    pub const ALL: [Self; 9] = [
        Self::Call,
        Self::Turn,
        Self::Product,
        Self::Plan,
        Self::Quantise,
        Self::Flush,
        Self::Synthesise,
        Self::Submit,
        Self::Dequantise,
    ];

    /// Whether it contains no other phase.
    #[must_use]
    pub const fn is_leaf(self) -> bool {
        !matches!(self, Self::Call | Self::Product)
    }

    /// Its name in a timeline.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Turn => "turn",
            Self::Product => "product",
            Self::Plan => "plan",
            Self::Quantise => "quantise",
            Self::Flush => "sync",
            Self::Synthesise => "synthesise",
            Self::Submit => "submit and wait",
            Self::Dequantise => "de-tile and scale",
        }
    }
}

/// Something that the host did. A span is told when it ends, so those inside it come first.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// What.
    pub phase: Phase,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// Name of the weight; that of the first for a call.
    pub weight: &'a str,
    /// Rows, channels and columns of the product; a call has the columns of all its weights.
    pub size: (usize, usize, usize),
    /// The pass that was submitted: its plan, and the index of its shape. For [`Phase::Submit`] alone.
    pub pass: Option<(&'a Arc<Plan>, usize)>,
}

impl Span<'_> {
    /// How long it took.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.end - self.start
    }
}

/// Somebody who listens. Called on the thread that multiplies, in the middle of it: be quick.
pub trait Listener: fmt::Debug + Send + Sync {
    /// Something is over.
    fn span(&self, span: &Span<'_>);
}

/// Tells a listener, if there is one, about one product.
pub(crate) struct Teller<'a> {
    pub(crate) listener: Option<&'a dyn Listener>,
    pub(crate) weight: &'a str,
    pub(crate) size: (usize, usize, usize),
}

impl Teller<'_> {
    /// A phase is over; gives how long it took.
    pub(crate) fn lap(&self, phase: Phase, start: Instant) -> Duration {
        self.lap_of(phase, start, None)
    }

    /// The same of a pass.
    pub(crate) fn lap_of(&self, phase: Phase, start: Instant, pass: Option<(&Arc<Plan>, usize)>) -> Duration {
        let end = Instant::now();
        if let Some(listener) = self.listener {
            let &Self { weight, size, .. } = self;
            listener.span(&Span { phase, start, end, weight, size, pass });
        }
        end - start
    }
}
