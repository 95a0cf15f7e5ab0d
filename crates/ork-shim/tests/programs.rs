// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unmodified programs, built with the C compiler of this machine or run by its Python, on the emulated board.

mod support;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_drm::{Errno, Transport};
use ork_emu::{Board, Coherency, EmuOptions};
use ork_trace::{Event, Reader, ReplayError, Report, Writer, replay};

use support::{MAINLINE, VENDOR, VENDOR_STRICT, limited, program, python, recorded, run, vendor};

#[test]
fn a_matmul_with_plain_ioctls() {
    vendor("once").succeeds("matmul 4x64x64: 0 of 256 wrong\n").without_findings();
}

#[test]
fn a_matmul_with_modelled_caches() {
    let mut command = Command::new(program("rknpu_matmul", &[]));
    run(VENDOR_STRICT, &mut command).succeeds("matmul 4x64x64: 0 of 256 wrong\n").without_findings();
}

#[test]
fn the_structs_of_older_headers() {
    vendor("old-header").succeeds("hardware version 0x46495245\n").without_findings();
}

#[test]
fn a_wrong_program_times_out_and_is_explained() {
    let run = vendor("wrong-program")
        .succeeds("half an interrupt pair: ETIMEDOUT, 1 done\nno enable word: ETIMEDOUT, 0 done\n");
    assert_eq!(run.findings(), 2, "{}", run.report);
    assert!(run.report.contains("int_mask"), "{}", run.report);
}

#[test]
fn three_threads_on_three_cores() {
    vendor("threads").succeeds("3 threads on 3 cores: 0 wrong\n").without_findings();
}

#[test]
fn forks_beside_a_busy_thread() {
    let expected = "4 forks beside a busy thread: 0 wrong, inherited file fails, opened anew works\n";
    vendor("fork").succeeds(expected).without_findings();
}

/// The limit that keeps a hang from holding up everything else.
#[test]
fn a_program_that_hangs_is_ended_with_all_its_children() {
    let begin = Instant::now();
    let mut command = Command::new("sh");
    // The child of the shell holds the pipe open, too.
    let hung = limited(command.args(["-c", "echo begun; sleep 1000 & wait"]), Duration::from_millis(500));
    let message = hung.unwrap_err();
    assert!(
        message.contains("\"sh\"") && message.contains("500ms") && message.contains("begun"),
        "{message}"
    );
    assert!(begin.elapsed() < Duration::from_secs(500), "the child was not ended");
}

#[test]
fn children_that_open_the_device_themselves() {
    vendor("fork-first").succeeds("3 children\n").without_findings();
}

/// The numbers are for people: `cargo test -p ork-shim overhead -- --nocapture`.
#[test]
fn the_overhead_is_measured() {
    for (emulation, driver, line) in
        [(VENDOR, "rknpu", "submit of no tasks"), (MAINLINE, "rocket", "submit of no jobs")]
    {
        let output = run(emulation, Command::new(program("overhead", &[])).arg(driver)).output;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains(line), "{text}");
        println!("{text}");
    }
}

#[test]
fn copies_of_a_descriptor() {
    vendor("duplicates").succeeds("4 copies of a descriptor: 0 wrong\n").without_findings();
}

#[test]
fn mappings_survive_close() {
    vendor("after-close").succeeds("mapped after close: 0 wrong\n").without_findings();
}

#[test]
fn mappings_at_chosen_places() {
    vendor("fixed").succeeds("mappings at chosen places\n").without_findings();
}

#[test]
fn libdrm_finds_the_vendor_driver() {
    let expected = "rknpu 0.9.8 20240828 \"RKNPU driver\"\nnode type 0\ndevice name /dev/dri/card1\n\
                    render node /dev/dri/renderD129\nprime 0 3\n1 devices\n\
                    platform /npu@fdab0000, rockchip,rk3588-rknpu, nodes 0x5\n";
    run(VENDOR, &mut Command::new(program("rknpu_libdrm", &["-ldrm"]))).succeeds(expected).without_findings();
}

#[test]
fn libdrm_on_the_mainline_driver() {
    let expected = "/dev/accel/accel0: rocket 0.0.0\nfirst address 0\nmatmul 4x64x64: 0 of 256 wrong\n";
    run(MAINLINE, &mut Command::new(program("rocket_libdrm", &["-ldrm"]))).succeeds(expected);
}

#[test]
fn python_on_the_vendor_driver() {
    run(VENDOR, &mut python("rknpu_matmul.py"))
        .succeeds("matmul 4x64x64: 0 of 256 wrong\n")
        .without_findings();
}

#[test]
fn python_on_the_mainline_driver() {
    let expected = "/dev/accel/accel0: matmul 4x64x64: 0 of 256 wrong\n";
    run(MAINLINE, &mut python("rocket_matmul.py")).succeeds(expected).without_findings();
}

