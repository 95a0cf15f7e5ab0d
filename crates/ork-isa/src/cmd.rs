// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use crate::{Register, RegisterDesc, find_register};

/// A block of an NPU core (`isa.md` §1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Block {
    /// Program controller.
    Pc,
    /// Feature and weight loaders, convolution buffer, sequence controller.
    Cna,
    /// MAC array and accumulator.
    Core,
    /// Output stage and write DMA.
    Dpu,
    /// Read DMAs of the output stage.
    DpuRdma,
    /// Pooling unit.
    Ppu,
    /// Read DMA of the pooling unit.
    PpuRdma,
    /// Data-side AXI arbiter; CPU bus only.
    Ddma,
    /// Second AXI arbiter; CPU bus only.
    Sdma,
    /// Op-enable bits of all blocks.
    Global,
}

impl Block {
    /// All blocks, by rising base address.
    pub const ALL: [Self; 10] = [
        Self::Pc,
        Self::Cna,
        Self::Core,
        Self::Dpu,
        Self::DpuRdma,
        Self::Ppu,
        Self::PpuRdma,
        Self::Ddma,
        Self::Sdma,
        Self::Global,
    ];

    /// The register-command target that writes this block's registers; `None` for blocks that only the CPU
    /// bus reaches. Bit 0 of the target is set in every register write of every known program.
    #[must_use]
    pub const fn target(self) -> Option<u16> {
        match self {
            Self::Pc => Some(0x0101),
            Self::Cna => Some(0x0201),
            Self::Core => Some(0x0801),
            Self::Dpu => Some(0x1001),
            Self::DpuRdma => Some(0x2001),
            Self::Ppu => Some(0x4001),
            Self::PpuRdma => Some(0x8001),
            Self::Ddma | Self::Sdma | Self::Global => None,
        }
    }

    /// The manual's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pc => "PC",
            Self::Cna => "CNA",
            Self::Core => "CORE",
            Self::Dpu => "DPU",
            Self::DpuRdma => "DPU_RDMA",
            Self::Ppu => "PPU",
            Self::PpuRdma => "PPU_RDMA",
            Self::Ddma => "DDMA",
            Self::Sdma => "SDMA",
            Self::Global => "GLOBAL",
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One register-command word: bits 63:48 target, 47:16 value, 15:0 register offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cmd(pub u64);

/// What a word does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmdKind {
    /// Writes a register of a block.
    Write {
        /// The block.
        block: Block,
        /// Offset from the base of the core.
        offset: u16,
        /// The 32-bit value.
        value: u32,
    },
    /// Starts the blocks named by the mask (layout of `GLOBAL.OPERATION_ENABLE`).
    OpEnable {
        /// The op-enable mask.
        mask: u32,
    },
    /// The marker that stands before the op-enable word.
    PreOpEnable,
    /// Writes nothing (no block bit is set).
    Nop,
    /// A word whose target names no block or more than one: printed loudly, never guessed.
    Unknown,
}

impl Cmd {
    /// The marker word that stands before op-enable (TRM).
    pub const PRE_OP_ENABLE: Self = Self(0x0041_0000_0000_0000);
    /// The word that stands for "no next program" in vendor programs.
    pub const NO_NEXT: Self = Self(0x0001_0000_0000_0000);
    const OP_ENABLE_TARGET: u16 = 0x0081;
    const OP_ENABLE_OFFSET: u16 = 0x0008;
    /// Target bits 15:7 (word bits 63:55) name a block or the op-enable word.
    const BLOCK_BITS: u16 = 0xFF80;

    /// A word from its parts.
    #[must_use]
    pub const fn new(target: u16, offset: u16, value: u32) -> Self {
        Self(((target as u64) << 48) | ((value as u64) << 16) | offset as u64)
    }

    /// The word that gives a register its value; `None` for registers that only the CPU bus reaches.
    #[must_use]
    pub fn write<R: Register>(register: R) -> Option<Self> {
        R::DESC.block.target().map(|target| Self::new(target, R::DESC.offset, register.bits()))
    }

