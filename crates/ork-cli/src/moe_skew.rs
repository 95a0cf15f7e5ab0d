// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork moe-skew`: how unevenly the experts of a mixture are used over a text, and what a cache of them is worth.

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::ValueEnum;
use ork_corpus::{Corpus, Part, SplitRule};
use ork_engine::{Engine, LogSink, Model, Observation, ObservedChoice, ObservedProduct, Observer};
use ork_ggml::{ExpertSkew, LayerSkew};

use crate::calibrate::{bad_text, context, windows};
use crate::failure::{Failure, print};
use crate::flags::Settings;
use crate::progress;

#[derive(clap::Args)]
pub(crate) struct MoeSkewArgs {
    /// Model file with experts, GGUF of any type
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Text file to read
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Where to write the counts, for offload.experts.skew
    #[arg(short, long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
    /// Which part of the text to read, from its start; calibrate.tokens says how much
    #[arg(long, value_enum, default_value_t = Read::Whole)]
    part: Read,
    #[command(flatten)]
    settings: Settings,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Read {
    Seen,
    Heldout,
    Whole,
}

pub(crate) fn run(args: &MoeSkewArgs) -> Result<(), Failure> {
    let config = args.settings.config()?;
    let corpus = Corpus::read(&args.file).map_err(|error| bad_text(&error))?;
    let split = || corpus.split(SplitRule::default()).map_err(|error| bad_text(&error));
    let excerpt = match args.part {
        Read::Whole => corpus.whole(),
        Read::Seen => split()?.part(Part::Seen),
        Read::Heldout => split()?.part(Part::HeldOut),
    };
    // The choice as the CPU computes it: the NPU is not asked.
    let engine = Engine::init(None, LogSink::discard())?;
    let model = Model::load(&engine, &args.model, &config.load, &mut |_| ControlFlow::Continue(()))?;
    let windows = windows(&model, &excerpt.text(), &config)?;
    let name = args.model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let counting = Counting { skew: ExpertSkew::new(name, excerpt.origin().to_string()), wrong: None };
    let mut observation = Observation::new(&model, &context(&config), counting)?;
    let bar = progress::bar("counting", windows.len() as u64);
    for window in &windows {
        let evaluated = observation.evaluate(window);
        if let Some(message) = observation.with(|counting| counting.wrong.take()) {
            return Err(Failure::Failed { code: 1, message, hint: None });
        }
        evaluated?;
        observation.with(|counting| counting.skew.tokens += window.len() as u64);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut skew = observation.with(|counting| counting.skew.clone());
    if skew.layers.is_empty() {
        let message = format!("{} has no experts", args.model.display());
        return Err(Failure::Failed { code: 1, message, hint: None });
    }
    skew.layers.sort_by_key(|layer| layer.layer);
    print(&text(&skew))?;
    if let Some(path) = &args.output {
        std::fs::write(path, skew.to_text()).map_err(|error| Failure::Failed {
            code: 1,
            message: format!("cannot write {}: {error}", path.display()),
            hint: None,
        })?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// Counts which experts are chosen: once in each layer, whose stacks all obey one choice.
struct Counting {
    skew: ExpertSkew,
    wrong: Option<String>,
}

/// The number in `blk.NUMBER.`.
fn layer_of(stack: &str) -> Option<u32> {
    stack.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

impl Counting {
    fn count(&mut self, choice: &ObservedChoice, experts: &[i32]) -> Result<(), String> {
        let number = layer_of(&choice.stack)
            .ok_or_else(|| format!("`{}` is in no layer that can be told", choice.stack))?;
        let layers = &mut self.skew.layers;
        let at = match layers.iter().position(|layer| layer.layer == number) {
            Some(at) => at,
            None => {
                let counts = vec![0; choice.experts];
                layers.push(LayerSkew { layer: number, stacks: Vec::new(), expert_bytes: 0, counts });
                layers.len() - 1
            }
        };
        let layer = &mut layers[at];
        if layer.counts.len() != choice.experts {
            return Err(format!("layer {number} has {} experts and {}", layer.counts.len(), choice.experts));
        }
        if !layer.stacks.contains(&choice.stack) {
            layer.stacks.push(choice.stack.clone());
            layer.expert_bytes += (choice.k * choice.n) as u64;
        }
        if layer.stacks[0] != choice.stack {
            return Ok(());
        }
        if experts.is_empty() {
            return Err(format!("the choice of layer {number} cannot be read"));
        }
        for expert in experts {
            let count = usize::try_from(*expert).ok().and_then(|expert| layer.counts.get_mut(expert));
            *count
                .ok_or_else(|| format!("layer {number} chooses expert {expert}, which does not exist"))? += 1;
        }
        Ok(())
    }
}

impl Observer for Counting {
    fn wants(&mut self, _product: &ObservedProduct) -> bool {
        false
    }

    fn take(&mut self, _product: &ObservedProduct, _rows: &[f32]) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn wants_choice(&mut self, _choice: &ObservedChoice) -> bool {
        true
    }

    fn take_choice(&mut self, choice: &ObservedChoice, experts: &[i32]) -> ControlFlow<()> {
        match self.count(choice, experts) {
            Ok(()) => ControlFlow::Continue(()),
            Err(wrong) => {
                self.wrong = Some(wrong);
                ControlFlow::Break(())
            }
        }
    }
}

/// Shares of the experts of a layer that the curve is shown at.
const SHARES: [f64; 5] = [0.05, 0.1, 0.25, 0.5, 0.75];

/// The figures: coverage by layer, then hit rate by size of a cache.
fn text(skew: &ExpertSkew) -> String {
    let most = skew.layers.iter().map(|layer| layer.counts.len()).max().unwrap_or(0);
    let mut steps: Vec<usize> =
        SHARES.iter().map(|share| ((most as f64 * share).ceil() as usize).max(1)).collect();
    steps.dedup();
    let mut out = format!(
        "{}: {} tokens of {}, {} layers with experts, {} MB of them in int8\n\nShare of the choices that meet one of the N most \
         used experts of a layer; evenness: entropy over that of equal use\n{:>6} {:>8} {:>9}",
        skew.model,
        skew.tokens,
        skew.text,
        skew.layers.len(),
        skew.bytes() / 1_000_000,
        "layer",
        "experts",
        "evenness"
    );
    for step in &steps {
        out += &format!(" {:>8}", format!("N = {step}"));
    }
    out.push('\n');
    for layer in &skew.layers {
        out += &format!("{:>6} {:>8} {:>9.3}", layer.layer, layer.counts.len(), layer.evenness());
        for step in &steps {
            out += &format!(" {:>7.1}%", 100.0 * layer.coverage(*step));
        }
        out.push('\n');
    }
    out += &format!(
        "\nExpert cache (offload.experts.cache), the same number of experts in each layer\n{:>14} {:>17} {:>9}\n",
        "bytes", "experts per layer", "hit rate"
    );
    let per_step: u64 = skew.layers.iter().map(|layer| layer.expert_bytes).sum();
    for step in steps.iter().chain([&most]) {
        let budget = per_step * *step as u64;
        out += &format!("{budget:>14} {step:>17} {:>8.1}%\n", 100.0 * skew.hit_rate(budget));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(stack: &str) -> ObservedChoice {
        ObservedChoice { stack: stack.to_owned(), experts: 4, k: 8, n: 3 }
    }

    fn counting() -> Counting {
        Counting { skew: ExpertSkew::new("m.gguf".to_owned(), "text".to_owned()), wrong: None }
    }

    #[test]
    fn a_layer_is_counted_once() {
        let mut counting = counting();
        for stack in ["blk.3.ffn_gate_exps.weight", "blk.3.ffn_down_exps.weight"] {
            assert!(counting.take_choice(&choice(stack), &[1, 3, 1, 0]).is_continue());
        }
        assert!(counting.take_choice(&choice("blk.3.ffn_gate_exps.weight"), &[1, 2]).is_continue());
        let layer = &counting.skew.layers[0];
        assert_eq!((layer.layer, &layer.counts[..], layer.expert_bytes), (3, &[1, 3, 1, 1][..], 48));
        let text = text(&counting.skew);
        assert!(text.contains("N = 1") && text.contains("50.0%") && text.contains("100.0%"), "{text}");
    }

    #[test]
    fn what_cannot_be_counted_ends_the_run() {
        for (stack, experts, what) in [
            ("ffn.weight", &[0][..], "in no layer"),
            ("blk.0.x", &[4][..], "does not exist"),
            ("blk.0.x", &[-1][..], "does not exist"),
            ("blk.0.x", &[][..], "cannot be read"),
        ] {
            let mut counting = counting();
            assert!(counting.take_choice(&choice(stack), experts).is_break());
            assert!(counting.wrong.unwrap().contains(what), "{stack} {experts:?}");
        }
    }
}
