// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where products go, and the ledger of it: for each shape and number of rows the two modelled times, who was chosen, and
//! why; and afterwards what ran where.

use crate::accelerator::ModelledTime;
use crate::cost;
use crate::options::{MinRows, Route};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Who computes a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Place {
    /// The accelerator.
    Npu,
    /// llama.cpp's CPU backend.
    Cpu,
    /// This backend's own kernel, by weights that it keeps in four bits: experts without room on the accelerator.
    Cold,
    /// The plain loop, for what the accelerator cannot hold.
    Software,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Npu => "npu",
            Self::Cpu => "cpu",
            Self::Cold => "cold",
            Self::Software => "software",
        })
    }
}

/// Why a product is computed there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// It is modelled to be the faster one.
    Cost,
    /// By the number of rows that the settings name.
    Rows,
    /// By the number of rows, since the accelerator has no model of its time.
    NoModel,
    /// The route says so, or nobody else can read the weight.
    Route,
    /// It is the other one that cannot: the reason of the decline is in the census.
    Declined,
    /// An expert that was not chosen to be on the accelerator.
    Expert,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cost => "cost",
            Self::Rows => "min_rows",
            Self::NoModel => "no model",
            Self::Route => "route",
            Self::Declined => "declined",
            Self::Expert => "cold expert",
        })
    }
}

/// A product with one matrix that somebody is to compute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Question {
    /// Rows that the matrix meets.
    pub(crate) size: cost::Size,
    pub(crate) stored: cost::Stored,
    /// Modelled time on the accelerator.
    pub(crate) time: Option<ModelledTime>,
    /// Whether the matrix is quantised and tiled for this product alone.
    pub(crate) packed_for_it: bool,
}

/// What a product would cost on either side, and who gets it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Verdict {
    /// Microseconds, if the accelerator has a model.
    pub(crate) npu_us: Option<f64>,
    pub(crate) cpu_us: f64,
    pub(crate) place: Place,
    pub(crate) why: Why,
}

/// Decides about a product that either side could compute.
pub(crate) fn decide(route: Route, question: &Question) -> Verdict {
    let npu_us = question.time.map(|time| {
        let pack = if question.packed_for_it { cost::pack_us(question.size, question.stored) } else { 0.0 };
        cost::npu_us(&time) + pack
    });
    let cpu_us = cost::cpu_us(question.size, question.stored);
    let rows = |least: u32| if question.size.m >= u64::from(least) { Place::Npu } else { Place::Cpu };
    let (place, why) = match (route, npu_us) {
        (Route::Npu, _) => (Place::Npu, Why::Route),
        (Route::Cpu, _) => (Place::Cpu, Why::Route),
        (Route::Auto { min_rows: MinRows::Rows(least) }, _) => (rows(least), Why::Rows),
        (Route::Auto { min_rows: MinRows::ByCost }, None) => (rows(MinRows::WITHOUT_MODEL), Why::NoModel),
        (Route::Auto { min_rows: MinRows::ByCost }, Some(npu)) => {
            (if npu < cpu_us { Place::Npu } else { Place::Cpu }, Why::Cost)
        }
    };
    Verdict { npu_us, cpu_us, place, why }
}

/// A number of rows to within a factor of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowClass(u32);

impl RowClass {
    /// The class of a number of rows.
    #[must_use]
    pub fn of(m: u64) -> Self {
        Self(m.max(1).ilog2())
    }
}

impl fmt::Display for RowClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (1u64 << self.0, (2u64 << self.0) - 1);
        if first == last { f.pad(&first.to_string()) } else { f.pad(&format!("{first}-{last}")) }
    }
}

/// What products are told apart by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RouteKey {
    /// ggml's name of the operation.
    pub op: String,
    /// Kind of weight: its name with every number replaced by `*`.
    pub kind: String,
    /// Type of the weight.
    pub type_name: String,
    /// Elements per row.
    pub k: u64,
    /// Rows of the weight.
    pub n: u64,
    /// Rows that a matrix meets at once.
    pub rows: RowClass,
    /// Who computes.
    pub place: Place,
    /// Why.
    pub why: Why,
}

/// How often, and what it is modelled to cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteUse {
    /// Products that this backend computed. Those of llama.cpp's CPU backend are not seen: zero there.
    pub calls: u64,
    /// Questions while graphs were planned; several for one product, and none when a graph is used again.
    pub asked: u64,
    /// Rows of activations that were computed.
    pub rows: u64,
    /// Modelled time on the accelerator, host included, of one product of the largest number of rows seen; `None` without a
    /// model.
    pub npu_ns: Option<u64>,
    /// Modelled time on the CPU of the same.
    pub cpu_ns: u64,
    /// That number of rows.
    pub m_max: u64,
    /// Modelled time of all computed products where they were computed; `None` without a model.
    pub modelled_ns: Option<u64>,
}

/// Where products went.
pub(crate) type Ledger = BTreeMap<RouteKey, RouteUse>;

fn ns(us: f64) -> u64 {
    // Modelled times are positive and far below the range of 64 bits.
    (us * 1e3).round() as u64
}

impl RouteUse {
    /// Notes a verdict about a product of `m` rows.
    pub(crate) fn judged(&mut self, m: u64, verdict: &Verdict) {
        if m >= self.m_max {
            (self.m_max, self.cpu_ns) = (m, ns(verdict.cpu_us));
            self.npu_ns = verdict.npu_us.map(ns);
        }
    }

    /// Notes a computed product.
    pub(crate) fn computed(&mut self, m: u64, verdict: &Verdict) {
        self.judged(m, verdict);
        self.calls += 1;
        self.rows += m;
        let time = match verdict.place {
            Place::Npu => verdict.npu_us,
            Place::Cold => Some(verdict.cpu_us),
            Place::Cpu | Place::Software => None,
        };
        if let Some(time) = time {
            self.modelled_ns = Some(self.modelled_ns.unwrap_or(0) + ns(time));
        }
    }
}