    /// The word that starts the blocks of `mask`.
    #[must_use]
    pub const fn op_enable(mask: u32) -> Self {
        Self::new(Self::OP_ENABLE_TARGET, Self::OP_ENABLE_OFFSET, mask)
    }

    /// Bits 63:48.
    #[must_use]
    pub const fn target(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Bits 15:0.
    #[must_use]
    pub const fn offset(self) -> u16 {
        self.0 as u16
    }

    /// Bits 47:16.
    #[must_use]
    pub const fn value(self) -> u32 {
        (self.0 >> 16) as u32
    }

    /// What the word does. Never fails: what it cannot name is [`CmdKind::Unknown`].
    #[must_use]
    pub fn kind(self) -> CmdKind {
        let target = self.target();
        if target & Self::BLOCK_BITS == 0 {
            return if self == Self::PRE_OP_ENABLE { CmdKind::PreOpEnable } else { CmdKind::Nop };
        }
        if target == Self::OP_ENABLE_TARGET && self.offset() == Self::OP_ENABLE_OFFSET {
            return CmdKind::OpEnable { mask: self.value() };
        }
        Block::ALL.into_iter().find(|block| block.target() == Some(target)).map_or(
            CmdKind::Unknown,
            |block| CmdKind::Write { block, offset: self.offset(), value: self.value() },
        )
    }

    /// The register that the word writes, if the database knows it.
    #[must_use]
    pub fn register(self) -> Option<&'static RegisterDesc> {
        match self.kind() {
            CmdKind::Write { block, offset, .. } => find_register(block, offset),
            _ => None,
        }
    }
}

impl fmt::Debug for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cmd({:#018x})", self.0)
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            CmdKind::Write { block, offset, value } => match self.register() {
                Some(desc) => write!(f, "{block}.{} = {value:#x}", desc.name),
                None => write!(f, "{block}+{offset:#06x} = {value:#x} (unknown register)"),
            },
            CmdKind::OpEnable { mask } => write!(f, "op-enable {mask:#x}"),
            CmdKind::PreOpEnable => f.write_str("pre-op-enable"),
            CmdKind::Nop => write!(f, "nop {:#018x}", self.0),
            CmdKind::Unknown => write!(f, "unknown word {:#018x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs;

    #[test]
    fn words_of_the_reference_text() {
        // isa.md §8.1, closing line.
        assert_eq!(Cmd::write(regs::cna::ConvCon1(0x120)), Some(Cmd(0x0201_0000_0120_100C)));
        assert_eq!(Cmd::write(regs::cna::DataSize1(0x001F_0020)), Some(Cmd(0x0201_001F_0020_1024)));
        assert_eq!(Cmd::write(regs::dpu::DataFormat(0xA800_0002)), Some(Cmd(0x1001_A800_0002_4010)));
        assert_eq!(Cmd::op_enable(0xD), Cmd(0x0081_0000_000D_0008));
    }

    #[test]
    fn kinds() {
        assert_eq!(Cmd(0).kind(), CmdKind::Nop);
        assert_eq!(Cmd::NO_NEXT.kind(), CmdKind::Nop);
        assert_eq!(Cmd::PRE_OP_ENABLE.kind(), CmdKind::PreOpEnable);
        assert_eq!(Cmd::op_enable(0x1D).kind(), CmdKind::OpEnable { mask: 0x1D });
        // Two blocks at once, and the op-enable target with another offset.
        assert_eq!(Cmd::new(0x0A01, 0x100C, 1).kind(), CmdKind::Unknown);
        assert_eq!(Cmd::new(0x0081, 0x000C, 1).kind(), CmdKind::Unknown);
        assert_eq!(
            Cmd::new(0x1001, 0x4004, 0xE).kind(),
            CmdKind::Write { block: Block::Dpu, offset: 0x4004, value: 0xE }
        );
    }

    #[test]
    fn the_cpu_bus_registers_have_no_word() {
        assert_eq!(Cmd::write(regs::global::OperationEnable(1)), None);
    }
}
