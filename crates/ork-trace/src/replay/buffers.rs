// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers of a replay, each with the content that it ought to have.

use std::collections::HashMap;
use std::ops::Range;

use ork_drm::Mapping;

use super::DifferenceKind;

/// Bytes of all buffers of a replay at one time.
const TOTAL_BYTES_MAX: u64 = 1 << 34;

struct Buffer {
    mapping: Mapping,
    expected: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Buffers {
    all: HashMap<u32, Buffer>,
}

impl Buffers {
    /// Enters a buffer, or a longer mapping of one; `false` when that is too much.
    pub(super) fn insert(&mut self, number: u32, mapping: Mapping) -> bool {
        let total: u64 = self.all.values().map(|buffer| buffer.expected.len() as u64).sum();
        if total + mapping.len() as u64 > TOTAL_BYTES_MAX {
            return false;
        }
        let mut expected = self.all.remove(&number).map(|buffer| buffer.expected).unwrap_or_default();
        expected.resize(mapping.len(), 0);
        self.all.insert(number, Buffer { mapping, expected });
        true
    }

    pub(super) fn drop(&mut self, number: u32) {
        self.all.remove(&number);
    }

    fn at(&mut self, number: u32, at: u64, len: u64) -> Option<(&mut Buffer, Range<usize>)> {
        let buffer = self.all.get_mut(&number)?;
        let end = at.checked_add(len)?;
        (end <= buffer.expected.len() as u64).then_some((buffer, at as usize..end as usize))
    }

    /// What the CPU had written.
    pub(super) fn write(&mut self, number: u32, at: u64, bytes: &[u8]) -> Option<()> {
        let (buffer, range) = self.at(number, at, bytes.len() as u64)?;
        buffer.expected[range.clone()].copy_from_slice(bytes);
        // SAFETY: the replay is one thread, it waits for every job, and no other slice of the mapping lives.
        let now = unsafe { buffer.mapping.bytes_mut() };
        now[range].copy_from_slice(bytes);
        Some(())
    }

    /// What the device had written.
    pub(super) fn expect(&mut self, number: u32, at: u64, bytes: &[u8]) -> Option<()> {
        let (buffer, range) = self.at(number, at, bytes.len() as u64)?;
        buffer.expected[range].copy_from_slice(bytes);
        Some(())
    }

    /// Compares a range: outer `None` when there is no such range, inner `None` when it is equal. What differed is
    /// then taken as it is, so that it is reported once.
    pub(super) fn compare(&mut self, number: u32, at: u64, len: u64) -> Option<Option<DifferenceKind>> {
        let (buffer, range) = self.at(number, at, len)?;
        // SAFETY: the replay is one thread, it waits for every job, and no mutable slice of the mapping lives.
        let now = unsafe { &buffer.mapping.bytes()[range.clone()] };
        let expected = &mut buffer.expected[range];
        let mut differing =
            expected.iter().zip(now).enumerate().filter(|(_, (recorded, now))| recorded != now);
        let Some((first, (recorded, byte))) = differing.next() else { return Some(None) };
        let (recorded, byte) = (*recorded, *byte);
        let count = 1 + differing.count() as u64;
        let at = at + first as u64;
        expected.copy_from_slice(now);
        Some(Some(DifferenceKind::Bytes { buffer: number, at, count, compared: len, recorded, now: byte }))
    }
}
