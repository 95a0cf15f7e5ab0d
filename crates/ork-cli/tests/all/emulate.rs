// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork emulate`, `capture` and `replay` with an unmodified C program and an unmodified Python program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Bench {
    folder: tempfile::TempDir,
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs")
}

/// The library, which cargo builds beside the tests (a dev-dependency).
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let found = own.parent().unwrap().join("libork_shim.so");
    assert!(found.exists(), "{} is missing", found.display());
    found
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn program(&self, flags: &[&str]) -> String {
        let out = self.path("matmul");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-pthread", "-o", &out]).arg(sources().join("rknpu_matmul.c")).args(flags);
        assert!(compiler.status().expect("a C compiler: Debian package gcc").success());
        out
    }

    fn ork(&self, command: &str, args: &[&str], program: &[&str]) -> Output {
        let mut ork = Command::new(env!("CARGO_BIN_EXE_ork"));
        ork.current_dir(self.folder.path()).arg(command).args(args);
        if !program.is_empty() {
            ork.arg("--shim").arg(library()).arg("--").args(program);
        }
        ork.output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn check(output: &Output, code: i32, stdout: &str, stderr: &[&str]) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    assert_eq!(out, stdout, "{err}");
    for part in stderr {
        assert!(err.contains(part), "{part:?} is not in {err}");
    }
}

const RIGHT: &str = "matmul 4x64x64: 0 of 256 wrong\n";

#[test]
fn a_program_runs_and_nothing_is_to_be_explained() {
    let bench = Bench::new();
    let program = bench.program(&[]);
    let output = bench.ork("emulate", &["--explain", "--modelled-time"], &[&program]);
    check(&output, 0, RIGHT, &["nothing to explain", "modelled time on the board: "]);
    let output = bench.ork("emulate", &["--strict"], &[&program]);
    check(&output, 0, RIGHT, &[]);
}

#[test]
fn a_hang_is_a_time_out_and_is_explained() {
    let bench = Bench::new();
    let program = bench.program(&[]);
    let output = bench.ork("emulate", &["--explain"], &[&program, "wrong-program"]);
    let printed = "half an interrupt pair: ETIMEDOUT, 1 done\nno enable word: ETIMEDOUT, 0 done\n";
    check(&output, 0, printed, &["int_mask"]);
}

#[test]
fn faults_come_from_a_plan_or_a_setting() {
    let bench = Bench::new();
    let program = bench.program(&[]);
    std::fs::write(bench.path("plan.toml"), "hang = \"nth:1\"\n").unwrap();
    for args in [["--fault-plan", "plan.toml"], ["--set", "device.emulated.faults.hang=nth:1"]] {
        let output = bench.ork("emulate", &[&["--explain"][..], &args].concat(), &[&program]);
        assert_ne!(output.status.code(), Some(0), "{output:?}");
        assert!(text(&output.stderr).contains("hang"), "{}", text(&output.stderr));
    }
    std::fs::write(bench.path("plan.toml"), "hang = \"sometimes\"\n").unwrap();
    let output = bench.ork("emulate", &["--fault-plan", "plan.toml"], &[&program]);
    check(&output, 2, "", &["plan.toml", "\"sometimes\" is not one of never, always, nth:N, one-in:N"]);
}

#[test]
fn what_cannot_be_started_says_why() {
    let bench = Bench::new();
    let output = bench.ork("emulate", &[], &["./no-such-program"]);
    check(&output, 2, "", &["cannot start ./no-such-program"]);
    let program = bench.program(&["-static"]);
    let output = bench.ork("emulate", &[], &[&program]);
    check(&output, 2, "", &["statically linked", "link it dynamically"]);
    let output = bench.ork("emulate", &["--driver", "rocket", "--driver-version", "0.9.8"], &[&program]);
    check(&output, 2, "", &["rocket has none"]);
    let output = bench.ork("emulate", &["--shim", "nowhere.so", "--", "true"], &[]);
    check(&output, 2, "", &["nowhere.so does not exist", "cargo build --release -p ork-shim"]);
}

#[test]
fn the_exit_code_is_the_programs() {
    let bench = Bench::new();
    let output = bench.ork("emulate", &[], &["sh", "-c", "exit 7"]);
    check(&output, 7, "", &[]);
    let output = bench.ork("emulate", &[], &["sh", "-c", "kill -TERM $$"]);
    check(&output, 128 + libc::SIGTERM, "", &[]);
}

#[test]
fn a_recording_replays_decodes_and_passes_the_lints() {
    let bench = Bench::new();
    let python = sources().join("rocket_matmul.py");
    let python = ["python3", "-B", python.to_str().unwrap()];
    let program = bench.program(&[]);
    for (driver, program) in [("rknpu", &[&program[..]][..]), ("rocket", &python[..])] {
        let output = bench.ork("capture", &["--emulate", "--driver", driver, "-o", "trace"], program);
        assert!(output.status.success(), "{output:?}");
        let output = bench.ork("replay", &["trace"], &[]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && out.ends_with("equal\n"), "{out}{err}");
        assert!(out.contains("1 of them submits"), "{out}");

        let decoded = bench.ork("regcmd", &["decode", "--plain", "trace"], &[]);
        let listing = text(&decoded.stdout);
        assert!(listing.contains("submit 0 task 0") && listing.contains("op-enable"), "{listing}");
        assert!(!listing.contains("unknown"), "{listing}");
        std::fs::write(bench.path("program.rcasm"), &listing).unwrap();
        for from in ["trace", "program.rcasm"] {
            let linted = bench.ork("regcmd", &["lint", from], &[]);
            assert!(linted.status.success(), "{from}: {}", text(&linted.stdout));
        }
        let same = bench.ork("regcmd", &["diff", "trace", "program.rcasm"], &[]);
        check(&same, 0, "", &[]);
        let told = bench.ork("regcmd", &["explain", "trace"], &[]);
        assert!(text(&told.stdout).contains("64"), "{}", text(&told.stdout));
    }
}

#[test]
fn a_program_without_an_npu_leaves_no_trace() {
    let bench = Bench::new();
    let output = bench.ork("capture", &["--emulate", "-o", "trace"], &["true"]);
    check(&output, 1, "", &["nothing was recorded"]);
    let output = bench.ork("replay", &["no-such-trace"], &[]);
    check(&output, 2, "", &["no-such-trace"]);
    std::fs::write(bench.path("broken"), b"ORKTRACE\x01\0").unwrap();
    let output = bench.ork("replay", &["broken"], &[]);
    check(&output, 2, "", &["broken"]);
}
