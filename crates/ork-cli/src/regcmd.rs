// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork regcmd`: register programs as text, compared, checked, explained.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use ork_isa::asm::{Comments, Listing, Stream, parse, print as print_text, read_bytes, read_hex};
use ork_isa::diff::{Addresses, diff};
use ork_isa::explain::explain;
use ork_isa::lint::{Event, Finding, Severity, lint};
use ork_isa::{Cmd, Iova};
use ork_trace::{Reader, TraceError, programs};
use serde_json::{Value, json};

use crate::failure::{Failure, print};

#[derive(Args)]
pub(crate) struct RegcmdArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print a program as text: one line per word, every field by name
    Decode {
        #[command(flatten)]
        source: Source,
        /// Leave the explaining comments out; warnings stay
        #[arg(long)]
        plain: bool,
    },
    /// Turn text into words
    Encode {
        #[command(flatten)]
        source: Source,
        /// Write to this file instead of stdout
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Form of the words; by default bin for a file named .bin, else hex
        #[arg(long, value_name = "FORM")]
        to: Option<WordForm>,
    },
    /// Compare two programs field by field; exit code 1 when they differ
    Diff {
        /// First program, - for stdin
        a: PathBuf,
        /// Second program, - for stdin
        b: PathBuf,
        /// Form of both files; by default seen from their content
        #[arg(long, value_name = "FORM")]
        from: Option<Form>,
        /// Memory addresses and links may differ
        #[arg(long)]
        ignore_addresses: bool,
    },
    /// Check laws and hazards that the words show; exit code 1 on an error
    Lint {
        #[command(flatten)]
        source: Source,
        /// Print a JSON array instead of lines
        #[arg(long)]
        json: bool,
        /// Warnings are errors
        #[arg(long)]
        deny_warnings: bool,
    },
    /// Tell what a program computes, and which memory it touches
    Explain {
        #[command(flatten)]
        source: Source,
    },
}

