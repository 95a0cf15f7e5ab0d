// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork calibrate`: statistics of activations, for packs.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use ork_config::Config;
use ork_corpus::{Corpus, CorpusError, Part, SplitRule};
use ork_engine::{ContextOptions, Engine, LogSink, Model, Observation, ObservedProduct, Observer};
use ork_pack::{CalibrationRun, PackError, SourceSample, StatisticsFile, save_statistics};
use ork_quant::Collect;
use ork_recipe::{CalibrationInput, Collector, RecipeError, WeightSource};

use crate::failure::{Failure, chain};
use crate::flags::Settings;
use crate::progress;
use crate::weights::ModelWeights;

#[derive(clap::Args)]
pub(crate) struct CalibrateArgs {
    /// Model file, GGUF of any type
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Text file to read
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Statistics file to write; an unfinished one of the same command is continued
    #[arg(short, long, value_name = "FILE.orkstat")]
    output: PathBuf,
    /// What to keep: sums for smooth and imatrix, hessian for gptq as well
    #[arg(long, value_enum, default_value_t = Keep::Hessian)]
    collect: Keep,
    /// Which part of the text to read, from its start; the held-out part stays for `ork ppl`
    #[arg(long, value_enum, default_value_t = Read::Seen)]
    part: Read,
    #[command(flatten)]
    settings: Settings,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Read {
    Seen,
    Whole,
}

/// What to keep of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Keep {
    Sums,
    Hessian,
}

