// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ork conformance`: recorded NPU programs on the simulator.

use std::path::PathBuf;

use ork_conformance::{Case, CaseError, Report, Verdict, case_names, set_variant};
use serde_json::{Value, json};

use crate::failure::{Failure, chain, print};
use crate::flags::Keyed;

#[derive(clap::Args)]
pub(crate) struct ConformanceArgs {
    /// Folder of recorded cases, NAME.json with NAME.npz each
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Only cases with this in their name
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Another reading of the silicon, e.g. lut_between=half-up; a wrong key lists all
    #[arg(long, value_name = "KEY=VALUE")]
    variant: Vec<String>,
    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Keyed,
}

/// Counts of a run.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    published: usize,
    like_silicon: usize,
}

pub(crate) fn run(args: &ConformanceArgs) -> Result<(), Failure> {
    let mut options = args.settings.config()?.device.emulated.sim;
    for text in &args.variant {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| Failure::usage(format!("--variant {text}: not of the form KEY=VALUE")))?;
        options = set_variant(&options, key.trim(), value.trim())
            .map_err(|error| Failure::usage(format!("--variant {text}: {}", chain(&error))))?;
    }
    let mut names = case_names(&args.folder).map_err(|error| failed(chain(&error), None))?;
    names.retain(|name| args.only.as_ref().is_none_or(|part| name.contains(part)));
    if names.is_empty() {
        return Err(failed(
            format!("{}: no case", args.folder.display()),
            Some("a case is a pair of files NAME.json and NAME.npz".to_owned()),
        ));
    }
    let mut tally = Tally::default();
    let mut cases = Vec::new();
    for name in &names {
        let result = Case::read(&args.folder, name).and_then(|case| case.run(&options));
        tally.add(&result);
        if args.json {
            cases.push(object(name, &result));
        } else {
            print(&line(name, &result))?;
        }
    }
    let total = names.len();
    let Tally { passed, failed: wrong, published, like_silicon } = tally;
    if args.json {
        let whole = json!({
            "cases": cases, "total": total, "passed": passed, "failed": wrong,
            "published": published, "like_silicon": like_silicon,
        });
        print(&format!("{whole:#}\n"))?;
    } else {
        print(&format!(
            "{passed} of {total} pass; {like_silicon} of {published} published silicon errors are met\n"
        ))?;
    }
    if wrong > 0 { Err(failed(format!("{wrong} of {total} cases fail"), None)) } else { Ok(()) }
}

fn failed(message: String, hint: Option<String>) -> Failure {
    Failure::Failed { code: 1, message, hint }
}

impl Tally {
    fn add(&mut self, result: &Result<Report, CaseError>) {
        match result {
            Ok(report) if report.verdict == Verdict::Pass => self.passed += 1,
            _ => self.failed += 1,
        }
        if let Some(met) = result.as_ref().ok().and_then(Report::like_silicon) {
            self.published += 1;
            self.like_silicon += usize::from(met);
        }
    }
}

fn object(name: &str, result: &Result<Report, CaseError>) -> Value {
    match result {
        Ok(report) => {
            let mut value = json!(report);
            value["like_silicon"] = json!(report.like_silicon());
            value
        }
        Err(error) => json!({ "name": name, "verdict": "unreadable", "error": chain(error) }),
    }
}

/// One line per case.
fn line(name: &str, result: &Result<Report, CaseError>) -> String {
    let (word, rest) = match result {
        Ok(report) => describe(report),
        Err(error) => ("UNREADABLE", chain(error)),
    };
    format!("{word:<10} {name:<46} {rest}\n")
}

fn describe(report: &Report) -> (&'static str, String) {
    let error = format!("largest error {}", number(report.largest_error));
    let first_finding = || report.findings.first().map_or("", |text| text.lines().next().unwrap_or(""));
    match report.verdict {
        Verdict::Pass => {
            let silicon = report.published.zip(report.against_published).map(|(published, here)| {
                let unit = if published.relative { " relative" } else { "" };
                let most = if published.bound { "at most " } else { "" };
                let met = if published.agrees(here) { "" } else { " (NOT MET)" };
                format!("; silicon {most}{}{unit}, here {}{met}", number(published.error), number(here))
            });
            ("pass", format!("{error}{}", silicon.unwrap_or_default()))
        }
        Verdict::Wrong => {
            let first = report
                .first_wrong
                .map(|first| format!("; element {} is {}, not {}", first.element, first.got, first.expected));
            let (wrong, compared) = (report.wrong, report.compared);
            ("WRONG", format!("{wrong} of {compared} values; {error}{}", first.unwrap_or_default()))
        }
        Verdict::Findings => ("FINDINGS", format!("{}; {error}", first_finding())),
        Verdict::Stopped => {
            let last = report.findings.last().map_or("", |text| text.lines().next().unwrap_or(""));
            ("STOPPED", last.to_owned())
        }
    }
}

fn number(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.2e}") }
}
