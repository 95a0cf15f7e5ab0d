// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork ppl` on tiny random models: tables, refusals, what survives a failure.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use ork_engine::tiny::{Pooling, TinyModel, WeightType};
use serde_json::Value;

struct Folder(tempfile::TempDir);

impl Folder {
    /// With models f32, f16, q4 and pooled, and two texts.
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (name, weight_type) in
            [("f32", WeightType::F32), ("f16", WeightType::F16), ("q4", WeightType::Q4_0)]
        {
            folder.model(&format!("{name}.gguf"), TinyModel { weight_type, ..TinyModel::default() });
        }
        folder.model("pooled.gguf", TinyModel { pooling: Pooling::Mean, ..TinyModel::default() });
        std::fs::write(folder.path("text.txt"), prose(1)).unwrap();
        std::fs::write(folder.path("other.txt"), prose(2)).unwrap();
        folder
    }

    fn model(&self, name: &str, tiny: TinyModel) {
        tiny.write(&self.path(name)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Two windows of 32 tokens of the held-out half of the text; words of `more` that name files are of this folder.
    fn ppl(&self, more: &[&str]) -> Output {
        let common = "ppl -f text.txt --cycle 2 -c 32 -t 1 --device sim --route cpu";
        let block: &[&str] = if more.contains(&"--block") { &[] } else { &["--block", "300"] };
        let windows: &[&str] = if more.contains(&"--windows") { &[] } else { &["--windows", "2"] };
        Command::new(env!("CARGO_BIN_EXE_ork"))
            .env_clear()
            .current_dir(self.0.path())
            .args(common.split(' '))
            .args(block)
            .args(windows)
            .args(more)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }
}

fn prose(seed: u64) -> String {
    let mut state = seed;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 48
    };
    (0..40)
        .map(|_| format!("the {} of {} and the {} is not a {} of it\n", word(), word(), word(), word()))
        .collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn fails(output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "one error line: {said}");
    for word in words {
        assert!(errors[0].contains(word), "{word:?} is missing in {said}");
    }
}

