// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `ork` binary: bad input, output streams, settings; on a tiny random model that the test writes.

use crate::folder::Folder;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ork_engine::tiny::TinyModel;

fn ork() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ork"));
    command.env_clear().stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    ork().args(args).output().unwrap()
}

impl Folder {
    fn model(&self) -> String {
        let path = self.path("tiny.gguf");
        TinyModel::default().write(&path).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// The command fails with this code and says these words in exactly one line on stderr; stdout stays empty.
fn assert_fails(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(output.stdout.is_empty(), "stdout is for text only");
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "one error line: {said}");
    for word in words {
        assert!(errors[0].contains(word), "{word:?} is missing in {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn wrong_files_are_one_clear_line_each() {
    let folder = Folder::new();
    let model = folder.model();
    let whole = fs::read(&model).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let safetensors = br#"@       {"__metadata__":{"format":"pt"}}                                 "#;
    let mut safetensors = safetensors.to_vec();
    safetensors[..8].copy_from_slice(&64u64.to_le_bytes());
    for (path, words) in [
        (file("truncated.gguf", &whole[..whole.len() / 2]), ["truncated.gguf", "truncated"]),
        (file("empty.gguf", b""), ["empty.gguf", "empty"]),
        (file("model.safetensors", &safetensors), ["model.safetensors", "safetensors file"]),
        (file("text.gguf", b"this is a text, and not a model at all"), ["text.gguf", "not a GGUF"]),
        (folder.0.path().to_str().unwrap().to_owned(), ["directory", "hint"]),
        (folder.path("missing.gguf").to_str().unwrap().to_owned(), ["missing.gguf", "no such file"]),
    ] {
        assert_fails(&run(&["run", "-m", &path, "-p", "hi"]), 1, &words);
    }
    let names: Vec<_> =
        fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 5, "nothing else was written: {names:?}");
}

#[test]
fn wrong_requests_are_one_clear_line_each() {
    let folder = Folder::new();
    let model = folder.model();
    let with = |more: &[&str]| run(&[&["run", "-m", &model], more].concat());
    assert_fails(&with(&["-p", "hi", "-n", "0"]), 2, &["-n 0"]);
    assert_fails(&with(&["-p", ""]), 2, &["prompt is empty"]);
    assert_fails(&with(&["-p", "hi", "--temperature", "-1"]), 2, &["temperature"]);
    assert_fails(&with(&["-p", "hi", "--cores", "4"]), 2, &["cores"]);
    assert_fails(
        &with(&["-p", "hi", "--set", "device.core=1"]),
        2,
        &["device.core", "did you mean device.cores"],
    );
    assert_fails(&with(&["-p", "hi", "--device", "cpu", "--route", "npu"]), 2, &["contradict"]);
    let long = "word ".repeat(200);
    assert_fails(&with(&["-p", &long, "-c", "64"]), 1, &["prompt has", "context holds 64", "hint"]);
    let output = ork().args(["run", "-m", &model, "-p", "hi"]).env("ORK_DEVICE__CORES", "").output().unwrap();
    assert_fails(&output, 2, &["ORK_DEVICE__CORES", "empty"]);
}

#[test]
fn text_goes_to_stdout_and_all_else_to_stderr() {
    let folder = Folder::new();
    let model = folder.model();
    let output = run(&["run", "-m", &model, "-p", "hi", "-n", "6", "--route", "npu", "--stats", "--explain"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with('\n') && !text.contains("device:") && !text.contains("tok/s"), "{text}");
    assert_eq!(said.matches("device: ").count(), 1);
    for word in [
        "simulated",
        "prefill",
        "decode",
        "programs",
        "submits",
        "tiles",
        "declined",
        "flushed",
        "blk.0.ffn_up.weight",
    ] {
        assert!(said.contains(word), "{word} is missing in {said}");
    }
    assert!(!said.contains('\r') && !said.contains('\u{1b}'), "no progress bar in a pipe: {said}");
    assert!(!said.contains(" 0 matmuls"), "{said}");
}

#[test]
fn the_seed_decides_the_text_and_the_cores_do_not() {
    let folder = Folder::new();
    let model = folder.model();
    let text = |more: &[&str]| {
        let base =
            ["run", "-m", &model, "-p", "Once", "-n", "12", "--route", "npu", "--raw", "--temperature", "1"];
        let output = run(&[&base, more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let one = text(&["--seed", "1", "--cores", "1"]);
    assert_eq!(one, text(&["--seed", "1", "--cores", "3"]));
    assert_ne!(one, text(&["--seed", "2", "--cores", "3"]));
}

#[test]
fn a_closed_stdout_ends_quietly() {
    let folder = Folder::new();
    let mut child = ork()
        .args(["run", "-m", &folder.model(), "-p", "hi", "-n", "400", "--device", "cpu", "--raw"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0u8; 1];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("error") && !said.contains("panicked"), "{said}");
}

#[test]
fn devices_says_why_a_node_cannot_be_used() {
    let folder = Folder::new();
    fs::create_dir(folder.path("dri")).unwrap();
    let root = |name: &Path| format!("device.dev_root={}", name.display());
    let output = run(&["devices", "--set", &root(folder.0.path())]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("no device node") && text.contains("simulated"),
        "{text}"
    );

    // A plain file is no device; `--device rknpu` must not fall back to the simulator.
    fs::write(folder.path("dri/card0"), "").unwrap();
    let output = run(&["devices", "--device", "rknpu", "--set", &root(folder.0.path())]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(text.contains("card0") && text.contains("hint"), "{text}");
    let model = folder.model();
    let output =
        run(&["run", "-m", &model, "-p", "hi", "--device", "rknpu", "--set", &root(folder.0.path())]);
    assert_fails(&output, 4, &["no usable NPU device", "card0"]);
}

#[test]
fn config_shows_values_with_their_origin() {
    let output = ork().args(["config", "--cores", "2"]).env("ORK_OFFLOAD__MIN_ROWS", "7").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("device.cores").contains("= 2") && line("device.cores").ends_with("# --cores"));
    assert!(
        line("offload.min_rows").contains("= 7")
            && line("offload.min_rows").ends_with("# ORK_OFFLOAD__MIN_ROWS")
    );
    assert!(line("context.threads").contains("(unset)"));
}
