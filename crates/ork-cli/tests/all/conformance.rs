// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork conformance`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const CASE: &str = "gemm_int8_9x9x9";

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance")
}

fn run(folder: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_ork"))
        .env_clear()
        .arg("conformance")
        .arg(folder)
        .args(more)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn all_recorded_programs_pass() {
    let (code, said, errors) = run(&recorded(), &[]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(said.lines().filter(|line| line.starts_with("pass ")).count(), 76, "{said}");
    assert!(said.ends_with("76 of 76 pass; 12 of 13 published silicon errors are met\n"), "{said}");
    let exp = said.lines().find(|line| line.contains("rocket_lut_exp_n1024")).unwrap();
    assert!(exp.contains("; silicon 5.50e-4, here 5.4"), "{exp}");
}

#[test]
fn a_changed_case_fails_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |end: &str| folder.path().join(CASE).with_extension(end);
    for end in ["json", "npz"] {
        fs::copy(recorded().join(CASE).with_extension(end), path(end)).unwrap();
    }
    assert_eq!(run(folder.path(), &[]).0, Some(0));
    // Another output element type: wrong values.
    let text = fs::read_to_string(path("json")).unwrap();
    fs::write(path("json"), text.replace("\"dtype\": \"int32\"", "\"dtype\": \"int16\"")).unwrap();
    let (code, said, errors) = run(folder.path(), &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("WRONG") && said.contains(CASE) && said.contains("of 81 values"), "{said}");
    assert_eq!(errors, "error: 1 of 1 cases fail\n");
    // Another program than the one in memory.
    fs::write(path("json"), text.replace("0x0201000000b11040", "0x0201000000b11041")).unwrap();
    let (code, said, _) = run(folder.path(), &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, &report["cases"][0]["verdict"], &report["failed"]),
        (Some(1), &"unreadable".into(), &1.into())
    );
    assert!(report["cases"][0]["error"].as_str().unwrap().contains("word 11"), "{said}");
}

#[test]
fn variants_and_settings_reach_the_simulator() {
    for more in
        [["--variant", "lut_between=half-up"], ["--set", "device.emulated.sim.silicon.lut_between=half-up"]]
    {
        let (code, said, _) = run(&recorded(), &[&["--only", "rocket_lut_leaky"][..], &more].concat());
        assert_eq!(code, Some(1));
        assert!(said.starts_with("WRONG"), "{said}");
    }
}

#[test]
fn wrong_arguments_say_what_is_right() {
    let empty = tempfile::tempdir().unwrap();
    for (folder, more, code, words) in [
        (empty.path(), &[][..], 1, "no case"),
        (&recorded(), &["--only", "nothing"], 1, "no case"),
        (Path::new("/no/such/folder"), &[], 1, "/no/such/folder: cannot be read"),
        (&recorded(), &["--variant", "lut=1"], 2, "lut_between"),
        (&recorded(), &["--variant", "lut_between=up"], 2, "half-up"),
        (&recorded(), &["--variant", "lut_between"], 2, "KEY=VALUE"),
    ] {
        let (got, said, errors) = run(folder, more);
        assert_eq!((got, said.as_str()), (Some(code), ""), "{errors}");
        assert!(errors.starts_with("error: ") && errors.lines().count() == 1, "{errors}");
        assert!(errors.contains(words), "{words:?} is missing in {errors:?}");
    }
}
