// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork compare`: the same text through the NPU and through llama.cpp's CPU backend.

use std::path::PathBuf;

use ork_config::{Config, RouteKind};
use ork_engine::{Divergence, LogitTable, logits};
use ork_ggml::Route;

use crate::failure::{Failure, print};
use crate::flags::Settings;
use crate::session::{Log, Session};

#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// Model file, GGUF of any type
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Text file to evaluate
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Tokens of the text to evaluate
    #[arg(long, value_name = "N", default_value_t = 512)]
    text_tokens: usize,
    /// Fail if the mean KL divergence is above this
    #[arg(long, value_name = "NATS")]
    max_kl: Option<f64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let mut config = args.settings.config()?;
    if config.offload.route == RouteKind::Cpu {
        return Err(Failure::usage("compare needs the NPU: --route cpu leaves nothing to compare"));
    }
    config.offload.route = RouteKind::Npu;
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", args.file.display())))?;
    ork_engine::inspect(&args.model)?;
    crate::pack::build_if_asked(&args.model, &config)?;
    let session = Session::start(&config, Log::Quiet)?;
    let npu = session.npu.as_ref().ok_or_else(|| Failure::usage("no NPU"))?;

    npu.backend.set_route(Route::Cpu);
    let reference = evaluate(&session, args, &config, &text)?;
    npu.backend.set_route(Route::Npu);
    let candidate = evaluate(&session, args, &config, &text)?;
    let divergence = Divergence::between(&reference, &candidate, 0)?;

    print(&if args.json { json(&divergence) } else { report(&divergence) })?;
    match args.max_kl {
        Some(limit) if divergence.mean_kl > limit => Err(Failure::Failed {
            code: 1,
            message: format!("mean KL divergence {:.5} is above {limit}", divergence.mean_kl),
            hint: None,
        }),
        _ => Ok(()),
    }
}

fn evaluate(
    session: &Session,
    args: &CompareArgs,
    config: &Config,
    text: &str,
) -> Result<LogitTable, Failure> {
    let model = session.load(&args.model, config)?;
    let mut tokens = model.tokenize(text)?;
    if tokens.len() < args.text_tokens {
        return Err(Failure::usage(format!(
            "{} has {} tokens, {} are wanted",
            args.file.display(),
            tokens.len(),
            args.text_tokens
        )));
    }
    tokens.truncate(args.text_tokens);
    Ok(logits(&model, &tokens, &config.context)?)
}

fn report(divergence: &Divergence) -> String {
    format!(
        "positions        {}\n\
         mean KL          {:.6} nats (CPU || NPU)\n\
         largest KL       {:.4} nats at position {}\n\
         same first token {:.2} %\n\
         perplexity CPU   {:.4}\n\
         perplexity NPU   {:.4}\n",
        divergence.positions,
        divergence.mean_kl,
        divergence.max_kl,
        divergence.max_kl_position,
        100.0 * divergence.top1_agreement,
        divergence.reference_perplexity,
        divergence.candidate_perplexity
    )
}

fn json(divergence: &Divergence) -> String {
    serde_json::to_string(divergence).map_or_else(|_| "{}\n".into(), |text| text + "\n")
}
