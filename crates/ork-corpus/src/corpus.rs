// SPDX-License-Identifier: MIT OR Apache-2.0
//! A text and its split.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{CorpusError, Fingerprint, Origin};

/// A whole text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    name: String,
    text: String,
}

/// How a text is split.
///
/// The text is cut into blocks of [`Self::block_bytes`] bytes; each border then moves on to the end of the line it
/// falls into, so that no line is torn. Blocks are counted from 0, and block `i` is *seen* if `i` is a multiple of
/// [`Self::cycle`]; all others are *held out*. A longer text of the same beginning is split alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitRule {
    /// Bytes of a block, before its end moves to the end of a line.
    pub block_bytes: u32,
    /// Blocks of a cycle: the first is seen, the others are held out.
    pub cycle: u32,
}

impl Default for SplitRule {
    /// Blocks of 16 KiB (about 4,000 tokens: a topic stays mostly in one part), a quarter of them seen.
    fn default() -> Self {
        Self { block_bytes: 16 << 10, cycle: 4 }
    }
}

/// Which part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// What calibration takes.
    Seen,
    /// What evaluation takes.
    HeldOut,
    /// All of it.
    Whole,
}

impl Part {
    /// The word for it in reports: `seen`, `held-out`, `whole`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::HeldOut => "held-out",
            Self::Whole => "whole",
        }
    }
}

impl Corpus {
    /// Reads a UTF-8 file; its name is the file's.
    ///
    /// # Errors
    /// If it cannot be read, is not UTF-8 or has nothing in it.
    pub fn read(path: &Path) -> Result<Self, CorpusError> {
        let bytes =
            std::fs::read(path).map_err(|source| CorpusError::Read { path: path.to_owned(), source })?;
        let text = String::from_utf8(bytes).map_err(|error| CorpusError::NotUtf8 {
            path: path.to_owned(),
            offset: error.utf8_error().valid_up_to(),
        })?;
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into());
        Self::from_text(name, text)
    }

    /// A text at hand.
    ///
    /// # Errors
    /// If it has nothing in it.
    pub fn from_text(name: impl Into<String>, text: impl Into<String>) -> Result<Self, CorpusError> {
        let (name, text) = (name.into(), text.into());
        if text.trim().is_empty() {
            return Err(CorpusError::Empty { name });
        }
        Ok(Self { name, text })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All of it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// BLAKE3 of the text, in hex.
    #[must_use]
    pub fn digest(&self) -> String {
        blake3::hash(self.text.as_bytes()).to_hex().to_string()
    }

    /// All of it, as something to calibrate or evaluate with.
    #[must_use]
    pub fn whole(&self) -> Excerpt<'_> {
        Excerpt {
            corpus: self,
            part: Part::Whole,
            rule: None,
            ranges: std::iter::once(0..self.text.len()).collect(),
        }
    }

    /// Splits it.
    ///
    /// # Errors
    /// If the rule splits nothing, or the text is shorter than one cycle.
    pub fn split(&self, rule: SplitRule) -> Result<Split<'_>, CorpusError> {
        let SplitRule { block_bytes, cycle } = rule;
        if block_bytes == 0 || cycle < 2 {
            return Err(CorpusError::Rule { block_bytes, cycle });
        }
        let borders = borders(&self.text, block_bytes as usize);
        let blocks = borders.len() - 1;
        if blocks < cycle as usize {
            return Err(CorpusError::TooShort { name: self.name.clone(), blocks, block_bytes, cycle });
        }
        Ok(Split { corpus: self, rule, borders })
    }
}

/// Start of every block, and the end of the text.
fn borders(text: &str, block_bytes: usize) -> Vec<usize> {
    let mut borders = vec![0];
    let mut at = 0;
    while at < text.len() {
        // A border moves on to the end of its line; a newline is never a part of a longer character.
        let least = at.saturating_add(block_bytes);
        let tail = text.as_bytes().get(least - 1..).unwrap_or_default();
        at = tail.iter().position(|&byte| byte == b'\n').map_or(text.len(), |line| least + line);
        borders.push(at);
    }
    borders
}

/// A text, split.
#[derive(Clone, Debug)]
pub struct Split<'c> {
    corpus: &'c Corpus,
    rule: SplitRule,
    borders: Vec<usize>,
}

impl<'c> Split<'c> {
    /// The rule.
    #[must_use]
    pub fn rule(&self) -> SplitRule {
        self.rule
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.borders.len() - 1
    }

    /// One part. Neighbouring blocks are one range.
    #[must_use]
    pub fn part(&self, part: Part) -> Excerpt<'c> {
        if part == Part::Whole {
            return self.corpus.whole();
        }
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for (block, pair) in self.borders.windows(2).enumerate() {
            let seen = block.is_multiple_of(self.rule.cycle as usize);
            if seen != (part == Part::Seen) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == pair[0] => last.end = pair[1],
                _ => ranges.push(pair[0]..pair[1]),
            }
        }
        Excerpt { corpus: self.corpus, part, rule: Some(self.rule), ranges }
    }
}

/// What is calibrated or evaluated with: a part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt<'c> {
    corpus: &'c Corpus,
    part: Part,
    rule: Option<SplitRule>,
    ranges: Vec<Range<usize>>,
}

impl<'c> Excerpt<'c> {
    /// Which part it is.
    #[must_use]
    pub fn part(&self) -> Part {
        self.part
    }

    /// Its stretches, in the order of the text.
    pub fn pieces(&self) -> impl Iterator<Item = &'c str> + '_ {
        self.ranges.iter().map(|range| &self.corpus.text[range.clone()])
    }

    /// Its stretches, one after the other: whole lines, so that each seam is a line break.
    #[must_use]
    pub fn text(&self) -> String {
        self.pieces().collect()
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(ExactSizeIterator::len).sum()
    }

    /// Where it comes from and what is in it, to be kept with every result.
    #[must_use]
    pub fn origin(&self) -> Origin {
        let text = self.text();
        Origin {
            name: self.corpus.name.clone(),
            document: self.corpus.digest(),
            part: self.part,
            rule: self.rule,
            bytes: text.len() as u64,
            fingerprint: Fingerprint::of(&text),
        }
    }
}
