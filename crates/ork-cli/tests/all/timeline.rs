// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork trace`: the file that it writes, against the plan and against itself. No test here is about speed.

use std::path::Path;
use std::process::{Command, Stdio};

use ork_engine::tiny::TinyModel;
use ork_isa::soc::RK3588;
use ork_layout::Format;
use ork_plan::{Decision, Plan, PlanOptions, Problem, decide, weight_layout};
use serde_json::Value;

/// Runs `ork trace`; gives the timeline and what was printed.
fn trace(folder: &Path, args: &[&str]) -> (Value, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ork"));
    command.env_clear().stdin(Stdio::null()).current_dir(folder);
    let output = command.args(["trace", "--device", "sim", "-o", "trace.json"]).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(folder.join("trace.json")).unwrap();
    (serde_json::from_str(&text).unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[derive(Clone, Debug)]
struct Event {
    name: String,
    process: u64,
    track: u64,
    start: f64,
    end: f64,
    args: Value,
}

/// Complete events of a category.
fn events(trace: &Value, category: &str) -> Vec<Event> {
    let all = trace["traceEvents"].as_array().unwrap();
    let complete = all.iter().filter(|event| event["ph"] == "X" && event["cat"] == category);
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap();
    complete
        .map(|event| Event {
            name: event["name"].as_str().unwrap().to_owned(),
            process: event["pid"].as_u64().unwrap(),
            track: event["tid"].as_u64().unwrap(),
            start: number(event, "ts"),
            end: number(event, "ts") + number(event, "dur"),
            args: event["args"].clone(),
        })
        .collect()
}

/// Rounding of times that are written as microseconds.
const SLACK: f64 = 2e-3;

/// On each track, two events are apart, or one contains the other.
fn assert_nested(events: &[Event]) {
    for (index, one) in events.iter().enumerate() {
        for other in &events[index + 1..] {
            if (one.process, one.track) != (other.process, other.track) {
                continue;
            }
            let apart = one.end <= other.start + SLACK || other.end <= one.start + SLACK;
            let inside = |a: &Event, b: &Event| b.start <= a.start + SLACK && a.end <= b.end + SLACK;
            assert!(apart || inside(one, other) || inside(other, one), "{one:?}\n{other:?}");
        }
    }
}

fn plan(m: u32, k: u32, n: u32) -> Plan {
    let weight = weight_layout(Format::INT8_INT32, k, n, &RK3588).unwrap();
    match decide(&Problem { m, weight }, &RK3588, &PlanOptions { cores: 3, ..PlanOptions::default() }) {
        Decision::Accept(plan) => plan,
        Decision::Decline(decline) => panic!("{decline}"),
    }
}

#[test]
fn a_known_product_is_what_its_plan_says() {
    let folder = tempfile::tempdir().unwrap();
    // One pass, several passes, several slices of K.
    for (m, k, n) in [(37, 100, 72), (700, 1536, 576), (64, 9000, 96)] {
        let (trace, said) = trace(folder.path(), &["--matmul", &format!("{m},{k},{n}")]);
        let plan = plan(m, k, n);
        let programs: usize = plan
            .passes()
            .map(|pass| pass.shape.chains.iter().map(|chain| chain.programs.len()).sum::<usize>())
            .sum();
        let modelled = events(&trace, "modelled");
        let tasks: Vec<&Event> = modelled.iter().filter(|event| event.name.starts_with("task ")).collect();
        assert_eq!(tasks.len(), programs, "{m}x{k}x{n}");
        let passes: Vec<&Event> = modelled.iter().filter(|event| event.name == "weight").collect();
        assert_eq!(passes.len(), plan.pass_count() as usize);
        let us: f64 = passes.iter().map(|pass| pass.end - pass.start).sum();
        assert!((us - plan.modelled().us).abs() < 1e-6 * us, "{us}, {}", plan.modelled());
        // Each task lies in its pass, and the last to end ends with it.
        for pass in &passes {
            let inside: Vec<&&Event> = tasks
                .iter()
                .filter(|task| task.start >= pass.start - SLACK && task.end <= pass.end + SLACK)
                .collect();
            let last = inside.iter().map(|task| task.end).fold(0.0, f64::max);
            assert!((last - pass.end).abs() < SLACK, "{last} {pass:?}");
        }
        let columns: u64 = tasks
            .iter()
            .filter(|task| task.args["m0"] == 0 && task.start < passes[0].end)
            .map(|task| task.args["n"].as_u64().unwrap())
            .sum();
        assert!(columns >= u64::from(n * plan.k_slices()), "{columns}");
        assert!(said.contains(&format!("{} submits of {programs} programs", plan.pass_count())), "{said}");
        assert!(said.contains("modelled") && said.contains("driver, unattributed"), "{said}");

        let measured = events(&trace, "measured");
        let of = |name: &str| measured.iter().filter(|event| event.name == name).count();
        for name in ["submit and wait", "synthesise", "de-tile and scale", "quantise"] {
            assert_eq!(of(name), plan.pass_count() as usize, "{name}");
        }
        // Of an activation, and of programs.
        assert_eq!(of("sync"), 2 * plan.pass_count() as usize);
        assert_eq!((of("call"), of("plan"), of("weight")), (1, 1, 1));
        assert_nested(&measured);
        assert_nested(&modelled);
        // The clocks are in groups of their own.
        assert!(
            measured.iter().all(|event| event.process == 1)
                && modelled.iter().all(|event| event.process == 2)
        );
    }
}

/// Phases and what is left of the driver's calls are the calls; gaps and calls are the stages.
#[test]
fn a_model_s_time_is_all_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::default().write(&folder.path().join("tiny.gguf")).unwrap();
    let prompt = "ab".repeat(30);
    let args = ["-m", "tiny.gguf", "-p", &prompt, "-n", "2", "--route", "npu"];
    let (trace, said) = trace(folder.path(), &args);
    let measured = events(&trace, "measured");
    assert_nested(&measured);
    let stages: Vec<&Event> = measured.iter().filter(|event| event.track == 1).collect();
    assert_eq!(stages.len(), 2);
    let sum = |events: &[&Event]| events.iter().map(|event| event.end - event.start).sum::<f64>();
    let calls: Vec<&Event> = measured.iter().filter(|event| event.name == "call").collect();
    let gaps: Vec<&Event> = measured.iter().filter(|event| event.track == 3).collect();
    let (whole, apart) = (sum(&stages), sum(&calls) + sum(&gaps));
    assert!((whole - apart).abs() < SLACK * measured.len() as f64, "{whole} {apart}");
    // Every product of three evaluations: one prompt, two tokens.
    let products = measured.iter().filter(|event| event.name.ends_with(".weight")).count() as u64;
    assert_eq!(products, 3 * TinyModel::default().matmuls_per_evaluation());

    // The printed parts add up to the printed whole.
    let number = |line: &str| -> f64 { line.split_whitespace().rev().nth(1).unwrap().parse().unwrap() };
    let lines: Vec<&str> = said.lines().skip(1).take_while(|line| !line.is_empty()).collect();
    let (all, parts) = lines.split_last().unwrap();
    assert!(all.starts_with("all") && parts.len() >= 8, "{said}");
    let total: f64 = parts.iter().map(|line| number(line)).sum();
    assert!((total - number(all)).abs() < 0.001 * (parts.len() + 1) as f64, "{said}");
    for name in ["llama.cpp", "backend outside the driver", "model of the NPU", "driver, unattributed"] {
        assert!(parts.iter().any(|line| line.starts_with(name)), "{name}: {said}");
    }
}

#[test]
fn nothing_to_trace_is_one_clear_line() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::default().write(&folder.path().join("tiny.gguf")).unwrap();
    for (args, words) in [
        (&["-m", "tiny.gguf", "-p", "ab", "--route", "cpu"][..], "nothing of the NPU"),
        (&["-m", "tiny.gguf", "-p", "ab", "--set", "offload.exclude=[\"*\"]"], "the NPU computed nothing"),
        (&["--matmul", "0,32,32"], "three numbers from 1"),
        (&["-m", "tiny.gguf"], "--prompt"),
        (&["-m", "missing.gguf", "-p", "ab"], "missing.gguf"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ork"));
        command.env_clear().stdin(Stdio::null()).current_dir(folder.path());
        let output =
            command.args(["trace", "--device", "sim", "-o", "trace.json"]).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{words:?}: {said}");
        assert!(!folder.path().join("trace.json").exists());
    }
}
