// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unmodified programs that share: buffers between files and with the heap, fences, descriptors over `exec`, the machine
//! between processes.

mod support;

use std::process::Command;

use support::{Run, VENDOR, VENDOR_STRICT, program, run};

fn sharing(emulation: &str, way: &str) -> Run {
    run(emulation, Command::new(program("rknpu_sharing", &[])).arg(way))
}

#[test]
fn a_buffer_of_one_file_is_the_operand_of_another() {
    for emulation in [VENDOR, VENDOR_STRICT] {
        sharing(emulation, "prime").succeeds("a lent operand: 0 wrong\n").without_findings();
    }
}

#[test]
fn operands_of_the_heap() {
    sharing(VENDOR, "heap").succeeds("operands of the heap: 0 wrong, then right\n").without_findings();
}

#[test]
fn with_modelled_caches_a_write_to_the_heap_must_be_ended() {
    let run = sharing(VENDOR_STRICT, "heap").succeeds("operands of the heap: 0 wrong, then the old result\n");
    assert_eq!(run.findings(), 2, "features and weights\n{}", run.report);
    assert_eq!(run.report.matches("still in its caches").count(), 2, "{}", run.report);
}

#[test]
fn fences_are_polled_merged_and_waited_for() {
    for emulation in [VENDOR, VENDOR_STRICT] {
        sharing(emulation, "fences").succeeds("fences: 0 wrong\n").without_findings();
    }
}

#[test]
fn forgotten_maintenance_shows_with_modelled_caches_and_is_explained() {
    let expected = "program not flushed: ETIMEDOUT\nresult not invalidated: nothing, then right\n\
                    features not flushed: wrong, then right\n";
    let run = sharing(VENDOR_STRICT, "forgotten").succeeds(expected);
    // The program that nobody wrote, and what the NPU made of it; the features.
    assert_eq!(run.findings(), 3, "{}", run.report);
    assert_eq!(run.report.matches("still in its caches").count(), 2, "{}", run.report);
}

#[test]
fn forgotten_maintenance_is_nothing_without_caches() {
    let expected = "program not flushed: runs\nresult not invalidated: right, then right\n\
                    features not flushed: right, then right\n";
    sharing(VENDOR, "forgotten").succeeds(expected).without_findings();
}

#[test]
fn a_program_started_by_exec_has_a_board_of_its_own() {
    let line = "after exec: device ENODEV, dma-buf ENODEV, opened anew 0 wrong\n";
    sharing(VENDOR, "exec").succeeds(&line.repeat(2)).without_findings();
}

#[test]
fn two_processes_at_once() {
    for emulation in [VENDOR, VENDOR_STRICT] {
        sharing(emulation, "processes").succeeds("two processes: 0 wrong\n").without_findings();
    }
}
