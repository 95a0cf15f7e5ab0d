// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the adders of BS, BN and EW compute (`isa-int4-sdp.md` §3.3).

use crate::diagnosis::{RegisterValue, Site, Stop, unmodelled};
use crate::options::Order;

/// What an adder can do instead of adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algo {
    Max,
    Min,
    Add,
    Div,
    Sub,
    Abs,
    Neg,
}

/// Which adder it is, and on which data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adder {
    Float,
    /// BS or BN.
    IntScale,
    IntEw,
}

/// The smallest int32 is its own negative.
fn negative(value: i64) -> i64 {
    if value == i64::from(i32::MIN) { value } else { value.saturating_neg() }
}

impl Algo {
    pub(crate) fn decode(site: Site, code: u32, adder: Adder, register: RegisterValue) -> Result<Self, Stop> {
        Ok(match code {
            0 => Self::Max,
            1 => Self::Min,
            2 => Self::Add,
            3 if adder == Adder::Float => Self::Div,
            4 => Self::Sub,
            5 if adder == Adder::IntEw => Self::Abs,
            6 if adder == Adder::IntEw => Self::Neg,
            _ => {
                return Err(unmodelled(
                    site,
                    "alu-algo",
                    vec![register],
                    "known programs use maximum, minimum, add, subtract, divide in float, and in EW ABS and NEG of \
                     integers",
                    format!("the code is {code}"),
                    "isa-int4-sdp.md §3.3, §3.4",
                ));
            }
        })
    }

    /// A difference is a sum with the negative of the operand.
    pub(crate) fn int(self, order: Order, a: i64, b: i64) -> i64 {
        match self {
            Self::Sub if order == Order::Reversed => b.saturating_add(negative(a)),
            Self::Max => a.max(b),
            Self::Min => a.min(b),
            Self::Sub => a.saturating_add(negative(b)),
            Self::Abs if a < 0 => negative(a),
            Self::Abs => a,
            Self::Neg => negative(a),
            // Integer division is refused at decode.
            Self::Add | Self::Div => a.saturating_add(b),
        }
    }

    /// The main operand comes first (`isa-int4-sdp.md` §3.3 "SUB and DIV").
    pub(crate) fn float(self, order: Order, a: f32, b: f32) -> f32 {
        match self {
            Self::Div if order == Order::Reversed => b / a,
            Self::Sub if order == Order::Reversed => b - a,
            Self::Max => a.max(b),
            Self::Min => a.min(b),
            Self::Div => a / b,
            Self::Sub => a - b,
            // The unary ones are refused at decode.
            Self::Add | Self::Abs | Self::Neg => a + b,
        }
    }
}
