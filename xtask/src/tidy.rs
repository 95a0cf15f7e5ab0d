// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules about the shape of the tree: which crate may use which, and what every source file carries.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Which of our crates a crate may name in its dependencies. A crate that is missing here is an error, so a new
/// crate states its place on arrival. Dev-dependencies may add `ork-testkit` anywhere, and what
/// [`TEST_ONLY`] allows.
const MAY_USE: &[(&str, &[&str])] = &[
    ("ork-isa", &[]),
    ("ork-mac", &[]),
    ("ork-timing", &["ork-isa"]),
    ("ork-sim", &["ork-isa", "ork-mac", "ork-timing"]),
    ("ork-conformance", &["ork-isa", "ork-sim"]),
    ("ork-layout", &["ork-isa"]),
    ("ork-plan", &["ork-isa", "ork-layout", "ork-timing"]),
    ("ork-synth", &["ork-isa", "ork-plan", "ork-layout"]),
    ("ork-quant", &[]),
    ("ork-recipe", &["ork-isa", "ork-layout", "ork-plan", "ork-quant", "ork-pack"]),
    ("ork-corpus", &[]),
    ("ork-bench", &[]),
    ("ork-pack", &["ork-layout", "ork-quant", "ork-corpus"]),
    ("ork-drm", &[]),
    ("ork-rknpu", &["ork-drm"]),
    ("ork-rocket", &["ork-drm"]),
    ("ork-emu", &["ork-isa", "ork-sim", "ork-drm", "ork-rknpu", "ork-rocket"]),
    ("ork-device", &["ork-isa", "ork-drm", "ork-rknpu", "ork-rocket", "ork-emu", "ork-sim"]),
    ("ork-driver", &["ork-isa", "ork-layout", "ork-plan", "ork-synth", "ork-quant", "ork-device"]),
    ("ork-ggml", &["ork-driver", "ork-quant", "ork-pack"]),
    ("ork-engine-options", &[]),
    ("ork-engine", &["ork-ggml", "ork-engine-options", "ork-corpus"]),
    ("ork-config", &["ork-device", "ork-driver", "ork-ggml", "ork-engine-options", "ork-recipe"]),
    (
        "ork-cli",
        &[
            "ork-bench",
            "ork-config",
            "ork-device",
            "ork-driver",
            "ork-ggml",
            "ork-engine",
            "ork-pack",
            "ork-quant",
            "ork-emu",
            "ork-drm",
            "ork-trace",
            "ork-plan",
            "ork-synth",
            "ork-layout",
            "ork-timing",
            "ork-isa",
            "ork-conformance",
            "ork-quant",
            "ork-pack",
            "ork-recipe",
            "ork-corpus",
        ],
    ),
    ("ork-plugin", &["ork-config", "ork-device", "ork-driver", "ork-ggml"]),
    ("ork-trace", &["ork-isa", "ork-drm", "ork-rknpu", "ork-rocket"]),
    ("ork-shim", &["ork-emu", "ork-trace", "ork-drm", "ork-rknpu", "ork-rocket"]),
    ("ork-testkit", &[]),
    ("xtask", &[]),
];

/// Additional arrows for tests alone, where two witnesses meet.
const TEST_ONLY: &[(&str, &[&str])] = &[
    // Calls of the kernel are made to fail.
    ("ork-driver", &["ork-sim", "ork-emu", "ork-drm", "ork-rknpu"]),
    ("ork-device", &["ork-sim", "ork-emu"]),
    ("ork-isa", &["ork-conformance"]),
    ("ork-sim", &["ork-conformance"]),
    ("ork-cli", &["ork-shim"]),
    // Statistics name the text they are of.
    ("ork-recipe", &["ork-corpus"]),
    // Random calls are recorded, and damaged traces replayed.
    ("ork-emu", &["ork-conformance", "ork-trace"]),
];

#[derive(Deserialize)]
pub(crate) struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

pub(crate) fn metadata(root: &Path) -> Result<Metadata> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata printed something else")
}

