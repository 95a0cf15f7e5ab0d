// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork matmul`: one product on the NPU, checked against plain loops.

use std::fmt::Write;
use std::time::Instant;

use clap::Args;
use ork_device::Device;
use ork_driver::Driver;
use ork_plan::Decision;

use crate::failure::{Failure, print};
use crate::flags::Settings;
use crate::plan::{ProductArgs, declined, explained};
use crate::trial::{Comparison, Size, Trial};

#[derive(Args)]
pub(crate) struct MatmulArgs {
    #[command(flatten)]
    product: ProductArgs,
    /// Seed of the operands
    #[arg(long, value_name = "N", default_value_t = 1)]
    data_seed: u64,
    /// Times to run it; the figures are those of all runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    #[command(flatten)]
    settings: Settings,
}

/// Most multiply-adds of the plain loops.
const MACS_MAX: u64 = 100_000_000_000;

pub(crate) fn run(args: &MatmulArgs) -> Result<(), Failure> {
    let config = args.settings.config()?;
    let ProductArgs { m, k, n, dtype } = args.product;
    let macs = u64::from(m) * u64::from(k) * u64::from(n);
    if macs > MACS_MAX {
        return Err(Failure::usage(format!(
            "{m}x{k}x{n} has {:.0} GMAC: the check against plain loops would take minutes; at most {} GMAC",
            macs as f64 / 1e9,
            MACS_MAX / 1_000_000_000
        )));
    }
    let mut options = config.driver.plan.clone();
    if options.cores == 0 {
        options.cores = config.device.cores;
    }
    let plan = match explained(args.product, &options)?.explanation.decision {
        Decision::Accept(plan) => plan,
        Decision::Decline(decline) => return Err(declined(&decline)),
    };
    let device = Device::open(&config.device)?;
    eprintln!("device: {}", device.describe());
    let driver = Driver::new(device, config.driver.clone())?;

    let size = Size { m: m as usize, k: k as usize, n: n as usize };
    let trial = Trial::new(dtype, size, args.data_seed);
    let start = Instant::now();
    let mut values = trial.run(&driver)?;
    for _ in 1..args.runs {
        values = trial.run(&driver)?;
    }
    let wall = start.elapsed();
    let found = trial.compare(&values);

    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "product {m}x{k}x{n} {dtype}: {}", verdict(&found));
    let device = driver.device().counters();
    let _ = writeln!(
        text,
        "{} run(s) with upload of the weight: {:.3} ms of host wall time, measured\n{}",
        args.runs,
        wall.as_secs_f64() * 1e3,
        driver.counters()
    );
    let _ = writeln!(
        text,
        "{:.3} MB flushed, {:.3} MB invalidated\nthe NPU's part on an RK3588: {}",
        device.bytes_flushed as f64 / 1e6,
        device.bytes_invalidated as f64 / 1e6,
        plan.modelled()
    );
    print(&text)?;
    match found.wrong {
        0 => Ok(()),
        wrong => Err(Failure::Failed {
            code: 1,
            message: format!("{wrong} of {} values are wrong", found.compared),
            hint: Some("`ork selftest` finds the smallest program that goes wrong".into()),
        }),
    }
}

/// The comparison in words.
pub(crate) fn verdict(found: &Comparison) -> String {
    match found.first_wrong {
        Some((row, column, got, right)) => format!(
            "{} of {} values wrong; row {row}, column {column} is {got}, not {right}",
            found.wrong, found.compared
        ),
        None if found.worst > 0.0 => {
            format!(
                "{} values within their bound, the worst at {:.1} % of it",
                found.compared,
                found.worst * 100.0
            )
        }
        None => format!("{} values exact", found.compared),
    }
}
