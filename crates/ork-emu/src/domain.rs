// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address spaces: which bytes an IOVA means, and which space is live.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_drm::Errno;
use ork_isa::Iova;

use crate::lock::{Condvar, Mutex};
use crate::memory::Dram;

/// Page of the IOMMU and of every size.
pub(crate) const PAGE_BYTES: u64 = 4096;
const WINDOW_BYTES: u64 = 1 << 32;

/// How an address is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// To the size, rounded up to a power of two.
    Size,
    /// To pages only (flag 0x400).
    Page,
}

/// From which end addresses are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The highest that is free; never address 0.
    TopDown,
    /// The lowest that is free, from this one.
    BottomUp(u32),
}

/// A buffer and the part of it that is meant.
pub(crate) type Part<'a> = (&'a Arc<Dram>, Range<usize>);

/// One 32-bit address space: which buffers lie where.
pub(crate) struct AddressSpace {
    buffers: BTreeMap<u32, Arc<Dram>>,
    placement: Placement,
    /// What a full window is reported as.
    full: Errno,
}

impl AddressSpace {
    pub(crate) fn new(placement: Placement, full: Errno) -> Self {
        Self { buffers: BTreeMap::new(), placement, full }
    }

    /// What a full window is reported as.
    pub(crate) fn full(&self) -> Errno {
        self.full
    }

    /// Finds a free place for `size` bytes (whole pages) and maps what `memory` makes there.
    pub(crate) fn map(
        &mut self,
        size: u64,
        alignment: Alignment,
        memory: impl FnOnce() -> Result<Arc<Dram>, Errno>,
    ) -> Result<(u32, Arc<Dram>), Errno> {
        let align = match alignment {
            Alignment::Size => size.checked_next_power_of_two().ok_or(self.full)?,
            Alignment::Page => PAGE_BYTES,
        };
        let place = match self.placement {
            Placement::TopDown => self.highest_gap(size, align),
            Placement::BottomUp(first) => self.lowest_gap(size, align, first),
        };
        let start = place.ok_or(self.full)?;
        let dram = memory()?;
        self.buffers.insert(start, Arc::clone(&dram));
        Ok((start, dram))
    }

    fn highest_gap(&self, size: u64, align: u64) -> Option<u32> {
        let mut ceiling = WINDOW_BYTES;
        // Address 0 is never given out.
        let below = self.buffers.iter().rev().map(|(start, dram)| (u64::from(*start), dram.len() as u64));
        for (start, len) in below.chain([(0, PAGE_BYTES)]) {
            let floor = start + len;
            let place = ceiling.checked_sub(size).map(|top| top / align * align);
            if let Some(place) = place.filter(|place| *place >= floor) {
                return u32::try_from(place).ok();
            }
            ceiling = start;
        }
        None
    }

    fn lowest_gap(&self, size: u64, align: u64, first: u32) -> Option<u32> {
        let mut place = u64::from(first).next_multiple_of(align);
        for (start, dram) in &self.buffers {
            if place.checked_add(size)? <= u64::from(*start) {
                break;
            }
            place = place.max(u64::from(*start) + dram.len() as u64).next_multiple_of(align);
        }
        if place.checked_add(size)? <= WINDOW_BYTES { u32::try_from(place).ok() } else { None }
    }

    pub(crate) fn unmap(&mut self, start: u32) {
        self.buffers.remove(&start);
    }

    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.buffers.values().map(|dram| dram.len() as u64).sum()
    }

    /// The first address of some buffer other than the one under `iova` that holds `len` bytes; `turn` chooses.
    pub(crate) fn elsewhere(&self, iova: Iova, len: u64, turn: u64) -> Option<Iova> {
        let own = self.buffers.range(..=iova.0).next_back().map(|(start, _)| *start);
        let fits = |(start, dram): &(&u32, &Arc<Dram>)| Some(**start) != own && dram.len() as u64 >= len;
        let others: Vec<u32> = self.buffers.iter().filter(fits).map(|(start, _)| *start).collect();
        let index = usize::try_from(turn % (others.len().max(1) as u64)).unwrap_or(0);
        others.get(index).map(|start| Iova(*start))
    }

    /// The buffers under `len` bytes from `iova`, each with the part that is meant. Fails at the first address that
    /// is not mapped.
    pub(crate) fn resolve(&self, iova: Iova, len: u64) -> Result<Vec<Part<'_>>, Iova> {
        let mut parts = Vec::with_capacity(1);
        let (mut at, end) = (u64::from(iova.0), u64::from(iova.0) + len);
        while at < end {
            let address = u32::try_from(at).map_err(|_| Iova(u32::MAX))?;
            let (start, dram) = self.buffers.range(..=address).next_back().ok_or(Iova(address))?;
            let offset = (address - start) as usize;
            if offset >= dram.len() {
                return Err(Iova(address));
            }
            let take = (end - at).min((dram.len() - offset) as u64);
            parts.push((dram, offset..offset + take as usize));
            at += take;
        }
        Ok(parts)
    }
}

/// Which domain is live, and how many calls and jobs need it to be.
pub(crate) struct LiveDomain {
    state: Mutex<LiveState>,
    changed: Condvar,
    wait: Duration,
    /// Whether users are waited for (0.9.8), or the switch is done at once.
    counted: bool,
}

#[derive(Clone, Copy)]
struct LiveState {
    domain: u8,
    users: u32,
}

impl LiveDomain {
    pub(crate) fn new(wait: Duration, counted: bool) -> Self {
        Self { state: Mutex::new(LiveState { domain: 0, users: 0 }), changed: Condvar::new(), wait, counted }
    }

    pub(crate) fn current(&self) -> u8 {
        self.state.lock().domain
    }

