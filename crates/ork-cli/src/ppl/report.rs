// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was found, as data and as tables.

use std::fmt::Write;

use ork_corpus::{Origin, Overlap, Part, SplitRule, Verdict};
use ork_engine::quality::{Estimate, Perplexity, Quality};
use serde::{Deserialize, Serialize};

use crate::table::{BLANK, Table};

/// Everything about one run. Also what a later run resumes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) title: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) text: Text,
    pub(crate) reference: Option<Reference>,
    pub(crate) rows: Vec<Line>,
    pub(crate) failures: Vec<FailedRow>,
    /// Lines of earlier runs that are none of the rows (or not yet): a later run may want them.
    #[serde(default)]
    pub(crate) kept: Vec<Line>,
}

/// What was evaluated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Text {
    pub(crate) name: String,
    pub(crate) document: String,
    pub(crate) source: Option<String>,
    pub(crate) part: Part,
    pub(crate) rule: Option<SplitRule>,
    pub(crate) bytes: u64,
    pub(crate) context_tokens: u32,
}

impl Text {
    pub(crate) fn of(origin: &Origin, source: Option<String>, context_tokens: u32) -> Self {
        let Origin { name, document, part, rule, bytes, fingerprint: _ } = origin.clone();
        Self { name, document, source, part, rule, bytes, context_tokens }
    }
}

/// The reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) digest: String,
    pub(crate) computed: Computed,
    pub(crate) size: Size,
    pub(crate) perplexity: Option<Perplexity>,
}

/// Who computed the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Computed {
    Cpu,
    SimulatedNpu,
    Npu,
}

impl Computed {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::SimulatedNpu => "simulated NPU",
            Self::Npu => "NPU",
        }
    }
}

/// Size of the weights as they are stored for who multiplies by them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Bytes: as the model file has them for the CPU; as a pack has them for the NPU, or, without one, as they lie in its
    /// memory (padding and scales included).
    pub(crate) bytes: u64,
    /// 8 × bytes / parameters.
    pub(crate) bits_per_weight: f64,
}

impl Size {
    pub(crate) fn of(bytes: u64, parameters: u64) -> Self {
        Self { bytes, bits_per_weight: 8.0 * bytes as f64 / parameters.max(1) as f64 }
    }
}

/// What is known about the text of a calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Calibration {
    /// The weights were made without one.
    None,
    /// With a text.
    Text {
        /// Which.
        text: String,
        /// How far it is the evaluated one.
        overlap: Overlap,
    },
    /// With a text that nobody recorded.
    Unrecorded,
}

impl Calibration {
    /// For the table.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Unrecorded => "UNKNOWN TEXT",
            Self::Text { overlap, .. } => match overlap.verdict() {
                Verdict::Disjoint => "other text",
                Verdict::Same => "SAME TEXT",
                Verdict::Unknown => "too short to tell",
            },
        }
    }
}

/// A finished row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Of everything that the result depends on.
    pub(crate) key: String,
    pub(crate) name: String,
    pub(crate) scheme: String,
    pub(crate) model: String,
    pub(crate) digest: String,
    pub(crate) computed: Computed,
    pub(crate) device: String,
    /// Products that the NPU computed.
    pub(crate) npu_products: u64,
    pub(crate) size: Size,
    pub(crate) calibration: Calibration,
    pub(crate) note: Option<String>,
    pub(crate) quality: Quality,
}

/// A row that ended early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedRow {
    pub(crate) name: String,
    pub(crate) why: String,
}

fn table(report: &Report) -> Table {
    let head = vec![
        "row",
        "scheme",
        "bits/weight",
        "MB",
        "computed by",
        "PPL",
        "PPL / reference",
        "mean KLD",
        "99 % KLD",
        "same top token",
        "calibrated on",
        "CPU host s",
        "simulating host s",
        "NPU host s",
    ];
    let mut rows = Vec::new();
    let blank = || BLANK.to_owned();
    let size =
        |size: &Size| [format!("{:.2}", size.bits_per_weight), format!("{:.1}", size.bytes as f64 / 1e6)];
    if let Some(reference) = &report.reference {
        let [bits, mb] = size(&reference.size);
        let perplexity = reference.perplexity.map_or_else(blank, |p| estimate(p.perplexity, 4));
        let mut row = vec![reference.name.clone(), "reference".to_owned(), bits, mb];
        row.extend([reference.computed.name().to_owned(), perplexity, "1".to_owned()]);
        row.resize(head.len(), blank());
        rows.push(row);
    }
    for line in &report.rows {
        let [bits, mb] = size(&line.size);
        let Quality { perplexity, versus, host_seconds, .. } = &line.quality;
        let mut row = vec![line.name.clone(), line.scheme.clone(), bits, mb, line.computed.name().to_owned()];
        row.push(estimate(perplexity.perplexity, 4));
        row.push(versus.map_or_else(blank, |v| estimate(v.ratio, 4)));
        row.push(versus.map_or_else(blank, |v| estimate(v.kl, 5)));
        row.push(versus.map_or_else(blank, |v| format!("{:.4}", v.percentiles.p99)));
        row.push(versus.map_or_else(blank, |v| {
            format!("{:.2} ± {:.2} %", 100.0 * v.top1_agreement.value, 100.0 * v.top1_agreement.error)
        }));
        row.push(line.calibration.label().to_owned());
        for computed in [Computed::Cpu, Computed::SimulatedNpu, Computed::Npu] {
            row.push(if line.computed == computed { format!("{host_seconds:.0}") } else { blank() });
        }
        rows.push(row);
    }
    Table { head, rows }.dense(6)
}

