// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is there against what was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ork_quant::Scheme;

use crate::header::{PackPlan, TensorEntry};
use crate::reader::Pack;

/// One tensor that is not as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discrepancy {
    /// Asked for and not there.
    Missing {
        /// Which tensor.
        name: String,
    },
    /// There and not asked for, or there twice.
    Unasked {
        /// Which tensor.
        name: String,
    },
    /// Another shape.
    Shape {
        /// Which tensor.
        name: String,
        /// K and N asked for.
        asked: (u32, u32),
        /// K and N there.
        found: (u32, u32),
    },
    /// Something else was done to it: the GPTQ that never ran, the promotion that did not happen.
    Scheme {
        /// Which tensor.
        name: String,
        /// What was asked for.
        asked: Scheme,
        /// What was done.
        found: Scheme,
    },
}

impl fmt::Display for Discrepancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name } => write!(f, "`{name}` is missing"),
            Self::Unasked { name } => write!(f, "`{name}` was not asked for"),
            Self::Shape { name, asked, found } => {
                write!(f, "`{name}` is {} x {} and should be {} x {}", found.0, found.1, asked.0, asked.1)
            }
            Self::Scheme { name, asked, found } => write!(f, "`{name}` is {found} and should be {asked}"),
        }
    }
}

/// Every tensor of a pack that is not as the plan asks.
pub fn census(plan: &PackPlan, pack: &Pack) -> Vec<Discrepancy> {
    census_of(plan, pack.entries())
}

pub(crate) fn census_of<'a>(
    plan: &PackPlan,
    entries: impl Iterator<Item = &'a TensorEntry>,
) -> Vec<Discrepancy> {
    let asked: BTreeMap<&str, _> =
        plan.tensors.iter().map(|request| (request.name.as_str(), request)).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.name.clone();
        match asked.get(entry.name.as_str()) {
            Some(_) if !seen.insert(entry.name.as_str()) => found.push(Discrepancy::Unasked { name }),
            None => found.push(Discrepancy::Unasked { name }),
            Some(request) => {
                if (request.k, request.n) != (entry.k, entry.n) {
                    let (asked, found_shape) = ((request.k, request.n), (entry.k, entry.n));
                    found.push(Discrepancy::Shape { name: name.clone(), asked, found: found_shape });
                }
                if request.scheme != entry.scheme {
                    let (asked, found_scheme) = (request.scheme.clone(), entry.scheme.clone());
                    found.push(Discrepancy::Scheme { name, asked, found: found_scheme });
                }
            }
        }
    }
    let missing = asked.keys().filter(|name| !seen.contains(*name));
    found.extend(missing.map(|name| Discrepancy::Missing { name: (*name).to_owned() }));
    found
}
