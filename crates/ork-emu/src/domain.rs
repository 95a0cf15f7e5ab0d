// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address spaces: which bytes an IOVA means, and which space is live.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_drm::Errno;
use ork_isa::Iova;
use ork_sim::{Access, Bus, BusFault, Span};
use parking_lot::{Condvar, Mutex, RwLock};

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

/// A buffer and the part of it that is meant.
type Part<'a> = (&'a Arc<Dram>, Range<usize>);

/// One 32-bit address space: which buffers lie where.
#[derive(Default)]
pub(crate) struct AddressSpace {
    buffers: BTreeMap<u32, Arc<Dram>>,
}

impl AddressSpace {
    /// Finds the highest free place for `size` bytes (whole pages) and maps what `memory` makes there.
    pub(crate) fn map(
        &mut self,
        size: u64,
        alignment: Alignment,
        memory: impl FnOnce() -> Result<Arc<Dram>, Errno>,
    ) -> Result<(u32, Arc<Dram>), Errno> {
        let align = match alignment {
            Alignment::Size => size.checked_next_power_of_two().ok_or(Errno::EFAULT)?,
            Alignment::Page => PAGE_BYTES,
        };
        // A full window is reported as a failed mapping.
        let start = self.highest_gap(size, align).ok_or(Errno::EFAULT)?;
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

    pub(crate) fn unmap(&mut self, start: u32) {
        self.buffers.remove(&start);
    }

    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.buffers.values().map(|dram| dram.len() as u64).sum()
    }

    /// The buffers under `len` bytes from `iova`, each with the part that is meant. Fails at the first address that
    /// is not mapped.
    fn resolve(&self, iova: Iova, len: u64) -> Result<Vec<Part<'_>>, Iova> {
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

/// What a job sees: one address space, as it is mapped at the moment of each access.
pub(crate) struct DomainBus<'a> {
    pub(crate) space: &'a RwLock<AddressSpace>,
}

impl Bus for DomainBus<'_> {
    fn read(&self, iova: Iova, len: u64) -> Result<Span<'_>, BusFault> {
        let space = self.space.read();
        let parts = space.resolve(iova, len).map_err(|iova| BusFault { iova, len, access: Access::Read })?;
        Ok(match &parts[..] {
            [(dram, range)] => Span::new(dram.read(range.clone())),
            parts => {
                let mut joined = Vec::with_capacity(len as usize);
                for (dram, range) in parts {
                    joined.extend_from_slice(dram.read(range.clone()).as_ref());
                }
                Span::new(joined)
            }
        })
    }

    fn write(&self, iova: Iova, data: &[u8]) -> Result<(), BusFault> {
        let len = data.len() as u64;
        let space = self.space.read();
        let parts = space.resolve(iova, len).map_err(|iova| BusFault { iova, len, access: Access::Write })?;
        let mut rest = data;
        for (dram, range) in parts {
            let (own, others) = rest.split_at(range.len());
            dram.write(range.start, own);
            rest = others;
        }
        Ok(())
    }
}

/// Which domain is live, and how many calls and jobs need it to be.
pub(crate) struct LiveDomain {
    state: Mutex<LiveState>,
    changed: Condvar,
    wait: Duration,
}

#[derive(Clone, Copy)]
struct LiveState {
    domain: u8,
    users: u32,
}

impl LiveDomain {
    pub(crate) fn new(wait: Duration) -> Self {
        Self { state: Mutex::new(LiveState { domain: 0, users: 0 }), changed: Condvar::new(), wait }
    }

    pub(crate) fn current(&self) -> u8 {
        self.state.lock().domain
    }

