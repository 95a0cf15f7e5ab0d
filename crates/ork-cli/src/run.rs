// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork run`.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::PathBuf;

use ork_config::Config;
use ork_engine::{EngineError, Event, Generation, GenerationStats, Model, Prompt, StopReason};

use crate::failure::{Failure, print};
use crate::flags::Settings;
use crate::progress;
use crate::session::{Log, Npu, Session};

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// Model file, GGUF of any type
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// The prompt; `-` reads it from stdin
    #[arg(short, long, value_name = "TEXT")]
    prompt: String,
    /// Take the prompt as it is, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Print speed and counters at the end
    #[arg(long)]
    stats: bool,
    /// Print at the end what ran where, and why
    #[arg(long)]
    explain: bool,
    /// Show llama.cpp's log
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let config = args.settings.config()?;
    if config.generate.max_tokens == 0 {
        return Err(Failure::usage("-n 0: there is nothing to generate; give a number of tokens from 1"));
    }
    config.generate.sampling.check().map_err(EngineError::from)?;
    let text = prompt_text(&args.prompt)?;
    // Look at the file before the device is opened: a wrong path should not wait for anything.
    ork_engine::inspect(&args.model)?;
    crate::pack::build_if_asked(&args.model, &config)?;
    let session = Session::start(&config, if args.verbose { Log::Verbose } else { Log::Quiet })?;
    let model = session.load(&args.model, &config)?;
    let raw = args.raw || !model.info().chat_template;
    if raw && !args.raw {
        eprintln!("note: the model has no chat template; the prompt is taken as it is");
    }
    let prompt = if raw { Prompt::Raw(text) } else { Prompt::user(text) };
    let outcome = generate(&model, &prompt, &config);
    if args.explain
        && let Some(npu) = &session.npu
    {
        explain(npu);
    }
    if (args.explain || args.stats)
        && let Some(npu) = &session.npu
    {
        eprintln!(
            "-- where products went; times are modelled for an RK3588. Calls are those of the NPU's side: what llama.cpp's CPU backend \
             computes is known as questions while planning only"
        );
        eprint!("{}", npu.backend.census().route_table());
    }
    let stats = outcome?;
    if args.stats {
        print_stats(&stats, session.npu.as_ref());
    }
    Ok(())
}

fn prompt_text(argument: &str) -> Result<String, Failure> {
    let mut text = argument.to_owned();
    if argument == "-" {
        text.clear();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| Failure::usage(format!("cannot read the prompt from stdin: {error}")))?;
    }
    if text.is_empty() { Err(Failure::usage("the prompt is empty")) } else { Ok(text) }
}

fn generate(model: &Model, prompt: &Prompt, config: &Config) -> Result<GenerationStats, Failure> {
    let mut generation = Generation::new(model, &config.context)?;
    let mut broken = None;
    let mut bar = None;
    let stats = generation.run(prompt, &config.generate, &mut |event| {
        match event {
            Event::Prefill { done, total } => {
                let bar = bar.get_or_insert_with(|| progress::bar("reading the prompt", total as u64));
                bar.set_position(done as u64);
                if done == total {
                    bar.finish_and_clear();
                }
            }
            Event::Text(piece) => {
                if let Err(failure) = print(piece) {
                    broken = Some(failure);
                    return ControlFlow::Break(());
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    if let Some(failure) = broken {
        return Err(failure);
    }
    print("\n")?;
    if stats.stop == StopReason::ContextFull {
        eprintln!("note: the context is full ({} tokens); -c sets its size", generation.context_tokens());
    }
    Ok(stats)
}

fn print_stats(stats: &GenerationStats, npu: Option<&Npu>) {
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2} tok/s"));
    eprintln!("-- host time, measured on this machine");
    eprintln!(
        "prefill   {} tokens in {:.3} s, {}",
        stats.prompt_tokens,
        stats.prefill.as_secs_f64(),
        rate(stats.prefill_per_second())
    );
    eprintln!(
        "decode    {} steps in {:.3} s, {}",
        stats.decode_steps,
        stats.decode.as_secs_f64(),
        rate(stats.decode_per_second())
    );
    let Some(npu) = npu else { return };
    let device = npu.driver.device().counters();
    eprintln!("{}", npu.driver.counters());
    eprintln!(
        "{} submits, {} tiles; {:.1} MB flushed, {:.1} MB invalidated",
        device.submits(),
        device.tasks(),
        device.bytes_flushed as f64 / 1e6,
        device.bytes_invalidated as f64 / 1e6
    );
    let packs = npu.backend.census().packs;
    if !packs.loaded.is_empty() {
        let schemes: Vec<String> =
            packs.loaded.iter().map(|(scheme, count)| format!("{count} x {scheme}")).collect();
        eprintln!("weights from a pack: {}; {} converted", schemes.join(", "), packs.missed.len());
    }
    let declines: u64 = npu.backend.census().planning.declined.iter().map(|line| line.count).sum();
    eprintln!("{declines} operations declined while planning (--explain says which and why)");
}

fn explain(npu: &Npu) {
    let census = npu.backend.census();
    eprintln!("-- what ran on the NPU ({})", npu.driver.device().describe());
    eprintln!("{:<40} {:>10} {:>8} {:>9} {:>12}", "weight", "k x n", "matmuls", "rows", "m");
    for (name, weight) in &census.executed.weights {
        eprintln!(
            "{name:<40} {:>10} {:>8} {:>9} {:>12}",
            format!("{}x{}", weight.k, weight.n),
            weight.matmuls,
            weight.rows,
            format!("{}..{}", weight.m_min, weight.m_max)
        );
    }
    eprint!("{census}");
}
