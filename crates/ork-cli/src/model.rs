// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork model`: the timing model's constants, its errors, and what it says of the prefill of known models.
//!
//! Nothing here runs. Every figure of the model says that it is modelled; figures of others say so too.

use std::fmt::Write;

use clap::Args;
use ork_isa::soc::RK3588;
use ork_layout::Format;
use ork_plan::{Decision, Modelled, PlanOptions, Problem, decide, weight_layout};
use ork_timing::{Constants, fit, report, rows};

use crate::failure::{Failure, print};

#[derive(Args)]
pub(crate) struct ModelArgs {
    /// Print the constants with their rows, and the error of each family of rows; the default
    #[arg(long)]
    report: bool,
    /// Fit the constants to the rows again and print them beside the table
    #[arg(long)]
    fit: bool,
    /// Print every row: the figure measured elsewhere, the modelled one, and why a row is not fitted
    #[arg(long)]
    rows: bool,
    /// Print modelled prefill speeds of known models beside speeds measured elsewhere
    #[arg(long)]
    llm: bool,
}

pub(crate) fn run(args: &ModelArgs) -> Result<(), Failure> {
    let nothing_asked = !(args.fit || args.rows || args.llm);
    let mut text = String::new();
    if args.report || args.fit || args.rows || nothing_asked {
        text.push_str(&fitted_text(args, nothing_asked)?);
    }
    if args.llm {
        text.push_str(&prefill()?);
    }
    print(&text)
}

fn fitted_text(args: &ModelArgs, nothing_asked: bool) -> Result<String, Failure> {
    let rows = rows::all().map_err(failed)?;
    let mut parts = Vec::new();
    if args.fit {
        let fitted = fit::fit(&fit::fitted_rows(&rows)).map_err(failed)?;
        parts.push(report::constants(Some(fitted)));
    } else if args.report || nothing_asked {
        parts.push(report::constants(None));
    }
    if args.fit || args.report || nothing_asked {
        parts.push(report::errors(&report::families(&rows, Constants::TABLE).map_err(failed)?));
    }
    if args.rows {
        parts.push(report::rows(&rows, Constants::TABLE).map_err(failed)?);
    }
    Ok(parts.join("\n"))
}

/// A model as a list of matmuls, and what others measured with it.
struct Prefill {
    name: &'static str,
    layers: u32,
    /// Name, K, N, how many in a layer.
    matmuls: &'static [(&'static str, u32, u32, u32)],
    measured: f64,
    /// What was measured.
    condition: &'static str,
    vendor: f64,
}

/// Rows of a prefill batch.
const ROWS: u32 = 512;

/// Shapes from the models' configuration files; speeds from the ork-driver log (seed documents).
const PREFILLS: [Prefill; 2] = [
    Prefill {
        name: "Qwen2.5-7B",
        layers: 28,
        matmuls: &[
            ("q, o", 3584, 3584, 2),
            ("k, v", 3584, 512, 2),
            ("gate, up", 3584, 18944, 2),
            ("down", 18944, 3584, 1),
        ],
        measured: 71.9,
        condition: "256 tokens; the vendor's run had 485",
        vendor: 73.1,
    },
    Prefill {
        name: "Qwen3-1.7B",
        layers: 28,
        matmuls: &[
            ("q, o", 2048, 2048, 2),
            ("k, v", 2048, 1024, 2),
            ("gate, up", 2048, 6144, 2),
            ("down", 6144, 2048, 1),
        ],
        measured: 178.0,
        condition: "512 tokens",
        vendor: 183.9,
    },
];

/// Modelled and measured prefill speeds as text.
fn prefill() -> Result<String, Failure> {
    let mut text = format!(
        "Prefill of {ROWS} rows, int8 weights and activations, three cores: matmuls of the layers alone, one submit \
         for each pass.\nNot modelled: quantising, laying out and adding slices on the CPU, attention, norms, the \
         head. The speeds measured elsewhere contain all of it.\n"
    );
    for prefill in &PREFILLS {
        let mut layer = Modelled::default();
        text.push_str(&format!("{}\n", prefill.name));
        for &(name, k, n, count) in prefill.matmuls {
            let (time, slices) = matmul(k, n)?;
            layer = layer + time * f64::from(count);
            line(
                &mut text,
                format_args!("  {count} x {name:<9} {ROWS} x {k} x {n}: {time}, {slices} K slices"),
            );
        }
        let all = layer * f64::from(prefill.layers);
        let speed = f64::from(ROWS) / all.us * 1e6;
        line(
            &mut text,
            format_args!("  {} layers: {all}, {speed:.0} tok/s modelled (matmuls only)", prefill.layers),
        );
        line(
            &mut text,
            format_args!(
                "  whole prefill: {} tok/s measured elsewhere by the ork-driver log ({}), {} tok/s measured \
                 elsewhere with the vendor's runtime",
                prefill.measured, prefill.condition, prefill.vendor
            ),
        );
        line(
            &mut text,
            format_args!(
                "  modelled time of the matmuls over the log's time for a token, measured elsewhere: {:.0} %",
                100.0 * prefill.measured / speed
            ),
        );
    }
    Ok(text)
}

/// Modelled time of one matmul with the plan that the driver would take.
fn matmul(k: u32, n: u32) -> Result<(Modelled, u32), Failure> {
    let weight = weight_layout(Format::INT8_INT32, k, n, &RK3588).map_err(failed)?;
    match decide(&Problem { m: ROWS, weight }, &RK3588, &PlanOptions::default()) {
        Decision::Accept(plan) => Ok((plan.modelled(), plan.k_slices())),
        Decision::Decline(decline) => Err(failed(decline)),
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(arguments);
    text.push('\n');
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed { code: 1, message: error.to_string(), hint: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modelled_prefill_is_labelled_and_faster_than_the_whole_that_contains_it() {
        let text = prefill().expect("all shapes have plans");
        for prefill in &PREFILLS {
            assert!(text.contains(prefill.name));
        }
        for line in text.lines().skip(2).filter(|line| line.contains("us") || line.contains("tok/s")) {
            assert!(line.contains("modelled") || line.contains("measured elsewhere"), "{line}");
        }
        let speeds = text.lines().filter_map(|line| line.split_once(" tok/s modelled")).map(|(before, _)| {
            before.rsplit(' ').next().and_then(|speed| speed.parse::<f64>().ok()).expect("a speed")
        });
        for (modelled, prefill) in speeds.zip(&PREFILLS) {
            assert!(modelled > prefill.measured && modelled > prefill.vendor, "{modelled}");
        }
    }

    #[test]
    fn the_default_is_the_report() {
        let args = ModelArgs { report: false, fit: false, rows: false, llm: false };
        let text = fitted_text(&args, true).expect("the rows can be read");
        assert!(text.contains("stream, one core") && text.contains("int8-fold"));
        let asked = ModelArgs { report: true, ..args };
        assert_eq!(fitted_text(&asked, false).expect("the rows can be read"), text);
    }
}