/// The ledger as a table for people.
pub(crate) fn table(ledger: &Ledger) -> String {
    let mut out = format!(
        "{:<11} {:<32} {:<6} {:>11} {:>9} {:>7} {:>7} {:>8} {:<8} {:<11} {:>11} {:>11} {:>11}\n",
        "op",
        "weight",
        "type",
        "k x n",
        "rows at",
        "calls",
        "asked",
        "rows",
        "where",
        "why",
        "npu us",
        "cpu us",
        "all ms"
    );
    out += &format!("{:>55} {:>15} {:>36} {:>11} {:>11}\n", "", "once", "modelled, of one:", "", "modelled");
    let us = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.0}", ns as f64 / 1e3));
    for (key, used) in ledger {
        let all = used.modelled_ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.2}", ns as f64 / 1e6));
        out += &format!(
            "{:<11} {:<32} {:<6} {:>11} {:>9} {:>7} {:>7} {:>8} {:<8} {:<11} {:>11} {:>11} {:>11}\n",
            key.op,
            key.kind,
            key.type_name,
            format!("{}x{}", key.k, key.n),
            key.rows.to_string(),
            used.calls,
            used.asked,
            used.rows,
            key.place.to_string(),
            key.why.to_string(),
            us(used.npu_ns),
            us(Some(used.cpu_ns)),
            all
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(m: u64, time: Option<ModelledTime>) -> Question {
        Question {
            size: cost::Size { m, k: 2048, n: 2048 },
            stored: cost::Stored { bytes: 2048 * 2048 * 34 / 32, float: false },
            time,
            packed_for_it: false,
        }
    }

    const TIME: ModelledTime = ModelledTime { npu_us: 500.0, host_bytes: 0, brought_in_bytes: 0 };

    #[test]
    fn the_cheaper_side_gets_it() {
        let route = Route::default();
        // 204 us of bytes on the CPU, then 84 us for each row.
        let verdict = decide(route, &question(1, Some(TIME)));
        assert_eq!((verdict.place, verdict.why), (Place::Cpu, Why::Cost));
        assert!((verdict.cpu_us - 203.5).abs() < 1.0 && verdict.npu_us == Some(500.0));
        assert_eq!(decide(route, &question(5, Some(TIME))).place, Place::Cpu);
        assert_eq!(decide(route, &question(6, Some(TIME))).place, Place::Npu);
        // What must be brought in first, or packed for this product, costs more.
        let streamed = ModelledTime { brought_in_bytes: 4 << 20, ..TIME };
        assert_eq!(decide(route, &question(6, Some(streamed))).place, Place::Cpu);
        let packed = Question { packed_for_it: true, ..question(6, Some(TIME)) };
        assert_eq!(decide(route, &packed).place, Place::Cpu);
        // Half the bytes on the CPU's side, at one row of a large weight.
        let large = |bytes| Question {
            size: cost::Size { m: 1, k: 3584, n: 18944 },
            stored: cost::Stored { bytes, float: false },
            ..question(1, Some(ModelledTime { npu_us: 2900.0, ..TIME }))
        };
        let elements = 3584 * 18944;
        assert_eq!(decide(route, &large(elements * 34 / 32)).place, Place::Npu);
        assert_eq!(decide(route, &large(elements * 18 / 32)).place, Place::Cpu);
    }

    #[test]
    fn the_settings_override_it() {
        let at_least = |rows| Route::Auto { min_rows: MinRows::Rows(rows) };
        for (route, m, place, why) in [
            (at_least(1), 1, Place::Npu, Why::Rows),
            (at_least(7), 6, Place::Cpu, Why::Rows),
            (Route::Npu, 1, Place::Npu, Why::Route),
            (Route::Cpu, 512, Place::Cpu, Why::Route),
        ] {
            let verdict = decide(route, &question(m, Some(TIME)));
            assert_eq!((verdict.place, verdict.why), (place, why), "{route} {m}");
        }
        for (m, place) in [(31, Place::Cpu), (32, Place::Npu)] {
            let verdict = decide(Route::default(), &question(m, None));
            assert_eq!((verdict.place, verdict.why, verdict.npu_us), (place, Why::NoModel, None));
        }
    }

    #[test]
    fn classes_of_rows() {
        for (m, text) in [(1, "1"), (2, "2-3"), (3, "2-3"), (31, "16-31"), (32, "32-63"), (512, "512-1023")] {
            assert_eq!(RowClass::of(m).to_string(), text);
        }
    }

    #[test]
    fn the_table_says_what_is_modelled() {
        let mut ledger = Ledger::new();
        let key = RouteKey {
            op: "MUL_MAT".to_owned(),
            kind: "blk.*.ffn_up.weight".to_owned(),
            type_name: "q8_0".to_owned(),
            k: 64,
            n: 96,
            rows: RowClass::of(40),
            place: Place::Npu,
            why: Why::Cost,
        };
        let verdict = Verdict { npu_us: Some(400.0), cpu_us: 900.0, place: Place::Npu, why: Why::Cost };
        let line = ledger.entry(key).or_default();
        line.computed(40, &verdict);
        line.computed(40, &verdict);
        let text = table(&ledger);
        assert!(text.contains("modelled"), "{text}");
        let fields: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
        let wanted = [
            "MUL_MAT",
            "blk.*.ffn_up.weight",
            "q8_0",
            "64x96",
            "32-63",
            "2",
            "0",
            "80",
            "npu",
            "cost",
            "400",
            "900",
            "0.80",
        ];
        assert_eq!(fields, wanted);
    }
}
