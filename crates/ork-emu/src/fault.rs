// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults on demand: each is off by default, and each that fires leaves a finding with its name.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// When a fault happens, counted in its own events (starts of a core, allocations, calls; see [`FaultPlan`]).
///
/// As text: `never`, `always`, `nth:N`, `one-in:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum When {
    /// Never.
    #[default]
    Never,
    /// At the n-th event, counted from 1.
    Nth(u64),
    /// At every event.
    Always,
    /// At a share of the events, one in so many on average, by the seed.
    OneIn(NonZeroU32),
}

/// A text that is no [`When`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of never, always, nth:N, one-in:N (N from 1)")]
pub struct BadWhen(String);

impl FromStr for When {
    type Err = BadWhen;

    fn from_str(text: &str) -> Result<Self, BadWhen> {
        let bad = || BadWhen(text.to_owned());
        match text.split_once(':') {
            None if text == "never" => Ok(Self::Never),
            None if text == "always" => Ok(Self::Always),
            Some(("nth", n)) => n.parse().ok().filter(|n| *n > 0).map(Self::Nth).ok_or_else(bad),
            Some(("one-in", n)) => n.parse().map(Self::OneIn).map_err(|_| bad()),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Always => f.write_str("always"),
            Self::Nth(n) => write!(f, "nth:{n}"),
            Self::OneIn(n) => write!(f, "one-in:{n}"),
        }
    }
}

impl TryFrom<String> for When {
    type Error = BadWhen;

    fn try_from(text: String) -> Result<Self, BadWhen> {
        text.parse()
    }
}

impl From<When> for String {
    fn from(when: When) -> Self {
        when.to_string()
    }
}

/// What goes wrong on purpose. Faults inside the NPU's units are the simulator's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultPlan {
    /// Decides which events a share means.
    pub seed: u64,
    /// A core takes a job and never ends it. Counted in starts: chains given to a core.
    pub hang: When,
    /// One read of a job returns other bytes of the domain. Counted in starts.
    pub wild_read: When,
    /// One write of a job lands elsewhere in the domain. Counted in starts.
    pub wild_write: When,
    /// One write of a job runs past its mapping, and the write DMA hangs. Counted in starts.
    pub overrun: When,
    /// A job is accepted and never dispatched. Counted in starts.
    pub dropped: When,
    /// The last line of each buffer that a job wrote arrives after its interrupt. Counted in starts.
    pub late_write_back: When,
    /// How much later, in milliseconds of host time.
    pub late_write_back_ms: u32,
    /// A job completes, and its interrupt is lost. Counted in starts.
    pub lost_interrupt: When,
    /// Cache maintenance leaves the first line of its range as it was. Counted in calls; strict coherency only.
    pub stale_line: When,
    /// A call is interrupted by a signal. Counted in calls of the driver.
    pub interrupted: When,
    /// No memory. Counted in allocations.
    pub out_of_memory: When,
    /// A job's use of its domain is never given back (0.9.8). Counted in jobs.
    pub leaked_domain: When,
    /// The core on which nothing ever completes.
    pub dead_core: Option<u8>,
    /// Smaller address windows: bytes per domain or file.
    pub window_bytes: Option<u64>,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Fault {
    /// [`FaultPlan::hang`].
    Hang,
    /// [`FaultPlan::wild_read`].
    WildRead,
    /// [`FaultPlan::wild_write`].
    WildWrite,
    /// [`FaultPlan::overrun`].
    Overrun,
    /// [`FaultPlan::dropped`].
    Dropped,
    /// [`FaultPlan::late_write_back`].
    LateWriteBack,
    /// [`FaultPlan::lost_interrupt`].
    LostInterrupt,
    /// [`FaultPlan::stale_line`].
    StaleLine,
    /// [`FaultPlan::interrupted`].
    Interrupted,
    /// [`FaultPlan::out_of_memory`].
    OutOfMemory,
    /// [`FaultPlan::leaked_domain`].
    LeakedDomain,
    /// [`FaultPlan::dead_core`].
    DeadCore,
    /// [`FaultPlan::window_bytes`].
    FullWindow,
}

