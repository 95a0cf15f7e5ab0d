// SPDX-License-Identifier: MIT OR Apache-2.0
//! The convolution buffer: 12 banks of 32 KB. Features fill it from bank 0 upward, line by line in 64-byte
//! granules; weights stream through the last W banks as a ring (`isa.md` §10).

use ork_isa::Iova;
use ork_isa::soc::RK3588;

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

/// Contents with provenance.
pub(crate) struct Cbuf {
    bytes: Vec<u8>,
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
        Self { bytes: vec![0; SIZE], features: None, weights: None }
    }

    /// The feature side: `banks` banks from 0.
    pub(crate) fn feature_bytes(&self, banks: u32) -> &[u8] {
        &self.bytes[..(banks as usize * BANK).min(SIZE)]
    }

    pub(crate) fn feature_bytes_mut(&mut self, banks: u32) -> &mut [u8] {
        &mut self.bytes[..(banks as usize * BANK).min(SIZE)]
    }

    /// Leaves `stream` in the last `banks` banks as a ring does that it overwrites from the start
    /// (`isa.md` §10.6): only the last `banks` banks' worth of it survives.
    pub(crate) fn retain_weights(&mut self, banks: u32, stream: &[u8]) {
        let ring = self.ring_mut(banks);
        let size = ring.len();
        if size == 0 {
            return;
        }
        let mut at = stream.len().saturating_sub(size);
        while at < stream.len() {
            let place = at % size;
            let run = (size - place).min(stream.len() - at);
            ring[place..place + run].copy_from_slice(&stream[at..at + run]);
            at += run;
        }
    }

    /// A stream of `len` bytes as a task reads it that loads no weights: offset modulo the ring.
    pub(crate) fn reused_weights(&self, banks: u32, len: usize) -> Vec<u8> {
        let ring = &self.bytes[SIZE - (banks as usize * BANK).min(SIZE)..];
        ring.iter().copied().cycle().take(len).collect()
    }

    fn ring_mut(&mut self, banks: u32) -> &mut [u8] {
        let from = SIZE - (banks as usize * BANK).min(SIZE);
        &mut self.bytes[from..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_larger_than_the_ring_keeps_its_end() {
        let mut cbuf = Cbuf::new();
        let stream: Vec<u8> = (0..BANK + 100).map(|i| (i % 251) as u8).collect();
        cbuf.retain_weights(1, &stream);
        let read = cbuf.reused_weights(1, stream.len());
        assert_eq!(read[100..BANK], stream[100..BANK], "what was not overwritten");
        assert_eq!(read[BANK..], stream[BANK..], "the end lies at the ring's start");
        assert_eq!(read[..100], stream[BANK..], "the beginning was overwritten by the end");
    }

    #[test]
    fn features_and_weights_have_their_own_sides() {
        let mut cbuf = Cbuf::new();
        cbuf.retain_weights(11, &vec![7; 11 * BANK]);
        assert!(cbuf.feature_bytes(1).iter().all(|byte| *byte == 0));
        assert_eq!(cbuf.feature_bytes(2)[BANK], 7, "bank 1 belongs to the weights here");
    }
}
