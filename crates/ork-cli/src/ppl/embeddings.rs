// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork ppl --embeddings`: models that encode, judged by their vectors and by each of their products.

use std::fmt::Write;

use ork_config::RouteKind;
use ork_corpus::{Excerpt, Origin};
use ork_engine::quality::{Likeness, likeness};
use ork_ggml::Route;
use ork_pack::Pack;
use serde::{Deserialize, Serialize};

use super::report::{Calibration, Computed, Size, Text};
use super::rows::Row;
use super::run::{calibration, pack_of, stored_bytes, whereabouts};
use super::{PplArgs, Task, write};
use crate::failure::{Failure, print};
use crate::progress;
use crate::session::{Log, Session};
use crate::table::{BLANK, Table};

/// Sentences, unless the command says otherwise.
const SENTENCES: usize = 100;
/// Words that a line needs to be a sentence.
const WORDS_MIN: usize = 8;

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Report {
    title: Option<String>,
    note: Option<String>,
    text: Text,
    reference: String,
    rows: Vec<Line>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    name: String,
    scheme: Option<String>,
    computed: Computed,
    device: String,
    npu_products: u64,
    size: Size,
    calibration: Calibration,
    note: Option<String>,
    likeness: Likeness,
}

pub(crate) fn run(args: &PplArgs, task: &Task, excerpt: &Excerpt<'_>) -> Result<(), Failure> {
    let Some(reference) = &task.reference else {
        return Err(Failure::usage("vectors are judged by a reference: give --against MODEL"));
    };
    if args.svg.is_some() || args.resume || args.reference_file.is_some() {
        return Err(Failure::usage("--embeddings goes with none of --svg, --resume and --reference-file"));
    }
    let wanted = task.plan.windows.map_or(SENTENCES, |windows| windows as usize);
    let text = excerpt.text();
    let sentences: Vec<&str> =
        text.lines().filter(|line| line.split_whitespace().count() >= WORDS_MIN).take(wanted).collect();
    let mut report = Report {
        title: task.title.clone(),
        note: task.note.clone(),
        text: Text::of(&excerpt.origin(), task.source.clone(), task.plan.context_tokens),
        reference: reference.name.clone(),
        rows: Vec::new(),
    };
    for row in task.rows.iter().filter(|row| args.wants(row)) {
        report.rows.push(line(args, row, reference, &sentences, &excerpt.origin())?);
        if let Some(path) = &args.json {
            let json = serde_json::to_string_pretty(&report);
            write(path, &(json.map_err(|error| Failure::usage(error.to_string()))? + "\n"))?;
        }
    }
    if let Some(path) = &args.markdown {
        let title = report.title.as_deref().unwrap_or("Quality of embeddings");
        write(path, &format!("# {title}\n\n{}\n{}", head(&report), table(&report).markdown()))?;
    }
    print(&(head(&report) + &table(&report).text()))
}

fn line(
    args: &PplArgs,
    row: &Row,
    reference: &Row,
    sentences: &[&str],
    evaluated: &Origin,
) -> Result<Line, Failure> {
    let mut config = args.settings.config_with(&row.overrides()?)?;
    let npu_wanted = config.offload.route != RouteKind::Cpu;
    if npu_wanted {
        // Sentences have few rows; an encoder is to be judged where it was sent.
        config.offload.route = RouteKind::Npu;
    }
    config.context.context_tokens.get_or_insert(super::CONTEXT_TOKENS);
    if npu_wanted {
        crate::pack::build_if_asked(&row.model, &config)?;
    }
    let session = Session::start(&config, Log::Quiet)?;
    let model = session.load(&row.model, &config)?;
    let route = session.npu.as_ref().map(|npu| npu.backend.route());
    if let Some(npu) = &session.npu {
        npu.backend.set_route(Route::Cpu);
    }
    let its = session.load(&reference.model, &config)?;
    if let (Some(npu), Some(route)) = (&session.npu, route) {
        npu.backend.set_route(route);
    }
    let bar = progress::bar("encoding", sentences.len() as u64);
    let likeness =
        likeness(&model, &its, sentences, &config.context, &mut |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    let (computed, device, npu_products) = whereabouts(&session);
    let pack = pack_of(row, &config).map(|path| Pack::open_any(&path)).transpose()?;
    let bytes = stored_bytes(&session, &model, pack.as_ref());
    if npu_wanted && npu_products == 0 {
        let message = format!("row {}: the NPU computed nothing, although it was asked to", row.name);
        return Err(Failure::Failed { code: 1, message, hint: None });
    }
    Ok(Line {
        name: row.name.clone(),
        scheme: row.scheme.clone(),
        computed,
        device,
        npu_products,
        size: Size::of(bytes, model.info().parameters),
        calibration: calibration(row, &config, evaluated)?,
        note: row.note.clone(),
        likeness,
    })
}

fn head(report: &Report) -> String {
    let Text { name, source, part, .. } = &report.text;
    let source = source.as_ref().map_or_else(String::new, |source| format!(", {source}"));
    let (sentences, tokens) =
        report.rows.first().map_or((0, 0), |line| (line.likeness.sentences, line.likeness.tokens));
    let mut out = String::new();
    for note in report.note.iter().chain(report.rows.iter().filter_map(|line| line.note.as_ref())) {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{note}");
    }
    let _ = writeln!(
        out,
        "Text: {name}{source}; {} part, its first {sentences} lines of at least {WORDS_MIN} words ({tokens} tokens).\n\
         Reference: {} on the CPU. Cosine: of the two vectors of a line. Product error: root of the summed squares of \
         differences over that of the reference's results, errors of earlier products included.",
        part.name(),
        report.reference
    );
    out
}

fn table(report: &Report) -> Table {
    let head = vec![
        "row",
        "scheme",
        "bits/weight",
        "MB",
        "computed by",
        "mean cosine",
        "least cosine",
        "median product error",
        "worst product error",
        "calibrated on",
        "CPU host s",
        "simulating host s",
        "NPU host s",
    ];
    let rows = report.rows.iter().map(|line| {
        let Likeness { mean_cosine, min_cosine, layers, host_seconds, .. } = &line.likeness;
        let mut errors: Vec<_> = layers.iter().collect();
        errors.sort_by(|a, b| a.relative.total_cmp(&b.relative));
        let median = errors.get(errors.len() / 2);
        let mut row = vec![
            line.name.clone(),
            line.scheme.clone().unwrap_or_else(|| BLANK.to_owned()),
            format!("{:.2}", line.size.bits_per_weight),
            format!("{:.1}", line.size.bytes as f64 / 1e6),
            line.computed.name().to_owned(),
            format!("{mean_cosine:.6}"),
            format!("{min_cosine:.6}"),
            median.map_or_else(|| BLANK.to_owned(), |one| format!("{:.4}", one.relative)),
            errors
                .last()
                .map_or_else(|| BLANK.to_owned(), |one| format!("{:.4} ({})", one.relative, one.weight)),
            line.calibration.label().to_owned(),
        ];
        for computed in [Computed::Cpu, Computed::SimulatedNpu, Computed::Npu] {
            row.push(if line.computed == computed { format!("{host_seconds:.1}") } else { BLANK.to_owned() });
        }
        row
    });
    Table { rows: rows.collect(), head }.dense(7)
}
