// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_quant::{BasisId, Scheme};

use crate::{Calibration, Pack, SourceId, Target, TensorLayout};

/// One way in which two packs differ; the first pack's side comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// They are for different uses.
    Target(Target, Target),
    /// They were made from different models.
    Source(SourceId, SourceId),
    /// They were calibrated differently; boxed for its size.
    Calibration(Option<Box<Calibration>>, Option<Box<Calibration>>),
    /// They were made by different programs.
    Writer(String, String),
    /// Only the first has it.
    OnlyFirst(String),
    /// Only the second has it.
    OnlySecond(String),
    /// K and N.
    Shape(String, (u32, u32), (u32, u32)),
    /// What was done to it.
    Scheme(String, Scheme, Scheme),
    /// How it is cut.
    Layout(String, TensorLayout, TensorLayout),
    /// Its basis, though the steps are the same: other factors.
    Basis(String, BasisId, BasisId),
    /// Its codes, though all of the above is the same.
    Codes(String),
    /// Its scales, likewise.
    Scales(String),
}

/// Everything in which two packs differ, by their headers: checksums stand for contents.
pub fn diff(first: &Pack, second: &Pack) -> Vec<Difference> {
    let mut found = Vec::new();
    if first.target() != second.target() {
        found.push(Difference::Target(first.target().clone(), second.target().clone()));
    }
    if first.source() != second.source() {
        found.push(Difference::Source(first.source().clone(), second.source().clone()));
    }
    if first.calibration() != second.calibration() {
        let boxed = |pack: &Pack| pack.calibration().cloned().map(Box::new);
        found.push(Difference::Calibration(boxed(first), boxed(second)));
    }
    if first.writer() != second.writer() {
        found.push(Difference::Writer(first.writer().to_owned(), second.writer().to_owned()));
    }
    for one in first.entries() {
        let name = one.name.clone();
        let Some(other) = second.tensor(&one.name).map(|tensor| tensor.entry()) else {
            found.push(Difference::OnlyFirst(name));
            continue;
        };
        if (one.k, one.n) != (other.k, other.n) {
            found.push(Difference::Shape(name, (one.k, one.n), (other.k, other.n)));
        } else if one.scheme != other.scheme {
            found.push(Difference::Scheme(name, one.scheme.clone(), other.scheme.clone()));
        } else if one.layout != other.layout {
            found.push(Difference::Layout(name, one.layout.clone(), other.layout.clone()));
        } else if one.basis != other.basis {
            found.push(Difference::Basis(name, one.basis, other.basis));
        } else {
            if one.data.hash != other.data.hash {
                found.push(Difference::Codes(name.clone()));
            }
            if one.scales.hash != other.scales.hash {
                found.push(Difference::Scales(name));
            }
        }
    }
    let only_second = second.entries().filter(|entry| first.tensor(&entry.name).is_none());
    found.extend(only_second.map(|entry| Difference::OnlySecond(entry.name.clone())));
    found
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(a, b) => write!(f, "for {} / {}, and for {} / {}", a.soc, a.layout, b.soc, b.layout),
            Self::Source(a, b) => {
                write!(
                    f,
                    "from {} ({}), and from {} ({})",
                    a.name,
                    a.content.short(),
                    b.name,
                    b.content.short()
                )
            }
            Self::Calibration(a, b) => {
                let text = |side: &Option<Box<Calibration>>| {
                    side.as_ref().map_or_else(|| "nothing".to_owned(), |side| side.to_string())
                };
                write!(f, "calibrated with {}, and with {}", text(a), text(b))
            }
            Self::Writer(a, b) => write!(f, "by {a}, and by {b}"),
            Self::OnlyFirst(name) => write!(f, "`{name}` only in the first"),
            Self::OnlySecond(name) => write!(f, "`{name}` only in the second"),
            Self::Shape(name, a, b) => write!(f, "`{name}`: {} x {}, and {} x {}", a.0, a.1, b.0, b.1),
            Self::Scheme(name, a, b) => write!(f, "`{name}`: {a}, and {b}"),
            Self::Layout(name, a, b) => {
                let text = |layout: &TensorLayout| format!("{:?} x {}", layout.k_slices, layout.n_padded);
                write!(f, "`{name}`: cut as {}, and as {}", text(a), text(b))
            }
            Self::Basis(name, a, b) => write!(f, "`{name}`: basis {a}, and {b}"),
            Self::Codes(name) => write!(f, "`{name}`: other codes"),
            Self::Scales(name) => write!(f, "`{name}`: other scales"),
        }
    }
}