fn names(report: &Value, list: &str) -> Vec<String> {
    report[list].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_table_of_the_cpu_and_the_simulated_npu() {
    let folder = Folder::new();
    let output = folder.ppl(&[
        "--against",
        "f32.gguf",
        "--row",
        "half=f16.gguf,note=a remark",
        "--row",
        "four=q4.gguf",
        "--row",
        "int8=f16.gguf,route=npu,scheme=w8a8",
        "--json",
        "r.json",
        "--markdown",
        "r.md",
        "--svg",
        "r.svg",
        "--save-text",
        "held.txt",
    ]);
    let table = succeeds(&output);
    let report = folder.json("r.json");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(names(&report, "rows"), ["half", "four", "int8"]);
    let kl = |row: usize| rows[row]["quality"]["versus"]["kl"]["value"].as_f64().unwrap();
    let (half, four, int8) = (kl(0), kl(1), kl(2));
    assert!(half > 0.0 && half < int8 && int8 < four, "{half} {int8} {four}");
    let computed: Vec<&str> = rows.iter().map(|row| row["computed"].as_str().unwrap()).collect();
    assert_eq!(computed, ["cpu", "cpu", "simulated-npu"]);
    // 15 products per evaluation of the graph, each window in one batch.
    assert_eq!(rows[2]["npu_products"], 30);
    assert_eq!(
        (&rows[0]["npu_products"], &rows[0]["scheme"], &rows[2]["scheme"]),
        (&0.into(), &"f16".into(), &"w8a8".into())
    );
    let bits = |row: usize| rows[row]["size"]["bits_per_weight"].as_f64().unwrap();
    assert!((15.9..16.5).contains(&bits(0)) && bits(2) > 8.0 && bits(2) < bits(0), "{} {}", bits(0), bits(2));
    assert_eq!(report["text"]["part"], "held-out");
    assert_eq!(rows[0]["quality"]["scored"], 2 * 15);
    // Perplexity of the reference is one number, whichever row it was computed beside.
    let reference = &report["reference"]["perplexity"]["perplexity"]["value"];
    for row in rows {
        assert_eq!(&row["quality"]["versus"]["reference"]["perplexity"]["value"], reference);
    }
    for word in
        ["PPL", "half", "simulated NPU", "CPU host s", "simulating host s", "held-out part", "a remark"]
    {
        assert!(table.contains(word), "{word} is missing in {table}");
    }
    assert!(!table.contains(" NPU host s"), "no row was computed by an NPU: {table}");
    let markdown = std::fs::read_to_string(folder.path("r.md")).unwrap();
    assert!(markdown.contains("| four |") && markdown.contains("](r.svg)"), "{markdown}");
    let plot = std::fs::read_to_string(folder.path("r.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.matches("<circle").count() >= 7, "{plot}");
    // The text that was evaluated: every second block of at least 300 bytes, in whole lines.
    let text = prose(1);
    let held = std::fs::read_to_string(folder.path("held.txt")).unwrap();
    assert!(held.len() < text.len() * 6 / 10 && held.len() > text.len() * 4 / 10);
    assert!(
        held.lines().all(|line| text.lines().any(|whole| whole == line)) && !held.starts_with(&text[..50])
    );
}

#[test]
fn text_that_calibration_saw_is_refused_unless_asked_for() {
    let folder = Folder::new();
    let row = "mine=f16.gguf,calibrated=text.txt";
    fails(&folder.ppl(&["--row", row]), 2, &["mine", "calibrated", "--allow-seen"]);
    let table = succeeds(&folder.ppl(&["--row", row, "--allow-seen"]));
    assert!(table.contains("SAME TEXT"), "{table}");
    let table = succeeds(&folder.ppl(&["--row", "mine=f16.gguf,calibrated=other.txt"]));
    assert!(table.contains("other text") && !table.contains("SAME TEXT"), "{table}");
    // The seen part of a text is labelled as what it is.
    let table = succeeds(&folder.ppl(&["-m", "f16.gguf", "--part", "seen"]));
    assert!(table.contains("Evaluated on the seen part"), "{table}");
}

#[test]
fn a_failed_row_costs_itself_alone_and_the_others_are_resumed() {
    let folder = Folder::new();
    let rows = |broken: &'static str| {
        ["--row", "good=f16.gguf", "--row", broken, "--row", "last=q4.gguf", "--json", "r.json", "--resume"]
    };
    let output = folder.ppl(&rows("bad=f32.gguf,context.batch_tokens=0"));
    fails(&output, 1, &["1 of 3 rows failed: bad"]);
    let report = folder.json("r.json");
    assert_eq!(
        (names(&report, "rows"), names(&report, "failures")),
        (vec!["good".into(), "last".into()], vec!["bad".to_owned()])
    );
    let first = report["rows"][0].clone();
    // Mended: only that row is computed.
    let output = folder.ppl(&rows("bad=f32.gguf"));
    succeeds(&output);
    assert_eq!(said(&output).matches("unchanged since an earlier run").count(), 2, "{}", said(&output));
    let report = folder.json("r.json");
    assert_eq!(names(&report, "rows"), ["good", "bad", "last"]);
    assert_eq!(report["rows"][0], first, "host time included: it was not computed again");
    // A changed file or setting is another row.
    folder.model("q4.gguf", TinyModel { weight_type: WeightType::Q4_0, seed: 9, ..TinyModel::default() });
    let output = folder.ppl(&rows("bad=f32.gguf,context.batch_tokens=16"));
    succeeds(&output);
    assert_eq!(said(&output).matches("unchanged").count(), 1, "{}", said(&output));
    // One row alone; the others are still shown.
    let output = folder.ppl(&[&rows("bad=f32.gguf")[..], &["--only", "good"]].concat());
    let table = succeeds(&output);
    assert!(table.contains("last") && table.contains("bad"), "{table}");
    assert!(!said(&output).contains("last"), "{}", said(&output));
}

#[test]
fn a_kept_reference_gives_the_same_and_belongs_to_its_text() {
    let folder = Folder::new();
    let with = |more: &[&str]| folder.ppl(&[&["--against", "f32.gguf", "-m", "q4.gguf"], more].concat());
    succeeds(&with(&["--json", "direct.json"]));
    succeeds(&with(&["--json", "kept.json", "--reference-file", "f32.orkref"]));
    succeeds(&with(&["--json", "again.json", "--reference-file", "f32.orkref"]));
    let kl = |name: &str| folder.json(name)["rows"][0]["quality"]["versus"]["kl"]["value"].as_f64().unwrap();
    assert!(kl("direct.json") > 1e-3);
    assert!((kl("direct.json") - kl("kept.json")).abs() < 1e-5, "{} {}", kl("direct.json"), kl("kept.json"));
    assert_eq!(kl("kept.json"), kl("again.json"));
    let other = with(&["--reference-file", "f32.orkref", "--part", "seen"]);
    fails(&other, 1, &["1 of 1 rows failed"]);
    assert!(said(&other).contains("of another text or other windows"), "{}", said(&other));
    let other = folder.ppl(&["--against", "f16.gguf", "-m", "q4.gguf", "--reference-file", "f32.orkref"]);
    assert!(said(&other).contains("another model"), "{}", said(&other));
}

#[test]
fn a_pack_is_built_once_and_the_reference_does_without() {
    let folder = Folder::new();
    let with = |pack: &str, json: &str| {
        let row = format!("npu=f16.gguf,route=npu,pack={pack}");
        let (rows, reference) = (["--row", &row, "--json", json], ["--against", "f32.gguf"]);
        folder.ppl(&[&rows[..], &reference, &["--reference-file", "f32.orkref"]].concat())
    };
    fails(&with("require", "none.json"), 1, &["1 of 1 rows failed"]);
    assert!(!folder.path("f16.orkpack").exists());
    succeeds(&with("never", "converted.json"));
    succeeds(&with("build", "built.json"));
    let modified = || std::fs::metadata(folder.path("f16.orkpack")).unwrap().modified().unwrap();
    let made = modified();
    succeeds(&with("build", "again.json"));
    assert_eq!(modified(), made);
    let row = |name: &str| folder.json(name)["rows"][0].clone();
    assert_eq!(row("built.json")["scheme"], "15 x w8a8");
    for name in ["built.json", "again.json"] {
        // All but the time that it took.
        let quality = |name: &str| {
            let mut quality = row(name)["quality"].clone();
            quality["host_seconds"] = serde_json::Value::Null;
            quality
        };
        assert_eq!(quality(name), quality("converted.json"), "the bits that converting gives");
        assert_eq!(row(name)["npu_products"], row("converted.json")["npu_products"]);
    }
    // A pack of the command line is for the rows: the reference is computed by the CPU, which uses none.
    let output =
        folder.ppl(&["--row", "npu=f16.gguf,route=npu", "--against", "f16.gguf", "--pack", "f16.orkpack"]);
    succeeds(&output);
}

#[test]
fn encoders_are_judged_by_their_vectors() {
    let folder = Folder::new();
    let coarse = TinyModel { pooling: Pooling::Mean, weight_type: WeightType::Q4_0, ..TinyModel::default() };
    folder.model("coarse.gguf", coarse);
    let common = [
        "--embeddings",
        "--against",
        "pooled.gguf",
        "--row",
        "same=pooled.gguf",
        "--row",
        "coarse=coarse.gguf",
    ];
    let more = ["--row", "npu=pooled.gguf,route=npu", "--json", "e.json", "--markdown", "e.md"];
    let output = folder.ppl(&[&common[..], &more].concat());
    let table = succeeds(&output);
    assert!(table.contains("mean cosine") && table.contains("simulated NPU"), "{table}");
    let report = folder.json("e.json");
    let cosine = |row: usize| report["rows"][row]["likeness"]["mean_cosine"].as_f64().unwrap();
    assert!(cosine(0) > 0.999_999 && cosine(1) < cosine(2) && cosine(2) < cosine(0), "{report}");
    assert_eq!(report["rows"][2]["npu_products"], 2 * 15);
    assert!(std::fs::read_to_string(folder.path("e.md")).unwrap().contains("| coarse |"));
    let table = succeeds(&folder.ppl(&[&common[..], &["--only", "coarse"]].concat()));
    assert!(table.contains("coarse") && !table.contains("same"), "{table}");
    fails(&folder.ppl(&["--embeddings", "-m", "pooled.gguf"]), 2, &["--against"]);
    fails(&folder.ppl(&["--embeddings", "-m", "f32.gguf", "--against", "f32.gguf"]), 1, &["embedding"]);
}

#[test]
fn wrong_requests_are_one_clear_line_each() {
    let folder = Folder::new();
    fails(&folder.ppl(&[]), 2, &["nothing to evaluate"]);
    fails(&folder.ppl(&["-m", "f16.gguf", "--block", "100000"]), 2, &["longer text or smaller blocks"]);
    fails(&folder.ppl(&["-m", "f16.gguf", "--block", "0"]), 2, &["split"]);
    fails(&folder.ppl(&["-m", "missing.gguf"]), 1, &["no such file"]);
    fails(&folder.ppl(&["--row", "nonsense"]), 2, &["NAME=MODEL"]);
    fails(&folder.ppl(&["--row", "a=f16.gguf", "--row", "a=q4.gguf"]), 2, &["two rows"]);
    fails(&folder.ppl(&["--row", "a=f16.gguf", "--only", "b"]), 2, &["no row"]);
    fails(&folder.ppl(&["--row", "a=f16.gguf,device.cors=1"]), 2, &["did you mean device.cores"]);
    fails(&folder.ppl(&["--table", "text.txt"]), 2, &["cannot read the rows"]);
    let short = folder.ppl(&["-m", "f16.gguf", "--windows", "5000"]);
    fails(&short, 1, &["1 of 1 rows failed"]);
    assert!(said(&short).contains("tokens, 160000 are wanted"), "{}", said(&short));
}
