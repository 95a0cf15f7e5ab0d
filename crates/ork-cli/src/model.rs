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
    /// Heads times their width: what attention computes with.
    attention_width: u32,
    matmuls: &'static [Matmul],
    /// Rows of the measured batch, in one piece.
    rows: u32,
    measured: f64,
    /// What was measured.
    condition: &'static str,
    vendor: f64,
}

/// Matmuls of a layer with one shape.
struct Matmul {
    name: &'static str,
    k: u32,
    n: u32,
    count: u32,
    /// Activations that are quantised for them: some share one.
    activations: u32,
}

const fn matmul(name: &'static str, k: u32, n: u32, count: u32, activations: u32) -> Matmul {
    Matmul { name, k, n, count, activations }
}

/// Shapes from the models' configuration files; speeds and batches from the ork-driver log (seed documents).
const PREFILLS: [Prefill; 2] = [
    Prefill {
        name: "Qwen2.5-7B",
        layers: 28,
        attention_width: 3584,
        matmuls: &[
            // The activation of q is that of k and v, too.
            matmul("q, o", 3584, 3584, 2, 2),
            matmul("k, v", 3584, 512, 2, 0),
            matmul("gate, up", 3584, 18944, 2, 1),
            matmul("down", 18944, 3584, 1, 1),
        ],
        rows: 256,
        measured: 71.9,
        condition: "256 tokens; the vendor's run had 485",
        vendor: 73.1,
    },
    Prefill {
        name: "Qwen3-1.7B",
        layers: 28,
        attention_width: 2048,
        matmuls: &[
            matmul("q, o", 2048, 2048, 2, 2),
            matmul("k, v", 2048, 1024, 2, 0),
            matmul("gate, up", 2048, 6144, 2, 1),
            matmul("down", 6144, 2048, 1, 1),
        ],
        rows: 512,
        measured: 178.0,
        condition: "512 tokens",
        vendor: 183.9,
    },
];

/// What CPU and NPU together get from the memory (isa.md §12.6: 29.3 GB/s at 88 % load of its controller).
const MEMORY_GB_PER_S: f64 = 29.3;
/// What attention on the CPU reaches, with f16 keys and values (the log, at 4000 tokens). How it counts is not said;
/// here both products count in full, with the pairs that the mask removes.
const ATTENTION_GFLOP_PER_S: f64 = 56.0;

/// What the modelled time leaves out. No figure for these exists that is not the measured whole itself.
const NOT_MODELLED: &str = "Not modelled: norms, RoPE, softmax and SwiGLU on the CPU, the steps between the nodes of a \
     graph, in which the NPU waits (the log's profile: busy 40 % of the time in a graph and 77 % back to back, measured \
     elsewhere at 40 tok/s), what a busy CPU takes from the NPU (fixed part of a task 2.23 times, weight stream 1.22 \
     times as long: isa.md §12.6, measured elsewhere), embedding and head.";

