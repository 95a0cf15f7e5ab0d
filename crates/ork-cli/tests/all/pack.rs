// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork calibrate` and `ork pack` from end to end, on tiny random models that the test writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ork_engine::tiny::{OutputMatrix, TinyModel, WeightType};

fn ork(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ork"));
    command.env_clear().stdin(Stdio::null()).args(args);
    command
}

fn run(args: &[&str]) -> Output {
    ork(args).output().unwrap()
}

/// Runs a command that succeeds, and gives what it says on stdout and stderr.
fn says(args: &[&str]) -> (String, String) {
    let output = run(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {said}");
    (String::from_utf8(output.stdout).unwrap(), said)
}

/// The command fails with this code and says these words in exactly one error line.
fn fails(args: &[&str], code: i32, words: &[&str]) {
    let output = run(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "one error line: {said}");
    for word in words {
        assert!(errors[0].contains(word), "{word:?} is missing in {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

fn owned(first: &[&str], rest: &[&str]) -> Vec<String> {
    first.iter().chain(rest).map(|word| (*word).to_owned()).collect()
}

fn fails_owned(args: &[String], code: i32, words: &[&str]) {
    fails(&args.iter().map(String::as_str).collect::<Vec<_>>(), code, words);
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn model(&self, name: &str, model: &TinyModel) -> String {
        let path = self.path(name);
        model.write(Path::new(&path)).unwrap();
        path
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

fn text() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/prose.txt");
    path.to_str().unwrap().to_owned()
}

fn half_precision() -> TinyModel {
    TinyModel { weight_type: WeightType::F16, ..TinyModel::default() }
}

/// The text is too short to be split.
const TOKENS: [&str; 6] =
    ["--part", "whole", "--set", "calibrate.tokens=300", "--set", "calibrate.window_tokens=64"];

fn calibrate(model: &str, output: &str) -> (String, String) {
    says(&[&["calibrate", "-m", model, "-f", &text(), "-o", output], &TOKENS[..]].concat())
}

#[test]
fn every_scheme_is_packed_looked_at_and_compared() {
    let folder = Folder::new();
    let model = folder.model("m.gguf", &half_precision());
    let (stats, pack) = (folder.path("m.orkstat"), folder.path("m.orkpack"));
    let (_, said) = calibrate(&model, &stats);
    // Four inputs per layer and the output matrix.
    assert!(said.contains("statistics of 9 inputs"), "{said}");
    let mut worst = Vec::new();
    for scheme in [
        "w8a8",
        "w8a8-rot",
        "i4a8",
        "i4a8-nf4",
        "i4a8-nf4+imatrix",
        "i4a8+stochastic",
        "i4a8+rotate+gptq+clip",
        "w4a4+rotate+clip",
        "w4a4-ladder",
    ] {
        let mut args = vec!["pack", "-m", &model, "-o", &pack, "--scheme", scheme];
        if ["imatrix", "gptq", "ladder"].iter().any(|word| scheme.contains(word)) {
            args.extend(["--stats", &stats]);
        }
        let (census, said) = says(&args);
        assert!(!said.contains("note: "), "the source is fp16: {said}");
        let counts = census.lines().filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            Some((words.next()?.parse::<u32>().ok()?, words.next()?.parse::<u32>().ok()?))
        });
        let (written, asked) = counts.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        assert_eq!((written, asked), (15, 15), "{scheme}: {census}");
        let (info, _) = says(&["pack", "info", &pack, "--json"]);
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        assert_eq!((&info["tensors"], &info["target"]["soc"]), (&15.into(), &"RK3588".into()), "{scheme}");
        assert_eq!(info["calibration"].is_null(), !args.contains(&"--stats"), "{scheme}: {info}");
        if args.contains(&"--stats") {
            assert_eq!(info["calibration"]["text"]["name"], "prose.txt");
            assert_eq!(info["calibration"]["text"]["part"], "whole");
        }
        let (lines, _) = says(&["pack", "info", &pack, "--tensors"]);
        assert!(lines.contains("blk.1.ffn_down.weight") && lines.contains("token_embd.weight"), "{lines}");
        let (verified, _) = says(&["pack", "verify", &pack, "-m", &model]);
        assert!(verified.contains("15 tensors") && verified.contains("whole"), "{verified}");
        assert_eq!(says(&["pack", "diff", &pack, &pack]).0, "no difference\n");
        let (errors, _) = says(&["pack", "errors", &pack, "-m", &model, "--json"]);
        let errors: serde_json::Value = serde_json::from_str(&errors).unwrap();
        let errors =
            errors.as_array().unwrap().iter().map(|tensor| tensor["relative_error"].as_f64().unwrap());
        let largest = errors.fold(0f64, f64::max);
        worst.push((scheme, largest));
        fs::copy(&pack, folder.path(&format!("{scheme}.orkpack"))).unwrap();
    }
    let of = |scheme: &str| worst.iter().find(|(name, _)| *name == scheme).unwrap().1;
    assert!(of("w8a8") < 0.02 && of("w8a8") > 0.001, "{worst:?}");
    assert!(of("i4a8") > 0.1 && of("i4a8") < 0.3 && of("i4a8-nf4") < of("i4a8"), "{worst:?}");
    fails(
        &["pack", "diff", &folder.path("w8a8.orkpack"), &folder.path("i4a8.orkpack")],
        1,
        &["differ in 15 points"],
    );
    // The table for people.
    let (table, _) = says(&["pack", "errors", &folder.path("w8a8.orkpack"), "-m", &model]);
    assert!(table.contains("ffn_down") && table.contains("w8a8"), "{table}");
}

#[test]
fn a_quantised_source_is_named_and_a_guide_is_followed() {
    let folder = Folder::new();
    let model = folder.model("m.gguf", &TinyModel { weight_type: WeightType::Q4_1, ..TinyModel::default() });
    let pack = folder.path("m.orkpack");
    let (_, said) = says(&["pack", "-m", &model, "-o", &pack, "--dry-run"]);
    assert!(said.contains("note: 15 of 15 weights are quantised") && said.contains("15 q4_1"), "{said}");
    assert!(!Path::new(&pack).exists());
    // Rows of 96 are no whole blocks of Q4_K, so this model mixes types: rows of 256 are.
    let mixed = TinyModel { feed_forward: 256, ..half_precision() };
    let source = folder.model("source.gguf", &mixed);
    let guide = folder.model("guide.gguf", &TinyModel { weight_type: WeightType::Q4K, ..mixed });
    let (census, said) = says(&["pack", "-m", &source, "-o", &pack, "--scheme", "i4a8", "--guide", &guide]);
    // Most weights are f16 in the guide; none has more bits, so all have the scheme.
    assert!(census.contains("i4a8") && said.contains("15 tensors"), "{census} {said}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let folder = Folder::new();
    let model = folder.model("m.gguf", &half_precision());
    let other = folder.model("other.gguf", &TinyModel { seed: 2, ..half_precision() });
    let (pack, stats) = (folder.path("m.orkpack"), folder.path("m.orkstat"));
    says(&["pack", "-m", &model, "-o", &pack, "--scheme", "i4a8"]);
    fails(&["pack", "verify", &pack, "-m", &other], 1, &["model", "m.gguf"]);
    fails(&["pack", "errors", &pack, "-m", &other], 1, &["model"]);
    let whole = fs::read(&pack).unwrap();
    let damaged = |place: usize, name: &str| {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x10;
        let path = folder.path(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    // Magic, version, checksum, codes, header.
    fails(&["pack", "info", &damaged(0, "a")], 1, &["is no pack"]);
    fails(&["pack", "info", &damaged(8, "b")], 1, &["format version 17.0", "reads 1.1"]);
    fails(&["pack", "info", &damaged(50, "c")], 1, &["damaged"]);
    let codes = damaged(5000, "d");
    says(&["pack", "info", &codes]);
    let output = run(&["pack", "verify", &codes]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("checksum"));
    fails(&["pack", "info", &damaged(whole.len() - 9, "e")], 1, &["damaged"]);
    // Statistics of another model, and other statistics under the same name.
    calibrate(&other, &stats);
    let gptq = ["--scheme", "w4a4+gptq", "--stats", &stats];
    fails(&[&["pack", "-m", &model, "-o", &pack], &gptq[..]].concat(), 1, &["is of model"]);
    fails(
        &[&["calibrate", "-m", &model, "-f", &text(), "-o", &stats], &TOKENS[..]].concat(),
        1,
        &["another model"],
    );
    assert!(fs::read(&pack).unwrap() == whole, "a refused command leaves the pack alone");
}

#[test]
fn bad_input_is_one_clear_line() {
    let folder = Folder::new();
    let model = folder.model("m.gguf", &half_precision());
    let (pack, stats) = (folder.path("m.orkpack"), folder.path("m.orkstat"));
    let make = |rest: &[&str]| owned(&["pack", "-m", &model, "-o", &pack], rest);
    fails_owned(&make(&["--scheme", "w5"]), 2, &["there is no scheme `w5`"]);
    fails_owned(&make(&["--scheme", "w4a4+gtpq"]), 2, &["there is no step `gtpq`"]);
    fails_owned(&make(&["--scheme", "w8a8+gptq"]), 2, &["four-bit"]);
    fails_owned(&make(&["--scheme", "w4a4+gptq"]), 2, &["--stats"]);
    fails_owned(
        &make(&["--scheme", "w4a4+gptq", "--stats", &model]),
        1,
        &["is no file of calibration statistics"],
    );
    fails_owned(&make(&["--scheme", "i4a8+imatrix", "--imatrix", &model]), 1, &["importance matrix"]);
    fails_owned(&make(&["--guide", &folder.path("none")]), 1, &["none"]);
    fails(&["pack", "-m", &folder.path("none"), "-o", &pack], 1, &["none"]);
    fails(&["pack", "-m", &model, "-o", "/nonexistent/m.orkpack"], 1, &["/nonexistent"]);
    fails(&["pack", "info", &folder.path("none")], 1, &["none"]);
    let prose = text();
    let read = |rest: &[&str]| {
        owned(&["calibrate", "-m", &model, "-f", &prose, "-o", &stats, "--part", "whole"], rest)
    };
    fails(&["calibrate", "-m", &model, "-f", &text(), "-o", &stats], 2, &["prose.txt", "--part whole"]);
    fails_owned(
        &read(&["--set", "calibrate.memory_bytes_max=1000"]),
        1,
        &["1000 are allowed", "memory_bytes_max"],
    );
    fails_owned(&read(&["--set", "calibrate.window_tokens=100000"]), 2, &["calibrate.window_tokens"]);
    fails_owned(&read(&["--set", "calibrate.tokens=0"]), 2, &["calibrate.tokens"]);
    let empty = folder.path("empty");
    fs::write(&empty, "").unwrap();
    fails(&["calibrate", "-m", &model, "-f", &empty, "-o", &stats], 2, &["empty"]);
    calibrate(&model, &stats);
    fails_owned(&make(&["--stats", &stats]), 2, &["uses neither"]);
    assert_eq!(folder.files().len(), 3, "model, empty text and statistics: {:?}", folder.files());
}

fn killed_after(mut child: Child, wait: Duration) {
    std::thread::sleep(wait);
    // SIGKILL; a child that has ended is fine too.
    _ = child.kill();
    child.wait().unwrap();
}

#[test]
fn kill_leaves_no_pack_and_the_next_run_completes_it() {
    let folder = Folder::new();
    let size = TinyModel {
        layers: 4,
        embedding: 384,
        feed_forward: 1024,
        output: OutputMatrix::Separate,
        ..half_precision()
    };
    let model = folder.model("m.gguf", &size);
    let (pack, reference) = (folder.path("m.orkpack"), folder.path("r.orkpack"));
    let args = |output: &str| -> Vec<String> {
        ["pack", "-m", &model, "-o", output, "--scheme", "w4a4+rotate+clip"].map(str::to_owned).to_vec()
    };
    let start = |output: &str| {
        let args = args(output);
        ork(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert!(start(&reference).output().unwrap().status.success());
    let wanted = fs::read(&reference).unwrap();
    let journal = format!("{pack}.journal");
    let mut continued = 0;
    for round in 0..6u64 {
        let child = start(&pack).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        // From the moment the first tensor is journalled, at moments that differ.
        let begin = Instant::now();
        while fs::metadata(&journal).map_or(0, |file| file.len()) < 400
            && begin.elapsed() < Duration::from_secs(60)
        {
            std::thread::sleep(Duration::from_micros(500));
        }
        killed_after(child, Duration::from_millis(13 * round));
        let finished = Path::new(&pack).exists();
        if !finished {
            fails(&["pack", "info", &pack], 1, &[&pack]);
        }
        let output = start(&pack).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        continued += u32::from(String::from_utf8_lossy(&output.stderr).contains("interrupted run"));
        assert!(fs::read(&pack).unwrap() == wanted, "round {round}");
        fs::remove_file(&pack).unwrap();
    }
    assert!(continued > 1, "{continued} rounds continued something");
    assert_eq!(folder.files().len(), 2, "{:?}", folder.files());
}

#[test]
fn a_killed_calibration_is_continued_to_the_same_sums() {
    let folder = Folder::new();
    let model = folder.model("m.gguf", &half_precision());
    let (stats, reference) = (folder.path("m.orkstat"), folder.path("r.orkstat"));
    let settings =
        ["--part", "whole", "--set", "calibrate.tokens=2000", "--set", "calibrate.window_tokens=32"];
    let text = text();
    let calibrate = |output: &str| {
        let mut command = ork(&["calibrate", "-m", &model, "-f", &text, "-o", output]);
        command.args(settings).args(["--threads", "1", "--set", "calibrate.save_seconds=0"]);
        command
    };
    assert!(calibrate(&reference).output().unwrap().status.success());
    let mut continued = 0;
    for round in 0..4u64 {
        let child = calibrate(&stats).stderr(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        while !Path::new(&stats).exists() && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        killed_after(child, Duration::from_millis(17 * round));
        let output = calibrate(&stats).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        continued += u32::from(said.contains("continuing at token"));
        assert!(fs::read(&stats).unwrap() == fs::read(&reference).unwrap(), "round {round}");
        fs::remove_file(&stats).unwrap();
    }
    assert!(continued > 1, "{continued} rounds continued something");
}
