// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork pack`: quantised, tiled weights in a file that is loaded as it lies; and commands that look at such files.

mod files;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use ork_config::Config;
use ork_driver::SOC;
use ork_ggml::{ModelPack, PackChoice};
use ork_pack::{Calibration, Imatrix, SourceId, SourceSample, StatisticsFile, WriteOptions};
use ork_quant::Scheme;
use ork_recipe::{
    Knowledge, ModelPlan, PackReport, Promote, Recipe, WeightInfo, WeightSource, Why, gptq_bytes_max,
    pack_model,
};

use crate::failure::{Failure, print};
use crate::flags::Settings;
use crate::progress;
use crate::weights::{ModelWeights, guide};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct PackArgs {
    #[command(subcommand)]
    command: Option<PackCommand>,
    #[command(flatten)]
    make: MakeArgs,
}

#[derive(Subcommand)]
enum PackCommand {
    /// Show what a pack is
    Info(files::InfoArgs),
    /// Read every byte of a pack and compare it with its checksums
    Verify(files::VerifyArgs),
    /// List everything in which two packs differ
    Diff(files::DiffArgs),
    /// Compare a pack's weights with those of its model
    Errors(files::ErrorsArgs),
}

#[derive(Args)]
struct MakeArgs {
    /// Model file, GGUF of any type
    #[arg(short, long, value_name = "FILE", required = true)]
    model: Option<PathBuf>,
    /// Pack to write; an unfinished one of the same command is continued
    #[arg(short, long, value_name = "FILE.orkpack", required = true)]
    output: Option<PathBuf>,
    /// What to do with weights: w8a8, w8a8-rot, i4a8, i4a8-nf4, w4a4, w4a4-ladder, with steps behind a +: group, smooth, signs,
    /// rotate, gptq, stochastic, imatrix, clip, promote, promote:BITS, promote:output
    #[arg(long, value_name = "SCHEME", default_value = "w8a8")]
    scheme: String,
    /// Statistics of `ork calibrate`, for smooth, imatrix and gptq
    #[arg(long, value_name = "FILE.orkstat")]
    stats: Option<PathBuf>,
    /// Importance matrix of llama.cpp, for imatrix and smooth
    #[arg(long, value_name = "FILE", conflicts_with = "stats")]
    imatrix: Option<PathBuf>,
    /// Model file of mixed types: weights that have more bits in it than most get int8
    #[arg(long, value_name = "FILE.gguf")]
    guide: Option<PathBuf>,
    /// Say what would be done, and stop
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(args: &PackArgs) -> Result<(), Failure> {
    match &args.command {
        Some(PackCommand::Info(args)) => files::info(args),
        Some(PackCommand::Verify(args)) => files::verify(args),
        Some(PackCommand::Diff(args)) => files::diff(args),
        Some(PackCommand::Errors(args)) => files::errors(args),
        None => make(&args.make),
    }
}

fn make(args: &MakeArgs) -> Result<(), Failure> {
    let (Some(model), Some(output)) = (&args.model, &args.output) else {
        return Err(Failure::usage("ork pack needs a model (-m) and a name for the pack (-o)"));
    };
    let recipe: Recipe = args.scheme.parse().map_err(|error| Failure::usage(format!("--scheme: {error}")))?;
    let config = args.settings.config()?;
    let weights = ModelWeights::open(model, &config)?;
    let infos = weights.weights();
    if let Some(note) = weights.quantised_note() {
        eprintln!("{note}");
    }
    let (knowledge, calibration) = knowledge(args)?;
    if calibration.is_some() && !recipe.needs_activations() {
        return Err(Failure::usage(format!("the scheme `{recipe}` uses neither --stats nor --imatrix")));
    }
    knowledge.check_model(&recipe, &SourceSample::of(model)?)?;
    let guide = args.guide.as_deref().map(guide).transpose()?;
    let plan = ModelPlan::new(&recipe, infos, guide.as_ref(), &knowledge, (&SOC, &config.driver.plan))?;
    eprint!("{}", plan_text(&plan, infos));
    if args.dry_run {
        return Ok(());
    }
    let report = write((model, output), (&weights, &plan), (&knowledge, calibration), &config)?;
    print(&census_text(&report))
}

/// Makes the pack beside a model, with the codes that converting gives, if the settings ask for it and there is none.
///
/// Before a session: llama.cpp is started to say which weights the NPU takes.
pub(crate) fn build_if_asked(model: &Path, config: &Config) -> Result<(), Failure> {
    let output = ModelPack::beside(model);
    if config.offload.pack != PackChoice::Build || output.symlink_metadata().is_ok() {
        return Ok(());
    }
    let weights = ModelWeights::open(model, config)?;
    let (recipe, nothing) =
        (Recipe { scheme: Scheme::w8a8(), promote: Promote::Nothing }, Knowledge::Nothing);
    let plan = ModelPlan::new(&recipe, weights.weights(), None, &nothing, (&SOC, &config.driver.plan))?;
    write((model, &output), (&weights, &plan), (&nothing, None), config).map(|_| ())
}

/// Writes a pack, and says on stderr what became of it.
fn write(
    (model, output): (&Path, &Path),
    (weights, plan): (&ModelWeights, &ModelPlan),
    (knowledge, calibration): (&Knowledge, Option<Calibration>),
    config: &Config,
) -> Result<PackReport, Failure> {
    let infos = weights.weights();
    let start = Instant::now();
    let source = SourceId::of(model)?;
    let hashed = start.elapsed();
    let writer = format!("ork {}", env!("CARGO_PKG_VERSION"));
    let asked = plan.pack_plan(infos, &SOC, source, calibration, &writer);
    let options = WriteOptions { part_bytes_max: config.pack.part_bytes_max };
    let total: u64 = infos.iter().map(|info| (info.k * info.n) as u64).sum();
    let bar = progress::bar("packing", total);
    let report = pack_model(weights, plan, &asked, knowledge, (output, options), &mut |progress| {
        bar.set_position(progress.done);
        bar.set_message(progress.weight.to_owned());
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let report = report?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!(
        "{} tensors, {:.1} M weights, {:.1} MB, {:.3} bits per weight on disk; {seconds:.2} s ({:.2} s of it naming the \
         model by content), {:.3} GB of fp16 weights per second{}",
        report.written.tensors,
        total as f64 / 1e6,
        report.written.bytes as f64 / 1e6,
        report.written.bytes as f64 * 8.0 / total as f64,
        hashed.as_secs_f64(),
        total as f64 * 2.0 / 1e9 / seconds,
        peak_memory().map(|bytes| format!("; peak memory {:.1} MB", bytes as f64 / 1e6)).unwrap_or_default()
    );
    if report.continued > 0 {
        eprintln!("{} tensors were there from an interrupted run", report.continued);
    }
    if report.clip.rows > 0 {
        eprintln!(
            "clip searches: mean {:.3} of the largest magnitude, {} of {} at the floor",
            report.clip.alpha_mean(),
            report.clip.pinned,
            report.clip.rows
        );
    }
    Ok(report)
}

/// What is known of activations, and how the pack names it.
fn knowledge(args: &MakeArgs) -> Result<(Knowledge, Option<Calibration>), Failure> {
    if let Some(path) = &args.stats {
        let file = StatisticsFile::open(path)?;
        let calibration = Calibration::of(path, Some(file.run().text.clone()))?;
        return Ok((Knowledge::Statistics(Box::new(file)), Some(calibration)));
    }
    let Some(path) = &args.imatrix else { return Ok((Knowledge::Nothing, None)) };
    let named = |what: String| Failure::Failed {
        code: 1,
        message: format!("{}: {what}", path.display()),
        hint: Some("name a file that llama-imatrix wrote".to_owned()),
    };
    let bytes = std::fs::read(path).map_err(|error| named(error.to_string()))?;
    let imatrix = Imatrix::parse(&bytes).map_err(|error| named(error.to_string()))?;
    Ok((Knowledge::Imatrix(imatrix), Some(Calibration::of(path, None)?)))
}

fn plan_text(plan: &ModelPlan, infos: &[WeightInfo]) -> String {
    let mut counts: BTreeMap<(String, String), (usize, u64)> = BTreeMap::new();
    for choice in &plan.choices {
        let info = &infos[choice.index];
        let count = counts.entry((choice.scheme.to_string(), choice.why.to_string())).or_default();
        *count = (count.0 + 1, count.1 + (info.k * info.n) as u64);
    }
    let mut text = String::new();
    for ((scheme, why), (tensors, numbers)) in counts {
        text +=
            &format!("{scheme:<32} {tensors:>5} tensors {:>10.1} M weights  {why}\n", numbers as f64 / 1e6);
    }
    text += &format!("{:.3} bits per weight planned", plan.bits_per_weight);
    if plan.transitions > 0 {
        text += &format!("; {} changes between int4 and int8 in a forward pass", plan.transitions);
    }
    if plan.recipe.needs_hessian() {
        let asked = plan.choices.iter().filter(|choice| choice.why == Why::Asked);
        let largest = asked.map(|choice| u64::from(choice.layout.k())).max().unwrap_or(0);
        text += &format!("; Hessian and factor take up to {:.1} MB", gptq_bytes_max(largest) as f64 / 1e6);
    }
    text + "\n"
}

fn census_text(report: &PackReport) -> String {
    let mut text = format!("{:<40} {:>8} {:>8}\n", "census", "asked", "written");
    for (scheme, count) in &report.schemes {
        text += &format!("{scheme:<40} {:>8} {:>8}\n", count.asked, count.written);
    }
    for file in &report.written.files {
        text += &format!("{}\n", file.display());
    }
    text
}

/// The most memory this process has had, as Linux counts it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