pub(crate) fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    let config = args.settings.config()?;
    let collect = match args.collect {
        Keep::Sums => Collect::Sums,
        Keep::Hessian => Collect::Hessian,
    };
    let corpus = Corpus::read(&args.file).map_err(|error| bad_text(&error))?;
    let excerpt = match args.part {
        Read::Whole => corpus.whole(),
        Read::Seen => corpus.split(SplitRule::default()).map_err(|error| bad_text(&error))?.part(Part::Seen),
    };
    let weights = ModelWeights::open(&args.model, &config)?;
    let claimed: HashMap<String, usize> =
        weights.weights().iter().map(|weight| (weight.name.clone(), weight.k)).collect();
    drop(weights);
    if claimed.is_empty() {
        return Err(RecipeError::NoWeights.into());
    }
    let sample = SourceSample::of(&args.model)?;
    // Activations as the CPU computes them: the NPU is not asked.
    let engine = Engine::init(None, LogSink::discard())?;
    let bar = progress::bar("loading", 1000);
    let model = Model::load(&engine, &args.model, &config.load, &mut |done| {
        bar.set_position((f64::from(done) * 1000.0) as u64);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let model = model?;
    let windows = windows(&model, &excerpt.text(), &config)?;
    let run = CalibrationRun {
        model: sample,
        text: excerpt.origin(),
        window_tokens: config.calibrate.window_tokens,
        tokens: windows.iter().map(|window| window.len() as u64).sum(),
    };
    let inputs = inputs(&model, &claimed, &config, windows[0][0])?;
    gather(args, &config, &model, &windows, &run, &inputs, collect)
}

pub(crate) fn bad_text(error: &CorpusError) -> Failure {
    let hint = matches!(error, CorpusError::TooShort { .. })
        .then(|| "--part whole reads all of it, and leaves nothing to measure on".to_owned());
    Failure::Failed { code: 2, message: chain(error), hint }
}

/// Tokens that are evaluated together, start tokens included.
pub(crate) fn windows(model: &Model, text: &str, config: &Config) -> Result<Vec<Vec<i32>>, Failure> {
    let options = &config.calibrate;
    let start = model.tokenize("")?;
    let tokens = model.tokenize(text)?;
    let tokens = tokens.strip_prefix(start.as_slice()).unwrap_or(&tokens);
    let trained = model.info().trained_context.max(1);
    if options.window_tokens as usize <= start.len() + 1 || options.window_tokens > trained {
        return Err(Failure::usage(format!(
            "calibrate.window_tokens = {}: windows of this model have {} to {trained} tokens",
            options.window_tokens,
            start.len() + 2
        )));
    }
    let used = &tokens[..tokens.len().min(usize::try_from(options.tokens).unwrap_or(usize::MAX))];
    if used.is_empty() {
        return Err(Failure::usage(
            "there are no tokens to read: the text is empty, or calibrate.tokens is 0",
        ));
    }
    if (used.len() as u64) < options.tokens {
        eprintln!("note: the text has {} tokens, {} were asked for", used.len(), options.tokens);
    }
    let list = used.chunks(options.window_tokens as usize - start.len());
    Ok(list.map(|piece| [start.as_slice(), piece].concat()).collect())
}

pub(crate) fn context(config: &Config) -> ContextOptions {
    let window = Some(config.calibrate.window_tokens);
    ContextOptions { context_tokens: window, batch_tokens: window, ..config.context.clone() }
}

/// Finds out which weights share their activations.
struct Grouping {
    claimed: HashMap<String, usize>,
    found: Vec<(usize, CalibrationInput)>,
}

impl Observer for Grouping {
    fn wants(&mut self, product: &ObservedProduct) -> bool {
        let fits = self.claimed.get(&product.weight).is_some_and(|k| *k == product.k);
        let known = self
            .found
            .iter()
            .any(|(_, input)| input.weight == product.weight || input.also.contains(&product.weight));
        if fits && !known {
            match self.found.iter_mut().find(|(id, _)| *id == product.input) {
                Some((_, input)) => input.also.push(product.weight.clone()),
                None => {
                    let input =
                        CalibrationInput { weight: product.weight.clone(), also: Vec::new(), k: product.k };
                    self.found.push((product.input, input));
                }
            }
        }
        false
    }

    fn take(&mut self, _product: &ObservedProduct, _rows: &[f32]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

fn inputs(
    model: &Model,
    claimed: &HashMap<String, usize>,
    config: &Config,
    token: i32,
) -> Result<Vec<CalibrationInput>, Failure> {
    let grouping = Grouping { claimed: claimed.clone(), found: Vec::new() };
    let mut observation = Observation::new(model, &context(config), grouping)?;
    observation.evaluate(&[token])?;
    let found: Vec<CalibrationInput> = observation
        .with(|grouping| std::mem::take(&mut grouping.found))
        .into_iter()
        .map(|(_, input)| input)
        .collect();
    let reached: usize = found.iter().map(|input| 1 + input.also.len()).sum();
    if reached < claimed.len() {
        eprintln!(
            "note: {} of {} weights are not used in a forward pass",
            claimed.len() - reached,
            claimed.len()
        );
    }
    Ok(found)
}

/// Adds up activations.
struct Gathering {
    collector: Collector,
    failure: Option<RecipeError>,
}

impl Observer for Gathering {
    fn wants(&mut self, product: &ObservedProduct) -> bool {
        self.collector.wants(&product.weight)
    }

    fn take(&mut self, product: &ObservedProduct, rows: &[f32]) -> ControlFlow<()> {
        match self.collector.add(&product.weight, rows) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failure.get_or_insert(error);
                ControlFlow::Break(())
            }
        }
    }
}

fn gather(
    args: &CalibrateArgs,
    config: &Config,
    model: &Model,
    windows: &[Vec<i32>],
    run: &CalibrationRun,
    inputs: &[CalibrationInput],
    collect: Collect,
) -> Result<(), Failure> {
    let options = &config.calibrate;
    let rows = u64::from(options.window_tokens);
    let needed = Collector::bytes_max(inputs, collect, rows);
    eprintln!(
        "statistics of {} inputs: at most {:.1} MB in memory, {} tokens in {} windows of {}",
        inputs.len(),
        needed as f64 / 1e6,
        run.tokens,
        windows.len(),
        run.text
    );
    let (collector, start) = match earlier(&args.output, run)? {
        None => (Collector::new(inputs, collect, rows, options.memory_bytes_max)?, 0),
        Some(file) if file.is_complete() => {
            eprintln!("{} is complete already", args.output.display());
            return Ok(());
        }
        Some(file) => {
            let position = file.position();
            eprintln!("continuing at token {position}");
            let found = file.all()?;
            (Collector::resume(inputs, collect, rows, options.memory_bytes_max, found)?, position)
        }
    };
    let gathering = Gathering { collector, failure: None };
    let mut observation = Observation::new(model, &context(config), gathering)?;
    let bar = progress::bar("calibrating", run.tokens);
    let (mut position, mut saved) = (0u64, Instant::now());
    for window in windows {
        position += window.len() as u64;
        if position <= start {
            continue;
        }
        let evaluated = observation.evaluate(window);
        if let Some(error) = observation.with(|gathering| gathering.failure.take()) {
            return Err(error.into());
        }
        evaluated?;
        observation.with(|gathering| gathering.collector.advance(position));
        bar.set_position(position);
        if position == run.tokens || saved.elapsed() >= Duration::from_secs(options.save_seconds) {
            observation
                .with(|gathering| save_statistics(gathering.collector.statistics(), run, &args.output))?;
            saved = Instant::now();
        }
    }
    bar.finish_and_clear();
    eprintln!("wrote {}", args.output.display());
    Ok(())
}

/// What an earlier run has left of the same calibration.
fn earlier(path: &Path, run: &CalibrationRun) -> Result<Option<StatisticsFile>, Failure> {
    if !path.exists() {
        return Ok(None);
    }
    let file = StatisticsFile::open(path)?;
    if file.run() == run {
        return Ok(Some(file));
    }
    let found = file.run();
    let kind = if found.model != run.model { "another model" } else { "another text or other settings" };
    Err(PackError::Mismatch {
        path: path.to_owned(),
        kind: "calibration",
        found: format!("{kind}: {} tokens of {}", found.tokens, found.text),
        wanted: format!("{} tokens of {}", run.tokens, run.text),
    }
    .into())
}
