// SPDX-License-Identifier: MIT OR Apache-2.0
//! What to do when a job does not show what it should: a state machine without a device.
//!
//! A job is in trouble when the kernel says so, or when its window passes and cells are missing. [`Ladder::step`]
//! gives the next thing to try, cheapest first, and each rung has a budget; when all are spent the job is given up.
//! So the number of steps is bounded, and nothing new begins when a round's budget of time is spent, so that its time
//! is bounded too ([`Limits::bound`]).
//!
//! ```text
//! missed, incomplete:  read again ─▶ submit again ×2 ─▶ reset, submit again ─▶ another core, from the start ─▶ give up
//! same value as seed:  second seed ─▶ as above
//! timed out:           submit again ×2 (the kernel has reset the NPU) ─▶ another core ─▶ give up
//! refused:             submit again ×3, after a pause ─▶ another core ─▶ give up
//! ```
//! Where a driver has neither a reset nor a choice of cores, it is submitted again ×5 instead.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whether a device may try again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecoveryMode {
    /// Allowed on a real device; forbidden on an emulated one, where every recovery would hide a defect of ork.
    #[default]
    Auto,
    /// Trouble is an error at once.
    Forbid,
    /// Trouble is tried to be made good, and counted.
    Allow,
}

/// What is wrong with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The kernel said nothing, and cells are missing after the window.
    Missed,
    /// The kernel says that the job ended; cells are missing.
    Incomplete,
    /// As either, and the rest may have the seed's value.
    SeedValue,
    /// The kernel's time limit ended it.
    TimedOut,
    /// The kernel refused it or gave it up.
    Refused,
}

/// What to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Cache maintenance, and look again.
    Reread,
    /// Another seed where the first one still stands, and run again.
    SecondSeed,
    /// Run again.
    Resubmit,
    /// Reset the NPU, and run again.
    Reset,
    /// Give the job to another core.
    Move,
    /// Nothing is left.
    GiveUp,
}

impl Step {
    /// Whether it is allowed while recovery is forbidden: a second seed is a question, not a repair.
    pub(crate) fn is_recovery(self) -> bool {
        !matches!(self, Self::SecondSeed | Self::GiveUp)
    }
}

/// Which rungs a device has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    pub(crate) reset: bool,
    /// Other cores that a job could go to.
    pub(crate) other_cores: u8,
}

/// Budgets and times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Shortest window of a job that is polled.
    pub(crate) window_min: Duration,
    /// Longest.
    pub(crate) window_max: Duration,
    /// How long output may stay invisible after the kernel says that the job is done.
    pub(crate) late: Duration,
    /// Longest time that the kernel waits for a job before it gives it up.
    pub(crate) kernel: Duration,
}

/// Resubmissions before a reset or another core.
const RESUBMITS: u8 = 2;
/// Resubmissions where neither is to be had, and of a job that was refused.
const LONE_RESUBMITS: u8 = 5;
const REFUSED_RESUBMITS: u8 = 3;
/// A soft reset sleeps 100 ms in the kernel (`uapi.md` A.10); doubled.
pub(crate) const RESET_TIME: Duration = Duration::from_millis(200);
/// Pause before a job that was refused is tried again; doubled each time.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// Attempts that take as long as they can fit in a round's budget.
const BUDGET_ATTEMPTS: u32 = 12;
/// A window is so many times the measured time.
const WINDOW_FACTOR: u32 = 3;

impl Limits {
    /// How long after its start a round may still begin something new.
    pub(crate) fn budget(&self) -> Duration {
        self.kernel.max(self.window_max) * BUDGET_ATTEMPTS
    }

    /// Longest time that a round can take: its budget, and what was begun at the end of it: one attempt for each core,
    /// with the kernel's patience or the window, output that is late, twice for reading again, and a reset.
    pub(crate) fn bound(&self, cores: u8) -> Duration {
        let attempt = self.kernel.max(self.window_max) * 2 + self.late * 2 + RESET_TIME;
        self.budget() + attempt * u32::from(cores.max(1))
    }
}

/// The steps of one job that were used up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ladder {
    reread: bool,
    second_seed: bool,
    resubmits: u8,
    reset: bool,
    moved: u8,
}

impl Ladder {
    /// The next thing to try.
    pub(crate) fn step(&mut self, trouble: Trouble, means: Means) -> Step {
        use Trouble::{Incomplete, Missed, Refused, SeedValue, TimedOut};
        if trouble == SeedValue && !self.second_seed {
            self.second_seed = true;
            return Step::SecondSeed;
        }
        if matches!(trouble, Missed | Incomplete | SeedValue) && !self.reread {
            self.reread = true;
            return Step::Reread;
        }
        let resubmits = match trouble {
            _ if !means.reset && means.other_cores == 0 => LONE_RESUBMITS,
            Refused => REFUSED_RESUBMITS,
            _ => RESUBMITS,
        };
        if self.resubmits < resubmits {
            self.resubmits += 1;
            // What comes back can be read again, too.
            self.reread = false;
            return Step::Resubmit;
        }
        if !matches!(trouble, TimedOut | Refused) && means.reset && !self.reset {
            self.reset = true;
            self.reread = false;
            return Step::Reset;
        }
        if self.moved < means.other_cores {
            *self = Self { moved: self.moved + 1, second_seed: self.second_seed, ..Self::default() };
            return Step::Move;
        }
        Step::GiveUp
    }
}

