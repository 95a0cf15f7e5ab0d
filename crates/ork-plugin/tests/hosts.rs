// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that the library cannot work in: it says why, and they go on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Loads a ggml, if one is given, and then the plug-in, each in a scope of its own as Node and Python do.
const HOST: &str = r#"
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    if (argc > 2 && !dlopen(argv[2], RTLD_NOW | RTLD_LOCAL)) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    int (*score)(void) = (int (*)(void)) dlsym(plugin, "ggml_backend_score");
    void *(*init)(void) = (void *(*)(void)) dlsym(plugin, "ggml_backend_init");
    if (!score || !init) return 4;
    printf("%d %s\n", score(), init() ? "registered" : "refused");
    /* Whoever asks again gets the same answer, and unloading is harmless. */
    printf("%s\n", init() ? "registered" : "refused");
    dlclose(plugin);
    return 0;
}
"#;

/// Before interface version 3: the function that version 3 brought is missing.
const OLD: &str = r#"
void *ggml_backend_buffer_init(void) { return 0; }
const char *ggml_version(void) { return "0.9.11"; }
"#;

/// Version 3 as far as can be seen, but not all of it.
const INCOMPLETE: &str = r#"
void *ggml_backend_buffer_init(void) { return 0; }
void *ggml_backend_buft_alloc_buffer_n(void) { return 0; }
void *ggml_backend_cpu_buffer_type(void) { return 0; }
"#;

/// Everything there, and operations that nobody knows.
const STRANGE: &str = r#"
void *ggml_backend_buffer_init(void) { return 0; }
void *ggml_backend_buft_alloc_buffer_n(void) { return 0; }
void *ggml_backend_cpu_buffer_type(void) { return 0; }
void *ggml_backend_cpu_buffer_from_ptr(void) { return 0; }
void *ggml_backend_buft_is_host(void) { return 0; }
void *ggml_get_type_traits(void) { return 0; }
void *ggml_nbytes(void) { return 0; }
void *ggml_is_contiguous(void) { return 0; }
void *ggml_graph_n_nodes(void) { return 0; }
void *ggml_graph_node(void) { return 0; }
const char *ggml_op_name(int op) { return "NOVELTY"; }
"#;

/// The library, beside the folder of this test's program.
fn plugin() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let path = program.parent().unwrap().parent().unwrap().join("libggml_ork.so");
    assert!(path.is_file(), "{} is not built", path.display());
    path
}

fn compile(folder: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (file, out) = (folder.join(name).with_extension("c"), folder.join(name));
    std::fs::write(&file, source).unwrap();
    let done = Command::new("cc").args(options).arg(&file).arg("-o").arg(&out).arg("-ldl").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    out
}

/// Standard output and error of the host, without ork's variables of whoever runs the tests.
fn run(host: &Path, ggml: Option<&Path>, variables: &[(&str, &str)]) -> (String, String) {
    let mut command = Command::new(host);
    command.arg(plugin()).args(ggml).env_clear().envs(variables.iter().copied()).current_dir("/");
    let done = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{}: {out}{err}", done.status);
    (out, err)
}

#[test]
fn a_program_that_does_not_fit_is_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let host = compile(folder.path(), "host", HOST, &[]);
    let library = |name, source| compile(folder.path(), name, source, &["-shared", "-fPIC"]);
    let old = library("libggml-base-old.so", OLD);
    let incomplete = library("libggml-base-incomplete.so", INCOMPLETE);
    let strange = library("libother.so.7", STRANGE);
    for (ggml, wanted) in [
        (None, "does not show its ggml"),
        (Some(&old), "ggml 0.9.11 has a backend interface older than version 3"),
        (Some(&incomplete), "has no function ggml_backend_cpu_buffer_from_ptr"),
        (Some(&strange), "this ggml has no operation named NONE"),
    ] {
        let (out, err) = run(&host, ggml.map(PathBuf::as_path), &[]);
        assert_eq!(out, "100 refused\nrefused\n", "{err}");
        assert!(err.starts_with("ork: cannot work ") && err.contains(wanted), "{err}");
    }
}

#[test]
fn wrong_settings_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let host = compile(folder.path(), "host", HOST, &[]);
    let file = folder.path().join("ork.toml");
    std::fs::write(&file, "[offload]\nroute = \"gpu\"\n").unwrap();
    for (variable, value, wanted) in [
        ("ORK_OFFLOAD__ROUTE", "gpu", "ORK_OFFLOAD__ROUTE: offload.route"),
        ("ORK_PLUGIN__REPORTS", "table", "did you mean plugin.report?"),
        ("ORK_CONFIG", "/nowhere/ork.toml", "/nowhere/ork.toml"),
        ("ORK_CONFIG", file.to_str().unwrap(), "ork.toml: offload.route"),
    ] {
        let (out, err) = run(&host, None, &[(variable, value)]);
        assert_eq!(out, "1 refused\nrefused\n", "a score above zero, so that the reason is asked for: {err}");
        assert!(err.starts_with("ork: the settings are wrong: ") && err.contains(wanted), "{err}");
    }
}

#[test]
fn a_board_that_is_not_there_is_not_promised() {
    let folder = tempfile::tempdir().unwrap();
    let host = compile(folder.path(), "host", HOST, &[]);
    let nowhere = folder.path().to_str().unwrap();
    let (out, _) = run(&host, None, &[("ORK_DEVICE__KIND", "rknpu"), ("ORK_DEVICE__DEV_ROOT", nowhere)]);
    assert!(out.starts_with("0 "), "{out}");
}