/// Modelled and measured prefill speeds as text.
fn prefill() -> Result<String, Failure> {
    let mut text = format!(
        "Prefill in one piece, int8 weights and activations, three cores, one part after the other; all parts modelled:\n\
         - matmuls of the layers, with the plans that the driver takes, one submit for each pass;\n\
         - host bytes: activations read as f32 and written as int8, int32 results of every K slice read, f32 written; at \
         the {MEMORY_GB_PER_S} GB/s that CPU and NPU get together (isa.md §12.6, measured elsewhere): no CPU is faster;\n\
         - attention on the CPU: 4 x rows x rows x width for each layer, at {ATTENTION_GFLOP_PER_S} GFLOP/s (the log, \
         measured elsewhere).\n{NOT_MODELLED}\n"
    );
    for prefill in &PREFILLS {
        let rows = prefill.rows;
        let (mut layer, mut bytes) = (Modelled::default(), 0);
        text.push_str(&format!("{}, {rows} rows\n", prefill.name));
        for &Matmul { name, k, n, count, activations } in prefill.matmuls {
            let (time, slices) = modelled(rows, k, n)?;
            layer = layer + time * f64::from(count);
            bytes +=
                host_bytes(rows.into(), k.into(), n.into(), slices.into(), count.into(), activations.into());
            line(
                &mut text,
                format_args!("  {count} x {name:<9} {rows} x {k} x {n}: {time}, {slices} K slices"),
            );
        }
        let layers = f64::from(prefill.layers);
        let matmuls = layer * layers;
        let host = Modelled::from_us(bytes as f64 / MEMORY_GB_PER_S / 1e3) * layers;
        let flops = 4.0 * f64::from(rows) * f64::from(rows) * f64::from(prefill.attention_width);
        let attention = Modelled::from_us(flops / ATTENTION_GFLOP_PER_S / 1e3) * layers;
        let all = matmuls + host + attention;
        let speed = |time: Modelled| f64::from(rows) / time.us * 1e6;
        line(
            &mut text,
            format_args!("  {layers} layers: {matmuls}, {:.0} tok/s modelled (matmuls only)", speed(matmuls)),
        );
        line(&mut text, format_args!("  host bytes: {host}; attention: {attention}"));
        line(&mut text, format_args!("  these parts together: {all}, {:.0} tok/s modelled", speed(all)));
        line(
            &mut text,
            format_args!(
                "  whole prefill: {} tok/s measured elsewhere by the ork-driver log ({}), {} tok/s measured \
                 elsewhere with the vendor's runtime",
                prefill.measured, prefill.condition, prefill.vendor
            ),
        );
        let whole = f64::from(rows) / prefill.measured * 1e6;
        line(
            &mut text,
            format_args!(
                "  of the log's time, measured elsewhere ({:.0} ms), the modelled parts explain {:.0} %: matmuls {:.0} %, \
                 host bytes {:.0} %, attention {:.0} %",
                whole / 1e3,
                100.0 * all.us / whole,
                100.0 * matmuls.us / whole,
                100.0 * host.us / whole,
                100.0 * attention.us / whole,
            ),
        );
    }
    Ok(text)
}

/// Bytes that the CPU reads and writes for matmuls of a shape.
fn host_bytes(rows: u64, k: u64, n: u64, slices: u64, count: u64, activations: u64) -> u64 {
    let quantised = rows * k * (4 + 1);
    let results = rows * n * 4 * (slices + 1);
    activations * quantised + count * results
}

/// Modelled time of one matmul with the plan that the driver would take, and its K slices.
fn modelled(rows: u32, k: u32, n: u32) -> Result<(Modelled, u32), Failure> {
    let weight = weight_layout(Format::INT8_INT32, k, n, &RK3588).map_err(failed)?;
    match decide(&Problem { m: rows, weight }, &RK3588, &PlanOptions::default()) {
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
        for line in text.lines().filter(|line| line.contains(" us") || line.contains("tok/s")) {
            assert!(line.contains("modelled") || line.contains("measured elsewhere"), "{line}");
        }
        let speeds: Vec<f64> = text
            .lines()
            .filter_map(|line| line.split_once(" tok/s modelled"))
            .map(|(before, _)| {
                before.rsplit(' ').next().and_then(|speed| speed.parse().ok()).expect("a speed")
            })
            .collect();
        assert_eq!(speeds.len(), 2 * PREFILLS.len());
        for (speeds, prefill) in speeds.chunks_exact(2).zip(&PREFILLS) {
            // Parts only add, and what is left out is part of the measured whole.
            assert!(speeds[0] > speeds[1] && speeds[1] > prefill.measured.max(prefill.vendor), "{speeds:?}");
        }
    }

    #[test]
    fn host_bytes_by_hand() {
        // Two rows of three channels, one column, two slices: 2 x 3 x 5 and 2 x 1 x 4 x (2 + 1).
        assert_eq!(host_bytes(2, 3, 1, 2, 1, 1), 30 + 24);
        // Two matmuls of one activation.
        assert_eq!(host_bytes(2, 3, 1, 2, 2, 1), 30 + 48);
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
