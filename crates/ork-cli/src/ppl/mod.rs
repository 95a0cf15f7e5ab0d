// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork ppl`: how well models predict a text, and how far they are from a reference.

mod embeddings;
mod plot;
mod report;
mod rows;
mod run;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ork_corpus::{Corpus, Excerpt, Origin, Part, SplitRule, Verdict};
use ork_engine::quality::WindowPlan;

use crate::failure::{Failure, print};
use crate::flags::Settings;
use report::{FailedRow, Report, Text};
use rows::{Row, RowFile};

/// Tokens of a window, unless the settings or the rows say otherwise.
const CONTEXT_TOKENS: u32 = 512;

#[derive(clap::Args)]
pub(crate) struct PplArgs {
    /// Model file, GGUF of any type
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Model to compare with; computed by the CPU
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Text to evaluate, UTF-8
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Most windows to evaluate, as many as the text fills if not given
    #[arg(long, value_name = "N")]
    windows: Option<u32>,
    /// Part of the text to evaluate [default: held-out]
    #[arg(long, value_name = "PART", value_parser = part)]
    part: Option<Part>,
    /// Bytes of a block of the split [default: 16384]
    #[arg(long, value_name = "BYTES")]
    block: Option<u32>,
    /// Blocks of a cycle of the split, the first of which is seen [default: 4]
    #[arg(long, value_name = "N")]
    cycle: Option<u32>,
    /// Evaluate rows that were calibrated with this very text; the report says so
    #[arg(long)]
    allow_seen: bool,
    /// A row of the table: `NAME=MODEL[,route=R][,pack=P][,scheme=S][,calibrated=TEXT][,note=N][,KEY=VALUE...]`
    #[arg(long = "row", value_name = "ROW")]
    rows: Vec<String>,
    /// Rows, text and reference from a TOML file
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Evaluate only the rows of these names; with --resume the others are shown if the JSON file has them
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Judge models that encode, by cosine of their vectors and error of their products; --windows counts sentences
    #[arg(long)]
    embeddings: bool,
    /// Keep the reference's distributions in this file instead of computing them for every row
    #[arg(long, value_name = "FILE")]
    reference_file: Option<PathBuf>,
    /// Write the result as JSON to this file, after every row
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the result as Markdown to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write a plot of quality against bits to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Take the rows that the JSON file has from there, if nothing that they depend on has changed
    #[arg(long, requires = "json")]
    resume: bool,
    /// Write the text that is evaluated to this file
    #[arg(long, value_name = "FILE")]
    save_text: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

fn part(text: &str) -> Result<Part, String> {
    [Part::HeldOut, Part::Seen, Part::Whole]
        .into_iter()
        .find(|part| part.name() == text)
        .ok_or_else(|| "held-out, seen or whole".to_owned())
}

/// Everything that is to be done.
struct Task {
    title: Option<String>,
    note: Option<String>,
    rows: Vec<Row>,
    reference: Option<Row>,
    corpus: Corpus,
    source: Option<String>,
    part: Part,
    rule: SplitRule,
    plan: WindowPlan,
}

impl PplArgs {
    /// Whether a row is to be evaluated.
    fn wants(&self, row: &Row) -> bool {
        self.only.is_empty() || self.only.contains(&row.name)
    }
}

impl Task {
    /// The command line over the file of rows.
    fn of(args: &PplArgs) -> Result<Self, Failure> {
        let file = args.table.as_deref().map(RowFile::read).transpose()?;
        let (mut rows, mut reference, mut title, mut note, mut text) = (Vec::new(), None, None, None, None);
        if let Some(file) = file {
            (rows, reference, title, note, text) =
                (file.rows, file.reference, file.title, file.note, file.text);
        }
        let text = text.unwrap_or_default();
        for row in &args.rows {
            rows.push(Row::parse(row)?);
        }
        if let Some(model) = &args.model {
            rows.push(Row { name: stem(model), model: model.clone(), ..Row::default() });
        }
        if let Some(model) = &args.against {
            reference = Some(Row {
                name: stem(model),
                model: model.clone(),
                route: Some("cpu".to_owned()),
                ..Row::default()
            });
        }
        if let Some(name) = args.only.iter().find(|name| !rows.iter().any(|row| row.name == **name)) {
            return Err(Failure::usage(format!("--only {name}: there is no row of this name")));
        }
        if rows.is_empty() {
            return Err(Failure::usage(
                "nothing to evaluate: give -m MODEL, --row NAME=MODEL or --table FILE",
            ));
        }
        for (index, row) in rows.iter().enumerate() {
            if rows[..index].iter().any(|other| other.name == row.name) {
                return Err(Failure::usage(format!("two rows are called {}", row.name)));
            }
        }
        let path = args.file.as_ref().or(text.file.as_ref());
        let path = path.ok_or_else(|| Failure::usage("no text: give -f FILE"))?;
        let fallback = text.rule.unwrap_or_default();
        let rule = SplitRule {
            block_bytes: args.block.unwrap_or(fallback.block_bytes),
            cycle: args.cycle.unwrap_or(fallback.cycle),
        };
        let configured = args.settings.config()?.context.context_tokens;
        let plan = WindowPlan {
            context_tokens: configured.or(text.context).unwrap_or(CONTEXT_TOKENS),
            windows: args.windows.or(text.windows),
        };
        Ok(Self {
            title,
            note,
            rows,
            reference,
            corpus: Corpus::read(path)?,
            source: text.source,
            part: args.part.or(text.part).unwrap_or(Part::HeldOut),
            rule,
            plan,
        })
    }

