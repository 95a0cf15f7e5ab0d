// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was asked, claimed, declined and executed, as numbers.
//!
//! *Planning* counts questions: ggml asks several times per node and graph, so these numbers say *why*, not how
//! often work was done. *Executed* counts work. A weight that never executes is a placement regression.

use crate::routing::{self, Ledger, Place, RouteKey, RouteUse, RowClass, Verdict};
use crate::weight::Shape;
use crate::{Decline, DeclineReason, PackMiss};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Questions ggml asked while planning graphs and placing weights.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planning {
    /// Views and leaves: always accepted, no work.
    pub structural: u64,
    /// Matmuls accepted.
    pub claimed: u64,
    /// SwiGLUs accepted.
    pub swiglu: u64,
    /// Declined, by operation and reason.
    pub declined: Vec<DeclineCount>,
}

/// One line of [`Planning::declined`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclineCount {
    /// ggml's name of the operation.
    pub op: String,
    /// Why.
    pub reason: DeclineReason,
    /// How often asked.
    pub count: u64,
    /// The first case: name of the weight and the facts.
    pub example: String,
}

/// Work done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// Subgraphs handed over that held at least one matmul.
    pub graphs: u64,
    /// Matmuls completed, on the accelerator or in software.
    pub matmuls: u64,
    /// Submissions: a group of matmuls sharing an activation counts once.
    pub submissions: u64,
    /// Rows of activations, summed over matmuls.
    pub rows: u64,
    /// Of `matmuls`: those computed by the plain software loop because the accelerator cannot hold the matrix
    /// (adapters in a resident buffer).
    pub software: u64,
    /// Of `matmuls`: those with matrices that a table chose, by where the matrix is.
    pub experts: ExpertUse,
    /// SwiGLUs that were computed.
    pub swiglu: SwigluUse,
    /// Matmuls that failed.
    pub failed: u64,
    /// Host time inside the backend: from each graph handed over to its results, whatever happens in between.
    pub time: Duration,
    /// By weight, in name order.
    pub weights: BTreeMap<String, WeightUse>,
}

impl Executed {
    /// Matmuls that the accelerator computed.
    #[must_use]
    pub fn on_accelerator(&self) -> u64 {
        let cold: u64 = self.weights.values().map(|weight| weight.cold).sum();
        self.matmuls - self.software - cold
    }
}

/// Use of matrices that a table chooses among those of a stack: experts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertUse {
    /// Products on the accelerator.
    pub hot: u64,
    /// Products by four-bit codes on the CPU.
    pub cold: u64,
    /// Rows of the former.
    pub hot_rows: u64,
    /// Rows of the latter.
    pub cold_rows: u64,
}

/// SwiGLUs that this backend computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwigluUse {
    /// All of them.
    pub computed: u64,
    /// Those whose `silu` was started while the accelerator still had a product to compute.
    pub overlapped: u64,
}

/// Use of one weight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightUse {
    /// Elements per row.
    pub k: u64,
    /// Rows.
    pub n: u64,
    /// ggml type in the file.
    pub type_name: String,
    /// Matmuls.
    pub matmuls: u64,
    /// Rows of activations.
    pub rows: u64,
    /// Smallest and largest m seen.
    pub m_min: u64,
    /// Largest m seen.
    pub m_max: u64,
    /// Of `matmuls`: those by four-bit codes on the CPU.
    pub cold: u64,
    /// Bytes of it where it was multiplied last: on the accelerator, or, of a cold expert, in the host's memory.
    pub bytes: u64,
}

/// Weights held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Weights taken since the start.
    pub loaded: u64,
    /// Weights held now; zero after all models are freed.
    pub live: u64,
    /// Bytes held now on the accelerator.
    pub live_device_bytes: u64,
    /// Weights left to the CPU because the accelerator had no room.
    pub no_room: u64,
    /// Experts held in four bits by the host now.
    pub cold: u64,
    /// Bytes of them.
    pub cold_bytes: u64,
}

/// Weights and the pack they were to come from, since one was set last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackUse {
    /// Weights loaded from a pack, by scheme.
    pub loaded: BTreeMap<String, u64>,
    /// Weights that a pack gave no tiles for, with the reason. Those that were absent were converted from the model's
    /// bytes; the others ended the load.
    pub missed: BTreeMap<String, String>,
}

/// Everything counted so far; a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimCensus {
    /// Questions.
    pub planning: Planning,
    /// Work.
    pub executed: Executed,
    /// Weights.
    pub holding: Holding,
    /// Packs.
    pub packs: PackUse,
    /// Where products went, and what they are modelled to cost. A list, since its keys are no text.
    pub routes: Vec<(RouteKey, RouteUse)>,
}

