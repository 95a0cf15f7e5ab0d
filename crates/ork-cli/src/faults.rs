// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork faults`: many products on an emulated board where everything fails at random.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ork_device::{DriverKind, SubmitMode};
use ork_driver::{FaultRun, fault_run};

use crate::failure::{Failure, chain, print};
use crate::progress;

#[derive(Args)]
pub(crate) struct FaultsArgs {
    /// Products
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    products: u64,
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
    let run = FaultRun {
        products: args.products,
        seed: args.seed,
        kernel: args.driver,
        submit: args.submit,
        ..FaultRun::default()
    };
    let bar = progress::bar("products", args.products);
    let result = fault_run(&run, &mut |tally| {
        bar.set_position(tally.products);
        true
    });
    bar.finish_and_clear();
    let failed = |message: String| Failure::Failed { code: 1, message, hint: None };
    let tally = result.map_err(|error| failed(chain(&error)))?;
    print(&format!("seed {}\n{tally}", args.seed))?;
    if tally.is_clean() {
        return Ok(());
    }
    Err(failed(format!("{} wrong results, {} waits beyond the bound", tally.wrong, tally.late)))
}
