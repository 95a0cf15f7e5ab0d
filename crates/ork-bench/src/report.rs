// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a benchmark found.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::published::Published;
use crate::{BoardState, Comparison, Null, Objection, Placement, Spread};

/// What kind of file it is.
pub const SCHEMA: &str = "ork-bench";
/// Version of the fields: a field that is renamed, removed or means something else raises it.
pub const SCHEMA_VERSION: u32 = 2;

/// What was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Test {
    /// Prefill or decode.
    pub kind: TestKind,
    /// Tokens.
    pub tokens: u32,
}

/// The two phases of generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TestKind {
    /// A prompt in batches, in an empty context.
    Prefill,
    /// Single tokens, one after the other, from an empty context.
    Decode,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            TestKind::Prefill => "pp",
            TestKind::Decode => "tg",
        };
        f.pad(&format!("{name}{}", self.tokens))
    }
}

/// What a time of the host contains. Times of different kinds have columns of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// CPUs, and an NPU if it is a real one.
    Measured,
    /// The model of an NPU, run by the CPUs: says nothing about the speed of a board.
    Simulated,
}

/// What the NPU's backend did in the runs of a row, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NpuPart {
    /// Products.
    pub products: u64,
    /// Register programs.
    pub programs: u64,
    /// Host time inside the backend, in seconds.
    pub backend_s: f64,
    /// Of that, in the NPU or its model: while any core computed on a simulated one, from submit to completion on a real
    /// one.
    pub npu_s: f64,
    /// Of that, below the ioctl of an emulated board, in seconds: `npu_s`, and what its kernel does, which copies bytes
    /// where silicon has caches. On a real board `npu_s` again.
    pub below_ioctl_s: f64,
    /// Modelled time of the programs and their submits on an RK3588, in microseconds: of one run, without host work.
    pub modelled_us: f64,
    /// Host time of quantising, in seconds; bringing activations into bases of weights included.
    pub quantise_s: f64,
    /// Host time of planning and writing programs, in seconds.
    pub synthesise_s: f64,
    /// Host time of making features visible, in seconds.
    pub sync_s: f64,
    /// Host time from submit to completion, in seconds; the NPU or its model is in it.
    pub submit_s: f64,
    /// Host time of de-tiling and scaling, in seconds.
    pub dequantise_s: f64,
}

/// One arm in one test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the arm.
    pub arm: String,
    /// Name of the model's file.
    pub model: String,
    /// What llama.cpp calls it: architecture, size, type.
    pub model_type: String,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub embedding: u32,
    /// Parameters.
    pub parameters: u64,
    /// Length of the file.
    pub model_bytes: u64,
    /// Who multiplies.
    pub route: String,
    /// Settings that differ from the defaults, as `key=value`, in order of their keys.
    pub settings: Vec<String>,
    /// Threads of llama.cpp; `None` for as many as there are CPUs.
    pub threads: Option<u32>,
    /// The device.
    pub device: String,
    /// What was timed.
    pub test: Test,
    /// What the times contain.
    pub provenance: Provenance,
    /// Seconds of each run of twin A, in order: host wall time.
    pub seconds_a: Vec<f64>,
    /// Seconds of each run of twin B.
    pub seconds_b: Vec<f64>,
    /// What the twins show.
    pub null: Option<Null>,
    /// What the NPU's backend did; `None` if it did nothing.
    pub npu: Option<NpuPart>,
}

impl Row {
    /// Seconds of all runs: A's, then B's.
    #[must_use]
    pub fn seconds(&self) -> Vec<f64> {
        [self.seconds_a.as_slice(), &self.seconds_b].concat()
    }

    /// Tokens per second.
    #[must_use]
    pub fn speed(&self) -> Option<Spread> {
        let tokens = f64::from(self.test.tokens);
        let speeds: Vec<f64> =
            self.seconds().iter().filter(|s| **s > 0.0).map(|seconds| tokens / seconds).collect();
        Spread::of(&speeds)
    }

    /// The speed, if that is what the times contain.
    #[must_use]
    pub fn speed_if(&self, provenance: Provenance) -> Option<Spread> {
        if self.provenance == provenance { self.speed() } else { None }
    }

    /// Share of the run that the backend took outside the NPU, or above the ioctl of an emulated one.
    #[must_use]
    pub fn overhead(&self) -> Option<f64> {
        let part = self.npu.as_ref()?;
        let all: f64 = self.seconds().iter().sum();
        (all > 0.0).then(|| (part.backend_s - part.below_ioctl_s).max(0.0) / all)
    }