#[derive(Args)]
struct Source {
    /// Program: binary, hexadecimal words, JSON of recorded programs, a trace, or text; - for stdin
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Form of the file; by default seen from its content
    #[arg(long, value_name = "FORM")]
    from: Option<Form>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Little-endian 64-bit words
    Bin,
    /// Hexadecimal words
    Hex,
    /// Recorded cases and captures
    Json,
    /// Text with register names
    Rcasm,
    /// All submitted programs of a trace, as `ork capture` writes it
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WordForm {
    /// Little-endian 64-bit words
    Bin,
    /// Hexadecimal words, one a line
    Hex,
}

pub(crate) fn run(args: &RegcmdArgs) -> Result<(), Failure> {
    match &args.action {
        Action::Decode { source, plain } => {
            let comments = if *plain { Comments::Warnings } else { Comments::Full };
            print(&print_text(&source.read()?, comments))
        }
        Action::Encode { source, output, to } => encode(&source.read()?, output.as_deref(), *to),
        Action::Diff { a, b, from, ignore_addresses } => {
            if is_stdin(a) && is_stdin(b) {
                return Err(Failure::usage("both programs cannot come from stdin"));
            }
            let addresses = if *ignore_addresses { Addresses::Ignore } else { Addresses::Compare };
            differences(&read(a, *from)?.split(), &read(b, *from)?.split(), addresses)
        }
        Action::Lint { source, json, deny_warnings } => {
            let worst = if *deny_warnings { Severity::Warning } else { Severity::Error };
            check(&source.read()?.split(), *json, worst)
        }
        Action::Explain { source } => {
            let told: Vec<String> =
                explain(&source.read()?.split()).iter().map(ToString::to_string).collect();
            print(&told.join("\n"))
        }
    }
}

impl Source {
    fn read(&self) -> Result<Listing, Failure> {
        read(&self.file, self.from)
    }
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

fn read(file: &Path, form: Option<Form>) -> Result<Listing, Failure> {
    let name = if is_stdin(file) { "stdin".into() } else { file.display().to_string() };
    let bytes = if is_stdin(file) {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    let bytes = bytes.map_err(|error| Failure::usage(format!("cannot read {name}: {error}")))?;
    let listing = listing(&bytes, form.unwrap_or_else(|| form_of(&bytes)))
        .map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    if listing.words().next().is_none() {
        return Err(Failure::usage(format!("{name}: no words")));
    }
    Ok(listing)
}

/// The form that the content has. Text of a program starts with a name or a dot, words with a digit or a
/// hexadecimal letter; 64-bit words of programs always contain zero bytes.
fn form_of(bytes: &[u8]) -> Form {
    if bytes.starts_with(b"ORKTRACE") {
        return Form::Trace;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return Form::Bin };
    if text.contains('\0') {
        return Form::Bin;
    }
    if text.trim_start().starts_with('{') {
        return Form::Json;
    }
    let code = text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default());
    let first = code.flat_map(str::split_whitespace).next().unwrap_or_default();
    let digits = first.strip_prefix("0x").unwrap_or(first);
    let capture = ["stream", "memory", "task", "runtime"].contains(&first);
    if capture || digits.bytes().all(|byte| byte.is_ascii_hexdigit()) { Form::Hex } else { Form::Rcasm }
}

fn listing(bytes: &[u8], form: Form) -> Result<Listing, String> {
    let text = || std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"));
    match form {
        Form::Bin => read_bytes(bytes).map_err(|error| error.to_string()),
        Form::Hex => read_hex(text()?).map_err(|error| error.to_string()),
        Form::Rcasm => parse(text()?).map_err(|error| error.to_string()),
        Form::Trace => from_trace(bytes).map_err(|error| error.to_string()),
        Form::Json => from_json(&serde_json::from_slice(bytes).map_err(|error| error.to_string())?),
    }
}

fn from_trace(bytes: &[u8]) -> Result<Listing, TraceError> {
    let found = programs(&mut Reader::new(bytes)?)?;
    let streams = found.into_iter().map(|program| Stream {
        name: format!("submit {} task {}", program.submit, program.task),
        at: program.address.map(Iova),
        words: program.words.into_iter().map(Cmd).collect(),
    });
    Ok(Listing { streams: streams.collect() })
}

/// The programs of a recorded case (`submits`), of a capture (`streams`), or a list of single words (`rows`).
fn from_json(value: &Value) -> Result<Listing, String> {
    let mut listing = Listing::default();
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned();
    if let Some(streams) = list(value, "streams") {
        for (index, stream) in streams.iter().enumerate() {
            let words = json_words(stream.get("words"), &format!("streams[{index}].words"))?;
            listing.streams.push(json_stream(stream, &format!("task {}", task_of(stream, index)), words)?);
        }
    } else if let Some(submits) = list(value, "submits") {
        for (submit, entry) in submits.iter().enumerate() {
            for (index, program) in list(entry, "programs").unwrap_or_default().iter().enumerate() {
                let place = format!("submits[{submit}].programs[{index}]");
                let mut words = json_words(program.get("body"), &format!("{place}.body"))?;
                if program.get("tail").is_some_and(|tail| !tail.is_null()) {
                    words.extend(json_words(program.get("tail"), &format!("{place}.tail"))?);
                }
                let left = if program.get("submitted") == Some(&Value::Bool(false)) {
                    ", not submitted"
                } else {
                    ""
                };
                let name = format!("submit {submit} task {}{left}", task_of(program, index));
                listing.streams.push(json_stream(program, &name, words)?);
            }
        }
    } else if let Some(rows) = value.get("rows") {
        listing = Listing::of(json_words(Some(rows), "rows")?);
    } else {
        return Err("expected a JSON object with `streams`, `submits` or `rows`".into());
    }
    Ok(listing)
}

fn task_of(value: &Value, index: usize) -> u64 {
    value.get("task").and_then(Value::as_u64).unwrap_or(index as u64)
}

fn json_stream(value: &Value, name: &str, words: Vec<Cmd>) -> Result<Stream, String> {
    let at = match value.get("iova") {
        None | Some(Value::Null) => None,
        Some(iova) => {
            let number = json_number(iova).and_then(|number| u32::try_from(number).ok());
            Some(Iova(number.ok_or_else(|| format!("{name}: expected a 32-bit address, found iova {iova}"))?))
        }
    };
    Ok(Stream { name: name.to_owned(), at, words })
}

fn json_words(value: Option<&Value>, place: &str) -> Result<Vec<Cmd>, String> {
    let words =
        value.and_then(Value::as_array).ok_or_else(|| format!("{place}: expected a list of words"))?;
    words
        .iter()
        .enumerate()
        .map(|(index, word)| {
            json_number(word.get("word").unwrap_or(word))
                .map(Cmd)
                .ok_or_else(|| format!("{place}[{index}]: expected a 64-bit word, found {word}"))
        })
        .collect()
}

fn json_number(value: &Value) -> Option<u64> {
    match value.as_str() {
        Some(text) => u64::from_str_radix(text.strip_prefix("0x")?, 16).ok(),
        None => value.as_u64(),
    }
}

fn encode(listing: &Listing, output: Option<&Path>, to: Option<WordForm>) -> Result<(), Failure> {
    let named_bin = output.is_some_and(|path| path.extension().is_some_and(|extension| extension == "bin"));
    let bytes = match to.unwrap_or(if named_bin { WordForm::Bin } else { WordForm::Hex }) {
        WordForm::Bin => listing.words().flat_map(|word| word.0.to_le_bytes()).collect(),
        WordForm::Hex => {
            let mut text = String::new();
            for word in listing.words() {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{:#018x}", word.0);
            }
            text.into_bytes()
        }
    };
    match output {
        Some(path) => std::fs::write(path, bytes)
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display()))),
        None => {
            let mut out = std::io::stdout().lock();
            out.write_all(&bytes).and_then(|()| out.flush()).map_err(|error| match error.kind() {
                ErrorKind::BrokenPipe => Failure::ClosedStdout,
                _ => failed(format!("cannot write to stdout: {error}")),
            })
        }
    }
}

