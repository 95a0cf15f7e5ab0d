// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_isa::{Cmd, CmdKind, Register};

/// What kind of finding it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// The program contradicts itself or the hardware's rules.
    InvalidProgram,
    /// Silicon races or uses stale data.
    Hazard,
    /// Nobody knows what silicon does.
    Unmodelled,
    /// Memory, mapping or buffer space is missing.
    Resource,
}

/// What silicon does (`isa.md` §13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// No completion; the driver's time limit ends the job.
    Hang,
    /// Completes with wrong results and no error.
    Wrong,
    /// Writes memory outside the buffers meant.
    Wild,
    /// Completes with right results, by luck or by an undocumented mercy.
    Harmless,
    /// Not known.
    Unknown,
}

/// Which word of which program did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Job of the core, counted from 1 since reset.
    pub job: u64,
    /// Task of that job, counted from 0.
    pub task: u16,
    /// Word of the task's program, counted from 0.
    pub word: u32,
}

/// A register with the value that matters to a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterValue {
    /// The word that would write it.
    pub cmd: Cmd,
    /// The word that did write it; `None` for the value from reset.
    pub origin: Option<Origin>,
}

impl RegisterValue {
    pub(crate) fn of<R: Register>(register: R, origin: Option<Origin>) -> Self {
        // Registers of executing blocks all have a target.
        Self { cmd: Cmd::write(register).unwrap_or_default(), origin }
    }
}

impl fmt::Display for RegisterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cmd)?;
        if let (Some(desc), CmdKind::Write { value, .. }) = (self.cmd.register(), self.cmd.kind())
            && desc.fields.len() > 1
        {
            f.write_str(" {")?;
            for (index, field) in desc.fields.iter().enumerate() {
                let comma = if index == 0 { "" } else { ", " };
                write!(f, "{comma}{}={}", field.name, field.get(value))?;
            }
            f.write_str("}")?;
        }
        match self.origin {
            Some(Origin { task, word, .. }) => write!(f, " (task {task} word {word})"),
            None => f.write_str(" (reset value)"),
        }
    }
}

/// One of the two events that a finding ties together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Task of the job, counted from 0; `None` when it lies in an earlier job.
    pub task: Option<u16>,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.task {
            Some(task) => write!(f, "task {task}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// A finding: where, which registers, the two events, what silicon does, and which fact says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Kind of finding.
    pub category: Category,
    /// What silicon does.
    pub effect: Effect,
    /// Core index.
    pub core: u8,
    /// Task of the job, counted from 0.
    pub task: u16,
    /// Word of the task's program, counted from 0, that the finding points at (the op-enable word by default).
    pub word: u32,
    /// Short name of the check, stable: `cbuf-weight-group`, `write-fault`, …
    pub check: &'static str,
    /// The registers that decide.
    pub registers: Vec<RegisterValue>,
    /// The earlier event, or the rule.
    pub first: Event,
    /// The later event, which contradicts it.
    pub second: Event,
    /// Where the fact is written down.
    pub source: &'static str,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let category = match self.category {
            Category::InvalidProgram => "invalid program",
            Category::Hazard => "hazard",
            Category::Unmodelled => "unmodelled",
            Category::Resource => "resource",
        };
        let effect = match self.effect {
            Effect::Hang => "HANG",
            Effect::Wrong => "WRONG",
            Effect::Wild => "WILD",
            Effect::Harmless => "harmless",
            Effect::Unknown => "unknown",
        };
        write!(
            f,
            "{category} ({effect}) [{}]: core {} task {} word {}: (1) {}; (2) {}",
            self.check, self.core, self.task, self.word, self.first, self.second
        )?;
        for register in &self.registers {
            write!(f, " · {register}")?;
        }
        write!(f, " · {}", self.source)
    }
}

/// Where a task stands; makes findings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    pub(crate) core: u8,
    pub(crate) job: u64,
    pub(crate) task: u16,
    pub(crate) word: u32,
}

impl Site {
    pub(crate) fn origin(self) -> Origin {
        Origin { job: self.job, task: self.task, word: self.word }
    }

    /// An event of this task.
    pub(crate) fn here(self, what: impl Into<String>) -> Event {
        Event { task: Some(self.task), what: what.into() }
    }

    /// An event of the task that `origin` names.
    pub(crate) fn at(self, origin: Origin, what: impl Into<String>) -> Event {
        if origin.job == self.job {
            Event { task: Some(origin.task), what: what.into() }
        } else {
            Event { task: None, what: format!("an earlier job, task {}: {}", origin.task, what.into()) }
        }
    }

    /// A finding at this place; the word is that of the first register which this task wrote.
    pub(crate) fn finding(self, finding: Finding) -> Diagnosis {
        let written = finding
            .registers
            .iter()
            .filter_map(|register| register.origin)
            .find(|origin| origin.job == self.job && origin.task == self.task);
        Diagnosis {
            category: finding.category,
            effect: finding.effect,
            core: self.core,
            task: self.task,
            word: written.map_or(self.word, |origin| origin.word),
            check: finding.check,
            registers: finding.registers,
            first: finding.first,
            second: finding.second,
            source: finding.source,
        }
    }
}

/// A finding without its place.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) category: Category,
    pub(crate) effect: Effect,
    pub(crate) check: &'static str,
    pub(crate) registers: Vec<RegisterValue>,
    pub(crate) first: Event,
    pub(crate) second: Event,
    pub(crate) source: &'static str,
}

/// A rule, as the first event of a finding.
pub(crate) fn rule(what: impl Into<String>) -> Event {
    Event { task: None, what: what.into() }
}

/// Why a task does not complete.
#[derive(Debug)]
pub(crate) enum Stop {
    Hang(Box<Diagnosis>),
    Unmodelled(Box<Diagnosis>),
}

/// Ends a task that the model does not cover.
pub(crate) fn unmodelled(
    site: Site,
    check: &'static str,
    registers: Vec<RegisterValue>,
    known: impl Into<String>,
    found: impl Into<String>,
    source: &'static str,
) -> Stop {
    Stop::Unmodelled(Box::new(site.finding(Finding {
        category: Category::Unmodelled,
        effect: Effect::Unknown,
        check,
        registers,
        first: rule(known),
        second: site.here(found),
        source,
    })))
}

/// Ends a task that silicon would not complete.
pub(crate) fn hang(
    site: Site,
    category: Category,
    check: &'static str,
    registers: Vec<RegisterValue>,
    first: Event,
    second: impl Into<String>,
    source: &'static str,
) -> Stop {
    Stop::Hang(Box::new(site.finding(Finding {
        category,
        effect: Effect::Hang,
        check,
        registers,
        first,
        second: site.here(second),
        source,
    })))
}
