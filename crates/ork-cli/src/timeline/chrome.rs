// SPDX-License-Identifier: MIT OR Apache-2.0
//! A timeline in the JSON form that Perfetto and Chrome's tracing page read.
//!
//! Two process groups, whose clocks have nothing to do with each other: the host, *measured*, and an RK3588, *modelled*.
//! Times are microseconds in both.

use std::time::{Duration, Instant};

use ork_driver::{Phase, SOC};
use ork_plan::cost;
use serde_json::{Value, json};

use super::recorder::{Kept, Stage};

/// Process of what was measured.
const HOST: u32 = 1;
/// Process of what was modelled.
const MODELLED: u32 = 2;

/// Tracks of the host.
const STAGES: u32 = 1;
const DRIVER: u32 = 2;
const REST: u32 = 3;
/// Tracks of the model: the passes, then five for each core.
const PASSES: u32 = 1;
const CORE_TRACKS: u32 = 10;

/// What was modelled, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ModelledSums {
    /// Submits.
    pub(super) submits: u64,
    /// Register programs.
    pub(super) programs: u64,
    /// Microseconds of all passes, one after the other.
    pub(super) us: f64,
}

/// The timeline of a run that began at `zero`, and what was modelled in it.
pub(super) fn timeline(zero: Instant, stages: &[Stage], spans: &[Kept]) -> (Value, ModelledSums) {
    let mut events = vec![
        named("process_name", HOST, 0, "host: measured"),
        named("process_name", MODELLED, 0, "RK3588: modelled, on a clock of its own"),
        named("thread_name", HOST, STAGES, "stages"),
        named("thread_name", HOST, DRIVER, "driver"),
        named("thread_name", HOST, REST, "llama.cpp and the backend around the driver"),
        named("thread_name", MODELLED, PASSES, "submits"),
    ];
    for stage in stages {
        events.push(measured(zero, STAGES, &stage.name, (stage.start, stage.end), json!({})));
        events.extend(gaps(zero, stage, spans));
    }
    for span in spans {
        let (m, k, n) = span.size;
        let name = match span.phase {
            Phase::Product => span.weight.as_str(),
            phase => phase.name(),
        };
        let facts = json!({ "weight": span.weight, "m": m, "k": k, "n": n });
        events.push(measured(zero, DRIVER, name, (span.start, span.end), facts));
    }
    let sums = model(spans, &mut events);
    let trace = json!({
        "displayTimeUnit": "ns",
        "traceEvents": events,
        "otherData": {
            "schema": "ork-timeline",
            "schema_version": 1,
            "host": "measured: wall time of this machine; a submit contains the NPU or its model",
            "modelled": "a prediction for an RK3588 at its highest clocks, one pass after the other without the host's work",
        },
    });
    (trace, sums)
}

fn named(what: &str, process: u32, track: u32, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": process, "tid": track, "args": { "name": name } })
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn measured(zero: Instant, track: u32, name: &str, (start, end): (Instant, Instant), facts: Value) -> Value {
    json!({
        "ph": "X", "cat": "measured", "name": name, "pid": HOST, "tid": track,
        "ts": micros(start.saturating_duration_since(zero)), "dur": micros(end - start), "args": facts,
    })
}

/// What a stage does between the calls of the driver.
fn gaps(zero: Instant, stage: &Stage, spans: &[Kept]) -> Vec<Value> {
    let mut calls: Vec<(Instant, Instant)> = spans
        .iter()
        .filter(|span| span.phase == Phase::Call && span.start >= stage.start && span.end <= stage.end)
        .map(|span| (span.start, span.end))
        .collect();
    calls.sort();
    let mut found = Vec::new();
    let mut from = stage.start;
    for (start, end) in calls.into_iter().chain([(stage.end, stage.end)]) {
        if start > from {
            found.push(measured(zero, REST, "outside the driver", (from, start), json!({})));
        }
        from = from.max(end);
    }
    found
}

/// Passes on the modelled clock, one after the other.
fn model(spans: &[Kept], events: &mut Vec<Value>) -> ModelledSums {
    let mut sums = ModelledSums::default();
    let mut cores = 0;
    let mut event = |track: u32, name: &str, start: f64, length: f64, facts: Value| {
        if length > 0.0 {
            events.push(json!({
                "ph": "X", "cat": "modelled", "name": name, "pid": MODELLED, "tid": track,
                "ts": start, "dur": length, "args": facts,
            }));
        }
    };
    for span in spans {
        let Some((plan, shape)) = &span.pass else { continue };
        let shape = &plan.shapes()[*shape];
        let zero = sums.us;
        event(
            PASSES,
            &span.weight,
            zero,
            shape.modelled.us,
            json!({ "rows": shape.rows, "k": plan.k(), "n": plan.n(), "us": shape.modelled.us }),
        );
        event(PASSES, "hand over and wait", zero, cost::submit().us, json!({}));
        for (chain, planned) in shape.timeline(plan.format(), &SOC).iter().zip(&shape.chains) {
            let track = CORE_TRACKS * (u32::from(chain.core) + 1);
            cores = cores.max(chain.core + 1);
            for (task, tile) in chain.tasks.iter().zip(&planned.programs) {
                let (start, compute) = (zero + task.start.us, zero + task.compute_start().us);
                let facts =
                    json!({ "m0": tile.m0, "rows": tile.rows, "k": tile.k, "n0": tile.n0, "n": tile.n });
                event(track, &format!("task {}", task.index), start, task.end.us - task.start.us, facts);
                event(track + 1, "weights", start, task.blocks.weight_stream.us, json!({}));
                event(track + 2, "features", compute, task.blocks.feature_stream.us, json!({}));
                event(track + 3, "multiply", compute, task.blocks.mac.us, json!({}));
                event(track + 4, "results", compute, task.blocks.write_back.us, json!({}));
            }
            sums.programs += planned.programs.len() as u64;
        }
        sums.submits += 1;
        sums.us += shape.modelled.us;
    }
    for core in 0..u32::from(cores) {
        let track = CORE_TRACKS * (core + 1);
        for (offset, what) in
            [(0, "tasks"), (1, "DMA in: weights"), (2, "DMA in: features"), (3, "MAC array"), (4, "DMA out")]
        {
            events.push(named("thread_name", MODELLED, track + offset, &format!("core {core}: {what}")));
        }
    }
    sums
}
