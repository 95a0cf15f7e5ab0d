// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all buffers of a device share. The device file closes when the last of them is gone.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ork_drm::Files;
use parking_lot::Mutex;

use crate::buffer::DomainId;
use crate::clock::Clock;
use crate::counters::{Counting, add};
use crate::device::DeviceInfo;
use crate::error::DeviceError;
use crate::events::{Event, EventKind, Events};
use crate::gate::{DomainGate, InDomain, Refusal};
use crate::kernel::{Feature, Kernel, Object};
use crate::occupancy::{Occupancy, Record};
use crate::recovery::RESET_TIME;

#[derive(Debug)]
pub(crate) struct Shared {
    // Drop order: the kernel, with its file, goes last but for the lock, which says that it is gone.
    pub(crate) counters: Counting,
    pub(crate) events: Events,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) files: Arc<dyn Files>,
    pub(crate) info: DeviceInfo,
    pub(crate) gate: DomainGate,
    /// How long a call waits for jobs of another domain.
    pub(crate) gate_wait: Duration,
    /// Every object that the kernel holds for this file.
    live: Mutex<Live>,
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) occupancy: Option<Occupancy>,
}

#[derive(Debug, Default)]
struct Live {
    objects: BTreeMap<u32, (Object, DomainId)>,
    /// Nothing may be allocated any more.
    closed: bool,
}

/// All open devices of this process.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// What [`Shared::new`] needs.
pub(crate) struct Parts {
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) files: Arc<dyn Files>,
    pub(crate) info: DeviceInfo,
    pub(crate) gate_wait: Duration,
    pub(crate) occupancy: Option<Occupancy>,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts { kernel, clock, files, info, gate_wait, occupancy } = parts;
        let shared = Arc::new(Self {
            counters: Counting::default(),
            events: Events::default(),
            clock,
            files,
            info,
            gate: DomainGate::default(),
            gate_wait,
            live: Mutex::default(),
            kernel,
            occupancy,
        });
        let mut open = OPEN.lock();
        open.retain(|device| device.strong_count() != 0);
        open.push(Arc::downgrade(&shared));
        shared
    }

    pub(crate) fn check_domain(&self, domain: DomainId) -> Result<(), DeviceError> {
        let features = self.kernel.features();
        let domains = features.domains();
        if domain.0 < domains {
            return Ok(());
        }
        Err(DeviceError::Domain { domain: domain.0, driver: features.name().to_owned(), domains })
    }

    /// Uses a domain; waits until no job of another one is in flight.
    pub(crate) fn enter(&self, domain: DomainId) -> Result<InDomain<'_>, DeviceError> {
        self.gate.enter(domain, self.gate_wait).map_err(|refusal| match refusal {
            Refusal::Occupied(live) => {
                DeviceError::DomainBusy { wanted: domain, live, waited: self.gate_wait }
            }
            Refusal::Closed => DeviceError::Closed,
        })
    }

    pub(crate) fn note(&self, core: Option<u8>, kind: EventKind) {
        self.events.note(Event { at: self.clock.now(), core, kind });
    }

    /// Refuses to allocate in a closed device.
    pub(crate) fn check_open(&self) -> Result<(), DeviceError> {
        if self.live.lock().closed { Err(DeviceError::Closed) } else { Ok(()) }
    }

    /// Registers an object, and gives it back to the caller to free if the device was closed meanwhile.
    pub(crate) fn adopt(&self, object: &Object, domain: DomainId) -> Result<(), DeviceError> {
        let mut live = self.live.lock();
        if live.closed {
            return Err(DeviceError::Closed);
        }
        live.objects.insert(object.handle, (*object, domain));
        self.tell(&live);
        Ok(())
    }

    /// Frees an object, unless that was done already.
    pub(crate) fn free(&self, object: &Object) {
        let domain = self.live.lock().objects.get(&object.handle).map(|(_, domain)| *domain);
        let Some(domain) = domain else { return };
        // Whoever closes the device waits for this one, or frees the object himself. Another refusal does not keep it
        // from trying: the kernel has a wait of its own.
        let used = self.enter(domain);
        if matches!(used, Err(DeviceError::Closed)) {
            return;
        }
        let mut live = self.live.lock();
        let Some((object, domain)) = live.objects.remove(&object.handle) else { return };
        self.tell(&live);
        drop(live);
        self.free_now(&object, domain);
    }

    fn free_now(&self, object: &Object, domain: DomainId) -> bool {
        match self.kernel.free(object) {
            Ok(()) => {
                add(&self.counters.buffers_freed, 1);
                true
            }
            Err(error) => {
                add(&self.counters.failed_frees, 1);
                let errno = error.errno().map(|errno| errno.to_string());
                tracing::warn!(%error, errno, "leaked a buffer of {} bytes in domain {domain}", object.size);
                false
            }
        }
    }

    /// Frees everything that the kernel holds, and refuses everything new. Jobs in flight get so much time.
    fn close(&self, limit: Duration) -> Closed {
        if !self.gate.close(limit) && self.kernel.features().has(Feature::Reset) {
            // Memory must not go while a job writes it.
            if let Err(error) = self.kernel.reset() {
                tracing::warn!(%error, "cannot reset the NPU under a job that does not end");
            }
            self.gate.close(RESET_TIME);
        }
        let objects = {
            let mut live = self.live.lock();
            live.closed = true;
            std::mem::take(&mut live.objects)
        };
        let mut closed = Closed::default();
        // By domain: each change of the domain costs.
        let mut objects: Vec<_> = objects.into_values().collect();
        objects.sort_by_key(|(object, domain)| (*domain, object.handle));
        for (object, domain) in objects {
            if self.free_now(&object, domain) {
                closed.freed += 1;
            } else {
                closed.leaked += 1;
            }
        }
        self.tell(&self.live.lock());
        closed
    }

    /// Keeps the lock file's record up to date.
    fn tell(&self, live: &Live) {
        let Some(occupancy) = &self.occupancy else { return };
        let mut domains = [false; 256];
        live.objects.values().for_each(|(_, domain)| domains[usize::from(domain.0)] = true);
        let record = Record {
            pid: std::process::id(),
            domains: domains.iter().filter(|used| **used).count() as u32,
            objects: live.objects.len() as u64,
            bytes: live.objects.values().map(|(object, _)| object.size).sum(),
        };
        if let Err(error) = occupancy.note(&record) {
            tracing::debug!(%error, "cannot write the lock file's record");
        }
    }
}

/// What [`close_all`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Objects that the kernel has back.
    pub freed: u64,
    /// Objects that it could not be given back.
    pub leaked: u64,
}

/// Gives back everything that the kernel holds for this process, on all devices, and lets nothing new begin: for a
/// program that is about to be ended by a signal.
///
/// The vendor's kernel does not do that by itself in all cases: addresses in domains other than the live one stay
/// taken until the next boot (`uapi.md` A.11 row 10). Jobs in flight get `limit` to end, on each device; then the NPU is
/// reset, where that can be done. It must not be called *in* a signal handler, but by a thread that one wakes. Buffers
/// that still exist keep their mappings and cannot be used otherwise any more.
pub fn close_all(limit: Duration) -> Closed {
    let open: Vec<Arc<Shared>> = OPEN.lock().iter().filter_map(Weak::upgrade).collect();
    open.iter().map(|device| device.close(limit)).fold(Closed::default(), |sum, one| Closed {
        freed: sum.freed + one.freed,
        leaked: sum.leaked + one.leaked,
    })
}
