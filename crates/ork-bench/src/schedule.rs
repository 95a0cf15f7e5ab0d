// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order in which the arms of a benchmark run.

/// Half of an arm's runs. Twins differ in nothing but their places in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Twin {
    /// Runs first in even rounds.
    A,
    /// Runs first in odd rounds.
    B,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Which arm, from 0.
    pub arm: usize,
    /// As which of its twins.
    pub twin: Twin,
}

/// Rounds in which each arm runs twice: once on the way there, once on the way back (ABBA). So all arms have the same
/// mean place in every round, and a machine that becomes slower or faster steadily favours none. Odd rounds are the even
/// ones backwards, which gives the twins the same mean place over two rounds. After two rounds another arm begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    arms: usize,
    rounds: u32,
}

impl Schedule {
    /// For so many arms and rounds.
    #[must_use]
    pub const fn new(arms: usize, rounds: u32) -> Self {
        Self { arms, rounds }
    }

    /// The rounds, each with its runs in order.
    pub fn rounds(self) -> impl Iterator<Item = Vec<Slot>> {
        (0..self.rounds).map(move |round| {
            let first = round as usize / 2;
            let there: Vec<usize> = (0..self.arms).map(|index| (first + index) % self.arms).collect();
            let (one, other) = if round % 2 == 0 { (Twin::A, Twin::B) } else { (Twin::B, Twin::A) };
            let slots = there.iter().map(|&arm| Slot { arm, twin: one });
            slots.chain(there.iter().rev().map(|&arm| Slot { arm, twin: other })).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_arms_run_abba() {
        let rounds: Vec<Vec<usize>> =
            Schedule::new(2, 3).rounds().map(|round| round.iter().map(|slot| slot.arm).collect()).collect();
        assert_eq!(rounds, [[0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]]);
    }

    /// Every arm's mean place is the same in each round, and every twin's over two rounds; so a steady drift cancels.
    #[test]
    fn places_are_balanced() {
        for arms in 1..6 {
            for rounds in 1..9 {
                let all: Vec<Vec<Slot>> = Schedule::new(arms, rounds).rounds().collect();
                assert_eq!(all.len(), rounds as usize);
                for round in &all {
                    for arm in 0..arms {
                        let places: Vec<usize> = (0..2 * arms).filter(|at| round[*at].arm == arm).collect();
                        assert_eq!(places.iter().sum::<usize>(), 2 * arms - 1, "{arms} arms");
                        assert_ne!(round[places[0]].twin, round[places[1]].twin);
                    }
                }
                for pair in all.chunks_exact(2) {
                    for slot in &pair[0] {
                        let place = |round: &[Slot]| round.iter().position(|other| other == slot).unwrap();
                        assert_eq!(place(&pair[0]) + place(&pair[1]), 2 * arms - 1);
                    }
                }
            }
        }
        // Every arm begins some round.
        let mut first: Vec<usize> = Schedule::new(3, 6).rounds().map(|round| round[0].arm).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first, [0, 1, 2]);
    }
}
