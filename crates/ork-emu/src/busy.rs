// SPDX-License-Identifier: MIT OR Apache-2.0
//! What emulating costs: host time in which the cores compute, and in which anything is done below the ioctl.

use std::time::{Duration, Instant};

use crate::lock::Mutex;

/// The clocks of a board.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// Runs while any core computes.
    pub(crate) cores: BusyClock,
    /// Runs while any core computes or any call is in the kernel.
    pub(crate) all: BusyClock,
}

impl Clocks {
    /// A core computes until this is dropped.
    pub(crate) fn compute(&self) -> [Busy<'_>; 2] {
        [self.all.begin(), self.cores.begin()]
    }

    /// A call is in the kernel until this is dropped.
    pub(crate) fn call(&self) -> Busy<'_> {
        self.all.begin()
    }
}

/// Time in which anybody is busy: what several do at the same time counts once.
#[derive(Debug, Default)]
pub(crate) struct BusyClock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    users: u32,
    since: Option<Instant>,
    total: Duration,
}

impl BusyClock {
    fn begin(&self) -> Busy<'_> {
        let mut state = self.0.lock();
        state.users += 1;
        state.since.get_or_insert_with(Instant::now);
        Busy(self)
    }

    /// So far, what is under way included.
    pub(crate) fn total(&self) -> Duration {
        let state = self.0.lock();
        state.total + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// Somebody is busy.
pub(crate) struct Busy<'a>(&'a BusyClock);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.users -= 1;
        if state.users == 0
            && let Some(since) = state.since.take()
        {
            state.total += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_several_counts_once_and_pauses_do_not() {
        let ms = Duration::from_millis;
        let clocks = Clocks::default();
        let start = Instant::now();
        let call = clocks.call();
        std::thread::sleep(ms(3));
        let computing = [clocks.compute(), clocks.compute()];
        std::thread::sleep(ms(3));
        drop(call);
        drop(computing);
        let wall = start.elapsed();
        let (cores, all) = (clocks.cores.total(), clocks.all.total());
        assert!(cores >= ms(3) && all >= cores + ms(3) && all <= wall, "{cores:?} {all:?} {wall:?}");
        std::thread::sleep(ms(2));
        assert_eq!((clocks.cores.total(), clocks.all.total()), (cores, all));
    }
}