fn estimate(Estimate { value, error }: Estimate, digits: usize) -> String {
    format!("{value:.digits$} ± {error:.digits$}")
}

impl Report {
    /// A finished line, of this run or an earlier one.
    pub(crate) fn finished(&self, key: &str) -> Option<&Line> {
        self.rows.iter().chain(&self.kept).find(|line| line.key == key)
    }

    /// All lines.
    pub(crate) fn into_lines(self) -> Vec<Line> {
        self.rows.into_iter().chain(self.kept).collect()
    }

    /// Adds a line, which is then no longer one of an earlier run.
    pub(crate) fn add(&mut self, line: Line) {
        self.kept.retain(|kept| kept.key != line.key);
        self.rows.push(line);
    }

    /// What was evaluated, in sentences.
    fn setting(&self) -> Vec<String> {
        let Text { name, document, source, part, rule, bytes, context_tokens } = &self.text;
        let mut lines = vec![format!(
            "Text: {}{} part, {bytes} bytes (document {}).",
            source.as_ref().map_or_else(|| name.clone(), |source| format!("{name}, {source}")) + "; ",
            part.name(),
            document.get(..12).unwrap_or(document)
        )];
        if let Some(SplitRule { block_bytes, cycle }) = rule {
            lines.push(format!(
                "Split: blocks of {block_bytes} bytes that end with a line; block 0, {cycle}, {} … is seen (for \
                 calibration), the others are held out.",
                2 * cycle
            ));
        }
        if let Some(Quality { windows, tokens, scored, .. }) = self.rows.first().map(|line| &line.quality) {
            lines.push(format!(
                "Windows: {windows} of {context_tokens} tokens ({tokens} tokens), the context emptied before each; the \
                 first half gives context, the tokens of the second half are scored ({scored})."
            ));
        }
        if let Some(reference) = &self.reference {
            lines.push(format!(
                "Reference: {} ({}), computed by the {}.",
                reference.name,
                reference.model,
                reference.computed.name()
            ));
        }
        lines
    }

    /// What needs a warning or a remark.
    fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.text.part != Part::HeldOut {
            lines.push(format!(
                "Evaluated on the {} part of the text, not on the held-out one.",
                self.text.part.name()
            ));
        }
        for line in &self.rows {
            if let Calibration::Text { text, overlap } = &line.calibration {
                let share =
                    |share: Option<f64>| share.map_or_else(|| "?".into(), |s| format!("{:.1} %", 100.0 * s));
                lines.push(format!(
                    "{}: calibrated with {text}; {} of the evaluated passages are in it.",
                    line.name,
                    share(overlap.first_in_second)
                ));
            }
            if let Some(note) = &line.note {
                lines.push(format!("{}: {note}", line.name));
            }
        }
        for failed in &self.failures {
            lines.push(format!("{}: FAILED: {}", failed.name, failed.why));
        }
        lines
    }

    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for line in self.note.iter().chain(&self.setting()) {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{line}");
        }
        out.push_str(&table(self).text());
        for line in self.remarks() {
            let _ = writeln!(out, "{line}");
        }
        out
    }

    /// A page.
    pub(crate) fn markdown(&self, plot: Option<&str>) -> String {
        let mut out = format!("# {}\n\n", self.title.as_deref().unwrap_or("Quality"));
        let paragraphs = |out: &mut String, lines: &[String]| {
            for line in lines {
                let _ = writeln!(out, "{line}\n");
            }
        };
        paragraphs(&mut out, self.note.as_slice());
        let _ = writeln!(out, "{}\n", self.setting().join("  \n"));
        out.push_str(&table(self).markdown());
        out.push('\n');
        if let Some(plot) = plot {
            let _ = writeln!(out, "![Perplexity and divergence against bits per weight]({plot})\n");
        }
        for line in self.remarks() {
            let _ = writeln!(out, "- {line}");
        }
        let _ = writeln!(
            out,
            "\n± is one standard error, positions taken as independent; that of the ratio is of the paired difference. KLD is \
             KL(reference ‖ row) in nats. Bits per weight are of all weights as they are stored: in the model file for the \
             CPU; in the pack for the NPU, or, without one, in its memory (where a pack's four bits take eight). Host seconds are this machine's and say nothing about a board: measured for \
             rows of the CPU, spent on simulating for rows of the simulated NPU; other programs ran beside them."
        );
        out
    }
}
