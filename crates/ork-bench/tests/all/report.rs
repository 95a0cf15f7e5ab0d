// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports in every format, read back by parsers that are not ours.

use std::io::Write;
use std::process::{Command, Stdio};

use ork_bench::{
    AgainstError, BoardState, Host, NpuPart, Null, Placement, PlacementBasis, Provenance, ReadError, Report,
    Row, SCHEMA, SCHEMA_VERSION, Test, TestKind, Verdict, csv, json, jsonl, published, sql,
};

/// A name that needs quoting everywhere.
const NAME: &str = "o'neill, \"quoted\"\nline";

fn row(arm: &str, provenance: Provenance, seconds: [f64; 4]) -> Row {
    let (seconds_a, seconds_b) = (seconds[..2].to_vec(), seconds[2..].to_vec());
    Row {
        arm: arm.into(),
        model: "m.gguf".into(),
        model_type: "qwen3 1.7B Q8_0".into(),
        architecture: Some("qwen3".into()),
        layers: 28,
        embedding: 2048,
        parameters: 1_720_574_976,
        model_bytes: 1_834_426_016,
        route: "auto".into(),
        settings: vec!["offload.min_rows=8".into()],
        threads: None,
        device: "simulated NPU".into(),
        test: Test { kind: TestKind::Prefill, tokens: 100 },
        provenance,
        null: Null::of(&seconds_a, &seconds_b),
        seconds_a,
        seconds_b,
        npu: (provenance == Provenance::Simulated).then(|| NpuPart {
            products: 8,
            programs: 64,
            backend_s: 3.0,
            npu_s: 2.4,
            below_ioctl_s: 2.6,
            modelled_us: 125.5,
            ..NpuPart::default()
        }),
    }
}

fn report() -> Report {
    let rows = vec![
        row("CPU", Provenance::Measured, [1.0, 1.01, 1.02, 1.03]),
        row(NAME, Provenance::Simulated, [2.0, 2.0, 2.0, 2.0]),
    ];
    Report {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        ork_version: "0.1.0".into(),
        unix_time: 1_791_000_000,
        host: Host {
            cpu: None,
            kernel: None,
            placement: Placement { cpus: vec![4, 5], allowed: 8, basis: PlacementBasis::Capacity },
        },
        board_before: BoardState::default(),
        board_after: BoardState::default(),
        objections: vec![],
        rounds: 2,
        warmup: 1,
        comparisons: rows[1].against(&rows[0], "CPU").into_iter().collect(),
        published: published::of(&rows[0]).cloned().collect(),
        rows,
    }
}

/// Runs a script of Python over a text.
fn python(script: &str, input: &str) -> String {
    let mut child = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn parsed(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn json_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json");
    std::fs::write(&path, json(&report()).unwrap()).unwrap();
    assert_eq!(Report::read(&path).unwrap(), report());

    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Report::read(&path).unwrap_err()
    };
    assert!(matches!(read("{}"), ReadError::Other { .. }));
    assert!(matches!(read("no json"), ReadError::Other { .. }));
    let newer = json(&Report { schema_version: 99, ..report() }).unwrap();
    assert!(matches!(read(&newer), ReadError::Version { found: 99, .. }));
    assert!(matches!(Report::read(&folder.path().join("missing")), Err(ReadError::File { .. })));
}

/// The columns that CSV, SQL and JSON lines share, as each parser sees them.
fn check(rows: &serde_json::Value) {
    let number = |value: &serde_json::Value| -> Option<f64> {
        value.as_f64().or_else(|| value.as_str().and_then(|text| text.parse().ok()))
    };
    let [cpu, npu] = rows.as_array().unwrap().as_slice() else { panic!("two rows: {rows}") };
    assert_eq!((&cpu["arm"], &npu["arm"]), (&"CPU".into(), &NAME.into()));
    assert_eq!((&cpu["test"], number(&cpu["n_prompt"])), (&"pp100".into(), Some(100.0)));
    assert_eq!(number(&cpu["schema_version"]), Some(f64::from(SCHEMA_VERSION)));
    let mean = number(&cpu["measured_mean_ts"]).unwrap();
    let expected = [1.0, 1.01, 1.02, 1.03].map(|seconds| 100.0 / seconds).iter().sum::<f64>() / 4.0;
    assert!((mean - expected).abs() < 1e-9, "{mean}");
    // A simulated speed is in no measured column, and the other way round.
    assert_eq!((number(&cpu["simulated_mean_ts"]), number(&npu["measured_median_ts"])), (None, None));
    assert_eq!(number(&npu["simulated_median_ts"]), Some(50.0));
    assert_eq!((number(&cpu["modelled_npu_us"]), number(&npu["modelled_npu_us"])), (None, Some(125.5)));
    assert!((number(&npu["backend_overhead"]).unwrap() - 0.4 / 8.0).abs() < 1e-12);
}

