// SPDX-License-Identifier: MIT OR Apache-2.0
//! In which address space a weight goes.
//!
//! A domain is filled to its share and then left for the next one, before it is full: a domain that overflows resets
//! the IOMMU under everybody (the original driver's findings; first failure above 4.1 GB, 3.0 GiB is safe), and some
//! room must stay for activations, results and programs. Weights of a model are used in the order in which they
//! come, so filling one domain after the other makes one change of the domain for each border, where alternating
//! would make one for each weight.

use crate::buffer::DomainId;

/// Bytes of weights in each domain.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    used: Vec<u64>,
    current: usize,
    limit: u64,
    /// What a domain gets before the next one is begun.
    share: u64,
}

/// No domain has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) held: u64,
}

impl Placement {
    /// So many domains with at most `limit` bytes of weights in each.
    pub(crate) fn new(domains: u8, limit: u64) -> Self {
        Self { used: vec![0; usize::from(domains.max(1))], current: 0, limit, share: limit }
    }

    /// Balances what is to come over as few domains as can hold it.
    pub(crate) fn expect(&mut self, bytes: u64) {
        let held: u64 = self.used.iter().sum();
        let total = held + bytes;
        let needed = total.div_ceil(self.limit.max(1)).clamp(1, self.used.len() as u64);
        self.share = total.div_ceil(needed).min(self.limit);
    }

    /// The domain for a weight; it counts as placed.
    pub(crate) fn place(&mut self, bytes: u64) -> Result<DomainId, NoRoom> {
        let last = self.used.len() - 1;
        // Half a weight beyond the share is nearer to it than half a weight below.
        while self.current < last
            && self.used[self.current] != 0
            && (self.used[self.current] + bytes / 2 > self.share
                || self.used[self.current] + bytes > self.limit)
        {
            self.current += 1;
        }
        // What was freed meanwhile, and what the share left, is used when nothing else is left.
        let fits = |index: &usize| self.used[*index] + bytes <= self.limit;
        let order = std::iter::once(self.current).chain(0..=last);
        let chosen = { order }.find(fits).ok_or(NoRoom { held: self.used.iter().sum() })?;
        self.used[chosen] += bytes;
        Ok(DomainId(chosen as u8))
    }

    /// A weight is gone.
    pub(crate) fn forget(&mut self, domain: DomainId, bytes: u64) {
        if let Some(used) = self.used.get_mut(usize::from(domain.0)) {
            *used = used.saturating_sub(bytes);
        }
    }

    /// Bytes of weights by domain.
    pub(crate) fn used(&self) -> &[u64] {
        &self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(placement: &mut Placement, count: usize, bytes: u64) -> Vec<u8> {
        (0..count).map_while(|_| placement.place(bytes).ok().map(|domain| domain.0)).collect()
    }

    #[test]
    fn a_domain_is_left_before_its_limit_and_never_exceeds_it() {
        let mut placement = Placement::new(3, 1000);
        assert_eq!(place(&mut placement, 100, 300), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(placement.place(300), Err(NoRoom { held: 2700 }));
        assert_eq!(place(&mut placement, 100, 100), [2, 0, 1], "what is left over");
        assert!(placement.used().iter().all(|used| *used == 1000));
    }

    #[test]
    fn a_known_total_is_balanced_over_as_few_domains_as_can_hold_it() {
        let mut placement = Placement::new(4, 1000);
        placement.expect(1200);
        assert_eq!(place(&mut placement, 12, 100), [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
        // More than expected still fits.
        assert_eq!(place(&mut placement, 30, 100).len(), 28);
    }

    #[test]
    fn rounding_does_not_open_one_domain_more() {
        let mut placement = Placement::new(8, 1000);
        placement.expect(7 * 260);
        let domains = place(&mut placement, 7, 260);
        assert_eq!(domains.iter().max(), Some(&2), "{domains:?}: three of 260 do not fit 910, four not 1000");
        assert_eq!(placement.used().iter().sum::<u64>(), 7 * 260);
    }

    #[test]
    fn freed_room_is_used_again() {
        let mut placement = Placement::new(2, 100);
        assert_eq!(place(&mut placement, 4, 50), [0, 0, 1, 1]);
        placement.forget(DomainId(0), 50);
        assert_eq!(place(&mut placement, 2, 50), [0]);
    }

    #[test]
    fn a_weight_larger_than_the_limit_has_no_domain() {
        assert_eq!(Placement::new(2, 100).place(101), Err(NoRoom { held: 0 }));
    }
}
