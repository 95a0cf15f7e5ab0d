// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replays the recorded programs of `tests/conformance` and compares what they leave in memory.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a case that cannot be read is a failure; errors are printed beside the published ones"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

use half::f16;
use ork_isa::Iova;
use ork_sim::{Access, Bus, BusFault, Core, JobEnd, PcJob, SimOptions, Span};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[allow(dead_code, reason = "origin of the case, for readers of the file")]
    source: String,
    #[allow(dead_code, reason = "kernel interface it was recorded at")]
    driver: String,
    what: String,
    buffer: Vec<Buffer>,
    submit: Vec<Submit>,
    output: Output,
    tolerance: Tolerance,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Buffer {
    id: String,
    #[allow(dead_code, reason = "for readers of the file")]
    role: String,
    iova: u32,
    size: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submit {
    writes: Vec<Write>,
    runs: Vec<Run>,
}

/// What the CPU writes to a buffer before the submit: `len` bytes from 0, zero but for the extents, which are
/// (place in the buffer, place in the data file, length).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Write {
    buffer: String,
    len: usize,
    extents: Vec<(usize, usize, usize)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    base: u32,
    amount: u16,
    tasks: u16,
    int_mask: u32,
    int_clear: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    buffer: String,
    dtype: String,
    expected_dtype: String,
    count: usize,
    index_at: usize,
    expected_at: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tolerance {
    kind: String,
    atol: f64,
    rtol: f64,
    published_error: Option<f64>,
    published_kind: Option<String>,
    published_from: Option<f64>,
}

/// Buffers at their recorded addresses, whole pages each.
struct Memory(BTreeMap<u32, RwLock<Vec<u8>>>);

impl Memory {
    /// The buffers that a range touches: base, start in the buffer, length.
    fn parts(&self, iova: Iova, len: u64, access: Access) -> Result<Vec<(u32, usize, usize)>, BusFault> {
        let mut parts = Vec::new();
        let (mut at, end) = (u64::from(iova.0), u64::from(iova.0) + len);
        while at < end {
            let fault = BusFault { iova: Iova(at as u32), len, access };
            let (base, memory) = self.0.range(..=at as u32).next_back().ok_or(fault)?;
            let start = (at - u64::from(*base)) as usize;
            let room = memory.read().unwrap().len().saturating_sub(start);
            if room == 0 {
                return Err(fault);
            }
            let run = room.min((end - at) as usize);
            parts.push((*base, start, run));
            at += run as u64;
        }
        Ok(parts)
    }
}

impl Bus for Memory {
    fn read(&self, iova: Iova, len: u64) -> Result<Span<'_>, BusFault> {
        let mut bytes = Vec::new();
        for (base, start, run) in self.parts(iova, len, Access::Read)? {
            bytes.extend_from_slice(&self.0[&base].read().unwrap()[start..start + run]);
        }
        Ok(Span::new(bytes))
    }

    fn write(&self, iova: Iova, data: &[u8]) -> Result<(), BusFault> {
        let mut rest = data;
        for (base, start, run) in self.parts(iova, data.len() as u64, Access::Write)? {
            let (now, later) = rest.split_at(run);
            self.0[&base].write().unwrap()[start..start + run].copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }
}

fn number(dtype: &str, bytes: &[u8], index: usize) -> f64 {
    match dtype {
        "float16" | "<f2" => f16::from_le_bytes(bytes[2 * index..][..2].try_into().unwrap()).to_f64(),
        "float32" | "<f4" => f64::from(f32::from_le_bytes(bytes[4 * index..][..4].try_into().unwrap())),
        "int32" | "<i4" => f64::from(i32::from_le_bytes(bytes[4 * index..][..4].try_into().unwrap())),
        "int16" | "<i2" => f64::from(i16::from_le_bytes(bytes[2 * index..][..2].try_into().unwrap())),
        "int8" | "|i1" => f64::from(bytes[index].cast_signed()),
        "|u1" => f64::from(bytes[index]),
        other => panic!("dtype {other}"),
    }
}

/// Place of an fp16 number among the representable ones.
fn rank(value: f64) -> i32 {
    let bits = i32::from(f16::from_f64(value).to_bits());
    if bits & 0x8000 == 0 { bits } else { -(bits & 0x7FFF) }
}

struct Verdict {
    wrong: usize,
    count: usize,
    absolute: f64,
    relative: f64,
    /// The largest relative error where the published figure counts.
    relative_from: f64,
    /// The largest error against the reference rounded to fp16.
    rounded: f64,
    findings: Vec<String>,
}

fn replay(folder: &Path, name: &str, options: &SimOptions) -> Result<(Verdict, Case), String> {
    let text = std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap();
    let case: Case = toml::from_str(&text).map_err(|error| error.to_string())?;
    let data = std::fs::read(folder.join(format!("{name}.bin"))).unwrap();
    let memory = Memory(
        case.buffer
            .iter()
            .map(|buffer| (buffer.iova, RwLock::new(vec![0; buffer.size.next_multiple_of(4096)])))
            .collect(),
    );
    let base_of = |id: &str| case.buffer.iter().find(|buffer| buffer.id == id).unwrap().iova;
    let mut core = Core::new(0, options);
    let mut findings = Vec::new();
    for (index, submit) in case.submit.iter().enumerate() {
        for write in &submit.writes {
            let mut buffer = memory.0[&base_of(&write.buffer)].write().unwrap();
            buffer[..write.len].fill(0);
            for (at, from, len) in &write.extents {
                buffer[*at..at + len].copy_from_slice(&data[*from..from + len]);
            }
        }
        for run in &submit.runs {
            let job = PcJob {
                base: Iova(run.base),
                amount: run.amount,
                tasks: run.tasks,
                dma_base: Iova(0),
                int_mask: run.int_mask,
                int_clear: run.int_clear,
            };
            let outcome = core.run(&memory, &job);
            findings.extend(outcome.diagnoses.iter().map(ToString::to_string));
            match outcome.end {
                JobEnd::Done => {}
                JobEnd::Hang(diagnosis) | JobEnd::Unmodelled(diagnosis) => {
                    return Err(format!("submit {index}: {diagnosis}"));
                }
            }
        }
    }
    let buffer = memory.0[&base_of(&case.output.buffer)].read().unwrap();
    let mut verdict = Verdict {
        wrong: 0,
        count: case.output.count,
        absolute: 0.0,
        relative: 0.0,
        relative_from: 0.0,
        rounded: 0.0,
        findings,
    };
    for i in 0..case.output.count {
        let at = case.output.index_at + 4 * i;
        let place = u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) as usize;
        let mut got = number(&case.output.dtype, &buffer, place);
        if case.output.expected_dtype == "|u1" {
            // Stored bytes are 128 below the logical value.
            got += 128.0;
        }
        let expected = number(&case.output.expected_dtype, &data[case.output.expected_at..], i);
        let error = (got - expected).abs();
        verdict.absolute = verdict.absolute.max(error);
        if case.output.dtype == "float16" {
            verdict.rounded = verdict.rounded.max((got - f16::from_f64(expected).to_f64()).abs());
        }
        if expected != 0.0 && expected.abs() >= case.tolerance.published_from.unwrap_or(0.0) {
            verdict.relative_from = verdict.relative_from.max(error / expected.abs());
        }
        if expected != 0.0 {
            verdict.relative = verdict.relative.max(error / expected.abs());
        }
        let good = match case.tolerance.kind.as_str() {
            "exact" => got == expected,
            "ulp" => f64::from((rank(got) - rank(expected)).abs()) <= case.tolerance.atol,
            "close" => error <= case.tolerance.atol + case.tolerance.rtol * expected.abs(),
            other => panic!("tolerance {other}"),
        };
        verdict.wrong += usize::from(!good);
    }
    drop(buffer);
    Ok((verdict, case))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap().join("../../tests/conformance")
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".toml")?.to_owned()))
        .collect();
    names.sort();
    names
}

