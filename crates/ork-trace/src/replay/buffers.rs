// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers of a replay, each with the content that it ought to have.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use ork_drm::Mapping;

use super::DifferenceKind;

/// Bytes of all buffers of a replay at one time.
const TOTAL_BYTES_MAX: u64 = 1 << 34;
/// Bytes of expected content that are kept together.
const PAGE_BYTES: usize = 4096;

/// What a buffer ought to hold. Pages that nobody has written are zero and take no memory: a trace can name more bytes
/// than it brings.
#[derive(Default)]
struct Content(BTreeMap<usize, Box<[u8; PAGE_BYTES]>>);

impl Content {
    /// The parts of a range, page by page: number of the page, bytes in it.
    fn pages(range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let numbers = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
        numbers.map(move |page| {
            let first = page * PAGE_BYTES;
            (page, range.start.max(first) - first..(range.end - first).min(PAGE_BYTES))
        })
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let mut rest = bytes;
        for (page, part) in Self::pages(at..at + bytes.len()) {
            let (now, later) = rest.split_at(part.len());
            let content = self.0.entry(page).or_insert_with(|| Box::new([0; PAGE_BYTES]));
            content[part].copy_from_slice(now);
            rest = later;
        }
    }

    /// Compares with what is there; the first differing byte, what ought to be there, and how many differ. What differs
    /// is taken as it is.
    fn adopt(&mut self, at: usize, now: &[u8]) -> Option<(usize, u8, u64)> {
        let (mut first, mut count) = (None, 0);
        let mut place = 0;
        for (page, part) in Self::pages(at..at + now.len()) {
            let bytes = &now[place..place + part.len()];
            let zeros = &[0; PAGE_BYTES];
            let expected = &self.0.get(&page).map_or(zeros, |content| content)[part];
            if expected != bytes {
                for (index, (expected, now)) in expected.iter().zip(bytes).enumerate() {
                    if expected != now {
                        first = first.or(Some((place + index, *expected)));
                        count += 1;
                    }
                }
                self.write(at + place, bytes);
            }
            place += bytes.len();
        }
        first.map(|(index, expected)| (index, expected, count))
    }

    /// Forgets what lies beyond a length.
    fn cut(&mut self, len: usize) {
        self.0.split_off(&len.div_ceil(PAGE_BYTES));
        if let Some(last) = self.0.get_mut(&(len / PAGE_BYTES)) {
            last[len % PAGE_BYTES..].fill(0);
        }
    }
}

struct Buffer {
    mapping: Mapping,
    expected: Content,
}

#[derive(Default)]
pub(super) struct Buffers {
    all: HashMap<u32, Buffer>,
}

impl Buffers {
    /// Enters a buffer, or a longer mapping of one; `false` when that is too much.
    pub(super) fn insert(&mut self, number: u32, mapping: Mapping) -> bool {
        let total: u64 = self.all.values().map(|buffer| buffer.mapping.len() as u64).sum();
        if total + mapping.len() as u64 > TOTAL_BYTES_MAX {
            return false;
        }
        let mut expected = self.all.remove(&number).map(|buffer| buffer.expected).unwrap_or_default();
        expected.cut(mapping.len());
        self.all.insert(number, Buffer { mapping, expected });
        true
    }

    pub(super) fn drop(&mut self, number: u32) {
        self.all.remove(&number);
    }

    fn at(&mut self, number: u32, at: u64, len: u64) -> Option<(&mut Buffer, Range<usize>)> {
        let buffer = self.all.get_mut(&number)?;
        let end = at.checked_add(len)?;
        (end <= buffer.mapping.len() as u64).then_some((buffer, at as usize..end as usize))
    }

    /// What the CPU had written.
    pub(super) fn write(&mut self, number: u32, at: u64, bytes: &[u8]) -> Option<()> {
        let (buffer, range) = self.at(number, at, bytes.len() as u64)?;
        buffer.expected.write(range.start, bytes);
        // SAFETY: the replay is one thread, it waits for every job, and no other slice of the mapping lives.
        let now = unsafe { buffer.mapping.bytes_mut() };
        now[range].copy_from_slice(bytes);
        Some(())
    }

    /// What the device had written.
    pub(super) fn expect(&mut self, number: u32, at: u64, bytes: &[u8]) -> Option<()> {
        let (buffer, range) = self.at(number, at, bytes.len() as u64)?;
        buffer.expected.write(range.start, bytes);
        Some(())
    }

    /// Compares a range: outer `None` when there is no such range, inner `None` when it is equal. What differed is
    /// then taken as it is, so that it is reported once.
    pub(super) fn compare(&mut self, number: u32, at: u64, len: u64) -> Option<Option<DifferenceKind>> {
        let (buffer, range) = self.at(number, at, len)?;
        let start = range.start;
        // SAFETY: the replay is one thread, it waits for every job, and no mutable slice of the mapping lives.
        let now = unsafe { &buffer.mapping.bytes()[range] };
        let Some((first, recorded, count)) = buffer.expected.adopt(start, now) else { return Some(None) };
        let (at, byte) = (at + first as u64, now[first]);
        Some(Some(DifferenceKind::Bytes { buffer: number, at, count, compared: len, recorded, now: byte }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same as plain bytes, for ranges that start and end anywhere.
    #[test]
    fn content_is_that_of_plain_bytes() {
        const LEN: usize = 5 * PAGE_BYTES + 77;
        let (mut content, mut plain) = (Content::default(), vec![0_u8; LEN]);
        let mut state = 7_usize;
        for round in 0..2000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (at, len) = ((state >> 20) % LEN, (state >> 40) % (2 * PAGE_BYTES));
            let range = at..(at + len).min(LEN);
            let value = (round % 251) as u8;
            if round.is_multiple_of(3) {
                // Another content: all of it differs, except where it happens not to.
                let now = vec![value; range.len()];
                let differing: Vec<usize> =
                    (0..now.len()).filter(|index| plain[at + index] != now[*index]).collect();
                let expected =
                    differing.first().map(|first| (*first, plain[at + first], differing.len() as u64));
                assert_eq!(content.adopt(at, &now), expected, "{range:?}");
                plain[range].copy_from_slice(&now);
            } else {
                content.write(at, &vec![value; range.len()]);
                plain[range].fill(value);
            }
        }
        assert_eq!(content.adopt(0, &plain), None);
        content.cut(PAGE_BYTES + 5);
        plain[PAGE_BYTES + 5..].fill(0);
        assert_eq!(content.adopt(0, &plain), None, "what was cut off is zero");
    }

    #[test]
    fn zeros_take_no_memory() {
        let mut content = Content::default();
        assert_eq!(content.adopt(0, &vec![0; 1 << 20]), None);
        assert!(content.0.is_empty());
        assert_eq!(content.adopt(1 << 19, &[0, 0, 3]), Some((2, 0, 1)));
        assert_eq!(content.0.len(), 1);
    }
}
