// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a job sees of memory: an address space as it is mapped at the moment of each access, and the order in
//! which its results arrive.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use ork_isa::Iova;
use ork_sim::{Access, Bus, BusFault, Span};

use crate::board::Inner;
use crate::domain::{AddressSpace, Part};
use crate::fault::Fault;
use crate::finding::FindingKind;
use crate::lock::{Mutex, RwLock};
use crate::memory::{Dram, DramSpan, LINE_BYTES};

/// Which address space translates.
pub(crate) enum Space {
    /// This one.
    Fixed(Arc<RwLock<AddressSpace>>),
    /// The live domain of the board, whatever the job wants; drivers 0.9.6 and 0.9.7.
    Live {
        /// The domain that the job wants.
        wanted: u8,
    },
}

/// The highest line that a job wrote in a buffer, not stored yet.
struct Tail {
    dram: Arc<Dram>,
    start: usize,
    bytes: Vec<u8>,
}

impl Tail {
    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }

    fn store(&self) {
        // Whoever sees these bytes must see all that was stored before.
        fence(Ordering::Release);
        self.dram.device_write(self.start, &self.bytes);
    }
}

/// Faults of one part of a job that memory suffers; each happens once.
#[derive(Default)]
pub(crate) struct Mishaps {
    pub(crate) wild_read: AtomicBool,
    pub(crate) wild_write: AtomicBool,
    pub(crate) overrun: AtomicBool,
}

/// When output that is held back should be there. The host may be slower than that.
#[derive(Debug, Default)]
pub(crate) struct Owed(Arc<Mutex<Vec<Instant>>>);

/// Output that is held back; dropped when it is there.
struct OwedOutput {
    list: Arc<Mutex<Vec<Instant>>>,
    due: Instant,
}

impl Owed {
    fn until(&self, due: Instant) -> OwedOutput {
        self.0.lock().push(due);
        OwedOutput { list: Arc::clone(&self.0), due }
    }

    /// Whether something should be there and is not.
    pub(crate) fn is_overdue(&self) -> bool {
        let now = Instant::now();
        self.0.lock().iter().any(|due| *due <= now)
    }
}

impl Drop for OwedOutput {
    fn drop(&mut self) {
        let mut list = self.list.lock();
        if let Some(at) = list.iter().position(|due| *due == self.due) {
            list.swap_remove(at);
        }
    }
}

/// The bus of one part of a job.
pub(crate) struct JobBus<'a> {
    pub(crate) board: &'a Inner,
    pub(crate) core: u8,
    pub(crate) job: u64,
    pub(crate) space: &'a Space,
    /// Set when the job is given up: it touches no memory any more.
    pub(crate) cancelled: &'a AtomicBool,
    /// Whether the highest line of each buffer is stored last, for programs that poll it.
    pub(crate) last_line_last: bool,
    pub(crate) mishaps: Mishaps,
    tails: Mutex<HashMap<usize, Tail>>,
    switched: AtomicBool,
    /// Buffers of which a forgotten flush was reported.
    unflushed: Mutex<HashSet<usize>>,
}

impl<'a> JobBus<'a> {
    pub(crate) fn new(
        board: &'a Inner,
        (core, job): (u8, u64),
        space: &'a Space,
        cancelled: &'a AtomicBool,
        last_line_last: bool,
    ) -> Self {
        Self {
            board,
            core,
            job,
            space,
            cancelled,
            last_line_last,
            mishaps: Mishaps::default(),
            tails: Mutex::default(),
            switched: AtomicBool::new(false),
            unflushed: Mutex::default(),
        }
    }

    fn report(&self, kind: FindingKind) {
        self.board.report(Some(self.core), self.job, kind);
    }

    /// Whether a mishap is due; it happens only once.
    fn once(&self, mishap: &AtomicBool, fault: Fault) -> bool {
        let due = mishap.swap(false, Ordering::Relaxed);
        if due {
            self.report(FindingKind::Injected { fault });
        }
        due
    }

