// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork bench`: models and settings, timed in one run and compared (docs/benchmarks.md).

mod arms;
mod plot;
mod process;
mod show;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use ork_bench::{
    BoardState, Host, NpuPart, Null, Objection, Placement, Provenance, Report, Row, SCHEMA, SCHEMA_VERSION,
    Schedule, Sysfs, Test, TestKind, Twin, Units, published,
};
use ork_config::RouteKind;

pub(crate) use process::arm_process;

use crate::failure::{Failure, print};
use crate::flags::EngineSettings;
use arms::{Arm, ArmText, Arms};
use process::{NpuKind, Process, Timed, file_name};

#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// Model file, GGUF of any type; repeat it to compare files
    #[arg(short, long = "model", value_name = "FILE")]
    models: Vec<PathBuf>,
    /// Lengths of prompts to time; 0 for none
    #[arg(short = 'p', long, value_name = "N,...", value_delimiter = ',', default_values_t = [512])]
    prefill: Vec<u32>,
    /// Numbers of single tokens to time; 0 for none
    #[arg(short = 'n', long, value_name = "N,...", value_delimiter = ',', default_values_t = [64])]
    decode: Vec<u32>,
    /// Rounds of each test; every arm runs twice in a round
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Runs of each arm before them that do not count
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: u32,
    /// An arm: `NAME:KEY=VALUE,...` with the keys of settings, model, route or pack [default: CPU and NPU of each model]
    #[arg(long = "arm", value_name = "ARM", value_parser = ArmText::parse)]
    arms: Vec<ArmText>,
    /// Judge one arm against another: `NAME,BASELINE` [default: all against the first, or every NPU against every CPU]
    #[arg(long = "compare", value_name = "PAIR", value_parser = pair)]
    pairs: Vec<(String, String)>,
    /// Compare with a report that an earlier run wrote with `-o json`
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
    /// Write a plot of all runs to this file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Measure although a clock is parked, limited or below its maximum; the report says so
    #[arg(long)]
    force: bool,
    /// CPUs to run on
    #[arg(long, value_name = "CPUS", default_value = "fast")]
    cpus: Cpus,
    /// Root of sysfs, where clocks, governors and temperatures are read
    #[arg(long, value_name = "FOLDER", default_value = "/sys")]
    sysfs: PathBuf,
    #[command(flatten)]
    settings: EngineSettings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Md,
    Csv,
    Json,
    Jsonl,
    Sql,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cpus {
    /// The fast ones of a chip that has fast and slow ones
    Fast,
    /// All that this process may use
    All,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once(',') {
        Some((arm, baseline)) if !arm.trim().is_empty() && !baseline.trim().is_empty() => {
            Ok((arm.trim().to_owned(), baseline.trim().to_owned()))
        }
        _ => Err("a pair is NAME,BASELINE".to_owned()),
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let of = |kind, tokens: &[u32]| -> Vec<Test> {
        tokens.iter().filter(|tokens| **tokens > 0).map(|&tokens| Test { kind, tokens }).collect()
    };
    let mut tests = of(TestKind::Prefill, &args.prefill);
    tests.extend(of(TestKind::Decode, &args.decode));
    let Some(tokens_max) = tests.iter().map(|test| test.tokens).max() else {
        return Err(Failure::usage("-p 0 -n 0: there is nothing to measure"));
    };
    let Arms { arms, pairs } = arms::arms(&args.models, &args.arms, &args.pairs, &args.settings.0)?;
    let earlier = args.against.as_deref().map(Report::read).transpose()?;
    for arm in &arms {
        ork_engine::inspect(&arm.model)?;
    }

    let sysfs = Sysfs::at(&args.sysfs);
    let placement = match args.cpus {
        Cpus::Fast => Placement::fast(&sysfs)?,
        Cpus::All => Placement::anywhere()?,
    };
    // The processes of the arms inherit that.
    placement.bind()?;
    let mut clocks =
        Clocks { sysfs, units: Units { cpus: placement.cpus.clone(), npu: false }, force: args.force };
    clocks.admit()?;

    for arm in arms.iter().filter(|arm| arm.config.offload.route != RouteKind::Cpu) {
        crate::pack::build_if_asked(&arm.model, &arm.config)?;
    }
    let mut processes = Vec::with_capacity(arms.len());
    for arm in &arms {
        processes.push(Process::start(arm, tokens_max)?);
    }
    clocks.units.npu = processes.iter().any(|process| process.about.npu == NpuKind::Real);
    let (board_before, objections) = clocks.admit()?;
    let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut rows = Vec::new();
    for &test in &tests {
        rows.extend(measure(args, &arms, &mut processes, test)?);
    }
    drop(processes);

    let found =
        |arm: usize, test: Test| rows.iter().find(|row| row.test == test && row.arm == arms[arm].name);
    let comparisons = tests
        .iter()
        .flat_map(|&test| pairs.iter().map(move |pair| (test, pair)))
        .filter_map(|(test, &(arm, baseline))| {
            let baseline = found(baseline, test)?;
            found(arm, test)?.against(baseline, &baseline.arm)
        })
        .collect();
    let mut published: Vec<published::Published> = Vec::new();
    for row in rows.iter().flat_map(published::of) {
        if !published.contains(row) {
            published.push(row.clone());
        }
    }
    let report = Report {
        schema: SCHEMA.to_owned(),
        schema_version: SCHEMA_VERSION,
        ork_version: env!("CARGO_PKG_VERSION").to_owned(),
        unix_time,
        host: Host { cpu: cpu_name(), kernel: first_line("/proc/sys/kernel/osrelease"), placement },
        board_before,
        board_after: BoardState::read(&clocks.sysfs),
        objections,
        rounds: args.rounds,
        warmup: args.warmup,
        comparisons,
        published,
        rows,
    };
    output(args, &report, earlier.as_ref())
}

fn output(args: &BenchArgs, report: &Report, earlier: Option<&Report>) -> Result<(), Failure> {
    let text = match args.output {
        Output::Text => show::text(report),
        Output::Md => show::markdown(report),
        Output::Csv => ork_bench::csv(report)?,
        Output::Json => ork_bench::json(report)?,
        Output::Jsonl => ork_bench::jsonl(report)?,
        Output::Sql => ork_bench::sql(report)?,
    };
    print(&text)?;
    if let Some(path) = &args.plot {
        let drawn = plot::plot(report).unwrap_or_default();
        std::fs::write(path, drawn)
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))?;
    }
    let Some(earlier) = earlier else { return Ok(()) };
    let against = report.against(earlier).map_err(|error| Failure::usage(format!("--against: {error}")))?;
    let text = show::against(&against);
    if matches!(args.output, Output::Text | Output::Md) {
        return print(&text);
    }
    // What is on stdout is for programs.
    eprint!("{text}");
    Ok(())
}

