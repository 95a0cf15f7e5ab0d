// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork plan`, `ork matmul` and `ork selftest`.

use std::process::{Command, Output};

use serde_json::Value;

fn ork(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ork")).env_clear().args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn works(args: &[&str]) -> String {
    let output = ork(args);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

const SIZES: [&str; 6] = ["--m", "7", "--k", "61", "--n", "37"];

#[test]
fn a_plan_names_its_rules_and_its_modelled_time() {
    let plan = works(&["plan", "--m", "128", "--k", "2048", "--n", "2048", "--cores", "3"]);
    for part in ["matmul 128x2048x2048 int8", "us modelled", "rules: ", "1376..2048"] {
        assert!(plan.contains(part), "{part:?} is not in {plan}");
    }
    let told = works(&["plan", "--m", "128", "--k", "2048", "--n", "2048", "--explain"]);
    for part in ["legal, ", "does not apply: ", "not asked", "a candidate that the options do not name"] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    let value: Value =
        serde_json::from_str(&works(&["plan", "--m", "8", "--k", "70", "--n", "5", "--json"])).unwrap();
    assert_eq!((value["m"].as_u64(), value["product"].as_str()), (Some(8), Some("int8")));
}

#[test]
fn sizes_that_make_no_product_are_refused() {
    let output = ork(&["plan", "--m", "0", "--k", "1", "--n", "1"]);
    assert_eq!(output.status.code(), Some(2));
    let output = ork(&["plan", "--m", "1", "--k", "1", "--n", "1", "--dtype", "int2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("int8-int8"), "{}", text(&output.stderr));
    let output = ork(&["matmul", "--m", "100000", "--k", "100000", "--n", "100000"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("GMAC"), "{}", text(&output.stderr));
}

#[test]
fn products_of_every_precision_are_right_with_both_drivers() {
    for driver in ["rknpu", "rocket"] {
        let set = format!("device.emulated_driver={driver}");
        for product in
            ["int8", "int8-int8", "int4", "int16", "int16-native", "fp16", "fp16-fp16", "bf16", "tf32"]
        {
            let args = ["--dtype", product, "--device", "sim", "--set", &set];
            let printed = works(&[&["matmul"][..], &SIZES, &args].concat());
            assert!(
                printed.contains("259 values exact") || printed.contains("259 values within their bound"),
                "{printed}"
            );
            assert!(printed.contains("measured") && printed.contains("us modelled"), "{printed}");
        }
    }
}

#[test]
fn a_faulty_device_fails_the_product() {
    let output = ork(&[
        &["matmul"][..],
        &SIZES,
        &[
            "--device",
            "sim",
            "--set",
            "device.emulated.faults.hang=always",
            "--set",
            "device.recovery=forbid",
        ],
    ]
    .concat());
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("timed out"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).is_empty());
}

#[test]
fn the_self_test_passes_and_writes_its_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let printed = works(&["selftest", "--device", "sim", "--output", path.to_str().unwrap()]);
    assert!(printed.ends_with("18 of 18 steps passed\n"), "{printed}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(report["emulated"], true);
    assert_eq!(report["steps"].as_array().unwrap().len(), 18);
}

/// The device computes something else than the simulator: the self-test stops at the first such step.
#[test]
fn the_self_test_stops_at_a_device_that_differs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let output = ork(&[
        "selftest",
        "--device",
        "sim",
        "--set",
        "device.emulated.faults.wild_write=always",
        "--set",
        "device.recovery=forbid",
        "--output",
        path.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.iter().filter(|step| step["passed"] == false).count(), 1);
    assert_eq!(steps.last().unwrap()["passed"], false);
}