/// How long jobs take, by their geometry: a window that is right for one shape is wrong for another.
#[derive(Debug, Default)]
pub(crate) struct Windows(HashMap<u64, Duration>);

/// Shapes that are remembered before all are forgotten.
const GEOMETRIES_MAX: usize = 4096;

impl Windows {
    /// How long to wait for a job of this geometry: the longest there is until one was measured.
    pub(crate) fn of(&self, geometry: u64, limits: &Limits) -> Duration {
        self.0.get(&geometry).map_or(limits.window_max, |measured| {
            (*measured * WINDOW_FACTOR).clamp(limits.window_min, limits.window_max)
        })
    }

    /// Learns from a job that completed without trouble.
    pub(crate) fn learn(&mut self, geometry: u64, took: Duration) {
        if self.0.len() >= GEOMETRIES_MAX && !self.0.contains_key(&geometry) {
            self.0.clear();
        }
        // A moving average, so that one slow pass does not widen the window for ever.
        let known = self.0.entry(geometry).or_insert(took);
        *known = (*known * 7 + took) / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Means = Means { reset: true, other_cores: 2 };

    fn steps(trouble: Trouble, means: Means) -> Vec<Step> {
        let mut ladder = Ladder::default();
        let mut steps = Vec::new();
        loop {
            let step = ladder.step(trouble, means);
            steps.push(step);
            if step == Step::GiveUp {
                return steps;
            }
            assert!(steps.len() < 100, "no end");
        }
    }

    #[test]
    fn trouble_climbs_the_ladder_and_ends() {
        use Step::{GiveUp, Move, Reread, Reset, Resubmit, SecondSeed};
        let one = Means { reset: true, other_cores: 0 };
        let missed = [Reread, Resubmit, Reread, Resubmit, Reread, Reset, Reread, GiveUp];
        assert_eq!(steps(Trouble::Missed, one), missed);
        let seed: Vec<Step> = std::iter::once(SecondSeed).chain(missed).collect();
        assert_eq!(steps(Trouble::SeedValue, one), seed);
        assert_eq!(steps(Trouble::TimedOut, one), [Resubmit, Resubmit, GiveUp]);
        assert_eq!(steps(Trouble::Refused, one), [Resubmit, Resubmit, Resubmit, GiveUp]);
        assert_eq!(
            steps(Trouble::TimedOut, ALL),
            [Resubmit, Resubmit, Move, Resubmit, Resubmit, Move, Resubmit, Resubmit, GiveUp]
        );
        let bare = Means { reset: false, other_cores: 0 };
        let lone: Vec<Step> = [Reread, Resubmit].repeat(5).into_iter().chain([Reread, GiveUp]).collect();
        assert_eq!(steps(Trouble::Incomplete, bare), lone);
    }

    #[test]
    fn every_mix_of_troubles_ends() {
        use Trouble::{Incomplete, Missed, Refused, SeedValue, TimedOut};
        let troubles = [Missed, Incomplete, SeedValue, TimedOut, Refused];
        for start in 0..3125_usize {
            let mut ladder = Ladder::default();
            let mut digits = start;
            let mut count = 0;
            loop {
                let trouble = troubles[digits % 5];
                digits = digits / 5 + (digits % 5) * 625;
                count += 1;
                if ladder.step(trouble, ALL) == Step::GiveUp {
                    break;
                }
                assert!(count < 60, "start {start} does not end");
            }
        }
    }

    #[test]
    fn windows_follow_the_measured_time_of_each_geometry() {
        let ms = Duration::from_millis;
        let limits = Limits { window_min: ms(2), window_max: ms(500), late: ms(1), kernel: ms(6000) };
        let mut windows = Windows::default();
        assert_eq!(windows.of(1, &limits), ms(500), "not measured yet");
        windows.learn(1, ms(10));
        windows.learn(2, Duration::from_micros(10));
        assert_eq!((windows.of(1, &limits), windows.of(2, &limits)), (ms(30), ms(2)));
        for _ in 0..100 {
            windows.learn(1, ms(400));
        }
        assert_eq!(windows.of(1, &limits), ms(500), "never longer than the limit");
        assert!(limits.bound(3) > limits.bound(1) && limits.bound(1) > limits.budget());
    }
}
