// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random values that look like what programs hand over, and random register programs.

use std::path::Path;
use std::sync::OnceLock;

use ork_conformance::{Case, case_names};
use ork_testkit::Stream;

/// Values that make edges.
const EDGES: [u64; 21] = [
    0,
    1,
    2,
    3,
    7,
    8,
    40,
    63,
    64,
    4095,
    4096,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_F000,
    0xFFFF_FFFF,
    0x1_0000_0000,
    0x1_0000_1000,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
    u64::MAX - 4095,
    u64::MAX,
];
/// Values that are remembered.
const POOL: usize = 64;

/// A stream of values, among them such as the board gave out.
pub(super) struct Random {
    stream: Stream,
    pool: Vec<u64>,
}

impl Random {
    pub(super) fn new(seed: u64, lane: u32) -> Self {
        Self { stream: Stream::lane(seed, lane), pool: Vec::new() }
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.stream.below(bound as u64) as usize
    }

    pub(super) fn one_in(&mut self, share: u64) -> bool {
        self.stream.below(share) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// An index into something, if there is anything.
    pub(super) fn index(&mut self, len: usize) -> Option<usize> {
        (len != 0).then(|| self.below(len))
    }

    /// The board gave this out.
    pub(super) fn remember(&mut self, value: u64) {
        if self.pool.len() < POOL {
            self.pool.push(value);
        } else {
            let place = self.below(POOL);
            self.pool[place] = value;
        }
    }

    pub(super) fn value(&mut self) -> u64 {
        match self.below(8) {
            0 => self.stream.next_u64(),
            1 => self.stream.next_u64() >> 32,
            2 | 3 => self.pick(&EDGES),
            4 => self.stream.below(8),
            _ => match self.index(self.pool.len()) {
                Some(index) => self.pool[index],
                None => 1,
            },
        }
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        match self.below(4) {
            0 => vec![0; len],
            1 => self.stream.bytes(len),
            _ => {
                let words = (0..len.div_ceil(8)).flat_map(|_| self.value().to_le_bytes());
                words.collect::<Vec<u8>>()[..len].to_vec()
            }
        }
    }

    /// Changes some fields of a struct, mostly none.
    pub(super) fn disturb(&mut self, bytes: &mut [u8]) {
        while self.one_in(4) && bytes.len() >= 4 {
            let at = 4 * self.below(bytes.len() / 4);
            let value = self.value().to_le_bytes();
            let len = if at.is_multiple_of(8) && at + 8 <= bytes.len() && self.one_in(2) { 8 } else { 4 };
            bytes[at..at + len].copy_from_slice(&value[..len]);
        }
    }
}

/// Programs that once ran on silicon.
fn recorded() -> &'static [Vec<u64>] {
    static PROGRAMS: OnceLock<Vec<Vec<u64>>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance");
        let cases = case_names(&folder).unwrap().into_iter().map(|name| Case::read(&folder, &name).unwrap());
        let programs = |case: Case| -> Vec<Vec<u64>> {
            case.runs().flatten().map(|program| program.words().map(|word| word.0).collect()).collect()
        };
        cases.flat_map(programs).collect()
    })
}

/// A program: a recorded one whose addresses are some of `addresses`, with some words changed; or anything.
pub(super) fn program(random: &mut Random, addresses: &[u32]) -> Vec<u64> {
    const TARGETS: [u64; 10] =
        [0x0101, 0x0201, 0x0801, 0x1001, 0x2001, 0x4001, 0x8001, 0x0041, 0x0081, 0x0001];
    if random.one_in(16) {
        let len = random.below(64);
        let word = |random: &mut Random| {
            let value = random.value() & 0xFFFF_FFFF;
            let offset = 4 * random.below(0x1C00) as u64;
            (random.pick(&TARGETS) << 48) | (value << 16) | offset
        };
        return (0..len).map(|_| word(random)).collect();
    }
    let all = recorded();
    let mut words = all[random.below(all.len())].clone();
    for word in &mut words {
        // The recorded buffers lie high.
        let value = (*word >> 16) as u32;
        if value >= 0xF000_0000
            && let Some(index) = random.index(addresses.len())
        {
            // What lies apart stays apart.
            let moved = addresses[index].wrapping_add(value & 0x7_FFFF);
            *word = *word & !0x0000_FFFF_FFFF_0000 | u64::from(moved) << 16;
        }
    }
    while random.one_in(3) && !words.is_empty() {
        let at = random.below(words.len());
        match random.below(8) {
            0 => words[at] = random.value(),
            1 => _ = words.remove(at),
            2 => {
                let other = random.below(words.len());
                words.swap(at, other);
            }
            3 => words[at] ^= 1 << random.below(64),
            _ => {
                let value = match random.below(4) {
                    0 => random.value() & 0xFFFF_FFFF,
                    1 => 1 << random.below(32),
                    // A neighbour of what it was.
                    2 => (words[at] >> 16 & 0xFFFF_FFFF).wrapping_add(random.below(5) as u64).wrapping_sub(2),
                    _ => words[at] >> 16 ^ 1 << random.below(32),
                };
                words[at] = words[at] & !0x0000_FFFF_FFFF_0000 | (value & 0xFFFF_FFFF) << 16;
            }
        }
    }
    words
}