    /// Makes `domain` live and keeps it so until [`leave`](Self::leave). Another domain can only take over when
    /// nobody uses the live one; that is waited for, a bounded time.
    pub(crate) fn enter(&self, domain: u8) -> Result<(), Errno> {
        let taken = |state: &mut LiveState| self.counted && state.domain != domain && state.users != 0;
        let mut state = self.state.lock();
        if taken(&mut state) {
            state = self.changed.wait_while(state, Some(Instant::now() + self.wait), taken);
            if taken(&mut state) {
                return Err(Errno::EINVAL);
            }
        }
        *state = LiveState { domain, users: state.users + 1 };
        Ok(())
    }

    pub(crate) fn leave(&self) {
        let mut state = self.state.lock();
        state.users -= 1;
        if state.users == 0 {
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Backing;

    fn top_down() -> AddressSpace {
        AddressSpace::new(Placement::TopDown, Errno::EFAULT)
    }

    fn map(space: &mut AddressSpace, size: u64, alignment: Alignment) -> Result<u32, Errno> {
        let memory = || Ok(Arc::new(Dram::new(Backing::Private, size as usize, &Arc::default()).unwrap()));
        space.map(size, alignment, memory).map(|(start, _)| start)
    }

    #[test]
    fn addresses_grow_down_and_touch() {
        let mut space = top_down();
        assert_eq!(map(&mut space, 0x1000, Alignment::Page), Ok(0xFFFF_F000));
        assert_eq!(map(&mut space, 0x15000, Alignment::Page), Ok(0xFFFE_A000));
        assert_eq!(map(&mut space, 0xD000, Alignment::Page), Ok(0xFFFD_D000));
    }

    #[test]
    fn without_the_flag_addresses_are_aligned_to_the_size() {
        let mut space = top_down();
        assert_eq!(map(&mut space, 0x1000, Alignment::Size), Ok(0xFFFF_F000));
        assert_eq!(map(&mut space, 0x15000, Alignment::Size), Ok(0xFFFE_0000));
        assert_eq!(map(&mut space, 0x15000, Alignment::Size), Ok(0xFFFC_0000));
    }

    #[test]
    fn the_highest_gap_that_fits_is_reused() {
        let mut space = top_down();
        let a = map(&mut space, 0x1000, Alignment::Page).unwrap();
        let b = map(&mut space, 0x3000, Alignment::Page).unwrap();
        let c = map(&mut space, 0x1000, Alignment::Page).unwrap();
        space.unmap(a);
        space.unmap(b);
        assert_eq!(map(&mut space, 0x2000, Alignment::Page), Ok(0xFFFF_E000));
        assert_eq!(map(&mut space, 0x4000, Alignment::Page), Ok(c - 0x4000));
        assert_eq!(map(&mut space, 0x1000, Alignment::Page), Ok(0xFFFF_D000));
    }

    #[test]
    fn a_full_window_is_efault_and_address_zero_is_never_used() {
        let mut space = top_down();
        assert_eq!(map(&mut space, WINDOW_BYTES, Alignment::Page), Err(Errno::EFAULT));
        assert_eq!(map(&mut space, WINDOW_BYTES - 0x1000, Alignment::Page), Ok(0x1000));
        assert_eq!(map(&mut space, 0x1000, Alignment::Page), Err(Errno::EFAULT));
        assert_eq!(map(&mut space, u64::MAX - 0xFFF, Alignment::Size), Err(Errno::EFAULT));
    }

    #[test]
    fn from_below_the_first_address_is_zero() {
        let mut space = AddressSpace::new(Placement::BottomUp(0), Errno::ENOSPC);
        let places: Vec<_> =
            [0x1000, 0x3000, 0x1000].map(|size| map(&mut space, size, Alignment::Page)).into_iter().collect();
        assert_eq!(places, [Ok(0), Ok(0x1000), Ok(0x4000)]);
        space.unmap(0x1000);
        assert_eq!(map(&mut space, 0x2000, Alignment::Page), Ok(0x1000), "the lowest gap that fits");
        assert_eq!(map(&mut space, 0x2000, Alignment::Page), Ok(0x5000));
        assert_eq!(map(&mut space, WINDOW_BYTES, Alignment::Page), Err(Errno::ENOSPC));
        assert_eq!(map(&mut space, WINDOW_BYTES - 0x7000, Alignment::Page), Ok(0x7000));
        assert_eq!(map(&mut space, 0x1000, Alignment::Page), Ok(0x3000));
        assert_eq!(map(&mut space, 0x1000, Alignment::Page), Err(Errno::ENOSPC));
    }

    #[test]
    fn old_drivers_switch_under_users() {
        let live = LiveDomain::new(Duration::from_secs(60), false);
        live.enter(1).unwrap();
        assert_eq!((live.enter(2), live.current()), (Ok(()), 2));
        live.leave();
        live.leave();
        assert_eq!(live.current(), 2);
    }

    #[test]
    fn another_domain_waits_for_the_users_of_the_live_one() {
        let live = LiveDomain::new(Duration::from_millis(20), true);
        live.enter(0).unwrap();
        live.enter(0).unwrap();
        assert_eq!(live.enter(1), Err(Errno::EINVAL));
        live.leave();
        assert_eq!(live.enter(1), Err(Errno::EINVAL));
        live.leave();
        assert_eq!((live.enter(1), live.current()), (Ok(()), 1));
        live.leave();
        assert_eq!(live.current(), 1, "the last domain stays live");
    }

    #[test]
    fn a_waiting_switch_proceeds_when_the_last_user_leaves() {
        let live = LiveDomain::new(Duration::from_secs(60), true);
        live.enter(2).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| live.enter(3));
            live.leave();
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        assert_eq!(live.current(), 3);
    }
}