impl ClaimCensus {
    /// Where products went and why: one line for each operation, kind of weight and class of rows.
    pub fn route_table(&self) -> String {
        routing::table(&self.routes.iter().cloned().collect())
    }

    /// How often `reason` was given for `op` at planning.
    pub fn declined(&self, op: &str, reason: DeclineReason) -> u64 {
        self.planning.declined.iter().filter(|d| d.op == op && d.reason == reason).map(|d| d.count).sum()
    }

    /// What was multiplied, one line for each kind of weight: the same weight of all layers is one kind.
    pub fn table(&self) -> String {
        let mut kinds: BTreeMap<(String, &str, u64, u64), (u64, WeightUse)> = BTreeMap::new();
        for (name, weight) in &self.executed.weights {
            let key = (without_numbers(name), weight.type_name.as_str(), weight.k, weight.n);
            let fresh = || (0, WeightUse { m_min: u64::MAX, ..WeightUse::default() });
            let (weights, sum) = kinds.entry(key).or_insert_with(fresh);
            *weights += 1;
            sum.matmuls += weight.matmuls;
            sum.rows += weight.rows;
            sum.m_min = sum.m_min.min(weight.m_min);
            sum.m_max = sum.m_max.max(weight.m_max);
        }
        let mut out = format!(
            "{:<36} {:<8} {:>7} {:>7} {:>8} {:>9} {:>9}  rows at once\n",
            "weight", "type", "k", "n", "weights", "products", "rows"
        );
        for ((name, type_name, k, n), (weights, sum)) in kinds {
            let WeightUse { matmuls, rows, m_min, m_max, .. } = sum;
            out += &format!(
                "{name:<36} {type_name:<8} {k:>7} {n:>7} {weights:>8} {matmuls:>9} {rows:>9}  {m_min} to {m_max}\n"
            );
        }
        out
    }
}

/// The name with every number between dots or in brackets replaced by `*`.
fn without_numbers(name: &str) -> String {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (name, expert) = match name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
        Some((name, index)) if number(index) => (name, "[*]"),
        _ => (name, ""),
    };
    let parts: Vec<&str> = name.split('.').map(|part| if number(part) { "*" } else { part }).collect();
    parts.join(".") + expert
}

impl fmt::Display for ClaimCensus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { planning, executed, holding, packs, .. } = self;
        writeln!(
            f,
            "weights   {} held ({} MiB), {} loaded, {} left to the CPU for want of room",
            holding.live,
            holding.live_device_bytes >> 20,
            holding.loaded,
            holding.no_room
        )?;
        if !packs.loaded.is_empty() || !packs.missed.is_empty() {
            let schemes: Vec<String> =
                packs.loaded.iter().map(|(scheme, count)| format!("{count} x {scheme}")).collect();
            writeln!(
                f,
                "packs     {} from a pack, {} converted although there is a pack",
                if schemes.is_empty() { "none".to_owned() } else { schemes.join(", ") },
                packs.missed.len()
            )?;
            for (name, reason) in &packs.missed {
                writeln!(f, "  converted {name}: {reason}")?;
            }
        }
        writeln!(
            f,
            "executed  {} matmuls in {} submissions, {} rows, {} weights; {} in software, {} failed",
            executed.matmuls,
            executed.submissions,
            executed.rows,
            executed.weights.len(),
            executed.software,
            executed.failed
        )?;
        let ExpertUse { hot, cold, hot_rows, cold_rows } = executed.experts;
        if holding.cold > 0 || cold > 0 {
            writeln!(
                f,
                "experts   {hot} products ({hot_rows} rows) on the accelerator, {cold} ({cold_rows} rows) on the CPU in four bits: {:.1} % of \
                 the rows met a hot expert; {} cold experts held ({:.1} MiB)",
                100.0 * hot_rows as f64 / (hot_rows + cold_rows).max(1) as f64,
                holding.cold,
                holding.cold_bytes as f64 / (1u64 << 20) as f64
            )?;
        }
        let SwigluUse { computed, overlapped } = executed.swiglu;
        if computed > 0 {
            writeln!(f, "swiglu    {computed} computed, {overlapped} of them beside a product")?;
        }
        writeln!(f, "planning  {} matmuls claimed (questions, not work)", planning.claimed)?;
        for line in &planning.declined {
            writeln!(
                f,
                "  declined {:>8} × {:<12} {:<16} first: {}",
                line.count, line.op, line.reason, line.example
            )?;
        }
        Ok(())
    }
}

/// The operation whose matrices are chosen by a table.
const CHOSEN: &str = "MUL_MAT_ID";

