// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of programs share: building them, running them under the library, and a limit on their time.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a step that fails is a failed test")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What a program may take before it counts as hung: far more than any needs on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs")
}

/// The library. The compiler leaves it beside the tests each time that cargo builds what they depend on; the copy one
/// folder up is not renewed then, so it is not looked at.
pub(crate) fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.with_file_name("libork_shim.so");
    assert!(path.exists(), "{} is missing: it is built with these tests", path.display());
    path
}

/// Builds a C program.
pub(crate) fn program(name: &str, libraries: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Tests run at the same time: each builds its own, and the last one stays.
    let fresh = tempfile::Builder::new().prefix(name).tempfile_in(folder).unwrap().into_temp_path();
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-I/usr/include/libdrm", "-o"])
        .arg(&fresh)
        .arg(sources().join(format!("{name}.c")))
        .args(libraries)
        .status()
        .expect("a C compiler: Debian package gcc");
    assert!(status.success(), "{name}.c does not compile (libdrm: Debian package libdrm-dev)");
    let out = folder.join(name);
    fresh.persist(&out).unwrap();
    out
}

pub(crate) const VENDOR: &str = r#"{"driver":"rknpu","options":{"coherency":"shared"}}"#;
pub(crate) const VENDOR_STRICT: &str = r#"{"driver":"rknpu","options":{"coherency":"strict"}}"#;
pub(crate) const MAINLINE: &str = r#"{"driver":"rocket","options":{"coherency":"shared"}}"#;

/// A run under the library: what it printed, and what the library reported.
pub(crate) struct Run {
    pub(crate) output: Output,
    pub(crate) report: String,
}

pub(crate) fn run(emulation: &str, command: &mut Command) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let settings = format!(
        r#"{{"emulate":{emulation},"capture":null,"report":{:?},"root":null}}"#,
        report.to_str().unwrap()
    );
    let output = finished(command.env("LD_PRELOAD", library()).env("ORK_SHIM", settings));
    Run { output, report: std::fs::read_to_string(report).unwrap_or_default() }
}

impl Run {
    #[track_caller]
    pub(crate) fn succeeds(self, expected: &str) -> Self {
        let (out, err) =
            (String::from_utf8_lossy(&self.output.stdout), String::from_utf8_lossy(&self.output.stderr));
        assert!(self.output.status.success(), "{}\n{out}{err}{}", self.output.status, self.report);
        assert_eq!(out, expected, "{err}");
        assert!(!self.report.contains("trouble"), "{}", self.report);
        self
    }

    /// How many findings the library reported.
    pub(crate) fn findings(&self) -> usize {
        self.report.lines().filter(|line| line.starts_with(r#"{"finding""#)).count()
    }

    #[track_caller]
    pub(crate) fn without_findings(self) {
        assert_eq!(self.findings(), 0, "{}", self.report);
    }
}

pub(crate) fn vendor(way: &str) -> Run {
    run(VENDOR, Command::new(program("rknpu_matmul", &[])).arg(way))
}

/// Records a run on the emulated board.
pub(crate) fn recorded(emulation: &str, command: &mut Command) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let settings = format!(
        r#"{{"emulate":{emulation},"capture":{:?},"report":null,"root":null}}"#,
        trace.to_str().unwrap()
    );
    let output = finished(command.env("LD_PRELOAD", library()).env("ORK_SHIM", settings));
    assert!(output.status.success(), "{output:?}");
    std::fs::read(&trace).unwrap()
}

pub(crate) fn python(name: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").arg(sources().join(name));
    command
}

/// Runs a program to its end, and fails if it does not end.
#[track_caller]
pub(crate) fn finished(command: &mut Command) -> Output {
    limited(command, LIMIT).unwrap_or_else(|hung| panic!("{hung}"))
}

/// Runs a program for at most so long. One that does not end is killed with all its children.
pub(crate) fn limited(command: &mut Command, limit: Duration) -> Result<Output, String> {
    let child =
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let group = child.id() as i32;
    let (ended, watched) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let hung = watched.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if hung {
            // SAFETY: a plain call with numbers; the group is the child's own.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        hung
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    if watchdog.join().unwrap() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        return Err(format!(
            "{command:?} had not ended after {limit:?} and was killed; until then it wrote:\n{out}{err}"
        ));
    }
    Ok(output)
}
