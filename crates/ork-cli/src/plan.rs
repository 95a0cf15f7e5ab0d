// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork plan`: how a product would be cut into register programs, and why.

use clap::Args;
use ork_isa::soc::RK3588;
use ork_plan::{Decision, PlanOptions, Product, ProductExplanation, explain_product};

use crate::failure::{Failure, print};
use crate::flags::Keyed;

/// Sizes and precision of a product, as several commands take them.
#[derive(Args, Clone, Copy)]
pub(crate) struct ProductArgs {
    /// Rows of the activation
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) m: u32,
    /// Channels that are summed over
    #[arg(long, value_name = "CHANNELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) k: u32,
    /// Columns: rows of the weight
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) n: u32,
    /// int8, int8-int8, int4, int16, int16-native, fp16, fp16-fp16, bf16 or tf32
    #[arg(long, value_name = "PRODUCT", default_value = "int8")]
    pub(crate) dtype: Product,
}

#[derive(Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    product: ProductArgs,
    /// NPU cores to use at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
    cores: Option<u8>,
    /// Also print every rule that was considered, and what became of it
    #[arg(long)]
    explain: bool,
    /// Print a JSON object
    #[arg(long, conflicts_with = "explain")]
    json: bool,
    #[command(flatten)]
    settings: Keyed,
}

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let mut options = args.settings.config()?.driver.plan;
    if let Some(cores) = args.cores {
        options.cores = cores;
    }
    let told = explained(args.product, &options)?;
    let text = if args.json {
        let value = serde_json::to_string_pretty(&told).map_err(|error| Failure::usage(error.to_string()))?;
        format!("{value}\n")
    } else if args.explain {
        told.to_string()
    } else {
        match &told.explanation.decision {
            Decision::Accept(plan) => plan.to_string(),
            Decision::Decline(_) => String::new(),
        }
    };
    print(&text)?;
    match told.explanation.decision {
        Decision::Accept(_) => Ok(()),
        Decision::Decline(decline) => Err(declined(&decline)),
    }
}

/// The plan of a product with its reasons.
pub(crate) fn explained(args: ProductArgs, options: &PlanOptions) -> Result<ProductExplanation, Failure> {
    let ProductArgs { m, k, n, dtype } = args;
    explain_product(dtype, (m, k, n), &RK3588, options)
        .map_err(|error| Failure::usage(format!("{m}x{k}x{n} {dtype}: {error}")))
}

/// Exit code of a product that no plan can compute.
const DECLINED: u8 = 3;

pub(crate) fn declined(decline: &ork_plan::Decline) -> Failure {
    Failure::Failed { code: DECLINED, message: decline.to_string(), hint: None }
}
