// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports for programs.
//!
//! JSON has everything. The other formats have one record for each row, all with the columns of [`TABLE`]; an empty cell
//! (SQL: NULL) is unknown or does not apply. A measured speed, one with a simulated NPU and a modelled time have columns
//! of their own.

use serde::Serialize;

use crate::{Provenance, Report, Row, SCHEMA_VERSION, Spread};

/// Name of the table in SQL.
pub const TABLE: &str = "ork_bench";

/// A report that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// JSON.
    #[error("cannot write the report as JSON")]
    Json(#[from] serde_json::Error),
    /// CSV.
    #[error("cannot write the report as CSV: {0}")]
    Csv(String),
}

/// One record. The order of the fields is that of the columns.
#[derive(Debug, Serialize)]
struct Record<'r> {
    schema_version: u32,
    ork_version: &'r str,
    unix_time: u64,
    cpu: Option<&'r str>,
    cpus_used: String,
    forced: bool,
    arm: &'r str,
    model: &'r str,
    model_type: &'r str,
    architecture: Option<&'r str>,
    parameters: u64,
    model_bytes: u64,
    route: &'r str,
    settings: String,
    threads: Option<u32>,
    device: &'r str,
    test: String,
    n_prompt: u32,
    n_gen: u32,
    provenance: Provenance,
    runs: usize,
    measured_mean_ts: Option<f64>,
    measured_stddev_ts: Option<f64>,
    measured_median_ts: Option<f64>,
    simulated_mean_ts: Option<f64>,
    simulated_stddev_ts: Option<f64>,
    simulated_median_ts: Option<f64>,
    null_spread: Option<f64>,
    backend_overhead: Option<f64>,
    npu_programs: Option<u64>,
    modelled_npu_us: Option<f64>,
    /// Seconds of each run, A's then B's, divided by spaces.
    seconds: String,
}

fn record<'r>(report: &'r Report, row: &'r Row) -> Record<'r> {
    let of = |provenance, value: fn(Spread) -> f64| row.speed_if(provenance).map(value);
    let prefill = row.test.kind == crate::TestKind::Prefill;
    let cpus: Vec<String> = report.host.placement.cpus.iter().map(u32::to_string).collect();
    let seconds: Vec<String> = row.seconds().iter().map(|seconds| format!("{seconds:.9}")).collect();
    Record {
        schema_version: SCHEMA_VERSION,
        ork_version: &report.ork_version,
        unix_time: report.unix_time,
        cpu: report.host.cpu.as_deref(),
        cpus_used: cpus.join(" "),
        forced: !report.objections.is_empty(),
        arm: &row.arm,
        model: &row.model,
        model_type: &row.model_type,
        architecture: row.architecture.as_deref(),
        parameters: row.parameters,
        model_bytes: row.model_bytes,
        route: &row.route,
        settings: row.settings.join("; "),
        threads: row.threads,
        device: &row.device,
        test: row.test.to_string(),
        n_prompt: if prefill { row.test.tokens } else { 0 },
        n_gen: if prefill { 0 } else { row.test.tokens },
        provenance: row.provenance,
        runs: row.seconds().len(),
        measured_mean_ts: of(Provenance::Measured, |s| s.mean),
        measured_stddev_ts: of(Provenance::Measured, |s| s.deviation),
        measured_median_ts: of(Provenance::Measured, |s| s.median),
        simulated_mean_ts: of(Provenance::Simulated, |s| s.mean),
        simulated_stddev_ts: of(Provenance::Simulated, |s| s.deviation),
        simulated_median_ts: of(Provenance::Simulated, |s| s.median),
        null_spread: row.null.map(|null| null.spread.exp_m1()),
        backend_overhead: row.overhead(),
        npu_programs: row.npu.map(|npu| npu.programs),
        modelled_npu_us: row.npu.map(|npu| npu.modelled_us),
        seconds: seconds.join(" "),
    }
}

/// The whole report; [`Report::read`] reads it again.
///
/// # Errors
/// [`FormatError`].
pub fn json(report: &Report) -> Result<String, FormatError> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// One object in a line for each row.
///
/// # Errors
/// [`FormatError`].
pub fn jsonl(report: &Report) -> Result<String, FormatError> {
    let line = |row| Ok(serde_json::to_string(&record(report, row))? + "\n");
    report.rows.iter().map(line).collect()
}

/// A head and one line for each row (RFC 4180).
///
/// # Errors
/// [`FormatError`].
pub fn csv(report: &Report) -> Result<String, FormatError> {
    let wrong = |error: &dyn std::fmt::Display| FormatError::Csv(error.to_string());
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in &report.rows {
        writer.serialize(record(report, row)).map_err(|error| wrong(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| wrong(&error))?;
    String::from_utf8(bytes).map_err(|error| wrong(&error))
}

/// Statements that make the table, if there is none, and add the rows.
///
/// # Errors
/// [`FormatError`].
pub fn sql(report: &Report) -> Result<String, FormatError> {
    let (mut out, mut made) = (String::new(), false);
    for row in &report.rows {
        let serde_json::Value::Object(fields) = serde_json::to_value(record(report, row))? else { continue };
        if !made {
            let columns: Vec<String> = fields.iter().map(|(name, _)| column(name)).collect();
            out += &format!("CREATE TABLE IF NOT EXISTS {TABLE} (\n  {}\n);\n", columns.join(",\n  "));
            made = true;
        }
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        let values: Vec<String> = fields.values().map(literal).collect();
        out += &format!("INSERT INTO {TABLE} ({}) VALUES ({});\n", names.join(", "), values.join(", "));
    }
    Ok(out)
}

/// A column with its type, by what its name says.
fn column(name: &str) -> String {
    const TEXTS: [&str; 13] = [
        "ork_version",
        "cpu",
        "cpus_used",
        "arm",
        "model",
        "model_type",
        "architecture",
        "route",
        "settings",
        "device",
        "test",
        "provenance",
        "seconds",
    ];
    const REALS: [&str; 4] = ["_ts", "_us", "null_spread", "backend_overhead"];
    let kind = if TEXTS.contains(&name) {
        "TEXT"
    } else if REALS.iter().any(|end| name.ends_with(end)) {
        "REAL"
    } else {
        "INTEGER"
    };
    format!("{name} {kind}")
}

fn literal(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => "NULL".to_owned(),
        serde_json::Value::Bool(flag) => u8::from(*flag).to_string(),
        serde_json::Value::Number(number) => number.to_string(),
        serde_json::Value::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