/// The clocks of what a run uses.
struct Clocks {
    sysfs: Sysfs,
    units: Units,
    force: bool,
}

impl Clocks {
    /// Their state, unless they are unfit; and the objections that were overridden.
    fn admit(&self) -> Result<(BoardState, Vec<Objection>), Failure> {
        let state = BoardState::read(&self.sysfs);
        let objections = state.objections(&self.units);
        if objections.is_empty() || self.force {
            return Ok((state, objections));
        }
        let all: Vec<String> = objections.iter().map(Objection::to_string).collect();
        let remedies: Vec<&str> = objections.iter().map(Objection::remedy).collect();
        Err(Failure::Failed {
            code: 2,
            message: format!("no speed measured now would mean anything: {}", all.join("; ")),
            hint: Some(format!("{}; or measure all the same with --force", remedies.join("; "))),
        })
    }
}

/// All rounds of a test.
fn measure(
    args: &BenchArgs,
    arms: &[Arm],
    processes: &mut [Process],
    test: Test,
) -> Result<Vec<Row>, Failure> {
    for process in processes.iter_mut() {
        for _ in 0..args.warmup {
            process.time(test)?;
        }
    }
    let runs = u64::from(args.rounds) * 2 * arms.len() as u64;
    let bar = crate::progress::bar(&test.to_string(), runs);
    let mut timed: Vec<[Vec<Timed>; 2]> = arms.iter().map(|_| Default::default()).collect();
    for slot in Schedule::new(arms.len(), args.rounds).rounds().flatten() {
        let twin = usize::from(slot.twin == Twin::B);
        timed[slot.arm][twin].push(processes[slot.arm].time(test)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(arms
        .iter()
        .zip(processes)
        .zip(timed)
        .map(|((arm, process), timed)| row(arm, process, test, &timed))
        .collect())
}

fn row(arm: &Arm, process: &Process, test: Test, timed: &[Vec<Timed>; 2]) -> Row {
    let about = &process.about;
    let [seconds_a, seconds_b] =
        timed.each_ref().map(|twin| twin.iter().map(|timed| timed.seconds).collect::<Vec<f64>>());
    let all: Vec<NpuPart> = timed.iter().flatten().map(|timed| timed.npu).collect();
    let npu = summed(&all).filter(|npu| npu.products > 0);
    let provenance = match about.npu {
        // Where the NPU did nothing, its model is in no time.
        NpuKind::Simulated if npu.is_some() => Provenance::Simulated,
        _ => Provenance::Measured,
    };
    Row {
        arm: arm.name.clone(),
        model: file_name(&arm.model),
        model_type: about.info.description.clone(),
        architecture: about.info.architecture.clone(),
        layers: about.info.layers,
        embedding: about.info.embedding,
        parameters: about.info.parameters,
        model_bytes: about.info.file_bytes,
        route: arm.config.offload.backend_options().route.to_string(),
        settings: arm.config.changed(),
        threads: arm.config.context.threads,
        device: about.device.clone(),
        test,
        provenance,
        null: Null::of(&seconds_a, &seconds_b),
        seconds_a,
        seconds_b,
        npu,
    }
}

/// All runs together; the modelled time, which is the same in each, of the last.
fn summed(parts: &[NpuPart]) -> Option<NpuPart> {
    let modelled_us = parts.last()?.modelled_us;
    let mut sum = NpuPart::default();
    for part in parts {
        sum.products += part.products;
        sum.programs += part.programs;
        sum.backend_s += part.backend_s;
        sum.npu_s += part.npu_s;
        sum.below_ioctl_s += part.below_ioctl_s;
        sum.quantise_s += part.quantise_s;
        sum.synthesise_s += part.synthesise_s;
        sum.sync_s += part.sync_s;
        sum.submit_s += part.submit_s;
        sum.dequantise_s += part.dequantise_s;
    }
    Some(NpuPart { modelled_us, ..sum })
}

fn first_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim_matches(['\0', ' ']).to_owned();
    Some(line).filter(|line| !line.is_empty())
}

/// The board's name, or the CPU's where there is no device tree.
fn cpu_name() -> Option<String> {
    let of_cpu = || {
        let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    first_line("/proc/device-tree/model").or_else(of_cpu)
}
