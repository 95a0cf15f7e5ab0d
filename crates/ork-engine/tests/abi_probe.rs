// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mirror in `ork_ggml::abi` against the header llama.cpp is built from: a C program prints every size and offset.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ork_ggml::abi;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The source of the linked llama.cpp, as cargo knows it.
fn llama_source() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    // Without the filter cargo wants the packages of every platform, which nobody has downloaded.
    let version = Command::new("rustc").arg("-vV").output().unwrap().stdout;
    let version = String::from_utf8(version).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--offline", "--filter-platform", host, "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|p| p["name"] == "llama-cpp-sys-2").unwrap();
    Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().join("llama.cpp/ggml")
}

#[test]
fn sizes_and_offsets_are_those_of_the_header() {
    let ggml = llama_source();
    let mut source = String::from(
        "#include <stdbool.h>\n#include <stddef.h>\n#include <stdio.h>\n#include \"ggml.h\"\n\
         #include \"ggml-backend-impl.h\"\nint main(void) {\n",
    );
    let constants: &[(&str, i64)] = &[
        ("GGML_BACKEND_API_VERSION", abi::API_VERSION.into()),
        ("GGML_TYPE_F32", abi::TYPE_F32.into()),
        ("GGML_TYPE_I32", abi::TYPE_I32.into()),
        ("GGML_PREC_Q8", abi::PREC_Q8.into()),
        ("GGML_STATUS_FAILED", abi::STATUS_FAILED.into()),
        ("GGML_STATUS_SUCCESS", abi::STATUS_SUCCESS.into()),
        ("GGML_BACKEND_DEVICE_TYPE_ACCEL", abi::DEVICE_TYPE_ACCEL.into()),
        ("GGML_BACKEND_BUFFER_USAGE_WEIGHTS", abi::USAGE_WEIGHTS.into()),
        ("GGML_TENSOR_FLAG_COMPUTE", abi::FLAG_COMPUTE.into()),
        ("GGML_MAX_DIMS", abi::MAX_DIMS as i64),
        ("GGML_MAX_SRC", abi::MAX_SRC as i64),
        ("GGML_MAX_NAME", abi::MAX_NAME as i64),
    ];
    let layout = abi::LAYOUT.iter().map(|&(name, value)| (name, value as i64));
    let expected: Vec<(&str, i64)> = layout.chain(constants.iter().copied()).collect();
    for (expression, _) in &expected {
        source.push_str(&format!("    printf(\"%lld\\n\", (long long) ({expression}));\n"));
    }
    source.push_str("    return 0;\n}\n");

    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("probe.c"), folder.path().join("probe"));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc")
        .arg("-I")
        .arg(ggml.join("include"))
        .arg("-I")
        .arg(ggml.join("src"))
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    let printed: Vec<i64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(printed.len(), expected.len());
    let wrong: Vec<String> = expected
        .iter()
        .zip(&printed)
        .filter(|((_, ours), theirs)| ours != *theirs)
        .map(|((expression, ours), theirs)| format!("{expression}: ours {ours}, header {theirs}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
