// SPDX-License-Identifier: MIT OR Apache-2.0
//! Laws and hazards that can be seen in the words of a program or a chain, without running it.
//!
//! A lint names both events: the word that sets a rule up and the word that breaks it. It speaks only of what the
//! words say; a register that no word of the chain wrote has an unknown past, and no lint guesses it. The rules are
//! those of the sources named; `ork-plan` states the same limits as laws over a geometry, and neither knows the other.

mod cbuf;
mod chain;
mod encoding;
mod operand;
mod output;
mod quirks;
mod table;

use std::fmt;

pub use table::LINTS;

use crate::asm::Listing;
use crate::task::{Links, Place, Task, extents, tasks};
use crate::{Cmd, Register};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; right in some programs.
    Note,
    /// Probably not what was meant.
    Warning,
    /// Hangs, writes wrong results or wrong places, by the source named.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Lint {
    /// Stable name.
    pub name: &'static str,
    /// How bad a breach is.
    pub severity: Severity,
    /// The rule in one sentence.
    pub rule: &'static str,
    /// Where it is written down, and how sure it is.
    pub source: &'static str,
}

/// One of the two events that a finding ties together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The word, unless the event is a rule or something that is missing.
    pub place: Option<Place>,
    /// The word itself.
    pub cmd: Option<Cmd>,
    /// What it says.
    pub what: String,
}

/// A breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub lint: &'static Lint,
    /// The program at fault, from 0.
    pub program: usize,
    /// What sets the rule up.
    pub first: Event,
    /// What breaks it.
    pub second: Event,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lint, program, first, second } = self;
        write!(f, "{} [{}] program {program}: (1) ", lint.severity, lint.name)?;
        first.show(f, *program)?;
        f.write_str("; (2) ")?;
        second.show(f, *program)?;
        write!(f, " · {}", lint.source)
    }
}

impl Event {
    fn rule(what: impl Into<String>) -> Self {
        Self { place: None, cmd: None, what: what.into() }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>, program: usize) -> fmt::Result {
        match self.place {
            Some(place) if place.program == program => write!(f, "word {} ", place.word)?,
            Some(place) => write!(f, "{place} ")?,
            None => {}
        }
        match self.cmd {
            Some(cmd) if self.what.is_empty() => write!(f, "{cmd}"),
            Some(cmd) => write!(f, "{cmd}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// What the checks share.
struct Context<'a> {
    programs: &'a [crate::asm::Stream],
    tasks: &'a [Task],
    links: Links,
    findings: Vec<Finding>,
}

impl Context<'_> {
    fn report(&mut self, lint: &'static Lint, program: usize, first: Event, second: Event) {
        self.findings.push(Finding { lint, program, first, second });
    }

    /// An event of a word.
    fn at(&self, place: Place, what: impl Into<String>) -> Event {
        let cmd = self.programs.get(place.program).and_then(|program| program.words.get(place.word)).copied();
        Event { place: Some(place), cmd, what: what.into() }
    }

    /// An event of the word that gave a task its register, or of the fact that none did.
    fn of<R: Register>(&self, task: &Task, what: impl Into<String>) -> Event {
        let what = what.into();
        match task.registers.place::<R>() {
            Some(place) => self.at(place, what),
            None => {
                let value = task.registers.get::<R>().bits();
                Event::rule(format!("{}.{} is not written ({value:#x}): {what}", R::DESC.block, R::DESC.name))
            }
        }
    }
}

/// Checks programs in their order. Streams are taken as they are: see [`Listing::split`] for files that hold several
/// programs in one piece.
#[must_use]
pub fn lint(listing: &Listing) -> Vec<Finding> {
    let programs: Vec<&[Cmd]> = listing.streams.iter().map(|stream| stream.words.as_slice()).collect();
    let tasks = tasks(&programs);
    let links = Links::read(&listing.streams);
    let mut context = Context { programs: &listing.streams, tasks: &tasks, links, findings: Vec::new() };
    encoding::check(&mut context);
    chain::check(&mut context);
    for (index, task) in tasks.iter().enumerate() {
        cbuf::check(&mut context, index, task);
        output::check(&mut context, task, &extents(task));
        operand::check(&mut context, task);
        quirks::check(&mut context, index, task);
    }
    let mut findings = context.findings;
    findings.sort_by_key(|finding| finding.program);
    findings
}
