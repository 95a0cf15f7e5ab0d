// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which address space is in use.
//!
//! One domain is live for the whole NPU. rknpu 0.9.6 and 0.9.7 switch it under running jobs, and 0.9.8 counts its
//! users but loses count when a switch fails (`uapi.md` A.8, A.11 rows 3 to 5). So this side never asks for a switch
//! while it uses another domain itself.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::buffer::DomainId;

/// Lets users of one domain in at a time.
#[derive(Debug, Default)]
pub(crate) struct DomainGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    live: DomainId,
    users: u32,
    switches: u64,
    closed: bool,
}

/// The use of a domain; ends when dropped.
#[derive(Debug)]
pub(crate) struct InDomain<'a>(&'a DomainGate);

impl Drop for InDomain<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.users -= 1;
        if state.users == 0 {
            self.0.changed.notify_all();
        }
    }
}

/// Why a domain cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// This one stayed in use.
    Occupied(DomainId),
    /// The device is closed.
    Closed,
}

impl DomainGate {
    /// Uses a domain; waits for the users of another one, at most so long.
    pub(crate) fn enter(&self, domain: DomainId, limit: Duration) -> Result<InDomain<'_>, Refusal> {
        let mut deadline = None;
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(Refusal::Closed);
            }
            if state.live == domain || state.users == 0 {
                break;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
            let late = self.changed.wait_until(&mut state, deadline).timed_out();
            // The last user may have left at that moment.
            if late && !state.closed && state.users != 0 && state.live != domain {
                return Err(Refusal::Occupied(state.live));
            }
        }
        if state.live != domain {
            state.live = domain;
            state.switches += 1;
        }
        state.users += 1;
        Ok(InDomain(self))
    }

    /// Lets nobody in any more, and waits until all are out, at most so long; whether they are.
    pub(crate) fn close(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.state.lock();
        state.closed = true;
        self.changed.notify_all();
        while state.users != 0 {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return state.users == 0;
            }
        }
        true
    }

    /// How often the domain changed.
    pub(crate) fn switches(&self) -> u64 {
        self.state.lock().switches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn users_of_one_domain_share_it_and_those_of_another_wait() {
        let gate = DomainGate::default();
        let (one, two) = (gate.enter(DomainId(3), LONG).unwrap(), gate.enter(DomainId(3), LONG).unwrap());
        let refused = gate.enter(DomainId(0), Duration::from_millis(1)).unwrap_err();
        assert_eq!(refused, Refusal::Occupied(DomainId(3)));
        drop(one);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(DomainId(1), LONG).map(drop));
            drop(two);
            waiting.join().unwrap().unwrap();
        });
        assert_eq!(gate.switches(), 2);
    }

    #[test]
    fn a_closed_gate_lets_its_users_out_and_nobody_in() {
        let gate = DomainGate::default();
        let user = gate.enter(DomainId(0), LONG).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(DomainId(1), LONG).map(drop));
            assert!(!gate.close(Duration::from_millis(1)));
            assert_eq!(waiting.join().unwrap(), Err(Refusal::Closed));
        });
        drop(user);
        assert!(gate.close(Duration::ZERO));
        assert!(matches!(gate.enter(DomainId(0), LONG), Err(Refusal::Closed)));
    }

    #[test]
    fn coming_back_to_the_live_domain_is_no_switch() {
        let gate = DomainGate::default();
        for _ in 0..3 {
            gate.enter(DomainId(0), LONG).unwrap();
        }
        assert_eq!(gate.switches(), 0);
    }
}
