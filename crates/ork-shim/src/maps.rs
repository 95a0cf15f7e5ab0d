// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which ranges of the address space are mappings of buffers.
//!
//! A range may be unmapped in parts, moved, or covered by another mapping; what it holds of the board is given back
//! when its last part is gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ranges and what they hold.
pub(crate) struct Ranges<H> {
    /// By first byte; ranges do not overlap.
    all: Mutex<BTreeMap<usize, Range<H>>>,
    count: AtomicUsize,
}

pub(crate) struct Range<H> {
    end: usize,
    hold: Arc<H>,
}

const PAGE_BYTES: usize = 4096;

fn page_end(start: usize, len: usize) -> usize {
    start.saturating_add(len).checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX)
}

impl<H> Ranges<H> {
    pub(crate) const fn new() -> Self {
        Self { all: Mutex::new(BTreeMap::new()), count: AtomicUsize::new(0) }
    }

    /// The table; also for a fork to hold.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Range<H>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a range meets one of ours. Short, and without a lock when there are none.
    pub(crate) fn touches(&self, start: usize, len: usize) -> bool {
        if self.count.load(SeqCst) == 0 {
            return false;
        }
        let end = page_end(start, len);
        self.lock().range(..end).next_back().is_some_and(|(_, range)| range.end > start)
    }

    /// What the ranges that meet a range hold, without repetition.
    pub(crate) fn holds(&self, start: usize, len: usize) -> Vec<Arc<H>> {
        let end = page_end(start, len);
        let mut found: Vec<Arc<H>> = Vec::new();
        for (_, range) in self.lock().range(..end).rev().take_while(|(_, range)| range.end > start) {
            if !found.iter().any(|hold| Arc::ptr_eq(hold, &range.hold)) {
                found.push(Arc::clone(&range.hold));
            }
        }
        found
    }

    /// Enters a range that meets none of ours.
    pub(crate) fn insert(&self, start: usize, len: usize, hold: Arc<H>) {
        let mut all = self.lock();
        all.insert(start, Range { end: page_end(start, len), hold });
        self.count.store(all.len(), SeqCst);
    }

    /// Takes a range out; what was held there. The caller drops it, without any lock.
    #[must_use]
    pub(crate) fn cut(&self, start: usize, len: usize) -> Vec<Arc<H>> {
        let end = page_end(start, len);
        let mut all = self.lock();
        let met: Vec<usize> = all
            .range(..end)
            .rev()
            .take_while(|(_, range)| range.end > start)
            .map(|(first, _)| *first)
            .collect();
        let mut held = Vec::new();
        for first in met {
            let Some(range) = all.remove(&first) else { continue };
            if first < start {
                all.insert(first, Range { end: start, hold: Arc::clone(&range.hold) });
            }
            if range.end > end {
                all.insert(end, Range { end: range.end, hold: Arc::clone(&range.hold) });
            }
            held.push(range.hold);
        }
        self.count.store(all.len(), SeqCst);
        held
    }

    /// Forgets everything; what was held.
    pub(crate) fn clear(&self) -> Vec<Arc<H>> {
        let mut all = self.lock();
        self.count.store(0, SeqCst);
        std::mem::take(&mut *all).into_values().map(|range| range.hold).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: usize = PAGE_BYTES;

    #[test]
    fn a_range_is_held_until_its_last_part_is_cut() {
        let ranges = Ranges::new();
        let hold = Arc::new(7);
        assert!(!ranges.touches(0, usize::MAX));
        ranges.insert(10 * P, 3 * P + 1, Arc::clone(&hold));
        assert!(ranges.touches(13 * P, 1), "lengths are rounded up to pages");
        assert!(!ranges.touches(14 * P, P) && !ranges.touches(9 * P, P));
        // The middle goes, then one end, then the other.
        drop(ranges.cut(11 * P, P));
        assert!(ranges.touches(10 * P, 1) && !ranges.touches(11 * P, 1) && ranges.touches(12 * P, 1));
        assert_eq!(Arc::strong_count(&hold), 3);
        assert_eq!(ranges.holds(0, 100 * P).len(), 1, "two parts of one mapping");
        drop(ranges.cut(0, 11 * P));
        drop(ranges.cut(12 * P, 2 * P));
        assert_eq!(Arc::strong_count(&hold), 1);
        assert!(!ranges.touches(0, usize::MAX));
    }

    #[test]
    fn one_cut_takes_several_ranges() {
        let ranges = Ranges::new();
        ranges.insert(P, P, Arc::new(1));
        ranges.insert(2 * P, P, Arc::new(2));
        ranges.insert(8 * P, P, Arc::new(3));
        assert_eq!(ranges.cut(0, 4 * P).len(), 2);
        assert_eq!(ranges.clear().len(), 1);
    }
}
