// SPDX-License-Identifier: MIT OR Apache-2.0
//! What came of a fault run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ork_device::{DriverKind, EventCounts, EventKind, Fault, SubmitMode};

use crate::fault_run::FaultRun;

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// Products that were tried.
    pub products: u64,
    /// Jobs that were given to the kernel, for one core each, by a call of a submit; those of second attempts too.
    pub submits: u64,
    /// Products whose every result was the value of the seed.
    pub collisions: u64,
    /// Devices that were opened, one after the other or two at a time.
    pub devices: u64,
    /// Boards on which something stayed after their device was closed. Must be 0.
    pub leaks: u64,
    /// Results that differ from the plain loops without an error. Must be 0.
    pub wrong: u64,
    /// Products that took longer than they may. Must be 0.
    pub late: u64,
    /// Products that ended in an error, by its text and that of its causes, without numbers.
    pub errors: BTreeMap<String, u64>,
    /// Weights that were loaded again, because their products stayed wrong.
    pub reloads: u64,
    /// The longest product, by the device's clock.
    pub longest: Duration,
    /// What it may take.
    pub bound: Duration,
    /// Faults that happened, by kind.
    pub injected: BTreeMap<Fault, u64>,
    /// What was noticed and done.
    pub events: EventCounts,
    /// Calls that were repeated after a signal.
    pub interruptions: u64,
}

impl FaultTally {
    /// Whether nothing was wrong, late, left behind or given up.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.late == 0 && self.leaks == 0 && self.errors.is_empty()
    }

    /// Faults of these kinds.
    #[must_use]
    pub fn injected(&self, kinds: &[Fault]) -> u64 {
        kinds.iter().filter_map(|kind| self.injected.get(kind)).sum()
    }
}

impl fmt::Display for FaultTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} submits for {} products: {} wrong, {} later than they may",
            self.submits, self.products, self.wrong, self.late
        )?;
        writeln!(
            f,
            "{} of them all seed values; {} devices opened, {} left something",
            self.collisions, self.devices, self.leaks
        )?;
        writeln!(
            f,
            "longest {} ms of {} ms, modelled and waited",
            self.longest.as_millis(),
            self.bound.as_millis()
        )?;
        f.write_str("injected: ")?;
        let mut separator = "";
        for (fault, count) in &self.injected {
            write!(f, "{separator}{fault}: {count}")?;
            separator = ", ";
        }
        writeln!(f)?;
        writeln!(
            f,
            "noticed: {}; {} calls repeated; {} weights loaded again",
            self.events, self.interruptions, self.reloads
        )?;
        for (error, count) in &self.errors {
            writeln!(f, "error: {error}: {count}")?;
        }
        Ok(())
    }
}

/// Whether what happened stands in the counters of the driver: injected faults are counted by the board, and events by
/// those who were hit.
///
/// Where jobs are waited for by calls, each job that a fault ended shows as a time-out, and results that are all seed as a
/// second seed. Where nobody waits in the kernel either may be a missed job; the mainline driver says nothing of a job
/// that a fault ended, and it is run again. Each signal is a repeated call.
#[must_use]
pub fn is_accounted_for(run: &FaultRun, tally: &FaultTally) -> bool {
    let events = |kinds: &[EventKind]| kinds.iter().map(|kind| tally.events.of(*kind)).sum::<u64>();
    let ended = tally.injected(&[Fault::Dropped, Fault::Hang, Fault::DeadCore]);
    let lost = tally.injected(&[Fault::LostInterrupt]);
    let jobs = match (run.kernel, run.submit) {
        (DriverKind::Rknpu, SubmitMode::Auto | SubmitMode::Blocking) => {
            events(&[EventKind::TimedOut]) == ended + lost
                && events(&[EventKind::SecondSeed]) >= tally.collisions
        }
        (DriverKind::Rknpu, _) => {
            events(&[EventKind::Missed, EventKind::TimedOut, EventKind::SecondSeed])
                >= ended + tally.collisions
        }
        // A second seed is another run, too.
        (DriverKind::Rocket, _) => {
            events(&[EventKind::Resubmitted, EventKind::SecondSeed, EventKind::GaveUp])
                >= ended + tally.collisions
        }
    };
    jobs && tally.interruptions == tally.injected(&[Fault::Interrupted])
}