    /// This row against another of the same test.
    #[must_use]
    pub fn against(&self, baseline: &Self, name: &str) -> Option<Comparison> {
        if self.test != baseline.test {
            return None;
        }
        let twins = |row: &'_ Self| [row.seconds_a.clone(), row.seconds_b.clone()];
        let ([a, b], [c, d]) = (twins(self), twins(baseline));
        Comparison::of(&self.test.to_string(), (&self.arm, [&a, &b]), (name, [&c, &d]))
    }
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Name of the CPU, if it is known.
    pub cpu: Option<String>,
    /// Release of the kernel, if it is known.
    pub kernel: Option<String>,
    /// The CPUs that were used.
    pub placement: Placement,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// Version of ork.
    pub ork_version: String,
    /// Seconds since 1970 when it began.
    pub unix_time: u64,
    /// The machine.
    pub host: Host,
    /// Its clocks before the first run.
    pub board_before: BoardState,
    /// Its clocks behind the last run.
    pub board_after: BoardState,
    /// What was wrong with them, and was overridden.
    pub objections: Vec<Objection>,
    /// Rounds of each test; each arm runs twice in a round.
    pub rounds: u32,
    /// Runs of each arm before those.
    pub warmup: u32,
    /// Arms in order, test by test.
    pub rows: Vec<Row>,
    /// Arms against the first.
    pub comparisons: Vec<Comparison>,
    /// What others measured with the same models. Never a part of a row.
    pub published: Vec<Published>,
}

/// A report that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is something else.
    #[error("{path} is no report of `ork bench -o json`: {why}")]
    Other {
        /// Which.
        path: String,
        /// Why.
        why: String,
    },
    /// It was written by another version of ork whose fields mean something else.
    #[error("{path} has version {found} of the fields, this program reads {SCHEMA_VERSION}")]
    Version {
        /// Which.
        path: String,
        /// Its version.
        found: u64,
    },
}

impl Report {
    /// Reads what `ork bench -o json` wrote.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let name = || path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| ReadError::File { path: name(), source })?;
        let other = |why: String| ReadError::Other { path: name(), why };
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| other(error.to_string()))?;
        if value["schema"] != SCHEMA {
            return Err(other(format!("its field \"schema\" is not {SCHEMA:?}")));
        }
        match value["schema_version"].as_u64() {
            Some(version) if version == u64::from(SCHEMA_VERSION) => {}
            Some(found) => return Err(ReadError::Version { path: name(), found }),
            None => return Err(other("it has no \"schema_version\"".to_owned())),
        }
        serde_json::from_value(value).map_err(|error| other(error.to_string()))
    }

    /// This report against an earlier one: arms of the same name, model and test.
    ///
    /// # Errors
    /// [`AgainstError`] if they have nothing in common, or were measured in ways that cannot be compared.
    pub fn against(&self, earlier: &Self) -> Result<Against, AgainstError> {
        let mut against = Against::default();
        for row in &self.rows {
            let same = |old: &&Row| {
                (&old.arm, &old.model, old.model_bytes, old.test)
                    == (&row.arm, &row.model, row.model_bytes, row.test)
            };
            let Some(old) = earlier.rows.iter().find(same) else { continue };
            if old.provenance != row.provenance {
                return Err(AgainstError::Provenance { arm: row.arm.clone(), test: row.test.to_string() });
            }
            against.comparisons.extend(row.against(old, "the earlier run"));
            against.note_differences(row, old);
        }
        if against.comparisons.is_empty() {
            return Err(AgainstError::Nothing);
        }
        if self.host != earlier.host {
            against.notes.push("the earlier run was on another machine, kernel or set of CPUs".to_owned());
        }
        if self.objections.is_empty() != earlier.objections.is_empty() {
            let one = if self.objections.is_empty() { "the earlier run" } else { "this run" };
            against.notes.push(format!("{one} was forced although its clocks were not as they should be"));
        }
        against.notes.push(
            "runs of different times have no common order: what changed on the machine in between is in the ratio"
                .to_owned(),
        );
        Ok(against)
    }
}

/// A report against an earlier one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Against {
    /// Row by row.
    pub comparisons: Vec<Comparison>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

impl Against {
    /// Notes what two rows of the same arm were measured with, where it differs; once for all tests.
    fn note_differences(&mut self, row: &Row, old: &Row) {
        let threads = |row: &Row| {
            row.threads.map_or_else(|| "as many as CPUs".to_owned(), |threads| threads.to_string())
        };
        let settings = |row: &Row| match row.settings.join(", ") {
            none if none.is_empty() => "the defaults".to_owned(),
            some => some,
        };
        for (what, now, then) in [
            ("route", row.route.clone(), old.route.clone()),
            ("threads", threads(row), threads(old)),
            ("device", row.device.clone(), old.device.clone()),
            ("settings", settings(row), settings(old)),
        ] {
            let note = format!("{}: {what} now {now}, in the earlier run {then}", row.arm);
            if now != then && !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }
}

/// Reports that cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgainstError {
    /// No row has a counterpart.
    #[error("the reports have no arm with the same name, model and test in common")]
    Nothing,
    /// A measured and a simulated time.
    #[error("arm {arm}, test {test}: one report measured an NPU, the other simulated it")]
    Provenance {
        /// The arm.
        arm: String,
        /// The test.
        test: String,
    },
}
