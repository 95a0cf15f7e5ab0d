// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork bench`: the NPU route and llama.cpp's CPU backend, timed in one run.

use std::fmt::Write;
use std::path::PathBuf;

use ork_config::RouteKind;
use ork_engine::{BenchOptions, BenchReport, bench};
use ork_ggml::Route;

use crate::failure::{Failure, print};
use crate::flags::Settings;
use crate::session::{Log, Session};

#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// Model file, GGUF of any type
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    prefill: u32,
    /// Single tokens after it
    #[arg(long, value_name = "N", default_value_t = 16)]
    decode: u32,
    /// Measured rounds of each arm
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let mut config = args.settings.config()?;
    if config.offload.route == RouteKind::Cpu {
        return Err(Failure::usage(
            "bench compares the NPU with the CPU: --route cpu leaves nothing to compare",
        ));
    }
    config.offload.route = RouteKind::Npu;
    ork_engine::inspect(&args.model)?;
    crate::pack::build_if_asked(&args.model, &config)?;
    let session = Session::start(&config, Log::Quiet)?;
    let npu = session.npu.as_ref().ok_or_else(|| Failure::usage("no NPU"))?;
    let load = |route| {
        npu.backend.set_route(route);
        session.load(&args.model, &config)
    };
    let cpu = load(Route::Cpu)?;
    let npu_model = load(Route::Npu)?;

    // Rounds alternate, so that whatever else the machine does meets both arms alike.
    let once = BenchOptions {
        prefill_tokens: args.prefill,
        decode_tokens: args.decode,
        rounds: 1,
        warmup_rounds: 0,
    };
    let mut arms = [("CPU", &cpu, Vec::new()), ("NPU", &npu_model, Vec::new())];
    for round in 0..=args.rounds {
        for (_, model, reports) in &mut arms {
            let report = bench(model, &once, &config.context)?;
            if round > 0 {
                reports.push(report);
            }
        }
    }
    let device = npu.driver.device();
    let provenance =
        if device.board().is_some() { "simulated: host time of the NPU model" } else { "measured" };
    let mut text = format!(
        "{}\nhost wall time, tok/s: median (smallest to largest) of {}\n",
        device.describe(),
        args.rounds
    );
    let [cpu_prefill, npu_prefill] =
        arms.each_ref().map(|arm| rates(&arm.2, BenchReport::prefill_per_second));
    let [cpu_decode, npu_decode] = arms.each_ref().map(|arm| rates(&arm.2, BenchReport::decode_per_second));
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:<10} {:>28} {:>28}",
        "",
        format!("prefill {}", args.prefill),
        format!("decode {}", args.decode)
    );
    let _ = writeln!(text, "{:<10} {:>28} {:>28}  measured", "CPU", show(&cpu_prefill), show(&cpu_decode));
    let _ =
        writeln!(text, "{:<10} {:>28} {:>28}  {provenance}", "NPU", show(&npu_prefill), show(&npu_decode));
    let _ = writeln!(
        text,
        "{:<10} {:>28} {:>28}",
        "NPU/CPU",
        ratio(&npu_prefill, &cpu_prefill),
        ratio(&npu_decode, &cpu_decode)
    );
    print(&text)
}

/// Rates of all rounds, smallest first.
fn rates(reports: &[BenchReport], of: fn(&BenchReport) -> Vec<f64>) -> Vec<f64> {
    let mut rates: Vec<f64> = reports.iter().flat_map(of).collect();
    rates.sort_by(f64::total_cmp);
    rates
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

fn show(sorted: &[f64]) -> String {
    match (median(sorted), sorted.first(), sorted.last()) {
        (Some(median), Some(least), Some(most)) => format!("{median:.1} ({least:.1} to {most:.1})"),
        _ => "-".to_owned(),
    }
}

fn ratio(above: &[f64], below: &[f64]) -> String {
    match (median(above), median(below)) {
        (Some(above), Some(below)) => format!("{:.3}", above / below),
        _ => "-".to_owned(),
    }
}
