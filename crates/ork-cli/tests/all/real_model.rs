// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real model that `scripts/test` fetches, through the simulated NPU.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const MODEL: &str = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn ork(args: &[&str]) -> Output {
    assert!(root().join(MODEL).is_file(), "{MODEL} is missing: scripts/test fetches it");
    let output =
        Command::new(env!("CARGO_BIN_EXE_ork")).env_clear().current_dir(root()).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn it_answers_sensibly_through_the_npu() {
    let mut answers = std::collections::BTreeMap::new();
    for route in ["npu", "cpu", "auto"] {
        let output = ork(&[
            "run",
            "-m",
            MODEL,
            "-p",
            "What is the capital of France?",
            "-n",
            "24",
            "--temperature",
            "0",
            "--device",
            "sim",
            "--route",
            route,
            "--stats",
        ]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.len() > 20, "route {route}: {text}");
        let said = String::from_utf8(output.stderr).unwrap();
        // The prompt has rows enough for the NPU to be worth it.
        assert_eq!(said.contains(" programs"), route != "cpu", "route {route}: {said}");
        assert!(!said.contains(" 0 programs"), "route {route}: {said}");
        answers.insert(route, text);
    }
    // The CPU's own answer is for comparison: it is another path through the same model, and auto takes part of both.
    assert!(answers["npu"].contains("Paris"), "{answers:?}");
    let first_words = |route: &str| answers[route].split_whitespace().take(2).collect::<Vec<_>>();
    assert!(["npu", "cpu"].iter().any(|route| first_words("auto") == first_words(route)), "{answers:?}");
}

#[test]
fn the_npu_route_stays_close_to_the_cpu_route() {
    let output =
        ork(&["compare", "-m", MODEL, "-f", "tests/data/prose.txt", "--text-tokens", "512", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let kl = report["mean_kl"].as_f64().unwrap();
    // The bound of the first slice; and not zero, which would mean that both arms ran on the same side.
    assert!((1e-4..=0.05).contains(&kl), "mean KL {kl}");
    assert_eq!(report["positions"], 512);
    let ratio =
        report["candidate_perplexity"].as_f64().unwrap() / report["reference_perplexity"].as_f64().unwrap();
    assert!((0.9..1.1).contains(&ratio), "perplexity ratio {ratio}");
}

/// Peak resident memory: at most three times the int8 weights and 512 MB.
#[test]
fn memory_stays_within_its_budget() {
    let int8_weight_bytes = 134_500_000u64;
    let peak = peak_bytes(&[
        "run",
        "-m",
        MODEL,
        "-p",
        "Tell me about rivers.",
        "-n",
        "4",
        "--device",
        "sim",
        "--route",
        "npu",
    ]);
    assert!(peak > int8_weight_bytes, "the weights are resident: {peak}");
    let budget = 3 * int8_weight_bytes + 512_000_000;
    assert!(peak <= budget, "peak resident set {peak} bytes, the budget is {budget}");
}

/// Runs `ork` and gives the largest resident set of that process.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
fn peak_bytes(args: &[&str]) -> u64 {
    let child = Command::new(env!("CARGO_BIN_EXE_ork"))
        .env_clear()
        .current_dir(root())
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both places are valid, and the child is waited for nowhere else.
    let waited = unsafe { libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()) };
    assert_eq!((waited, status), (pid, 0), "the run succeeds");
    // SAFETY: zeroed, and filled by the call.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_maxrss).unwrap() * 1024
}
