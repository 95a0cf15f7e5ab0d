// SPDX-License-Identifier: MIT OR Apache-2.0
//! Register files of the blocks: two groups each, with the pointers that choose between them (`isa.md` §2.6).

use ork_isa::regs::{cna, core, dpu, dpu_rdma, ppu, ppu_rdma};
use ork_isa::{Block, Register};

use crate::diagnosis::{Origin, RegisterValue};
use crate::options::{PointerScope, ResetStages, Silicon};

/// Registers of a block span 0x200 bytes at most.
const SLOTS: usize = 128;

/// The blocks that execute, in op-enable order.
pub(crate) const EXECUTING: [Block; 6] =
    [Block::Cna, Block::Core, Block::Dpu, Block::DpuRdma, Block::Ppu, Block::PpuRdma];

/// One group of one block: values with the word that wrote each.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    values: [u32; SLOTS],
    origins: [Option<Origin>; SLOTS],
}

impl Group {
    fn reset(block: Block, stages: ResetStages) -> Self {
        let mut group = Self { values: [0; SLOTS], origins: [None; SLOTS] };
        // Pass-through values: short recorded programs leave these out and work (`isa.md` §2.6,
        // `isa-int4-sdp.md` §3.8; the TRM says 0).
        match block {
            Block::Core => group.preset(core::MacGating(0x0780_0800)),
            Block::Dpu if stages == ResetStages::PassThrough => {
                group.preset(dpu::BsCfg(0x53));
                group.preset(dpu::BnCfg(0x53));
                group.preset(dpu::EwCfg(0x383));
                group.preset(dpu::EwCvtScaleValue(1));
                group.preset(dpu::OutCvtScale(1));
            }
            _ => {}
        }
        group
    }

    fn preset<R: Register>(&mut self, register: R) {
        self.values[slot(R::DESC.offset)] = register.bits();
    }

    /// The register's value.
    pub(crate) fn get<R: Register>(&self) -> R {
        R::from_bits(self.values[slot(R::DESC.offset)])
    }

    /// Which word wrote the register, if any did.
    pub(crate) fn origin<R: Register>(&self) -> Option<Origin> {
        self.origins[slot(R::DESC.offset)]
    }

    /// The register as a finding shows it.
    pub(crate) fn show<R: Register>(&self) -> RegisterValue {
        RegisterValue::of(self.get::<R>(), self.origin::<R>())
    }
}

const fn slot(offset: u16) -> usize {
    (offset as usize & 0x1FF) / 4
}

/// A block's two groups and its pointers.
#[derive(Debug)]
struct BlockRegs {
    groups: [Group; 2],
    /// Group that writes go to.
    pointer: usize,
    /// Group that ran last.
    executer: usize,
    /// Ping-pong is on (`POINTER_PP_EN` and `EXECUTER_PP_EN`).
    alternating: bool,
    /// The present program has written S_POINTER with ping-pong on, or is the first of its job.
    armed: bool,
}

impl BlockRegs {
    fn reset(block: Block, stages: ResetStages) -> Self {
        let group = Group::reset(block, stages);
        Self { groups: [group.clone(), group], pointer: 0, executer: 0, alternating: false, armed: false }
    }

    fn set_pointer(&mut self, value: u32) {
        let value = dpu::SPointer(value);
        if value.pointer_pp_clear() == 1 {
            self.pointer = 0;
        }
        if value.executer_pp_clear() == 1 {
            self.executer = 0;
        }
        self.alternating = is_alternating(value);
        if self.alternating {
            self.armed = true;
        } else if value.pointer_pp_clear() == 0 {
            self.pointer = value.pointer() as usize;
            self.executer = value.pointer() as usize;
        }
    }
}

/// Whether a value of S_POINTER turns ping-pong on.
fn is_alternating(value: dpu::SPointer) -> bool {
    value.pointer_pp_en() == 1 && value.executer_pp_en() == 1
}

/// All blocks of a core.
#[derive(Debug)]
pub(crate) struct RegisterFile {
    blocks: [BlockRegs; 6],
    scope: PointerScope,
}

/// Which groups an op-enable runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    groups: [usize; 6],
    /// Ping-pong is on but the program did not re-arm it.
    pub(crate) repeats: bool,
    /// The DPU alternates between its groups.
    pub(crate) alternating: bool,
}

impl Turn {
    /// The group of `block`, for its interrupt bit.
    pub(crate) fn group(self, block: Block) -> usize {
        self.groups[index(block)]
    }
}

fn index(block: Block) -> usize {
    match block {
        Block::Core => 1,
        Block::Dpu => 2,
        Block::DpuRdma => 3,
        Block::Ppu => 4,
        Block::PpuRdma => 5,
        _ => 0,
    }
}

impl RegisterFile {
    pub(crate) fn reset(silicon: &Silicon) -> Self {
        let blocks = EXECUTING.map(|block| BlockRegs::reset(block, silicon.reset_stages));
        Self { blocks, scope: silicon.pointer_scope }
    }