    /// What is evaluated.
    fn excerpt(&self) -> Result<Excerpt<'_>, Failure> {
        Ok(match self.part {
            Part::Whole => self.corpus.whole(),
            part => self.corpus.split(self.rule)?.part(part),
        })
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(|| path.display().to_string(), |stem| stem.to_string_lossy().into_owned())
}

pub(crate) fn run(args: &PplArgs) -> Result<(), Failure> {
    let task = Task::of(args)?;
    let excerpt = task.excerpt()?;
    let origin = excerpt.origin();
    if let Some(path) = &args.save_text {
        write(path, &excerpt.text())?;
    }
    // Whatever is wrong with a row is found before the first one takes its minutes.
    for row in task.rows.iter().filter(|row| args.wants(row)).chain(&task.reference) {
        ork_engine::inspect(&row.model)?;
        let config = args.settings.config_with(&row.overrides()?)?;
        let calibration = run::calibration(row, &config, &origin)?;
        refuse_seen(row, &calibration, &origin, args.allow_seen)?;
    }

    if args.embeddings {
        return embeddings::run(args, &task, &excerpt);
    }
    let kept = if args.resume { args.json.as_deref().and_then(earlier) } else { None };
    let mut report = Report {
        title: task.title.clone(),
        note: task.note.clone(),
        text: Text::of(&origin, task.source.clone(), task.plan.context_tokens),
        reference: None,
        rows: Vec::new(),
        failures: Vec::new(),
        kept: kept.map(Report::into_lines).unwrap_or_default(),
    };
    let text = excerpt.text();
    let mut runner = run::Runner::new(&task, &args.settings, &text, &origin, args.reference_file.clone())?;
    report.reference = runner.reference_line()?;
    for (number, row) in task.rows.iter().enumerate() {
        if !args.wants(row) {
            if let Some(line) = runner.finished(row, &report) {
                report.add(line);
            }
            continue;
        }
        eprintln!("row {}/{}: {}", number + 1, task.rows.len(), row.name);
        match runner.row(row, &report) {
            Ok(line) => {
                let p = line.quality.perplexity.perplexity;
                eprintln!("  PPL {:.4} ± {:.4}, {:.0} s", p.value, p.error, line.quality.host_seconds);
                report.add(line);
            }
            Err(Failure::Failed { message, .. }) => {
                eprintln!("  failed: {message}");
                report.failures.push(FailedRow { name: row.name.clone(), why: message });
            }
            Err(other) => return Err(other),
        }
        if let Some(reference) = &mut report.reference {
            reference.perplexity =
                report.rows.iter().find_map(|line| line.quality.versus.map(|versus| versus.reference));
        }
        write_all(args, &report)?;
    }
    print(&report.text())?;
    if report.failures.is_empty() {
        return Ok(());
    }
    let failed: Vec<&str> = report.failures.iter().map(|failed| failed.name.as_str()).collect();
    Err(Failure::Failed {
        code: 1,
        message: format!("{} of {} rows failed: {}", failed.len(), task.rows.len(), failed.join(", ")),
        hint: args.json.is_some().then(|| "--resume keeps the rows that are done".to_owned()),
    })
}

/// Numbers from the calibrated text itself flatter; they are given only to those who ask for them.
fn refuse_seen(
    row: &Row,
    calibration: &report::Calibration,
    origin: &Origin,
    allow_seen: bool,
) -> Result<(), Failure> {
    let report::Calibration::Text { text, overlap } = calibration else { return Ok(()) };
    let why = match overlap.verdict() {
        Verdict::Disjoint => return Ok(()),
        _ if allow_seen => return Ok(()),
        Verdict::Same => "which is the text to be evaluated",
        Verdict::Unknown => "which is too short to tell it from the text to be evaluated",
    };
    Err(Failure::Failed {
        code: 2,
        message: format!("row {} was calibrated with {text}, {why}: {origin}", row.name),
        hint: Some("evaluate another text or part, or ask for it with --allow-seen".to_owned()),
    })
}

fn earlier(path: &Path) -> Option<Report> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

fn write_all(args: &PplArgs, report: &Report) -> Result<(), Failure> {
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(report).map_err(|error| Failure::usage(error.to_string()))?;
        write(path, &(json + "\n"))?;
    }
    if let Some(path) = &args.svg
        && let Some(plot) = plot::plot(report)
    {
        write(path, &plot)?;
    }
    if let Some(path) = &args.markdown {
        let plot =
            args.svg.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        write(path, &report.markdown(plot.as_deref()))?;
    }
    Ok(())
}

/// All of it or nothing.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::Failed {
        code: 1,
        message: format!("cannot write {}: {error}", path.display()),
        hint: None,
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As any file of this user: the umask applies.
    let permissions = std::fs::Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().permissions(permissions).tempfile_in(folder).map_err(cannot)?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(cannot)?;
    file.persist(path).map_err(|error| cannot(error.error))?;
    Ok(())
}