fn all(options: &SimOptions) {
    let folder = folder();
    let names = names(&folder);
    assert_eq!(names.len(), 76, "cases in {}", folder.display());
    let mut failures = Vec::new();
    for name in &names {
        match replay(&folder, name, options) {
            Err(what) => failures.push(format!("{name}: {what}")),
            Ok((verdict, case)) => {
                let mut published = String::new();
                if let Some(figure) = case.tolerance.published_error {
                    // Authors compared with the exact value or with its nearest fp16 number; either may count.
                    let ours = match case.tolerance.published_kind.as_deref() {
                        Some("relative") => vec![verdict.relative_from],
                        _ => vec![verdict.absolute, verdict.rounded],
                    };
                    published = format!("; published for silicon {figure:.3e}, here {ours:?}");
                    // A model that is much better than silicon is as wrong as one that is much worse.
                    if !ours.iter().any(|ours| (0.96..1.04).contains(&(ours / figure))) {
                        failures.push(format!("{name}: largest error {ours:?}, published {figure:.3e}"));
                    }
                }
                println!(
                    "{name}: {} ({}), largest error {:.3e}, relative {:.3e}{published}",
                    if verdict.wrong == 0 { "ok" } else { "WRONG" },
                    case.what,
                    verdict.absolute,
                    verdict.relative
                );
                if verdict.wrong > 0 || !verdict.findings.is_empty() {
                    failures.push(format!(
                        "{name}: {} of {} wrong, largest error {}, findings {:?}",
                        verdict.wrong, verdict.count, verdict.absolute, verdict.findings
                    ));
                }
            }
        }
    }
    let passed = names.len() - failures.len();
    assert!(failures.is_empty(), "{passed} of {} pass\n{}", names.len(), failures.join("\n"));
}

#[test]
fn recorded_programs() {
    all(&SimOptions::default());
}

#[test]
fn recorded_programs_by_the_plain_loops() {
    all(&SimOptions { reference_kernels: true, threads: 1, ..SimOptions::default() });
}