/// Exit code 1: the command worked, and what it looked for is there.
fn failed(message: String) -> Failure {
    Failure::Failed { code: 1, message, hint: None }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn differences(a: &Listing, b: &Listing, addresses: Addresses) -> Result<(), Failure> {
    let mut text = String::new();
    let mut total = 0;
    let several = a.streams.len().max(b.streams.len()) > 1;
    for (program, (left, right)) in a.streams.iter().zip(&b.streams).enumerate() {
        let found = diff(&left.words, &right.words, addresses);
        total += found.len();
        for difference in found {
            let prefix = if several { format!("program {program} ") } else { String::new() };
            let _ = writeln!(text, "{prefix}{difference}");
        }
    }
    for (longer, shorter, what) in [(a, b, "missing"), (b, a, "added")] {
        for (program, stream) in longer.streams.iter().enumerate().skip(shorter.streams.len()) {
            let _ = writeln!(text, "program {program}: {what}, {}", count(stream.words.len(), "word"));
            total += 1;
        }
    }
    print(&text)?;
    match total {
        0 => Ok(()),
        total => Err(failed(format!("the programs differ: {}", count(total, "difference")))),
    }
}

fn check(listing: &Listing, as_json: bool, worst: Severity) -> Result<(), Failure> {
    let found = lint(listing);
    let text = if as_json {
        let list: Vec<Value> = found.iter().map(finding_json).collect();
        format!("{:#}\n", Value::Array(list))
    } else {
        found.iter().map(|finding| format!("{finding}\n")).collect()
    };
    print(&text)?;
    let bad = found.iter().filter(|finding| finding.lint.severity >= worst).count();
    if bad == 0 {
        return Ok(());
    }
    Err(failed(match worst {
        Severity::Error => count(bad, "error"),
        _ => format!("{} or worse", count(bad, "warning")),
    }))
}

fn finding_json(finding: &Finding) -> Value {
    let event = |event: &Event| {
        json!({
            "program": event.place.map(|place| place.program),
            "word": event.place.map(|place| place.word),
            "cmd": event.cmd.map(|cmd| format!("{:#018x}", cmd.0)),
            "register": event.cmd.map(|cmd| cmd.to_string()),
            "what": event.what,
        })
    };
    json!({
        "lint": finding.lint.name,
        "severity": finding.lint.severity.to_string(),
        "program": finding.program,
        "rule": finding.lint.rule,
        "source": finding.lint.source,
        "first": event(&finding.first),
        "second": event(&finding.second),
        "text": finding.to_string(),
    })
}