    fn with_space<R>(&self, f: impl FnOnce(&AddressSpace) -> R) -> R {
        match self.space {
            Space::Fixed(space) => f(&space.read()),
            Space::Live { wanted } => {
                let live = self.board.live_domain.current();
                if live != *wanted && !self.switched.swap(true, Ordering::Relaxed) {
                    self.report(FindingKind::DomainSwitchedUnderJob { job_domain: *wanted, live });
                }
                f(&self.board.space(live).read())
            }
        }
    }

    /// Where a wild access goes: another buffer of the space, if there is one that fits.
    fn astray(&self, space: &AddressSpace, iova: Iova, len: u64) -> Option<Iova> {
        space.elsewhere(iova, len, self.board.faults.chance(u64::from(iova.0), self.job))
    }

    /// Stores held bytes of a buffer that are about to be read.
    fn settle(&self, (dram, range): &Part<'_>) {
        let mut tails = self.tails.lock();
        let key = Arc::as_ptr(dram) as usize;
        if tails.get(&key).is_some_and(|tail| tail.start < range.end && range.start < tail.end())
            && let Some(tail) = tails.remove(&key)
        {
            tail.store();
        }
    }

    /// Reads a part, and tells of the first bytes in a buffer that the CPU has written and not flushed.
    fn load(&self, (dram, range): &Part<'_>, iova: u64) -> DramSpan {
        let (span, view) = dram.read(range.clone());
        if let Some(view) = view
            && let Some(at) = view.unflushed(range, span.as_ref())
            && self.unflushed.lock().insert(Arc::as_ptr(dram) as usize)
        {
            let iova = Iova((iova + (at - range.start) as u64) as u32);
            self.report(FindingKind::NotFlushed { iova });
        }
        span
    }

    fn store(&self, dram: &Arc<Dram>, start: usize, data: &[u8]) {
        if !self.last_line_last {
            dram.device_write(start, data);
            return;
        }
        let mut tails = self.tails.lock();
        let key = Arc::as_ptr(dram) as usize;
        let end = start + data.len();
        match tails.get_mut(&key) {
            Some(tail) if end <= tail.end() => {
                // Below the end of what is held: what overlaps is patched, the rest is stored.
                let below = data.len().min(tail.start.saturating_sub(start));
                let (below, inside) = data.split_at(below);
                if !below.is_empty() {
                    dram.device_write(start, below);
                }
                if !inside.is_empty() {
                    let at = start + below.len() - tail.start;
                    tail.bytes[at..at + inside.len()].copy_from_slice(inside);
                }
            }
            _ => {
                if let Some(tail) = tails.remove(&key) {
                    dram.device_write(tail.start, &tail.bytes);
                }
                let line = LINE_BYTES as usize;
                let split = ((end - 1) / line * line).max(start) - start;
                let (before, held) = data.split_at(split);
                if !before.is_empty() {
                    dram.device_write(start, before);
                }
                tails.insert(key, Tail { dram: Arc::clone(dram), start: start + split, bytes: held.into() });
            }
        }
    }

    /// Stores what was held back: the job is done.
    pub(crate) fn finish(&self) {
        for tail in self.tails.lock().drain().map(|(_, tail)| tail) {
            tail.store();
        }
    }

    /// As [`finish`](Self::finish), but only after some time, from another thread.
    pub(crate) fn finish_late(&self, delay: Duration) {
        let tails: Vec<Tail> = self.tails.lock().drain().map(|(_, tail)| tail).collect();
        let owed = self.board.owed.until(Instant::now() + delay);
        let late = move || {
            std::thread::sleep(delay);
            tails.iter().for_each(Tail::store);
            drop(owed);
        };
        // Without a thread the bytes come on time.
        let spawned = std::thread::Builder::new().name("ork-emu-late".into()).spawn(late);
        drop(spawned);
    }
}