/// Every arrow between our crates that the table does not allow, and every crate that the table does not name.
pub(crate) fn forbidden_arrows(metadata: &Metadata) -> Vec<String> {
    let table: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let tests: BTreeMap<&str, &[&str]> = TEST_ONLY.iter().copied().collect();
    let ours: BTreeSet<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let from = package.name.as_str();
        let Some(allowed) = table.get(from) else {
            wrong.push(format!("{from} has no row in MAY_USE"));
            continue;
        };
        for dependency in &package.dependencies {
            let to = dependency.name.as_str();
            let dev = dependency.kind.as_deref() == Some("dev");
            let in_tests =
                dev && (to == "ork-testkit" || tests.get(from).is_some_and(|list| list.contains(&to)));
            if ours.contains(to) && !allowed.contains(&to) && !in_tests && from != to {
                wrong.push(format!("{from} -> {to}"));
            }
        }
    }
    wrong
}

/// Rust files of the tree that do not start with the licence line.
pub(crate) fn without_licence_line(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for top in ["crates", "xtask"] {
        visit(&root.join(top), &mut |path, text| {
            if !text.starts_with("// SPDX-License-Identifier: MIT OR Apache-2.0") {
                found.push(path.display().to_string());
            }
        })?;
    }
    Ok(found)
}

/// Files of a crate's `tests/all` that its `main.rs` does not name, and which would run nowhere. `root` holds crates.
pub(crate) fn tests_that_never_run(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for krate in std::fs::read_dir(root)? {
        let folder = krate?.path().join("tests/all");
        let Ok(main) = std::fs::read_to_string(folder.join("main.rs")) else { continue };
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name != "main" && !main.lines().any(|line| line == format!("mod {name};")) {
                found.push(path.display().to_string());
            }
        }
    }
    Ok(found)
}

fn visit(folder: &Path, check: &mut impl FnMut(&Path, &str)) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            visit(&path, check)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            check(&path, &std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_use_only_what_they_may() {
        let metadata = metadata(&crate::root()).unwrap();
        assert!(metadata.packages.len() > 10, "cargo metadata lists the workspace");
        assert_eq!(forbidden_arrows(&metadata), Vec::<String>::new());
    }

    #[test]
    fn a_forbidden_arrow_is_found() {
        let metadata = |from: &str, to: &str, kind: &str| -> Metadata {
            serde_json::from_str(&format!(
                r#"{{"packages":[{{"name":"{from}","dependencies":[{{"name":"{to}","kind":{kind}}}]}},
                    {{"name":"{to}","dependencies":[]}}]}}"#
            ))
            .unwrap()
        };
        for (from, to) in [
            ("ork-sim", "ork-layout"),
            ("ork-sim", "ork-plan"),
            ("ork-sim", "ork-synth"),
            ("ork-sim", "ork-quant"),
            ("ork-plan", "ork-device"),
            ("ork-rknpu", "ork-isa"),
            ("ork-testkit", "ork-driver"),
            ("ork-driver", "ork-config"),
        ] {
            assert_eq!(forbidden_arrows(&metadata(from, to, "null")), [format!("{from} -> {to}")]);
            assert_eq!(forbidden_arrows(&metadata(from, to, "\"dev\"")), [format!("{from} -> {to}")]);
        }
        assert!(forbidden_arrows(&metadata("ork-sim", "ork-testkit", "\"dev\"")).is_empty());
        assert_eq!(forbidden_arrows(&metadata("ork-sim", "ork-testkit", "null")), ["ork-sim -> ork-testkit"]);
        assert_eq!(
            forbidden_arrows(&metadata("ork-new", "ork-isa", "null")),
            ["ork-new has no row in MAY_USE"]
        );
    }

    #[test]
    fn every_file_of_tests_runs() {
        assert_eq!(tests_that_never_run(&crate::root().join("crates")).unwrap(), Vec::<String>::new());

        let crates = tempfile::tempdir().unwrap();
        let tests = crates.path().join("ork-new/tests/all");
        std::fs::create_dir_all(tests.join("support")).unwrap();
        for (file, text) in [("main.rs", "mod support;\nmod used;\n"), ("used.rs", ""), ("lost.rs", "")] {
            std::fs::write(tests.join(file), text).unwrap();
        }
        let lost = tests.join("lost.rs").display().to_string();
        assert_eq!(tests_that_never_run(crates.path()).unwrap(), [lost]);
    }

    #[test]
    fn every_source_file_carries_the_licence_line() {
        assert_eq!(without_licence_line(&crate::root()).unwrap(), Vec::<String>::new());
    }
}