#[test]
fn the_vendor_board_is_found_by_looking_around() {
    let output = run(VENDOR, &mut Command::new(program("enumerate", &[]))).output;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in [
        "/dev/dri: by-path card1(c) renderD129(c)",
        "/dev/accel:",
        "/dev/dma_heap: system(c)",
        "/dev/dri/card0: ENOENT",
        "/dev/dri/card1: char 226:1, version 908",
        "/dev/dri/renderD129: char 226:129, version 908",
        "/dev/rknpu: ENOENT",
        "/dev/dri/../dri//./card1: char 226:1, version 908",
        "glob /dev/dri/card1",
        "glob /sys/class/devfreq/fdab0000.npu/cur_freq",
        "/proc/device-tree/compatible: radxa,rock-5b|rockchip,rk3588|",
        "/sys/firmware/devicetree/base/model: Radxa ROCK 5B|",
        "/sys/kernel/debug/rknpu/version: RKNPU driver: v0.9.8|",
        "/sys/kernel/debug/rknpu/load: NPU load:  Core0:  0%, Core1:  0%, Core2:  0%,|",
        "subsystem platform",
        "realpath /dev/dri/card1",
        "openat 226:129",
        "fstatat 226:1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn tools_that_list_folders_find_the_nodes() {
    let output = run(VENDOR, Command::new("ls").args(["-la", "/dev/dri"])).output;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{err}");
    assert!(out.lines().any(|line| line.starts_with("crw-rw-rw-") && line.ends_with(" card1")), "{out}");
}

#[test]
fn the_mainline_board_is_found_by_looking_around() {
    let output = run(MAINLINE, &mut Command::new(program("enumerate", &[]))).output;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in [
        "/dev/dri:",
        "/dev/accel: accel0(c)",
        "/dev/dri/card1: ENOENT",
        "glob /dev/accel/accel0",
        "/sys/class/accel/accel0/dev: 261:0|",
        "/sys/kernel/debug/rknpu/version: ENOENT",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn other_chips_show_their_own_files() {
    for (soc, name, load) in [
        ("rk3576", "rockchip,rk3576", "NPU load:  Core0:  0%, Core1:  0%,|"),
        ("rk3568", "rockchip,rk3568", "NPU load:  0%|"),
    ] {
        let emulation = format!(r#"{{"options":{{"soc":"{soc}","coherency":"shared"}}}}"#);
        let output = run(&emulation, &mut Command::new(program("enumerate", &[]))).output;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(name) && text.contains(load), "{text}");
    }
}

#[test]
fn wrong_settings_are_named_and_show_no_board() {
    let output = run(r#"{"drivr":"rknpu"}"#, Command::new(program("rknpu_matmul", &[])).arg("once")).output;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(errors.contains("ORK_SHIM: unknown field `drivr`"), "{errors}");
}

/// Does the calls of a trace again, on a board whose caches are modelled.
fn again(trace: &[u8]) -> Result<Report, ReplayError> {
    let mut reader = Reader::new(trace)?;
    // No job of another process is waited for.
    let options = EmuOptions { coherency: Coherency::Strict, domain_wait_ms: 1, ..Default::default() };
    let board = Board::new(&options);
    let rocket = reader.header().driver == "rocket";
    let open = || -> Result<Arc<dyn Transport>, Errno> {
        Ok(if rocket { Arc::new(board.open_rocket()) } else { Arc::new(board.open()) })
    };
    replay(&mut reader, &open)
}

#[test]
fn a_recorded_run_is_the_same_again() {
    for trace in [
        recorded(VENDOR, &mut Command::new(program("rknpu_matmul", &[]))),
        recorded(VENDOR, &mut python("rknpu_matmul.py")),
        recorded(MAINLINE, &mut python("rocket_matmul.py")),
    ] {
        let report = again(&trace).unwrap();
        assert_eq!(report.differences, []);
        assert!(report.complete && report.submits == 1 && report.compared_bytes >= 1024, "{report:?}");
    }
}

#[test]
fn a_recorded_run_with_failures_and_threads_is_the_same_again() {
    for (way, submits) in [("wrong-program", 2), ("threads", 60), ("duplicates", 4), ("after-close", 1)] {
        let trace = recorded(VENDOR, Command::new(program("rknpu_matmul", &[])).arg(way));
        let report = again(&trace).unwrap();
        assert_eq!((&report.differences[..], report.submits), (&[][..], submits), "{way}: {report:?}");
    }
}

/// A changed operand must show as a changed result: the comparison can fail.
#[test]
fn a_changed_operand_is_a_difference() {
    let trace = recorded(VENDOR, &mut Command::new(program("rknpu_matmul", &[])));
    let mut reader = Reader::new(&trace[..]).unwrap();
    let header = reader.header().clone();
    let mut changed = Vec::new();
    let mut writer = Writer::new(&mut changed, &header).unwrap();
    let mut first = true;
    while let Some(mut event) = reader.next_event().unwrap() {
        if let Event::Written { bytes, .. } = &mut event
            && std::mem::take(&mut first)
        {
            bytes[0] ^= 1;
        }
        writer.write(&event).unwrap();
    }
    let report = again(&changed).unwrap();
    assert!(report.difference_count > 0, "{report:?}");
    let text = report.differences[0].to_string();
    assert!(text.contains("bytes differ, the first at"), "{text}");
}

/// Files with changed bytes are replayed or refused; nothing else happens.
#[test]
fn damaged_traces_do_no_harm() {
    let trace = recorded(VENDOR, &mut Command::new(program("rknpu_matmul", &[])));
    let header = trace.windows(8).position(|window| window == *b"\x01\0\0\0\x16\0\0\0").unwrap();
    let mut state = 1_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..100 {
        let mut damaged = trace.clone();
        let place = header + next(trace.len() - header);
        damaged[place] = next(256) as u8;
        let _ = again(&damaged);
    }
}
