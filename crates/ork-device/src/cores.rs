// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cores of a round, taken together: rounds that took them one by one, each in its own order, could wait for each
//! other for ever.

use std::collections::{BTreeMap, BTreeSet};

use crate::buffer::DomainId;
use crate::device::Device;
use crate::error::SubmitError;
use crate::flight::Flight;
use crate::single::Taken;

impl Device {
    /// Takes several cores, each once and in ascending order whatever order they are given in, and then the domain.
    fn hold_all(
        &self,
        cores: impl Iterator<Item = u8>,
        domain: DomainId,
    ) -> Result<BTreeMap<u8, Taken<'_>>, SubmitError> {
        let cores: BTreeSet<u8> = cores.collect();
        let slots: Vec<_> =
            cores.into_iter().map(|core| (core, self.slots[usize::from(core)].lock())).collect();
        slots.into_iter().map(|(core, slot)| Ok((core, self.join_domain(slot, domain)?))).collect()
    }
}

impl<'a> Flight<'a> {
    /// Takes all cores of the round before any chain starts: in one order, so that two rounds never wait for each other.
    /// Of chains that share a core the first gets it.
    pub(crate) fn take_cores(&mut self) -> Result<(), SubmitError> {
        let Some(first) = self.lanes.first() else { return Ok(()) };
        let domain = first.chain.submission.domain;
        let mut cores = self.device.hold_all(self.lanes.iter().map(|lane| lane.core), domain)?;
        for (held, lane) in self.held.iter_mut().zip(&self.lanes) {
            *held = cores.remove(&lane.core);
        }
        Ok(())
    }

    /// Gives the core of a chain that has ended to the next one that waits for it, or back.
    pub(crate) fn hand_over(&mut self, index: usize, core: Taken<'a>) {
        let waits = |other: &usize| {
            *other != index
                && self.lanes[*other].core == self.lanes[index].core
                && self.attempts[*other].is_none()
                && !self.lanes[*other].airborne
        };
        if let Some(next) = (0..self.lanes.len()).find(waits) {
            self.held[next] = Some(core);
        }
    }
}
