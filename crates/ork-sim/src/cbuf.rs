// SPDX-License-Identifier: MIT OR Apache-2.0
//! The convolution buffer: 12 banks of 32 KB. Features fill it from bank 0 upward, line by line in 64-byte
//! granules; weights stream through the last W banks as a ring (`isa.md` §10).

use std::borrow::Cow;

use ork_isa::Iova;
use ork_isa::soc::RK3588;

use crate::Bus;
use crate::diagnosis::Origin;

/// Bytes of a bank.
pub(crate) const BANK: usize = RK3588.bank_bytes as usize;
/// Bytes of the buffer.
pub(crate) const SIZE: usize = RK3588.cbuf_banks as usize * BANK;

/// Where the features in the buffer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeatureLoad {
    pub(crate) by: Origin,
    pub(crate) base: Iova,
    pub(crate) lines: usize,
    pub(crate) line_bytes: usize,
    pub(crate) banks: u32,
}

/// Where the weights in the buffer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightLoad {
    pub(crate) by: Origin,
    pub(crate) base: Iova,
    pub(crate) bytes: u64,
    /// Feature and weight banks of the split that they were loaded under.
    pub(crate) split: (u32, u32),
}

/// Weights that belong into the ring but were not copied yet: they still lie unchanged in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending {
    /// Where the whole stream lies.
    base: Iova,
    len: usize,
    /// Banks of the ring.
    banks: u32,
}

impl Pending {
    /// First byte in memory that the ring keeps, and one behind the last.
    fn kept(&self) -> (u64, u64) {
        let end = u64::from(self.base.0) + self.len as u64;
        (end - self.len.min(ring_len(self.banks)) as u64, end)
    }
}

fn ring_len(banks: u32) -> usize {
    (banks as usize * BANK).min(SIZE)
}

/// Contents with provenance.
///
/// Copying up to 352 KB per task to a ring that hardly any task reads again is most of what a small task would cost.
/// So a load is only noted, and copied when somebody could tell the difference: before a task reads the ring, before
/// another load overwrites a part of it, before the core overwrites that memory, and when the job ends.
pub(crate) struct Cbuf {
    bytes: Vec<u8>,
    pending: Option<Pending>,
    pub(crate) features: Option<FeatureLoad>,
    pub(crate) weights: Option<WeightLoad>,
}

impl std::fmt::Debug for Cbuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cbuf")
            .field("features", &self.features)
            .field("weights", &self.weights)
            .finish_non_exhaustive()
    }
}

