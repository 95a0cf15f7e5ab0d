// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork trace`: when the host did what, and when an RK3588 would, as a file for Perfetto (docs/benchmarks.md).

mod chrome;
mod recorder;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_config::RouteKind;
use ork_device::Device;
use ork_driver::{Driver, MatmulGroup};
use ork_engine::{Prompt, Stopwatch};

use crate::failure::{Failure, print};
use crate::flags::EngineSettings;
use crate::session::{Log, Session};
use recorder::{Kept, Recorder, Stage, Sums};

#[derive(clap::Args)]
pub(crate) struct TraceArgs {
    /// Model file, GGUF of any type
    #[arg(short, long, value_name = "FILE", requires = "prompt", required_unless_present = "matmul")]
    model: Option<PathBuf>,
    /// The prompt; only its length matters to the time
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Single tokens to evaluate after the prompt
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4)]
    decode: u32,
    /// Trace one int8 product of rows, channels and columns instead of a model
    #[arg(long, value_name = "M,K,N", value_parser = size, conflicts_with = "model")]
    matmul: Option<Sizes>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    settings: EngineSettings,
}

/// Rows, channels and columns.
#[derive(Clone, Copy)]
struct Sizes {
    m: u32,
    k: u32,
    n: u32,
}

fn size(text: &str) -> Result<Sizes, String> {
    let sizes: Result<Vec<u32>, _> = text.split(',').map(|size| size.trim().parse()).collect();
    match sizes.as_deref() {
        Ok(&[m, k, n]) if m > 0 && k > 0 && n > 0 => Ok(Sizes { m, k, n }),
        _ => Err("M,K,N are three numbers from 1".to_owned()),
    }
}

/// What was run.
struct Run {
    zero: Instant,
    stages: Vec<Stage>,
    spans: Vec<Kept>,
    sums: Sums,
}

pub(crate) fn run(args: &TraceArgs) -> Result<(), Failure> {
    let run = match (&args.model, &args.prompt, &args.matmul) {
        (Some(model), Some(prompt), _) => of_model(args, model, prompt)?,
        (.., Some(sizes)) => of_product(args, *sizes)?,
        _ => return Err(Failure::usage("trace needs a model and a prompt, or --matmul M,K,N")),
    };
    let (trace, modelled) = chrome::timeline(run.zero, &run.stages, &run.spans);
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::usage(format!("cannot write {}: {error}", args.output.display()))
    };
    let text = serde_json::to_string(&trace).map_err(|error| cannot(&error))?;
    std::fs::write(&args.output, text).map_err(|error| cannot(&error))?;
    print(&format!(
        "{}\n{} submits of {} programs; the NPU's part on an RK3588: {:.0} us modelled\n",
        run.sums.table(),
        modelled.submits,
        modelled.programs,
        modelled.us
    ))
}

fn of_model(args: &TraceArgs, path: &std::path::Path, prompt: &str) -> Result<Run, Failure> {
    let config = args.settings.0.config()?;
    if config.offload.route == RouteKind::Cpu {
        return Err(Failure::usage("--route cpu: there is nothing of the NPU to trace"));
    }
    ork_engine::inspect(path)?;
    crate::pack::build_if_asked(path, &config)?;
    let session = Session::start(&config, Log::Quiet)?;
    let model = session.load(path, &config)?;
    let npu = session.npu.as_ref().ok_or_else(|| Failure::usage("no NPU"))?;
    let tokens = model.prompt_tokens(&Prompt::Raw(prompt.to_owned()))?.len();
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX).max(1);
    let mut stopwatch = Stopwatch::open(&model, tokens.max(args.decode), &config.context)?;
    // Plans and buffers are made once; the timeline shows what comes after.
    stopwatch.prefill(tokens)?;
    stopwatch.decode(args.decode.min(1))?;

    let recorder = Arc::new(Recorder::default());
    npu.driver.listen(Some(Arc::clone(&recorder) as _));
    let computing = || npu.driver.device().board().map(|board| board.computing_time());
    let (backend, simulated) = (npu.backend.census().executed.time, computing());
    let zero = Instant::now();
    stopwatch.prefill(tokens)?;
    let mut stages = vec![Stage { name: format!("prefill of {tokens}"), start: zero, end: Instant::now() }];
    if args.decode > 0 {
        let start = Instant::now();
        stopwatch.decode(args.decode)?;
        stages.push(Stage { name: format!("decode of {}", args.decode), start, end: Instant::now() });
    }
    let whole = zero.elapsed();
    npu.driver.listen(None);
    let backend = npu.backend.census().executed.time.saturating_sub(backend);
    let simulated = difference(simulated, computing());
    let spans = recorder.take();
    if spans.is_empty() {
        return Err(Failure::Failed {
            code: 1,
            message: "the NPU computed nothing".to_owned(),
            hint: Some("a short prompt stays on the CPU; --route npu sends everything to the NPU".into()),
        });
    }
    let sums = Sums::of(&spans, whole, Some(backend), simulated);
    Ok(Run { zero, stages, spans, sums })
}

fn of_product(args: &TraceArgs, Sizes { m, k, n }: Sizes) -> Result<Run, Failure> {
    let config = args.settings.0.config()?;
    let device = Device::open(&config.device)?;
    eprintln!("device: {}", device.describe());
    let driver = Driver::new(device, config.driver)?;
    let (m, k, n) = (m as usize, k as usize, n as usize);
    // Values mean nothing here: a slope whose period is no tile's.
    let slope = |index: usize| (index % 251) as f32 - 125.0;
    let fill = |row: usize, out: &mut [f32]| {
        out.iter_mut().enumerate().for_each(|(at, value)| *value = slope(row * k + at));
    };
    let weight = driver.load("weight", k, n, &fill)?;
    let x: Vec<f32> = (0..m * k).map(slope).collect();
    let mut out = vec![0.0; m * n];
    let mut multiply = || driver.matmul(&mut MatmulGroup { m, x: &x, parts: vec![(&weight, &mut out)] });
    multiply()?;
    let recorder = Arc::new(Recorder::default());
    driver.listen(Some(Arc::clone(&recorder) as _));
    let computing = || driver.device().board().map(|board| board.computing_time());
    let before = computing();
    let zero = Instant::now();
    multiply()?;
    let end = Instant::now();
    driver.listen(None);
    let simulated = difference(before, computing());
    let spans = recorder.take();
    let sums = Sums::of(&spans, end - zero, None, simulated);
    let stages = vec![Stage { name: format!("product {m}x{k}x{n}"), start: zero, end }];
    Ok(Run { zero, stages, spans, sums })
}

fn difference(before: Option<Duration>, after: Option<Duration>) -> Option<Duration> {
    Some(after?.saturating_sub(before?))
}
