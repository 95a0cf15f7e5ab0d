// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time as waits see it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ork_emu::Board;

/// A clock that waits are measured with.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;

    /// Lets about so much time pass.
    fn pause(&self, time: Duration);

    /// So much time passed in a wait of the kernel; for clocks that only their pauses move.
    fn waited(&self, _time: Duration) {}

    /// Whether time stands still: the device does something whose time this clock does not measure. No wait runs out
    /// meanwhile.
    fn stands(&self) -> bool {
        false
    }
}

/// The host's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    start: Instant,
}

impl Default for HostClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for HostClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The time of an emulated board: what its jobs, time limits and resets took by the model, and the pauses made
/// meanwhile. The host's own speed is not in it: while the model computes, time stands still.
#[derive(Debug)]
pub struct BoardClock {
    board: Board,
    paused_ns: AtomicU64,
}

impl BoardClock {
    /// The clock of this board.
    #[must_use]
    pub fn new(board: &Board) -> Self {
        Self { board: board.clone(), paused_ns: AtomicU64::new(0) }
    }
}

/// Longest sleep of the host while the model computes.
const COMPUTING_SLEEP_MAX: Duration = Duration::from_micros(200);

impl Clock for BoardClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.board.clock_ns() + self.paused_ns.load(Relaxed))
    }

    fn pause(&self, time: Duration) {
        if self.board.is_computing() {
            std::thread::sleep(time.min(COMPUTING_SLEEP_MAX));
            return;
        }
        // What arrives late on the board arrives late on the host.
        std::thread::sleep(time);
        self.paused_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn waited(&self, time: Duration) {
        if !self.board.is_computing() {
            self.paused_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
    }

    fn stands(&self) -> bool {
        self.board.is_computing()
    }
}

/// A clock that only its pauses move, for tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ns: AtomicU64,
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now_ns.load(Relaxed))
    }

    fn pause(&self, time: Duration) {
        self.now_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ork_emu::EmuOptions;

    #[test]
    fn a_boards_time_is_modelled_time_and_pauses() {
        let board = Board::new(&EmuOptions::default());
        let clock = BoardClock::new(&board);
        assert_eq!((clock.now(), clock.stands()), (Duration::ZERO, false));
        clock.pause(Duration::from_micros(7));
        assert_eq!(clock.now(), Duration::from_micros(7));
    }

    #[test]
    fn clocks_go_forward() {
        for clock in [&HostClock::default() as &dyn Clock, &ManualClock::default()] {
            let before = clock.now();
            clock.pause(Duration::from_millis(2));
            assert!(clock.now() >= before + Duration::from_millis(2), "{clock:?}");
        }
    }
}
