// SPDX-License-Identifier: MIT OR Apache-2.0
//! Register programs as text, and back.
//!
//! [`print()`] writes one line per word with every field by name; [`parse`] reads it. For every 64-bit word there is,
//! `parse(print(word)) == word`: what the database cannot name is printed as the number it is, and loudly.
//! docs/reference/rcasm.md describes the text.
//!
//! ```
//! use ork_isa::{Cmd, asm};
//! let listing = asm::parse("CNA.CBUF_CON0 { WEIGHT_BANK=11, DATA_BANK=1 }")?;
//! assert_eq!(listing.streams[0].words, [Cmd(0x0201_0000_00B1_1040)]);
//! # Ok::<(), asm::ParseError>(())
//! ```

mod error;
mod lex;
mod nearest;
mod parse;
mod print;
mod source;

pub use error::{Expectation, ParseError};
pub use parse::parse;
pub(crate) use print::blocks;
pub use print::{Comments, print, statement};
pub use source::{SourceError, read_bytes, read_hex};

use crate::{Block, Cmd, CmdKind, Iova};

/// Register programs in the order of their file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The programs.
    pub streams: Vec<Stream>,
}

/// Words that belong together: usually one program with its trailer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// What the file calls it; empty when it has no name.
    pub name: String,
    /// Where it lies, when that is known; links of other programs are compared with it.
    pub at: Option<Iova>,
    /// The words.
    pub words: Vec<Cmd>,
}

impl Listing {
    /// One program without name and address.
    #[must_use]
    pub fn of(words: Vec<Cmd>) -> Self {
        Self { streams: vec![Stream { words, ..Stream::default() }] }
    }

    /// All words, one program behind the other.
    pub fn words(&self) -> impl Iterator<Item = Cmd> + '_ {
        self.streams.iter().flat_map(|stream| stream.words.iter().copied())
    }

    /// The same words, with every stream cut where one program ends and the next begins.
    ///
    /// A program ends with its op-enable word and what follows it without naming a block: the marker, the link
    /// (fold programs carry it last, `isa.md` §2.3) and padding. Words are never lost or reordered. An address is
    /// carried on to the pieces, as they lie one behind the other.
    #[must_use]
    pub fn split(&self) -> Self {
        let streams = self.streams.iter().flat_map(Stream::split).collect();
        Self { streams }
    }
}

impl Stream {
    fn split(&self) -> Vec<Self> {
        let mut starts = vec![0];
        let mut ended = false;
        for (index, word) in self.words.iter().enumerate() {
            match word.kind() {
                CmdKind::OpEnable { .. } => ended = true,
                CmdKind::Write { block, .. } if block != Block::Pc && ended => {
                    starts.push(index);
                    ended = false;
                }
                CmdKind::Unknown if ended => {
                    starts.push(index);
                    ended = false;
                }
                _ => {}
            }
        }
        if starts.len() == 1 {
            return vec![self.clone()];
        }
        let ends = starts.iter().copied().skip(1).chain([self.words.len()]);
        starts
            .iter()
            .zip(ends)
            .enumerate()
            .map(|(part, (start, end))| Self {
                name: if self.name.is_empty() { String::new() } else { format!("{} part {part}", self.name) },
                at: self.at.and_then(|at| at.checked_add(8 * *start as u64)),
                words: self.words[*start..end].to_vec(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_cut_behind_the_trailer() {
        let write = Cmd::new(0x0201, 0x1040, 0xB1);
        let link = Cmd::new(0x0101, 0x0010, 0x1000);
        let plain = [write, write, link, Cmd::PRE_OP_ENABLE, Cmd::op_enable(0xD), Cmd(0)];
        // A fold program: op-enable first, then marker and link.
        let fold = [write, Cmd::op_enable(0xD), Cmd::PRE_OP_ENABLE, link];
        let words = [plain.as_slice(), &fold, &plain].concat();
        let listing = Listing { streams: vec![Stream { name: "x".into(), at: Some(Iova(0x100)), words }] };
        let split = listing.split();
        let lengths: Vec<usize> = split.streams.iter().map(|stream| stream.words.len()).collect();
        assert_eq!(lengths, [6, 4, 6]);
        assert_eq!(split.streams[2].at, Some(Iova(0x100 + 80)));
        assert!(split.words().eq(listing.words()));
    }
}
