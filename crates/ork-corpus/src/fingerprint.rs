// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in a text, small enough to be kept with a result.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

/// Characters of a passage.
const PASSAGE: usize = 32;
/// Most passages that are kept.
const KEPT_MAX: usize = 16_384;
/// One in two to the power of this is kept of a short text.
const LEVEL_MIN: u32 = 7;
/// Base of the rolling hash: odd, and with bits all over.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;

/// A sample of the passages of a text.
///
/// A passage is 32 consecutive characters, a run of white space counting as one space. Each is hashed by its content,
/// and those whose hash ends in [`Self::level`] zero bits are kept: which ones does not depend on what surrounds them, so
/// two texts that share a passage either both keep it or both do not. Longer texts keep a smaller share, at most
/// 16,384 passages; texts of different levels are compared at the higher one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// Zero bits at the end of every hash kept.
    level: u32,
    /// Hashes of the passages kept, rising.
    passages: BTreeSet<u32>,
}

impl Fingerprint {
    /// Takes the fingerprint of a text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let mut kept = Self { level: LEVEL_MIN, passages: BTreeSet::new() };
        let leaving = (0..PASSAGE).fold(1u64, |power, _| power.wrapping_mul(BASE));
        let (mut hash, mut window) = (0u64, VecDeque::with_capacity(PASSAGE + 1));
        let mut space = true;
        for character in text.chars() {
            let character = if character.is_whitespace() { ' ' } else { character };
            if character == ' ' && space {
                continue;
            }
            space = character == ' ';
            let code = u64::from(u32::from(character)) + 1;
            hash = hash.wrapping_mul(BASE).wrapping_add(code);
            window.push_back(code);
            if window.len() > PASSAGE
                && let Some(old) = window.pop_front()
            {
                hash = hash.wrapping_sub(old.wrapping_mul(leaving));
            }
            if window.len() == PASSAGE {
                kept.keep(mixed(hash));
            }
        }
        kept
    }

    /// Zero bits at the end of every hash kept: one passage in `2^level` is.
    #[must_use]
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Passages kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.passages.len()
    }

    /// Whether the text was too short to say anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.passages.is_empty()
    }

    /// Share of this text's passages that the other text has as well, 0 to 1; `None` if nothing was kept of this one.
    #[must_use]
    pub fn share_in(&self, other: &Self) -> Option<f64> {
        let level = self.level.max(other.level);
        let mine: Vec<u32> = self.passages.iter().copied().filter(|&hash| kept_at(hash, level)).collect();
        let common = mine.iter().filter(|hash| other.passages.contains(hash)).count();
        (!mine.is_empty()).then(|| common as f64 / mine.len() as f64)
    }

    fn keep(&mut self, hash: u32) {
        if !kept_at(hash, self.level) {
            return;
        }
        self.passages.insert(hash);
        while self.passages.len() > KEPT_MAX && self.level < u32::BITS {
            self.level += 1;
            let level = self.level;
            self.passages.retain(|&hash| kept_at(hash, level));
        }
    }
}

fn kept_at(hash: u32, level: u32) -> bool {
    hash.trailing_zeros() >= level
}

/// The rolling hash's high bits are good and its low ones are not: SplitMix64's finaliser mixes them.
fn mixed(hash: u64) -> u32 {
    let mut z = hash;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) as u32
}
