// SPDX-License-Identifier: MIT OR Apache-2.0
use crate::{Block, Cmd, Iova, Register, regs};

/// Words of the trailer: next address, next amount, marker, op-enable (`isa.md` §2.3).
pub const TRAILER_WORDS: usize = 4;

/// Programs are padded to this: the PC fetches whole 16-byte beats, and known generators use 64.
pub const PROGRAM_ALIGN_BYTES: usize = 64;

/// What follows a program in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nothing: the chain ends here.
    Last,
    /// Another program.
    Next {
        /// Where it lies; the low 4 bits must be 0.
        at: Iova,
        /// Its [`Program::fetch_amount`].
        amount: u16,
    },
}

/// A complete register program: body and trailer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    words: Vec<Cmd>,
}

impl Program {
    /// All words, trailer included.
    #[must_use]
    pub fn words(&self) -> &[Cmd] {
        &self.words
    }

    /// Words before the trailer: what the vendor driver's task descriptor calls `regcfg_amount`.
    #[must_use]
    pub fn body_words(&self) -> usize {
        self.words.len() - TRAILER_WORDS
    }

    /// The value of `PC.REGISTER_AMOUNTS` that fetches this program: 16-byte beats minus 1.
    #[must_use]
    pub fn fetch_amount(&self) -> u16 {
        fetch_amount(self.words.len())
    }

    /// Size in memory, padded to [`PROGRAM_ALIGN_BYTES`].
    #[must_use]
    pub fn padded_bytes(&self) -> usize {
        padded_bytes(self.words.len())
    }

    /// Copies the words, little endian and zero-padded, into `memory`.
    ///
    /// # Panics
    /// If `memory` is shorter than [`Program::padded_bytes`].
    pub fn write_to(&self, memory: &mut [u8]) {
        let (own, _) = memory.split_at_mut(self.padded_bytes());
        let (words, padding) = own.split_at_mut(self.words.len() * 8);
        for (bytes, word) in words.chunks_exact_mut(8).zip(&self.words) {
            bytes.copy_from_slice(&word.0.to_le_bytes());
        }
        padding.fill(0);
    }
}

/// `PC.REGISTER_AMOUNTS` for a program of `words` words, trailer included.
#[must_use]
pub(crate) fn fetch_amount(words: usize) -> u16 {
    u16::try_from(words.div_ceil(2) - 1).expect("a program has fewer than 2^17 words")
}

/// Bytes that a program of `words` words occupies.
#[must_use]
pub(crate) fn padded_bytes(words: usize) -> usize {
    (words * 8).next_multiple_of(PROGRAM_ALIGN_BYTES)
}

/// Collects register writes in order.
#[derive(Clone, Debug, Default)]
pub struct ProgramBuilder {
    words: Vec<Cmd>,
}

impl ProgramBuilder {
    /// An empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty program with room for so many words, trailer included.
    #[must_use]
    pub fn with_room(words: usize) -> Self {
        Self { words: Vec::with_capacity(words) }
    }

    /// Appends the word that gives a register its value.
    ///
    /// # Panics
    /// If the register has no register-command target (only DDMA, SDMA and GLOBAL, which are configured by the
    /// CPU bus); which register is written is fixed in the emitter's source, never data.
    pub fn set<R: Register>(&mut self, register: R) -> &mut Self {
        self.words.push(Cmd::write(register).expect("a register with a register-command target"));
        self
    }

    /// Ends the program with its trailer.
    #[must_use]
    pub fn finish(self, link: Link, enable: regs::global::OperationEnable) -> Program {
        let mut words = self.words;
        let pc = Block::Pc.target().expect("the PC has a target");
        let (next, amount) = match link {
            Link::Last => (Cmd::NO_NEXT, 0),
            Link::Next { at, amount } => (Cmd::new(pc, regs::pc::BaseAddress::DESC.offset, at.0), amount),
        };
        words.push(next);
        words.push(Cmd::new(pc, regs::pc::RegisterAmounts::DESC.offset, u32::from(amount)));
        words.push(Cmd::PRE_OP_ENABLE);
        words.push(Cmd::op_enable(enable.0));
        Program { words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(body: usize, link: Link) -> Program {
        let mut builder = ProgramBuilder::new();
        for _ in 0..body {
            builder.set(regs::cna::CbufCon0(0xB1));
        }
        builder.finish(link, regs::global::OperationEnable(0xD))
    }

    #[test]
    fn amounts_match_the_captured_pairs() {
        // isa.md §2.3: body words -> amount.
        for (body, amount) in [(108, 55), (104, 53), (69, 36), (26, 14), (17, 10), (13, 8), (12, 7)] {
            assert_eq!(program(body, Link::Last).fetch_amount(), amount, "{body} body words");
        }
    }

    #[test]
    fn a_112_word_program_occupies_0x380_bytes() {
        let program = program(108, Link::Last);
        assert_eq!(program.padded_bytes(), 0x380);
        let mut memory = vec![0xAA; 0x400];
        program.write_to(&mut memory);
        assert_eq!(memory[..8], 0x0201_0000_00B1_1040_u64.to_le_bytes());
        assert_eq!(memory[111 * 8..112 * 8], 0x0081_0000_000D_0008_u64.to_le_bytes());
        assert_eq!(memory[0x380], 0xAA, "nothing beyond the program is touched");
    }

    #[test]
    fn padding_is_zeroed() {
        let program = program(13, Link::Last);
        let mut memory = vec![0xAA; program.padded_bytes()];
        program.write_to(&mut memory);
        assert!(memory[17 * 8..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_trailer_links() {
        let program = program(1, Link::Next { at: Iova(0xFFF8_0380), amount: 55 });
        assert_eq!(program.words()[1], Cmd(0x0101_FFF8_0380_0010));
        assert_eq!(program.words()[2], Cmd(0x0101_0000_0037_0014));
        assert_eq!(program.words()[3], Cmd::PRE_OP_ENABLE);
    }
}