impl Bus for JobBus<'_> {
    fn read(&self, iova: Iova, len: u64) -> Result<Span<'_>, BusFault> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(BusFault { iova, len, access: Access::Read });
        }
        self.with_space(|space| {
            let mut iova = iova;
            if self.mishaps.wild_read.load(Ordering::Relaxed)
                && let Some(other) = self.astray(space, iova, len)
                && self.once(&self.mishaps.wild_read, Fault::WildRead)
            {
                iova = other;
            }
            let parts =
                space.resolve(iova, len).map_err(|iova| BusFault { iova, len, access: Access::Read })?;
            if self.last_line_last {
                parts.iter().for_each(|part| self.settle(part));
            }
            Ok(match &parts[..] {
                [part] => Span::new(self.load(part, iova.0.into())),
                parts => {
                    let mut joined = Vec::with_capacity(len as usize);
                    for part in parts {
                        let at = u64::from(iova.0) + joined.len() as u64;
                        joined.extend_from_slice(self.load(part, at).as_ref());
                    }
                    Span::new(joined)
                }
            })
        })
    }

    fn write(&self, iova: Iova, data: &[u8]) -> Result<(), BusFault> {
        let len = data.len() as u64;
        let fault = |iova| BusFault { iova, len, access: Access::Write };
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(fault(iova));
        }
        if self.once(&self.mishaps.overrun, Fault::Overrun) {
            return Err(fault(iova));
        }
        self.with_space(|space| {
            let mut iova = iova;
            if self.mishaps.wild_write.load(Ordering::Relaxed)
                && let Some(other) = self.astray(space, iova, len)
                && self.once(&self.mishaps.wild_write, Fault::WildWrite)
            {
                iova = other;
            }
            let mut rest = data;
            let parts = space.resolve(iova, len).map_err(fault)?;
            // A page that is mapped for reading: the IOMMU stops the write, and nothing of it is done.
            let mut at = u64::from(iova.0);
            for (dram, range) in &parts {
                if !dram.is_writable() {
                    let iova = Iova(at as u32);
                    self.report(FindingKind::WriteToReadOnly { iova });
                    return Err(fault(iova));
                }
                at += range.len() as u64;
            }
            for (dram, range) in parts {
                let (own, others) = rest.split_at(range.len());
                self.store(dram, range.start, own);
                rest = others;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Alignment, Placement};
    use crate::pages::Backing;
    use crate::{Board, EmuOptions};
    use ork_drm::Errno;

    fn space() -> (Space, u32, u32) {
        let mut space = AddressSpace::new(Placement::TopDown, Errno::EFAULT);
        let mut map = || {
            let memory = || Ok(Arc::new(Dram::new(Backing::Private, 0x1000, &Arc::default()).unwrap()));
            space.map(0x1000, Alignment::Page, memory).unwrap().0
        };
        let (high, low) = (map(), map());
        (Space::Fixed(Arc::new(RwLock::new(space))), high, low)
    }

    fn with_bus(last_line_last: bool, test: impl FnOnce(&JobBus<'_>, u32, u32)) {
        let board = Board::new(&EmuOptions::default());
        let (space, high, low) = space();
        let cancelled = AtomicBool::new(false);
        test(&JobBus::new(&board.0, (0, 1), &space, &cancelled, last_line_last), high, low);
    }

    fn stored(bus: &JobBus<'_>, iova: u32, len: u64) -> Vec<u8> {
        bus.with_space(|space| {
            let parts = space.resolve(Iova(iova), len).unwrap();
            let mut out = vec![0; len as usize];
            parts[0].0.copy_to(parts[0].1.start, &mut out);
            out
        })
    }

    #[test]
    fn the_bus_crosses_adjacent_buffers_and_faults_in_gaps() {
        with_bus(false, |bus, high, low| {
            bus.write(Iova(high - 2), &[1, 2, 3, 4]).unwrap();
            assert_eq!(&*bus.read(Iova(high - 3), 6).unwrap(), [0, 1, 2, 3, 4, 0]);
            assert_eq!(bus.read(Iova(low), 0x2000).unwrap().len(), 0x2000);
            assert_eq!(bus.read(Iova(low), 0).unwrap().len(), 0);

            let below = BusFault { iova: Iova(low - 1), len: 2, access: Access::Read };
            assert_eq!(bus.read(Iova(low - 1), 2).unwrap_err(), below);
            let past_the_window = bus.write(Iova(0xFFFF_FFFE), &[9; 4]).unwrap_err();
            assert_eq!((past_the_window.iova, past_the_window.access), (Iova(u32::MAX), Access::Write));
            assert_eq!(&*bus.read(Iova(0xFFFF_FFFE), 2).unwrap(), [0, 0], "a failed write stores nothing");
        });
    }

    #[test]
    fn one_buffer_is_read_in_place_also_while_a_neighbour_is_written() {
        with_bus(false, |bus, high, low| {
            let held = bus.read(Iova(high), 16).unwrap();
            bus.write(Iova(low), &[1; 16]).unwrap();
            bus.write(Iova(high), &[2; 16]).unwrap();
            assert_eq!(&*held, [0; 16]);
            let place = held.as_ptr();
            drop(held);
            let again = bus.read(Iova(high), 16).unwrap();
            assert_eq!((&*again, again.as_ptr()), (&[2; 16][..], place));
        });
    }

    #[test]
    fn the_highest_line_of_each_buffer_comes_last() {
        with_bus(true, |bus, high, low| {
            bus.write(Iova(low), &[1; 200]).unwrap();
            bus.write(Iova(high), &[2; 64]).unwrap();
            bus.write(Iova(low + 100), &[3; 8]).unwrap();
            assert_eq!(stored(bus, low, 192)[191], 1);
            assert_eq!(stored(bus, low + 100, 8), [3; 8]);
            assert_eq!(stored(bus, low + 192, 8), [0; 8], "held");
            assert_eq!(stored(bus, high, 64), [0; 64], "held");
            // Patched while it is held, across its lower border; the rest is stored at once.
            bus.write(Iova(low + 190), &[4; 4]).unwrap();
            assert_eq!(stored(bus, low + 190, 3), [4, 4, 0]);
            // A higher line takes its place.
            bus.write(Iova(high + 64), &[5; 4]).unwrap();
            assert_eq!((stored(bus, high, 64), stored(bus, high + 64, 4)), (vec![2; 64], vec![0; 4]));
            bus.finish();
            assert_eq!(
                (stored(bus, low + 190, 5), stored(bus, high + 64, 4)),
                (vec![4, 4, 4, 4, 1], vec![5; 4])
            );
        });
    }

    #[test]
    fn a_job_reads_what_it_wrote() {
        with_bus(true, |bus, high, _| {
            bus.write(Iova(high), &[7; 10]).unwrap();
            assert_eq!(&*bus.read(Iova(high + 9), 1).unwrap(), [7]);
        });
    }

    #[test]
    fn a_job_that_was_given_up_touches_nothing() {
        let board = Board::new(&EmuOptions::default());
        let (space, high, _) = space();
        let cancelled = AtomicBool::new(false);
        let bus = JobBus::new(&board.0, (0, 1), &space, &cancelled, false);
        cancelled.store(true, Ordering::Relaxed);
        assert!(bus.read(Iova(high), 1).is_err());
        assert!(bus.write(Iova(high), &[1]).is_err());
        assert_eq!(stored(&bus, high, 1), [0]);
    }

    #[test]
    fn output_is_owed_from_its_time_until_it_is_there() {
        let (owed, now) = (Owed::default(), Instant::now());
        assert!(!owed.is_overdue());
        let (late, early) = (owed.until(now), owed.until(now + Duration::from_secs(3600)));
        assert!(owed.is_overdue());
        drop(late);
        assert!(!owed.is_overdue(), "the other one is not due");
        drop(early);
        assert!(owed.0.lock().is_empty());
    }
}
