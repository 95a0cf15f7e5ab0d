// SPDX-License-Identifier: MIT OR Apache-2.0
//! A report for people.

use std::fmt::Write;

use ork_bench::{Against, Provenance, Report, Row, Spread};

use crate::table::{BLANK, Table};

/// The report as text.
pub(super) fn text(report: &Report) -> String {
    format!("{}\n{}\n{}", head(report).join("\n"), table(report).text(), tail(report).join("\n") + "\n")
}

/// The report as Markdown.
pub(super) fn markdown(report: &Report) -> String {
    let list = |lines: Vec<String>| lines.iter().map(|line| format!("- {line}\n")).collect::<String>();
    format!("{}\n{}\n{}", list(head(report)), table(report).markdown(), list(tail(report)))
}

/// A comparison with an earlier report.
pub(super) fn against(against: &Against) -> String {
    let mut out = String::from("against the earlier report:\n");
    // Writing to a string cannot fail.
    for comparison in &against.comparisons {
        let _ = writeln!(out, "{comparison}");
    }
    for note in &against.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn head(report: &Report) -> Vec<String> {
    let cpu = report.host.cpu.as_deref().unwrap_or("CPU unknown");
    let mut lines = vec![
        format!("{cpu}; {}", report.host.placement),
        format!("before: {}", report.board_before),
        format!("after: {}", report.board_after),
    ];
    for (index, row) in report.rows.iter().enumerate() {
        let line = format!("{}: {}", row.arm, row.device);
        if !report.rows[..index].iter().any(|other| other.arm == row.arm) {
            lines.push(line);
        }
    }
    lines.extend(report.objections.iter().map(|objection| format!("FORCED although {objection}")));
    lines.extend(
        report.board_before.fallen(&report.board_after).into_iter().map(|fall| format!("NOTE: {fall}")),
    );
    lines.push(format!(
        "host wall time, tok/s: mean ± standard deviation (median) of {} runs of each arm, {} before them",
        2 * report.rounds,
        report.warmup
    ));
    lines
}

fn table(report: &Report) -> Table {
    let head = vec![
        "arm",
        "model",
        "test",
        "measured",
        "with simulated NPU",
        "A/A null",
        "backend outside the NPU",
        "the NPU's part on an RK3588",
    ];
    let rows = report.rows.iter().map(|row| {
        vec![
            row.arm.clone(),
            row.model.clone(),
            row.test.to_string(),
            speed(row.speed_if(Provenance::Measured)),
            speed(row.speed_if(Provenance::Simulated)),
            row.null.map_or_else(unknown, |null| format!("±{:.1} %", null.spread.exp_m1() * 100.0)),
            row.overhead().map_or_else(unknown, |share| format!("{:.1} % of the run", share * 100.0)),
            modelled(row).unwrap_or_else(unknown),
        ]
    });
    Table { head, rows: rows.collect() }.dense(3)
}

fn unknown() -> String {
    BLANK.to_owned()
}

fn speed(speed: Option<Spread>) -> String {
    speed.map_or_else(unknown, |speed| {
        format!("{:.2} ± {:.2} ({:.2})", speed.mean, speed.deviation, speed.median)
    })
}

fn modelled(row: &Row) -> Option<String> {
    let npu = row.npu.filter(|npu| npu.modelled_us > 0.0)?;
    Some(format!("{:.1} ms modelled", npu.modelled_us / 1e3))
}

fn tail(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let simulated = report.rows.iter().any(|row| row.provenance == Provenance::Simulated);
    for comparison in &report.comparisons {
        lines.push(comparison.to_string());
    }
    if report.rounds < 2 {
        lines.push("one round gives no A/A null, and so no verdict: -r 2 or more does".to_owned());
    }
    if simulated && !report.comparisons.is_empty() {
        lines.push(
            "(ratios of host time; where the NPU is simulated, that is the price of simulating it, not a board's speed)"
                .to_owned(),
        );
    }
    for row in &report.rows {
        lines.extend(backend(row));
    }
    for published in &report.published {
        let speed = |name: &str, speed: Option<f64>| speed.map(|speed| format!("{name} {speed} tok/s"));
        let prompt = published.prefill_tokens.map(|tokens| format!(" ({tokens} tokens)")).unwrap_or_default();
        let prefill = speed("prefill", published.prefill).map(|text| text + &prompt);
        let speeds: Vec<String> =
            [prefill, speed("decode", published.decode)].into_iter().flatten().collect();
        lines.push(format!(
            "published, measured elsewhere: {} on {}, {}: {} [{}]",
            published.model,
            published.chip,
            published.runtime,
            speeds.join(", "),
            published.source
        ));
    }
    lines
}

/// Where the backend's host time went.
fn backend(row: &Row) -> Option<String> {
    let npu = row.npu?;
    let all: f64 = row.seconds().iter().sum();
    let share = |seconds: f64| format!("{:.1} %", 100.0 * seconds / all);
    let phases = npu.quantise_s + npu.synthesise_s + npu.sync_s + npu.submit_s + npu.dequantise_s;
    let below = match row.provenance {
        Provenance::Measured => String::new(),
        Provenance::Simulated => format!(
            ", {} of it below the ioctl (the model of the NPU {}, the emulated kernel {})",
            share(npu.below_ioctl_s),
            share(npu.npu_s),
            share((npu.below_ioctl_s - npu.npu_s).max(0.0)),
        ),
    };
    Some(format!(
        "{} {}: backend {} of the run{below}; its phases: quantise {}, synthesise {}, sync {}, submit and wait {}, \
         de-tile and scale {}, the rest {}",
        row.arm,
        row.test,
        share(npu.backend_s),
        share(npu.quantise_s),
        share(npu.synthesise_s),
        share(npu.sync_s),
        share(npu.submit_s),
        share(npu.dequantise_s),
        share((npu.backend_s - phases).max(0.0)),
    ))
}