#[test]
fn lines_of_json_read_back() {
    let text = jsonl(&report()).unwrap();
    check(&text.lines().map(parsed).collect());
}

#[test]
fn csv_reads_back() {
    let text = csv(&report()).unwrap();
    check(&parsed(&python(
        "import csv, json, sys; print(json.dumps(list(csv.DictReader(sys.stdin))))",
        &text,
    )));
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    assert_eq!(reader.records().map(|record| record.unwrap().len()).collect::<Vec<_>>().len(), 2);
}

#[test]
fn sql_reads_back() {
    let text = sql(&report()).unwrap();
    let script = "
import json, sqlite3, sys
db = sqlite3.connect(':memory:')
db.row_factory = sqlite3.Row
text = sys.stdin.read()
db.executescript(text)
rows = [dict(row) for row in db.execute('SELECT * FROM ork_bench')]
db.executescript(text)
assert len(list(db.execute('SELECT * FROM ork_bench'))) == 2 * len(rows)
types = {row['type'] for row in db.execute('PRAGMA table_info(ork_bench)')}
assert types == {'TEXT', 'REAL', 'INTEGER'}, types
for row in db.execute('SELECT * FROM ork_bench'):
    for column in db.execute('PRAGMA table_info(ork_bench)'):
        value, kind = row[column['name']], column['type']
        wanted = {'TEXT': str, 'REAL': float, 'INTEGER': int}[kind]
        assert value is None or isinstance(value, wanted), (column['name'], value)
print(json.dumps(rows))";
    check(&parsed(&python(script, &text)));
}

#[test]
fn published_rows_are_found_by_shape() {
    let report = report();
    assert_eq!(report.published.len(), 1);
    assert_eq!((report.published[0].prefill, report.published[0].decode), (Some(183.9), Some(11.71)));
    let other = Row { layers: 27, ..report.rows[0].clone() };
    assert_eq!(published::of(&other).count(), 0);
    let seven = Row { architecture: Some("qwen2".into()), embedding: 3584, ..report.rows[0].clone() };
    assert!(published::of(&seven).all(|row| row.model == "Qwen2.5-7B") && published::of(&seven).count() == 2);
}

#[test]
fn reports_are_compared_row_by_row() {
    let (old, mut new) = (report(), report());
    assert_eq!(new.comparisons[0].verdict, Verdict::Slower);
    for row in &mut new.rows {
        row.seconds_a.iter_mut().for_each(|seconds| *seconds *= 0.5);
        row.seconds_b.iter_mut().for_each(|seconds| *seconds *= 0.5);
    }
    let against = new.against(&old).unwrap();
    assert_eq!(against.comparisons.len(), 2);
    assert!(
        against
            .comparisons
            .iter()
            .all(|one| one.verdict == Verdict::Faster && (one.ratio - 2.0).abs() < 1e-9)
    );
    assert_eq!(against.notes.len(), 1);
    let same = old.against(&old).unwrap();
    assert!(same.comparisons.iter().all(|one| one.verdict == Verdict::NoDifferenceShown));

    let elsewhere = Report { host: Host { kernel: Some("6.1".into()), ..old.host.clone() }, ..old.clone() };
    assert_eq!(new.against(&elsewhere).unwrap().notes.len(), 2);
    let mut on_board = old.clone();
    on_board.rows[1].provenance = Provenance::Measured;
    assert!(matches!(new.against(&on_board), Err(AgainstError::Provenance { .. })));
    for row in &mut on_board.rows {
        row.model = "other.gguf".into();
    }
    assert_eq!(new.against(&on_board), Err(AgainstError::Nothing));
}