    /// A new job begins: what its driver writes to the S_POINTER of CNA and CORE (`uapi.md` A.9, B.2).
    pub(crate) fn begin_job(&mut self, s_pointer: Option<u32>) {
        let Some(value) = s_pointer else { return };
        for block in [Block::Cna, Block::Core] {
            self.blocks[index(block)].set_pointer(value);
        }
    }

    /// A new program begins: arming is per program. The first of a job runs what it writes in any case; only later
    /// ones can repeat a task.
    pub(crate) fn begin_program(&mut self, task: u16) {
        for block in &mut self.blocks {
            block.armed = task == 0;
        }
    }

    /// Writes a register of an executing block.
    pub(crate) fn write(&mut self, block: Block, offset: u16, value: u32, origin: Origin) {
        let own = index(block);
        match offset & 0xFFF {
            // Status is read-only.
            0x000 => {}
            0x004 => {
                self.blocks[own].set_pointer(value);
                // Matmul programs write the DPU's pointer only, yet CNA and CORE alternate too (NS-32). Turning ping-pong
                // off is the DPU's own matter: their drivers have turned it on.
                if block == Block::Dpu
                    && self.scope == PointerScope::DpuCoversAll
                    && is_alternating(dpu::SPointer(value))
                {
                    self.blocks[index(Block::Cna)].set_pointer(value);
                    self.blocks[index(Block::Core)].set_pointer(value);
                }
            }
            _ => {
                let regs = &mut self.blocks[own];
                let group = &mut regs.groups[regs.pointer];
                group.values[slot(offset)] = value;
                group.origins[slot(offset)] = Some(origin);
            }
        }
    }

    /// Op-enable of `blocks`: which group each runs. The turn passes for blocks that alternate and were re-armed; one
    /// that was not runs its last group again (`isa.md` §2.6, §13 row 19). CNA and CORE, whose S_POINTER programs do not
    /// write, need no arming of their own: they repeat with the DPU.
    pub(crate) fn op_enable(&mut self, blocks: &[Block]) -> Turn {
        let dpu = &self.blocks[index(Block::Dpu)];
        let dpu_repeats = blocks.contains(&Block::Dpu) && dpu.alternating && !dpu.armed;
        let mut turn = Turn { groups: [0; 6], repeats: false, alternating: dpu.alternating };
        for block in blocks {
            let regs = &mut self.blocks[index(*block)];
            let repeats = match block {
                Block::Cna | Block::Core => dpu_repeats,
                _ => !regs.armed,
            };
            if !regs.alternating {
                regs.executer = regs.pointer;
            } else if repeats {
                turn.repeats = true;
            } else {
                regs.executer = regs.pointer;
                regs.pointer ^= 1;
            }
            turn.groups[index(*block)] = regs.executer;
        }
        turn
    }

    /// The groups that `turn` runs.
    pub(crate) fn view(&self, turn: Turn) -> View<'_> {
        View { file: self, turn }
    }
}

/// The registers that a task runs with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    file: &'a RegisterFile,
    turn: Turn,
}

impl<'a> View<'a> {
    pub(crate) fn group(&self, block: Block) -> &'a Group {
        let index = index(block);
        &self.file.blocks[index].groups[self.turn.groups[index]]
    }

    /// The DPU alternates between its groups.
    pub(crate) fn alternating(&self) -> bool {
        self.turn.alternating
    }

    /// The register's value.
    pub(crate) fn get<R: Register>(&self) -> R {
        self.group(R::DESC.block).get()
    }

    /// The register as a finding shows it.
    pub(crate) fn show<R: Register>(&self) -> RegisterValue {
        self.group(R::DESC.block).show::<R>()
    }
}

/// The blocks that an op-enable mask names, and the bits that name none.
pub(crate) fn blocks_of(mask: u32) -> (Vec<Block>, u32) {
    const BITS: [(u32, Block); 6] = [
        (0, Block::Cna),
        (2, Block::Core),
        (3, Block::Dpu),
        (4, Block::DpuRdma),
        (5, Block::Ppu),
        (6, Block::PpuRdma),
    ];
    let mut rest = mask;
    let mut blocks = Vec::new();
    for (bit, block) in BITS {
        if mask >> bit & 1 == 1 {
            blocks.push(block);
            rest &= !(1 << bit);
        }
    }
    (blocks, rest)
}

// Every register that a unit reads lies in the span of its block.
const _: () = {
    assert!(slot(cna::PadCon1::DESC.offset) < SLOTS);
    assert!(slot(dpu::LutLoSlopeShift::DESC.offset) < SLOTS);
    assert!(slot(dpu_rdma::RdmaEwSurfNotch::DESC.offset) < SLOTS);
    assert!(slot(ppu::MiscCtrl::DESC.offset) < SLOTS);
    assert!(slot(ppu_rdma::Unknown7038::DESC.offset) < SLOTS);
};
