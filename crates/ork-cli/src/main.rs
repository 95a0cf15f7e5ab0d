// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork`: language models on the NPU of the RK3588, real or simulated.
#![expect(clippy::print_stderr, reason = "a command-line program")]

mod bench;
mod calibrate;
mod capture;
mod chart;
mod compare;
mod conformance;
mod devices;
mod emulate;
mod failure;
mod faults;
mod flags;
mod matmul;
mod model;
mod moe_skew;
mod pack;
mod plan;
mod ppl;
mod progress;
mod regcmd;
mod replay;
mod run;
mod selftest;
mod session;
mod table;
mod timeline;
mod trial;
mod weights;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

use failure::Failure;
use flags::Settings;

#[derive(Parser)]
#[command(name = "ork", version, about = "Language models on the NPU of the RK3588, real or simulated", long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a prompt; the text goes to stdout, everything else to stderr
    Run(run::RunArgs),
    /// Compare the NPU's next-token distributions with the CPU's over a text
    Compare(compare::CompareArgs),
    /// Perplexity of a text, and divergence from a reference, for one model or a table of them
    Ppl(ppl::PplArgs),
    /// Time prefill and decode of several models and settings in one run, and compare them
    Bench(Box<bench::BenchArgs>),
    /// One arm of `bench`, a process of its own: orders on stdin, answers on stdout
    #[command(hide = true)]
    BenchArm,
    /// Write a timeline for Perfetto: host phases, measured; tasks and DMA of an RK3588, modelled
    Trace(timeline::TraceArgs),
    /// Gather statistics of activations over a text, for packs
    Calibrate(calibrate::CalibrateArgs),
    /// Count how unevenly the experts of a mixture are used, and what a cache of them is worth
    MoeSkew(moe_skew::MoeSkewArgs),
    /// Quantise and tile a model's weights into a file that loads as it lies; look at such files
    Pack(Box<pack::PackArgs>),
    /// Show how a product would be cut into register programs, and why
    Plan(plan::PlanArgs),
    /// Compute one product on the NPU and check it against plain loops
    Matmul(matmul::MatmulArgs),
    /// Check the device against the simulator, in order of rising risk
    Selftest(selftest::SelftestArgs),
    /// Multiply on an emulated board where everything fails at random, and count
    Faults(faults::FaultsArgs),
    /// Run recorded NPU programs on the simulator and compare their results
    Conformance(conformance::ConformanceArgs),
    /// Register programs: decode, encode, diff, lint, explain
    Regcmd(regcmd::RegcmdArgs),
    /// Print the timing model: constants, errors, modelled prefill speeds
    Model(model::ModelArgs),
    /// Run an unmodified program on an emulated board
    Emulate(emulate::EmulateArgs),
    /// Record what a program says to the NPU driver
    Capture(capture::CaptureArgs),
    /// Replay a recorded trace on the emulated board and compare every result
    Replay(replay::ReplayArgs),
    /// List device nodes, and why each can or cannot be used
    Devices(Settings),
    /// Show every setting with its value and origin
    Config(Settings),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Ppl(args) => ppl::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Trace(args) => timeline::run(&args),
        Command::BenchArm => bench::arm_process(),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::MoeSkew(args) => moe_skew::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Matmul(args) => matmul::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Faults(args) => faults::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Regcmd(args) => regcmd::run(&args),
        Command::Model(args) => model::run(&args),
        Command::Emulate(args) => emulate::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Devices(settings) => devices::run(&settings),
        Command::Config(settings) => settings.layers().and_then(|layers| {
            layers.config().map_err(Failure::from)?;
            failure::print(&layers.show())
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
