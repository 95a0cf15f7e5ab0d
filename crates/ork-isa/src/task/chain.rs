// SPDX-License-Identifier: MIT OR Apache-2.0
//! How programs follow each other (`isa.md` §2.3, §2.5; `isa-notes.md` F.3, NS-30).

use std::collections::HashMap;

use crate::asm::Stream;
use crate::{Block, Cmd, CmdKind, Register, regs::pc};

/// The words of a program that link and start it; each with its place. Where a word occurs twice, the later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trailer {
    /// `PC.BASE_ADDRESS`, the address of the next program.
    pub link: Option<(u32, usize)>,
    /// `PC.REGISTER_AMOUNTS`, the size of the next program.
    pub amount: Option<(u32, usize)>,
    /// The marker.
    pub marker: Option<usize>,
    /// The first op-enable word, with its mask.
    pub op_enable: Option<(u32, usize)>,
    /// The second op-enable word.
    pub second_op_enable: Option<usize>,
}

impl Trailer {
    /// Reads the words.
    #[must_use]
    pub fn read(words: &[Cmd]) -> Self {
        let mut trailer = Self::default();
        for (index, word) in words.iter().enumerate() {
            match word.kind() {
                CmdKind::Write { block: Block::Pc, offset, value } => {
                    if offset == pc::BaseAddress::DESC.offset {
                        trailer.link = Some((value, index));
                    } else if offset == pc::RegisterAmounts::DESC.offset {
                        trailer.amount = Some((value, index));
                    }
                }
                CmdKind::PreOpEnable => trailer.marker = Some(index),
                CmdKind::OpEnable { mask } => match trailer.op_enable {
                    None => trailer.op_enable = Some((mask, index)),
                    Some(_) => trailer.second_op_enable = trailer.second_op_enable.or(Some(index)),
                },
                _ => {}
            }
        }
        trailer
    }

    /// The address that the link names; `None` without a link or with address 0, which ends a chain.
    #[must_use]
    pub fn next_address(&self) -> Option<u32> {
        self.link.map(|(value, _)| value & !0xF).filter(|address| *address != 0)
    }

    /// 16-byte beats minus 1 of the next program. Bits 31:16 are no part of it.
    #[must_use]
    pub fn next_amount(&self) -> u32 {
        self.amount.map_or(0, |(value, _)| pc::RegisterAmounts(value).pc_data_amount())
    }
}

/// What the PC fetches after a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: no address, or no amount.
    End,
    /// Another program of the listing.
    Program(usize),
    /// Memory that the listing does not show.
    Elsewhere(u32),
}

/// Which program follows which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    next: Vec<Next>,
    before: Vec<Option<usize>>,
    /// No program links to another.
    unlinked: bool,
}

impl Links {
    /// Reads the trailers of all programs. Without any addresses in the listing, a link is taken to name the next
    /// program.
    #[must_use]
    pub fn read(programs: &[Stream]) -> Self {
        let mut places = HashMap::new();
        for (index, program) in programs.iter().enumerate() {
            if let Some(at) = program.at {
                places.entry(at.0).or_insert(index);
            }
        }
        let next: Vec<Next> = programs
            .iter()
            .enumerate()
            .map(|(index, program)| {
                let trailer = Trailer::read(&program.words);
                match trailer.next_address().filter(|_| trailer.next_amount() != 0) {
                    None => Next::End,
                    Some(address) => match places.get(&address) {
                        Some(found) => Next::Program(*found),
                        None if places.is_empty() && index + 1 < programs.len() => Next::Program(index + 1),
                        None => Next::Elsewhere(address),
                    },
                }
            })
            .collect();
        let mut before = vec![None; programs.len()];
        for (index, next) in next.iter().enumerate() {
            if let Next::Program(other) = next
                && *other != index
                && before[*other].is_none()
            {
                before[*other] = Some(index);
            }
        }
        let unlinked = next.iter().all(|next| *next == Next::End);
        Self { next, before, unlinked }
    }

    /// What follows program `index`.
    #[must_use]
    pub fn next(&self, index: usize) -> Next {
        self.next.get(index).copied().unwrap_or(Next::End)
    }

    /// The program that links to `index`.
    #[must_use]
    pub fn linked_from(&self, index: usize) -> Option<usize> {
        self.before.get(index).copied().flatten()
    }

    /// The program that runs before `index` on the same core: the one that links to it, or the one before it in a
    /// listing without any link (the mainline kernel starts such programs one by one, in order).
    #[must_use]
    pub fn predecessor(&self, index: usize) -> Option<usize> {
        self.linked_from(index).or_else(|| if self.unlinked { index.checked_sub(1) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Iova;

    fn program(at: Option<u32>, link: u32, amount: u32) -> Stream {
        let words = vec![
            Cmd::new(0x0101, 0x0010, link),
            Cmd::new(0x0101, 0x0014, amount),
            Cmd::PRE_OP_ENABLE,
            Cmd::op_enable(0xD),
        ];
        Stream { at: at.map(Iova), words, ..Stream::default() }
    }

    #[test]
    fn links_are_followed_by_address() {
        let chain =
            [program(Some(0x100), 0x300, 1), program(Some(0x200), 0, 0), program(Some(0x300), 0x900, 1)];
        let links = Links::read(&chain);
        assert_eq!(links.next(0), Next::Program(2));
        assert_eq!(links.next(1), Next::End);
        assert_eq!(links.next(2), Next::Elsewhere(0x900));
        assert_eq!((links.predecessor(2), links.linked_from(2)), (Some(0), Some(0)));
        assert_eq!(links.predecessor(1), None);
        assert_eq!(
            Links::read(&[program(Some(0x100), 0x100, 1)]).predecessor(0),
            None,
            "a loop is no predecessor"
        );
    }

    #[test]
    fn without_addresses_order_counts() {
        let links = Links::read(&[program(None, 0x300, 1), program(None, 0x400, 0)]);
        assert_eq!(links.next(0), Next::Program(1));
        assert_eq!(links.next(1), Next::End, "an amount of 0 stops the chain");
        let unlinked = Links::read(&[program(None, 0, 0), program(None, 0, 0)]);
        assert_eq!((unlinked.predecessor(1), unlinked.linked_from(1)), (Some(0), None));
        assert_eq!(unlinked.predecessor(0), None);
    }

    #[test]
    fn trailers() {
        let mut words = program(None, 0x301, 0x2_0007).words;
        words.push(Cmd::op_enable(0x60));
        let trailer = Trailer::read(&words);
        assert_eq!(trailer.next_address(), Some(0x300));
        assert_eq!(trailer.next_amount(), 7);
        assert_eq!((trailer.op_enable, trailer.second_op_enable), (Some((0xD, 3)), Some(4)));
        assert_eq!(Trailer::read(&[]), Trailer::default());
    }
}