/// The counters behind [`ClaimCensus`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    structural: u64,
    claimed: u64,
    swiglu: u64,
    declined: BTreeMap<(DeclineReason, String), (u64, String)>,
    executed: Executed,
    holding: Holding,
    packs: PackUse,
    routes: Ledger,
}

/// One finished matmul, for the books.
#[derive(Debug)]
pub(crate) struct MatMulRecord<'a> {
    pub(crate) weight: &'a str,
    pub(crate) type_name: &'a str,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) m: usize,
    pub(crate) op: &'a str,
    pub(crate) verdict: Verdict,
    /// Of the weight, as it was multiplied.
    pub(crate) bytes: u64,
}

impl Counters {
    fn with<R>(&self, update: impl FnOnce(&mut Inner) -> R) -> R {
        update(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn structural(&self) {
        self.with(|c| c.structural += 1);
    }

    pub(crate) fn claimed(&self) {
        self.with(|c| c.claimed += 1);
    }

    /// It was asked who is to compute a product of `m` rows by each matrix of a stack.
    pub(crate) fn judged(&self, op: &str, shape: &Shape, m: u64, verdict: &Verdict) {
        let stack = if shape.matrices == 1 { "" } else { "[*]" };
        let key = RouteKey {
            op: op.to_owned(),
            kind: without_numbers(&shape.name) + stack,
            type_name: shape.element.name.clone(),
            k: shape.k as u64,
            n: shape.n as u64,
            rows: RowClass::of(m),
            place: verdict.place,
            why: verdict.why,
        };
        self.with(|c| {
            let line = c.routes.entry(key).or_default();
            line.asked += 1;
            line.judged(m, verdict);
        });
    }

    pub(crate) fn declined(&self, op: &str, subject: &str, decline: &Decline) {
        self.with(|c| {
            let key = (decline.reason(), op.to_owned());
            c.declined.entry(key).or_insert_with(|| (0, format!("{subject}: {decline}"))).0 += 1;
        });
    }

    pub(crate) fn graph(&self) {
        self.with(|c| c.executed.graphs += 1);
    }

    /// A submission of one or more matmuls was completed.
    pub(crate) fn submission(&self, records: &[MatMulRecord<'_>]) {
        self.with(|c| {
            c.executed.submissions += 1;
            for record in records {
                let m = record.m as u64;
                c.executed.matmuls += 1;
                c.executed.rows += m;
                let cold = u64::from(record.verdict.place == Place::Cold);
                if record.op == CHOSEN {
                    let ExpertUse { hot, cold, hot_rows, cold_rows } = &mut c.executed.experts;
                    let counts = match record.verdict.place {
                        Place::Npu => Some((hot, hot_rows)),
                        Place::Cold => Some((cold, cold_rows)),
                        Place::Cpu | Place::Software => None,
                    };
                    if let Some((products, rows)) = counts {
                        *products += 1;
                        *rows += m;
                    }
                }
                c.executed.software += u64::from(record.verdict.place == Place::Software);
                let kind = without_numbers(record.weight);
                let key = RouteKey {
                    op: record.op.to_owned(),
                    kind,
                    type_name: record.type_name.to_owned(),
                    k: record.k as u64,
                    n: record.n as u64,
                    rows: RowClass::of(m),
                    place: record.verdict.place,
                    why: record.verdict.why,
                };
                c.routes.entry(key).or_default().computed(m, &record.verdict);
                if !c.executed.weights.contains_key(record.weight) {
                    let fresh = WeightUse {
                        k: record.k as u64,
                        n: record.n as u64,
                        type_name: record.type_name.to_owned(),
                        m_min: m,
                        ..WeightUse::default()
                    };
                    c.executed.weights.insert(record.weight.to_owned(), fresh);
                }
                if let Some(weight) = c.executed.weights.get_mut(record.weight) {
                    weight.matmuls += 1;
                    weight.cold += cold;
                    weight.bytes = record.bytes;
                    weight.rows += m;
                    weight.m_min = weight.m_min.min(m);
                    weight.m_max = weight.m_max.max(m);
                }
            }
        });
    }

    pub(crate) fn swiglu_claimed(&self) {
        self.with(|c| c.swiglu += 1);
    }

    /// A SwiGLU was computed.
    pub(crate) fn swiglu(&self, overlapped: bool) {
        self.with(|c| {
            c.executed.swiglu.computed += 1;
            c.executed.swiglu.overlapped += u64::from(overlapped);
        });
    }

    pub(crate) fn kept_cold(&self, bytes: u64) {
        self.with(|c| {
            c.holding.cold += 1;
            c.holding.cold_bytes += bytes;
        });
    }

    pub(crate) fn dropped_cold(&self, bytes: u64) {
        self.with(|c| {
            c.holding.cold = c.holding.cold.saturating_sub(1);
            c.holding.cold_bytes = c.holding.cold_bytes.saturating_sub(bytes);
        });
    }

    pub(crate) fn failed(&self, matmuls: usize) {
        self.with(|c| c.executed.failed += matmuls as u64);
    }

    pub(crate) fn loaded(&self, device_bytes: u64) {
        self.with(|c| {
            c.holding.loaded += 1;
            c.holding.live += 1;
            c.holding.live_device_bytes += device_bytes;
        });
    }

    pub(crate) fn released(&self, device_bytes: u64) {
        self.with(|c| {
            c.holding.live = c.holding.live.saturating_sub(1);
            c.holding.live_device_bytes = c.holding.live_device_bytes.saturating_sub(device_bytes);
        });
    }

    pub(crate) fn new_pack(&self) {
        self.with(|c| c.packs = PackUse::default());
    }

    pub(crate) fn loaded_from_pack(&self, scheme: &str) {
        self.with(|c| *c.packs.loaded.entry(scheme.to_owned()).or_default() += 1);
    }

    pub(crate) fn missed_in_pack(&self, name: &str, miss: &PackMiss) {
        self.with(|c| c.packs.missed.insert(name.to_owned(), miss.to_string()));
    }

    pub(crate) fn no_room(&self) {
        self.with(|c| c.holding.no_room += 1);
    }

    pub(crate) fn spent(&self, time: Duration) {
        self.with(|c| c.executed.time += time);
    }

    /// Starts planning and execution counts anew; holdings and packs stay, they describe what exists.
    pub(crate) fn reset(&self) {
        self.with(|c| {
            let packs = std::mem::take(&mut c.packs);
            *c = Inner { holding: Holding { loaded: 0, no_room: 0, ..c.holding }, packs, ..Inner::default() };
        });
    }

    pub(crate) fn snapshot(&self) -> ClaimCensus {
        self.with(|c| ClaimCensus {
            planning: Planning {
                structural: c.structural,
                claimed: c.claimed,
                swiglu: c.swiglu,
                declined: c
                    .declined
                    .iter()
                    .map(|((reason, op), (count, example))| DeclineCount {
                        op: op.clone(),
                        reason: *reason,
                        count: *count,
                        example: example.clone(),
                    })
                    .collect(),
            },
            executed: c.executed.clone(),
            holding: c.holding,
            packs: c.packs.clone(),
            routes: c.routes.iter().map(|(key, used)| (key.clone(), *used)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_weights() {
        for (name, kind) in [
            ("blk.12.ffn_up.weight", "blk.*.ffn_up.weight"),
            ("blk.3.ffn_up_exps.weight[41]", "blk.*.ffn_up_exps.weight[*]"),
            ("output.weight", "output.weight"),
            ("q4.k2[x]", "q4.k2[x]"),
        ] {
            assert_eq!(without_numbers(name), kind);
        }
    }

    #[test]
    fn experts_are_what_a_table_chooses() {
        let counters = Counters::default();
        let record = |op, place, m| {
            let verdict = Verdict { npu_us: None, cpu_us: 1.0, place, why: crate::routing::Why::Route };
            MatMulRecord {
                weight: "blk.0.w.weight[3]",
                type_name: "q8_0",
                k: 64,
                n: 32,
                m,
                op,
                verdict,
                bytes: 2048,
            }
        };
        counters.submission(&[record("MUL_MAT", Place::Npu, 1), record("MUL_MAT_ID", Place::Software, 2)]);
        assert_eq!(counters.snapshot().executed.experts, ExpertUse::default());
        counters.submission(&[record("MUL_MAT_ID", Place::Npu, 4), record("MUL_MAT_ID", Place::Cold, 8)]);
        let used = ExpertUse { hot: 1, hot_rows: 4, cold: 1, cold_rows: 8 };
        assert_eq!(counters.snapshot().executed.experts, used);
    }

    #[test]
    fn the_table_sums_layers() {
        let counters = Counters::default();
        let verdict =
            Verdict { npu_us: None, cpu_us: 1.0, place: Place::Npu, why: crate::routing::Why::Route };
        let record = |weight, m| MatMulRecord {
            weight,
            type_name: "q8_0",
            k: 64,
            n: 32,
            m,
            op: "MUL_MAT",
            verdict,
            bytes: 2048,
        };
        counters.submission(&[record("blk.0.a.weight", 3), record("blk.1.a.weight", 5)]);
        counters.submission(&[record("blk.0.a.weight", 40)]);
        let table = counters.snapshot().table();
        let line = table.lines().find(|line| line.starts_with("blk.*.a.weight")).unwrap();
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields, ["blk.*.a.weight", "q8_0", "64", "32", "2", "3", "48", "3", "to", "40"]);
    }
}