/// Faults that have a [`When`], in the order of their counters.
const COUNTED: usize = 11;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hang => "hang",
            Self::WildRead => "wild read",
            Self::WildWrite => "wild write",
            Self::Overrun => "write past a mapping",
            Self::Dropped => "dropped job",
            Self::LateWriteBack => "late write-back",
            Self::LostInterrupt => "lost interrupt",
            Self::StaleLine => "stale cache line",
            Self::Interrupted => "interrupted call",
            Self::OutOfMemory => "out of memory",
            Self::LeakedDomain => "leaked domain counter",
            Self::DeadCore => "dead core",
            Self::FullWindow => "full address window",
        })
    }
}

/// The plan, and how many events of each kind there were.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) plan: FaultPlan,
    events: [AtomicU64; COUNTED],
}

impl Faults {
    pub(crate) fn new(plan: &FaultPlan) -> Self {
        Self { plan: plan.clone(), events: Default::default() }
    }

    /// Counts an event and says whether the fault happens at it.
    pub(crate) fn fires(&self, fault: Fault) -> bool {
        let plan = &self.plan;
        let (index, when) = match fault {
            Fault::Hang => (0, plan.hang),
            Fault::WildRead => (1, plan.wild_read),
            Fault::WildWrite => (2, plan.wild_write),
            Fault::Overrun => (3, plan.overrun),
            Fault::Dropped => (4, plan.dropped),
            Fault::LateWriteBack => (5, plan.late_write_back),
            Fault::LostInterrupt => (6, plan.lost_interrupt),
            Fault::StaleLine => (7, plan.stale_line),
            Fault::Interrupted => (8, plan.interrupted),
            Fault::OutOfMemory => (9, plan.out_of_memory),
            Fault::LeakedDomain => (10, plan.leaked_domain),
            Fault::DeadCore | Fault::FullWindow => return false,
        };
        if when == When::Never {
            return false;
        }
        let event = self.events[index].fetch_add(1, Relaxed) + 1;
        match when {
            When::Never => false,
            When::Nth(n) => event == n,
            When::Always => true,
            When::OneIn(share) => self.chance(index as u64, event).is_multiple_of(u64::from(share.get())),
        }
    }

    /// A number that only the seed, the kind of fault and the event decide.
    pub(crate) fn chance(&self, kind: u64, event: u64) -> u64 {
        // The finaliser of SplitMix64.
        let mut x = self.plan.seed ^ kind.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ event.rotate_left(32);
        x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firings(plan: FaultPlan, fault: Fault, events: usize) -> Vec<usize> {
        let faults = Faults::new(&plan);
        (1..=events).filter(|_| faults.fires(fault)).count();
        let faults = Faults::new(&plan);
        (1..=events).filter(|_| faults.fires(fault)).collect()
    }

    #[test]
    fn whens() {
        let plan = FaultPlan { hang: When::Nth(3), dropped: When::Always, ..FaultPlan::default() };
        assert_eq!(firings(plan.clone(), Fault::Hang, 9), [3]);
        assert_eq!(firings(plan.clone(), Fault::Dropped, 3), [1, 2, 3]);
        assert_eq!(firings(plan, Fault::Overrun, 9), [0; 0]);
    }

    #[test]
    fn whens_as_text() {
        for text in ["never", "always", "nth:3", "one-in:100"] {
            assert_eq!(text.parse::<When>().unwrap().to_string(), text);
        }
        for text in ["", "Never", "nth", "nth:", "nth:0", "one-in:0", "one-in:-1", "nth:3:4"] {
            assert!(text.parse::<When>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_follows_the_seed() {
        let plan = |seed| FaultPlan {
            seed,
            dropped: When::OneIn(NonZeroU32::new(10).unwrap()),
            ..FaultPlan::default()
        };
        let first = firings(plan(1), Fault::Dropped, 10_000);
        assert!((800..1200).contains(&first.len()), "{}", first.len());
        assert_eq!(first, firings(plan(1), Fault::Dropped, 10_000));
        assert_ne!(first, firings(plan(2), Fault::Dropped, 10_000));
    }
}
