// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happened that should not have to: the newest events, and a count of every kind.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Events that are kept; their counts are kept for ever.
const KEPT: usize = 256;

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EventKind {
    /// The kernel said that a job was done before all of its output was visible; the rest came in time.
    LateLines,
    /// Output was read again through the kernel's cache maintenance because some of it was missing.
    Reread,
    /// An output holds the value of its seed and the job ran again with another seed.
    SecondSeed,
    /// A job showed nothing within its window.
    Missed,
    /// The kernel ended a job by its time limit, and reset the NPU.
    TimedOut,
    /// A job that the kernel called overdue had written everything: only its interrupt was lost.
    LostInterrupt,
    /// The kernel refused or gave up a job.
    Refused,
    /// A job was submitted again.
    Resubmitted,
    /// A lost job was left to the kernel to be thrown away by the next one on its core.
    Reaped,
    /// The NPU was reset because a job did not end. Resets that a change of the datapath's mode needs are no events.
    Reset,
    /// A job that failed on one core again and again was given to another.
    Moved,
    /// A core is not used any more: two jobs after each other had to be moved from it.
    CoreRetired,
    /// A job was given up.
    GaveUp,
    /// A chain was ended early, as asked for.
    Halted,
    /// The product that came out is not the product (see the driver's check); it was computed again.
    WrongProduct,
    /// The last user of the device ended without closing it.
    StaleOwner,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::LateLines,
        Self::Reread,
        Self::SecondSeed,
        Self::Missed,
        Self::TimedOut,
        Self::LostInterrupt,
        Self::Refused,
        Self::Resubmitted,
        Self::Reaped,
        Self::Reset,
        Self::Moved,
        Self::CoreRetired,
        Self::GaveUp,
        Self::Halted,
        Self::WrongProduct,
        Self::StaleOwner,
    ];

    /// Whether it means that something went wrong and was made good: none of these happens while recovery is
    /// forbidden.
    #[must_use]
    pub const fn is_recovery(self) -> bool {
        matches!(
            self,
            Self::Reread
                | Self::LostInterrupt
                | Self::Resubmitted
                | Self::Reaped
                | Self::Reset
                | Self::Moved
                | Self::CoreRetired
                | Self::WrongProduct
        )
    }

    const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LateLines => "late output",
            Self::Reread => "output read again",
            Self::SecondSeed => "second seed",
            Self::Missed => "job missed",
            Self::TimedOut => "time-out",
            Self::LostInterrupt => "lost interrupt",
            Self::Refused => "job refused",
            Self::Resubmitted => "job submitted again",
            Self::Reaped => "lost job reaped",
            Self::Reset => "reset",
            Self::Moved => "job moved",
            Self::CoreRetired => "core retired",
            Self::GaveUp => "job given up",
            Self::Halted => "chain halted",
            Self::WrongProduct => "wrong product",
            Self::StaleOwner => "stale owner",
        })
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// By the device's clock.
    pub at: Duration,
    /// The core, if it was about one.
    pub core: Option<u8>,
    /// What.
    pub kind: EventKind,
}

/// How often each kind of event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventCounts([u64; EventKind::ALL.len()]);

impl EventCounts {
    /// Of one kind.
    #[must_use]
    pub fn of(&self, kind: EventKind) -> u64 {
        self.0[kind.index()]
    }

    /// Of all kinds that are recoveries.
    #[must_use]
    pub fn recoveries(&self) -> u64 {
        EventKind::ALL.into_iter().filter(|kind| kind.is_recovery()).map(|kind| self.of(kind)).sum()
    }

    /// Of both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index] + other.0[index]))
    }

    /// What came since an earlier state of the same counts.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index].saturating_sub(earlier.0[index])))
    }
}

impl fmt::Display for EventCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for kind in EventKind::ALL.into_iter().filter(|kind| self.of(*kind) != 0) {
            write!(f, "{separator}{kind}: {}", self.of(kind))?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("no events") } else { Ok(()) }
    }
}

/// The live form.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    newest: VecDeque<Event>,
    counts: EventCounts,
}

impl Events {
    pub(crate) fn note(&self, event: Event) {
        let mut ring = self.0.lock();
        ring.counts.0[event.kind.index()] += 1;
        if ring.newest.len() == KEPT {
            ring.newest.pop_front();
        }
        ring.newest.push_back(event);
        drop(ring);
        tracing::debug!(core = event.core, "{}", event.kind);
    }

    pub(crate) fn counts(&self) -> EventCounts {
        self.0.lock().counts
    }

    /// Oldest first.
    pub(crate) fn newest(&self) -> Vec<Event> {
        self.0.lock().newest.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_forgets_events_and_never_their_number() {
        let events = Events::default();
        for index in 0..1000 {
            let kind = if index % 10 == 0 { EventKind::Reset } else { EventKind::LateLines };
            events.note(Event { at: Duration::from_secs(index), core: Some(1), kind });
        }
        let counts = events.counts();
        assert_eq!((counts.of(EventKind::Reset), counts.of(EventKind::LateLines)), (100, 900));
        assert_eq!((counts.of(EventKind::Missed), counts.recoveries()), (0, 100));
        let newest = events.newest();
        assert_eq!(
            (newest.len(), newest[0].at, newest[255].at),
            (256, Duration::from_secs(744), Duration::from_secs(999))
        );
        assert_eq!(counts.to_string(), "late output: 900, reset: 100");
        assert_eq!(counts.since(&counts).to_string(), "no events");
        assert_eq!(counts.plus(&counts).of(EventKind::Reset), 200);
    }

    #[test]
    fn kinds_are_numbered_as_listed() {
        for (index, kind) in EventKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
        }
    }
}