    /// Makes `domain` live and keeps it so until [`leave`](Self::leave). Another domain can only take over when
    /// nobody uses the live one; that is waited for, a bounded time.
    pub(crate) fn enter(&self, domain: u8) -> Result<(), Errno> {
        let deadline = Instant::now() + self.wait;
        let mut state = self.state.lock();
        while state.domain != domain && state.users != 0 {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
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

    fn map(space: &mut AddressSpace, size: u64, alignment: Alignment) -> Result<u32, Errno> {
        let memory = || Ok(Arc::new(Dram::new(size as usize, &Arc::default()).unwrap()));
        space.map(size, alignment, memory).map(|(start, _)| start)
    }

    #[test]
    fn addresses_grow_down_and_touch() {
        let mut space = AddressSpace::default();
        assert_eq!(map(&mut space, 0x1000, Alignment::Page), Ok(0xFFFF_F000));
        assert_eq!(map(&mut space, 0x15000, Alignment::Page), Ok(0xFFFE_A000));
        assert_eq!(map(&mut space, 0xD000, Alignment::Page), Ok(0xFFFD_D000));
    }

    #[test]
    fn without_the_flag_addresses_are_aligned_to_the_size() {
        let mut space = AddressSpace::default();
        assert_eq!(map(&mut space, 0x1000, Alignment::Size), Ok(0xFFFF_F000));
        assert_eq!(map(&mut space, 0x15000, Alignment::Size), Ok(0xFFFE_0000));
        assert_eq!(map(&mut space, 0x15000, Alignment::Size), Ok(0xFFFC_0000));
    }

    #[test]
    fn the_highest_gap_that_fits_is_reused() {
        let mut space = AddressSpace::default();
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
        let mut space = AddressSpace::default();
        assert_eq!(map(&mut space, WINDOW_BYTES, Alignment::Page), Err(Errno::EFAULT));
        assert_eq!(map(&mut space, WINDOW_BYTES - 0x1000, Alignment::Page), Ok(0x1000));
        assert_eq!(map(&mut space, 0x1000, Alignment::Page), Err(Errno::EFAULT));
        assert_eq!(map(&mut space, u64::MAX - 0xFFF, Alignment::Size), Err(Errno::EFAULT));
    }

    #[test]
    fn the_bus_crosses_adjacent_buffers_and_faults_in_gaps() {
        let mut space = AddressSpace::default();
        let high = map(&mut space, 0x1000, Alignment::Page).unwrap();
        let low = map(&mut space, 0x1000, Alignment::Page).unwrap();
        let space = RwLock::new(space);
        let bus = DomainBus { space: &space };
        bus.write(Iova(high - 2), &[1, 2, 3, 4]).unwrap();
        assert_eq!(&*bus.read(Iova(high - 3), 6).unwrap(), [0, 1, 2, 3, 4, 0]);
        assert_eq!(bus.read(Iova(low), 0x2000).unwrap().len(), 0x2000);
        assert_eq!(bus.read(Iova(low), 0).unwrap().len(), 0);

        let below = BusFault { iova: Iova(low - 1), len: 2, access: Access::Read };
        assert_eq!(bus.read(Iova(low - 1), 2).unwrap_err(), below);
        let past_the_window = bus.write(Iova(0xFFFF_FFFE), &[9; 4]).unwrap_err();
        assert_eq!((past_the_window.iova, past_the_window.access), (Iova(u32::MAX), Access::Write));
        assert_eq!(&*bus.read(Iova(0xFFFF_FFFE), 2).unwrap(), [0, 0], "a failed write stores nothing");
    }

    #[test]
    fn one_buffer_is_read_in_place_also_while_a_neighbour_is_written() {
        let mut space = AddressSpace::default();
        let high = map(&mut space, 0x1000, Alignment::Page).unwrap();
        let low = map(&mut space, 0x1000, Alignment::Page).unwrap();
        let space = RwLock::new(space);
        let bus = DomainBus { space: &space };
        let held = bus.read(Iova(high), 16).unwrap();
        bus.write(Iova(low), &[1; 16]).unwrap();
        bus.write(Iova(high), &[2; 16]).unwrap();
        assert_eq!(&*held, [0; 16]);
        let place = held.as_ptr();
        drop(held);
        let again = bus.read(Iova(high), 16).unwrap();
        assert_eq!((&*again, again.as_ptr()), (&[2; 16][..], place));
    }

    #[test]
    fn another_domain_waits_for_the_users_of_the_live_one() {
        let live = LiveDomain::new(Duration::from_millis(20));
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
        let live = LiveDomain::new(Duration::from_secs(60));
        live.enter(2).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| live.enter(3));
            live.leave();
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        assert_eq!(live.current(), 3);
    }
}
