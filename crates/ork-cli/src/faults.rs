// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork faults`: many products on an emulated board where everything fails at random.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ork_device::{DriverKind, SubmitMode};
use ork_driver::{DeadCores, FaultRun, Length, fault_run, is_accounted_for, memory_run};

use crate::failure::{Failure, chain, print};
use crate::progress;

#[derive(Args)]
pub(crate) struct FaultsArgs {
    /// Products
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    products: u64,
    /// Instead of a number of products: go on until so many jobs were given to the kernel, each for one core
    #[arg(long, value_name = "N", conflicts_with = "products")]
    submits: Option<u64>,
    /// How rare faults are: each kind once in this many of its events, times a small factor of the kind
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..))]
    one_in: u32,
    /// Decides operands and faults
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Kernel driver of the emulated board
    #[arg(long, value_name = "DRIVER", default_value = "rknpu", value_parser = driver_parser())]
    driver: DriverKind,
    /// How jobs are submitted and waited for
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = submit_parser())]
    submit: SubmitMode,
}

fn driver_parser() -> impl TypedValueParser<Value = DriverKind> {
    PossibleValuesParser::new(["rknpu", "rocket"]).map(|name| match &name[..] {
        "rocket" => DriverKind::Rocket,
        _ => DriverKind::Rknpu,
    })
}

fn submit_parser() -> impl TypedValueParser<Value = SubmitMode> {
    PossibleValuesParser::new(["auto", "blocking", "polled", "fenced"]).map(|name| match &name[..] {
        "blocking" => SubmitMode::Blocking,
        "polled" => SubmitMode::Polled,
        "fenced" => SubmitMode::Fenced,
        _ => SubmitMode::Auto,
    })
}

pub(crate) fn run(args: &FaultsArgs) -> Result<(), Failure> {
    let length = args.submits.map_or(Length::Products(args.products), Length::Submits);
    let run = FaultRun {
        length,
        seed: args.seed,
        kernel: args.driver,
        submit: args.submit,
        faults: FaultRun::every_fault(args.one_in),
        // The mainline driver chooses the core itself, and a job may meet a dead one again and again.
        dead_cores: match args.driver {
            DriverKind::Rknpu => DeadCores::InTurn,
            DriverKind::Rocket => DeadCores::AsPlanned,
        },
        ..FaultRun::default()
    };
    let (unit, count) = match length {
        Length::Products(products) => ("products", products),
        Length::Submits(submits) => ("submits", submits),
    };
    let bar = progress::bar(unit, count);
    let result = fault_run(&run, &mut |tally| {
        bar.set_position(match length {
            Length::Products(_) => tally.products,
            Length::Submits(_) => tally.submits,
        });
        true
    });
    bar.finish_and_clear();
    let failed = |message: String| Failure::Failed { code: 1, message, hint: None };
    let tally = result.map_err(|error| failed(chain(&error)))?;
    let accounted = is_accounted_for(&run, &tally);
    let memory = memory_run(&run).map_err(|error| failed(chain(&error)))?;
    let verdict =
        if accounted { "every fault stands in the counters" } else { "FAULTS ARE MISSING IN THE COUNTERS" };
    print(&format!("seed {}\n{tally}{verdict}\n{memory}\n", args.seed))?;
    if tally.is_clean() && accounted && memory.is_clean() {
        return Ok(());
    }
    Err(failed(format!(
        "{} wrong results, {} waits beyond the bound, {} kinds of errors, {} leaks; see above",
        tally.wrong + memory.wrong,
        tally.late,
        tally.errors.len(),
        tally.leaks + memory.leaks
    )))
}
