// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that look at packs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ork_driver::SOC;
use ork_pack::{Expected, Info, LAYOUT, Pack, SourceId};
use ork_recipe::{TensorError, measure};
use serde::Serialize;

use crate::failure::{Failure, print};
use crate::flags::Keyed;
use crate::weights::ModelWeights;

#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// The pack; of several files the first
    #[arg(value_name = "FILE.orkpack")]
    pack: PathBuf,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    /// The pack; of several files the first
    #[arg(value_name = "FILE.orkpack")]
    pack: PathBuf,
    /// Also check that it was made from this model file
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct DiffArgs {
    /// A pack
    #[arg(value_name = "FIRST.orkpack")]
    first: PathBuf,
    /// Another one
    #[arg(value_name = "SECOND.orkpack")]
    second: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct ErrorsArgs {
    /// The pack; of several files the first
    #[arg(value_name = "FILE.orkpack")]
    pack: PathBuf,
    /// The model file it was made from
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Print as JSON, every tensor
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    keyed: Keyed,
}

fn failed(message: String) -> Failure {
    Failure::Failed { code: 1, message, hint: None }
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map(|text| text + "\n").map_err(|error| failed(error.to_string()))
}

pub(crate) fn info(args: &InfoArgs) -> Result<(), Failure> {
    let pack = Pack::open_any(&args.pack)?;
    let info = ork_pack::info(&pack);
    if args.json {
        return print(&json(&info)?);
    }
    let mut text = info_text(&info);
    if args.tensors {
        for entry in pack.entries() {
            text += &format!(
                "{:<32} {:>7} x {:<7} {:<32} {:>9.1} kB  basis {}\n",
                entry.name,
                entry.k,
                entry.n,
                entry.scheme.to_string(),
                entry.data.bytes as f64 / 1e3,
                if entry.is_plain() { "plain".to_owned() } else { entry.basis.to_string() }
            );
        }
    }
    print(&text)
}

fn info_text(info: &Info) -> String {
    let calibration = info.calibration.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
    let mut text = format!(
        "format       {}\nfor          {}, layout {}\nmodel        {} ({} bytes, {})\ncalibration  {calibration}\n\
         written by   {}\nplan         {}\nfiles        {} of {} bytes\ntensors      {}, {:.1} M weights, {:.3} bits per weight\n",
        info.version,
        info.target.soc,
        info.target.layout,
        info.source.name,
        info.source.sample.bytes,
        info.source.content.short(),
        info.writer,
        info.plan.short(),
        info.file_bytes.len(),
        info.file_bytes.iter().sum::<u64>(),
        info.tensors,
        info.weights as f64 / 1e6,
        info.bits_per_weight,
    );
    for (scheme, total) in &info.schemes {
        text += &format!(
            "{scheme:<40} {:>5} tensors {:>10.1} M weights {:>10.1} MB\n",
            total.tensors,
            total.weights as f64 / 1e6,
            total.bytes as f64 / 1e6
        );
    }
    text
}

pub(crate) fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let pack = match &args.model {
        None => Pack::open_any(&args.pack)?,
        Some(model) => {
            let source = SourceId::of(model)?;
            let expected = Expected { soc: SOC.name, layout: LAYOUT, source: Some(&source.sample) };
            let pack = Pack::open(&args.pack, &expected)?;
            if pack.source().content != source.content {
                return Err(failed(format!(
                    "{} was made from a {} of another content ({}, and this one has {})",
                    args.pack.display(),
                    pack.source().name,
                    pack.source().content.short(),
                    source.content.short()
                )));
            }
            pack
        }
    };
    let found = ork_pack::verify(&pack);
    for damage in &found.damages {
        print(&format!(
            "{} at {}, {} bytes: {}\n",
            damage.path.display(),
            damage.offset,
            damage.bytes,
            damage.what
        ))?;
    }
    if let Some(first) = found.damages.first() {
        return Err(Failure::Failed {
            code: 1,
            message: format!(
                "{} is damaged in {} places: {}",
                args.pack.display(),
                found.damages.len(),
                first.what
            ),
            hint: Some("copy the file again, or pack the model again".to_owned()),
        });
    }
    print(&format!("{} tensors, {} bytes: whole\n", found.tensors, found.bytes))
}

pub(crate) fn diff(args: &DiffArgs) -> Result<(), Failure> {
    let (first, second) = (Pack::open_any(&args.first)?, Pack::open_any(&args.second)?);
    let differences = ork_pack::diff(&first, &second);
    let lines: String = differences.iter().map(|difference| format!("{difference}\n")).collect();
    print(&lines)?;
    match differences.len() {
        0 => print("no difference\n"),
        count => Err(failed(format!("the packs differ in {count} points"))),
    }
}

/// Errors of the tensors of one scheme and role.
#[derive(Default)]
struct Sum {
    tensors: usize,
    error: f64,
    total: f64,
    worst: f64,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    k: usize,
    n: usize,
    scheme: String,
    relative_error: f64,
}

pub(crate) fn errors(args: &ErrorsArgs) -> Result<(), Failure> {
    let config = args.keyed.config()?;
    let source = SourceId::of(&args.model)?;
    let pack =
        Pack::open(&args.pack, &Expected { soc: SOC.name, layout: LAYOUT, source: Some(&source.sample) })?;
    let weights = ModelWeights::open(&args.model, &config)?;
    let found = measure(&pack, &weights, (&SOC, &config.driver.plan))?;
    if args.json {
        let lines: Vec<Line<'_>> = found.iter().map(line).collect();
        return print(&json(&lines)?);
    }
    let mut sums: BTreeMap<(String, String), Sum> = BTreeMap::new();
    for tensor in &found {
        for role in [role_of(&tensor.name), "all".to_owned()] {
            let sum = sums.entry((tensor.scheme.to_string(), role)).or_default();
            sum.tensors += 1;
            sum.error += tensor.error;
            sum.total += tensor.total;
            sum.worst = sum.worst.max(tensor.relative());
        }
    }
    let mut text =
        format!("{:<32} {:<14} {:>8} {:>10} {:>10}\n", "scheme", "weights", "tensors", "error", "worst");
    for ((scheme, role), sum) in &sums {
        let relative = if sum.total > 0.0 { (sum.error / sum.total).sqrt() } else { sum.error.sqrt() };
        text += &format!("{scheme:<32} {role:<14} {:>8} {relative:>10.5} {:>10.5}\n", sum.tensors, sum.worst);
    }
    print(&text)
}

fn line(tensor: &TensorError) -> Line<'_> {
    Line {
        name: &tensor.name,
        k: tensor.k,
        n: tensor.n,
        scheme: tensor.scheme.to_string(),
        relative_error: tensor.relative(),
    }
}

/// `ffn_down` of `blk.3.ffn_down.weight`; the whole name outside layers.
fn role_of(name: &str) -> String {
    let role = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, role)| role);
    role.strip_suffix(".weight").unwrap_or(role).to_owned()
}
