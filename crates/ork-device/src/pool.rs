// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many buffers in few kernel objects.
//!
//! For buffers that only the CPU writes, and seldom: weights. Objects grow with what the pool holds, so that their
//! number stays small (about twenty for the first GiB, two more for each further one) and little is allocated
//! before it is needed. The CPU's mapping of an object lives while a buffer in it has one; the newest object stays
//! mapped, so that filling it costs one mapping.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use ork_drm::Mapping;
use parking_lot::Mutex;

use crate::buffer::{DmaBuffer, DomainId, Purpose, Slab};
use crate::error::DeviceError;
use crate::placement::Placement;
use crate::shared::Shared;

/// Rooms begin at multiples of this: whole cache lines, and whole bursts of the weight reader.
const ALIGN_BYTES: u64 = 256;
/// Smallest and largest object, unless one buffer needs more.
const SLAB_BYTES_MIN: u64 = 1 << 20;
const SLAB_BYTES_MAX: u64 = 512 << 20;

/// Buffers of one domain.
#[derive(Debug)]
pub(crate) struct Pool(Arc<Mutex<Inside>>);

#[derive(Debug)]
struct Inside {
    device: Arc<Shared>,
    domain: DomainId,
    slabs: BTreeMap<u64, Pooled>,
    next: u64,
    bytes: u64,
    /// Keeps the newest object mapped.
    open: Option<Arc<Mapping>>,
}

#[derive(Debug)]
struct Pooled {
    slab: Arc<Slab>,
    free: FreeList,
}

/// A part of an object. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Room {
    pool: Weak<Mutex<Inside>>,
    slab: u64,
    /// What was asked for, and what is occupied.
    range: Range<u64>,
    occupied: Range<u64>,
    _ticket: Option<Ticket>,
}

/// Bytes that a weight has in an address space; given back when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) placement: Arc<Mutex<Placement>>,
    pub(crate) domain: DomainId,
    pub(crate) bytes: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.placement.lock().forget(self.domain, self.bytes);
    }
}

impl Room {
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let mut inside = pool.lock();
        let Some(pooled) = inside.slabs.get_mut(&self.slab) else { return };
        pooled.free.give_back(self.occupied.clone());
        let empty = pooled.free.is_whole(pooled.slab.len());
        let gone = if empty { inside.slabs.remove(&self.slab) } else { None };
        if let Some(pooled) = &gone {
            inside.bytes -= pooled.slab.len();
            if self.slab + 1 == inside.next {
                inside.open = None;
            }
        }
        drop(inside);
        // Frees the object, unless a buffer's own reference outlives this.
        drop(gone);
    }
}

impl Pool {
    pub(crate) fn new(device: &Arc<Shared>, domain: DomainId) -> Self {
        let device = Arc::clone(device);
        let slabs = BTreeMap::new();
        Self(Arc::new(Mutex::new(Inside { device, domain, slabs, next: 0, bytes: 0, open: None })))
    }

    /// Room for a buffer, mapped.
    pub(crate) fn alloc(&self, len: u64, ticket: Ticket) -> Result<DmaBuffer, DeviceError> {
        if len == 0 {
            return Err(DeviceError::Length { len });
        }
        let occupied = len.checked_next_multiple_of(ALIGN_BYTES).ok_or(DeviceError::Length { len })?;
        let mut inside = self.0.lock();
        // The newest first: it is mapped, and mapping an older one again for a gap in it costs more than the gap is worth.
        let known =
            inside.slabs.iter_mut().rev().find_map(|(id, pooled)| Some((*id, pooled.free.take(occupied)?)));
        let (id, range) = match known {
            Some(found) => found,
            None => {
                let id = inside.grow(occupied)?;
                let pooled = inside.slabs.get_mut(&id).expect("it was just made");
                (id, pooled.free.take(occupied).expect("it was made large enough"))
            }
        };
        let slab = Arc::clone(&inside.slabs[&id].slab);
        drop(inside);
        let pool = Arc::downgrade(&self.0);
        let room = Room {
            pool,
            slab: id,
            range: range.start..range.start + len,
            occupied: range,
            _ticket: Some(ticket),
        };
        DmaBuffer::pooled(slab, room)
    }
}

impl Inside {
    fn grow(&mut self, needed: u64) -> Result<u64, DeviceError> {
        let size = (self.bytes / 2).clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX).next_multiple_of(4096);
        // When memory or addresses get short, a smaller object may still be had.
        let slab = match Slab::allocate(&self.device, self.domain, Purpose::Data, size.max(needed)) {
            Err(error) if size > needed && error.is_full() => {
                Slab::allocate(&self.device, self.domain, Purpose::Data, needed)?
            }
            result => result?,
        };
        self.open = Some(slab.map()?);
        let id = self.next;
        self.next += 1;
        self.bytes += slab.len();
        let free = FreeList::new(slab.len());
        self.slabs.insert(id, Pooled { slab: Arc::new(slab), free });
        Ok(id)
    }
}

/// Free ranges, by rising address; none touch.
#[derive(Debug)]
struct FreeList(Vec<Range<u64>>);

impl FreeList {
    fn new(len: u64) -> Self {
        Self(std::iter::once(0..len).collect())
    }

    /// The lowest place that is large enough.
    fn take(&mut self, len: u64) -> Option<Range<u64>> {
        let index = self.0.iter().position(|gap| gap.end - gap.start >= len)?;
        let gap = &mut self.0[index];
        let taken = gap.start..gap.start + len;
        gap.start += len;
        if gap.is_empty() {
            self.0.remove(index);
        }
        Some(taken)
    }

    fn give_back(&mut self, range: Range<u64>) {
        let at = self.0.partition_point(|gap| gap.start < range.start);
        self.0.insert(at, range);
        if at + 1 < self.0.len() && self.0[at].end == self.0[at + 1].start {
            self.0[at].end = self.0.remove(at + 1).end;
        }
        if at > 0 && self.0[at - 1].end == self.0[at].start {
            self.0[at - 1].end = self.0.remove(at).end;
        }
    }

    fn is_whole(&self, len: u64) -> bool {
        matches!(&self.0[..], [all] if *all == (0..len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_reused_and_join() {
        let mut list = FreeList::new(1000);
        let [a, b, c] = [100, 200, 300].map(|len| list.take(len).unwrap());
        assert_eq!((a.clone(), b.clone(), c.clone()), (0..100, 100..300, 300..600));
        assert_eq!(list.take(401), None);
        list.give_back(b);
        assert_eq!(list.take(150), Some(100..250));
        assert_eq!(list.take(50), Some(250..300));
        list.give_back(c);
        list.give_back(a);
        assert_eq!(list.0, [0..100, 300..1000]);
        list.give_back(250..300);
        list.give_back(100..250);
        assert!(list.is_whole(1000));
        assert!(!list.is_whole(1001));
    }
}