impl Cbuf {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; SIZE], pending: None, features: None, weights: None }
    }

    /// The feature side: `banks` banks from 0. A pending load must not reach into it ([`Self::open_features`]).
    pub(crate) fn feature_bytes(&self, banks: u32) -> &[u8] {
        &self.bytes[..ring_len(banks)]
    }

    pub(crate) fn feature_bytes_mut(&mut self, banks: u32) -> &mut [u8] {
        &mut self.bytes[..ring_len(banks)]
    }

    /// To be called before `banks` banks of features are read or written.
    pub(crate) fn open_features(&mut self, bus: &dyn Bus, banks: u32) {
        if self.pending.is_some_and(|load| ring_len(banks) + ring_len(load.banks) > SIZE) {
            self.settle(bus);
        }
    }

    /// Notes that `len` bytes from `base` were loaded into the ring of the split's weight banks.
    pub(crate) fn load_weights(&mut self, bus: &dyn Bus, (data, banks): (u32, u32), base: Iova, len: usize) {
        let covers = |old: &Pending| match len >= ring_len(banks) {
            true => banks >= old.banks,
            false => banks == old.banks && len >= old.len.min(ring_len(banks)),
        };
        if self.pending.as_ref().is_some_and(|old| !covers(old)) {
            self.settle(bus);
        }
        self.pending = Some(Pending { base, len, banks });
        // A ring that reaches into the features overwrites them now.
        self.open_features(bus, data);
    }

    /// To be called before the core stores `len` bytes at `at`.
    pub(crate) fn before_store(&mut self, bus: &dyn Bus, at: u64, len: usize) {
        let touched = |load: Pending| {
            let (first, end) = load.kept();
            at < end && first < at + len as u64
        };
        if self.pending.is_some_and(touched) {
            self.settle(bus);
        }
    }

    /// Copies a pending load.
    pub(crate) fn settle(&mut self, bus: &dyn Bus) {
        let Some(load) = self.pending.take() else { return };
        let (first, end) = load.kept();
        match bus.read(Iova(first as u32), end - first) {
            Ok(kept) => self.retain_weights(load.banks, load.len, &kept),
            // Somebody took the memory away under the job: nobody knows what the ring holds.
            Err(_) => self.weights = None,
        }
    }

    /// Leaves the end of a stream of `len` bytes in the last `banks` banks as a ring does that it overwrites from the
    /// start (`isa.md` §10.6): only the last `banks` banks' worth of it survives.
    fn retain_weights(&mut self, banks: u32, len: usize, kept: &[u8]) {
        let size = ring_len(banks);
        let ring = &mut self.bytes[SIZE - size..];
        if size == 0 {
            return;
        }
        let place = (len - kept.len()) % size;
        let (now, later) = kept.split_at((size - place).min(kept.len()));
        ring[place..place + now.len()].copy_from_slice(now);
        ring[..later.len()].copy_from_slice(later);
    }

    /// A stream of `len` bytes as a task reads it that loads no weights: offset modulo the ring. No load may be
    /// pending.
    pub(crate) fn reused_weights(&self, banks: u32, len: usize) -> Cow<'_, [u8]> {
        let ring = &self.bytes[SIZE - ring_len(banks)..];
        match ring.get(..len) {
            Some(bytes) => Cow::Borrowed(bytes),
            None => ring.iter().copied().cycle().take(len).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{BusFault, Span};

    /// Memory from 0, and how much of it was read.
    struct Flat(Mutex<(Vec<u8>, usize)>);

    impl Flat {
        fn new() -> Self {
            Self(Mutex::new(((0..1 << 20).map(|i| (i % 251) as u8).collect(), 0)))
        }

        fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
            self.0.lock().unwrap().0[at..at + len].to_vec()
        }

        fn read_bytes(&self) -> usize {
            self.0.lock().unwrap().1
        }
    }

    impl Bus for Flat {
        fn read(&self, iova: Iova, len: u64) -> Result<Span<'_>, BusFault> {
            self.0.lock().unwrap().1 += len as usize;
            Ok(Span::new(self.bytes(iova.0 as usize, len as usize)))
        }

        fn write(&self, iova: Iova, data: &[u8]) -> Result<(), BusFault> {
            self.0.lock().unwrap().0[iova.0 as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    /// The ring of the definition: every load is copied at once, byte by byte.
    fn eager(loads: &[(u32, usize, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        for (banks, _, stream) in loads {
            let size = *banks as usize * BANK;
            for (i, byte) in stream.iter().enumerate() {
                bytes[SIZE - size + i % size] = *byte;
            }
        }
        bytes
    }

    #[test]
    fn a_stream_larger_than_the_ring_keeps_its_end() {
        let (bus, mut cbuf) = (Flat::new(), Cbuf::new());
        let len = BANK + 100;
        cbuf.load_weights(&bus, (1, 1), Iova(7), len);
        cbuf.settle(&bus);
        assert_eq!(bus.read_bytes(), BANK, "only what survives is read");
        let (stream, read) = (bus.bytes(7, len), cbuf.reused_weights(1, len));
        assert_eq!(read[100..BANK], stream[100..BANK], "what was not overwritten");
        assert_eq!(read[BANK..], stream[BANK..], "the end lies at the ring's start");
        assert_eq!(read[..100], stream[BANK..], "the beginning was overwritten by the end");
    }

    #[test]
    fn features_and_weights_have_their_own_sides() {
        let (bus, mut cbuf) = (Flat::new(), Cbuf::new());
        bus.write(Iova(0), &vec![7; 11 * BANK]).unwrap();
        cbuf.load_weights(&bus, (1, 11), Iova(0), 11 * BANK);
        cbuf.open_features(&bus, 1);
        assert!(cbuf.feature_bytes(1).iter().all(|byte| *byte == 0));
        assert_eq!(bus.read_bytes(), 0);
        cbuf.open_features(&bus, 2);
        assert_eq!(cbuf.feature_bytes(2)[BANK], 7, "bank 1 belongs to the weights here");
    }

    #[test]
    fn weights_that_reach_into_the_features_overwrite_them() {
        let (bus, mut cbuf) = (Flat::new(), Cbuf::new());
        bus.write(Iova(0), &[7; 2 * BANK]).unwrap();
        cbuf.feature_bytes_mut(11).fill(3);
        cbuf.load_weights(&bus, (11, 2), Iova(0), 2 * BANK);
        assert_eq!(cbuf.feature_bytes(11)[10 * BANK - 1..=10 * BANK], [3, 7]);
    }

    #[test]
    fn noted_loads_end_like_copied_ones() {
        // Pairs and triples of loads: whole rings, parts, other bank counts, in all orders.
        let sizes =
            [(1, 40), (1, BANK), (1, 3 * BANK + 5), (2, 70), (2, 2 * BANK), (3, BANK + 9), (3, 4 * BANK)];
        let bus = Flat::new();
        for a in sizes {
            for b in sizes {
                for c in sizes {
                    let mut cbuf = Cbuf::new();
                    let mut loads = Vec::new();
                    for (i, (banks, len)) in [a, b, c].into_iter().enumerate() {
                        let base = 100 + 37 * i;
                        cbuf.load_weights(&bus, (1, banks), Iova(base as u32), len);
                        loads.push((banks, len, bus.bytes(base, len)));
                    }
                    cbuf.settle(&bus);
                    assert!(cbuf.bytes == eager(&loads), "{a:?} {b:?} {c:?}");
                }
            }
        }
    }

    #[test]
    fn a_load_that_covers_another_is_the_only_one_read() {
        let (bus, mut cbuf) = (Flat::new(), Cbuf::new());
        for base in [0, 5, 9] {
            cbuf.load_weights(&bus, (1, 2), Iova(base), 2 * BANK);
        }
        cbuf.settle(&bus);
        cbuf.settle(&bus);
        assert_eq!(bus.read_bytes(), 2 * BANK);
    }

    #[test]
    fn a_store_to_loaded_memory_comes_after_the_copy() {
        let kept = BANK as u64;
        for (at, len, settled) in
            [(0, 100, false), (99, 1, false), (99, 2, true), (kept + 99, 9, true), (kept + 100, 9, false)]
        {
            let (bus, mut cbuf) = (Flat::new(), Cbuf::new());
            // A stream of a bank and 100 bytes: its first 100 bytes do not survive.
            cbuf.load_weights(&bus, (1, 1), Iova(0), BANK + 100);
            cbuf.before_store(&bus, at, len);
            assert_eq!(bus.read_bytes() > 0, settled, "{len} bytes at {at}");
        }
    }
}
