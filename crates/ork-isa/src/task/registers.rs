// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which registers hold which values when a program starts its blocks (`isa.md` §2.6, `isa-notes.md` NS-32).

use std::collections::HashMap;
use std::fmt;

use crate::{Block, Cmd, CmdKind, Register, RegisterDesc, regs};

/// A word of a chain. Both numbers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Program of the chain.
    pub program: usize,
    /// Word of the program.
    pub word: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program {} word {}", self.program, self.word)
    }
}

/// Register values with the words that wrote them.
#[derive(Clone, Debug, Default)]
pub struct Registers {
    values: HashMap<(Block, u16), (u32, Place)>,
}

impl Registers {
    fn write(&mut self, block: Block, offset: u16, value: u32, place: Place) {
        self.values.insert((block, offset), (value, place));
    }

    /// The register, if a word of the chain wrote it.
    #[must_use]
    pub fn written<R: Register>(&self) -> Option<(R, Place)> {
        let (bits, place) = self.values.get(&(R::DESC.block, R::DESC.offset))?;
        Some((R::from_bits(*bits), *place))
    }

    /// The register, with the value of an untouched core where no word of the chain wrote it: the stages of the
    /// output pass data through, all else is 0 (`isa.md` §2.6, last paragraphs but two).
    #[must_use]
    pub fn get<R: Register>(&self) -> R {
        self.written().map_or_else(|| R::from_bits(untouched(R::DESC)), |(register, _)| register)
    }

    /// The word that wrote the register.
    #[must_use]
    pub fn place<R: Register>(&self) -> Option<Place> {
        self.written::<R>().map(|(_, place)| place)
    }
}

/// Short recorded programs leave these out and work, so a core holds them (`isa.md` §2.6, `isa-int4-sdp.md` §3.8).
fn untouched(desc: &RegisterDesc) -> u32 {
    const PASS: [(&RegisterDesc, u32); 5] = [
        (regs::dpu::BsCfg::DESC, 0x53),
        (regs::dpu::BnCfg::DESC, 0x53),
        (regs::dpu::EwCfg::DESC, 0x383),
        (regs::dpu::EwCvtScaleValue::DESC, 1),
        (regs::dpu::OutCvtScale::DESC, 1),
    ];
    let pass = PASS.iter().find(|(known, _)| *known == desc);
    pass.map_or_else(|| desc.reset.unwrap_or(0), |(_, value)| *value)
}

/// One op-enable of a chain, with what the blocks then hold.
#[derive(Clone, Debug)]
pub struct Task {
    /// The op-enable word.
    pub place: Place,
    /// The blocks that start.
    pub enable: regs::global::OperationEnable,
    /// The registers of the groups that run.
    pub registers: Registers,
    /// Lookup-table entries that the program has written so far.
    pub table_entries: usize,
    /// The last word that wrote one.
    pub table_place: Option<Place>,
    /// The entries with the words that wrote them.
    pub table: Vec<(Place, i16)>,
}

/// A block's two register groups.
#[derive(Clone, Debug, Default)]
struct Groups {
    /// Group that writes go to.
    pointer: usize,
    /// Ping-pong is on.
    alternating: bool,
}

/// Blocks by the bits of the op-enable mask.
const BY_MASK: [(u32, Block); 6] = [
    (1, Block::Cna),
    (1 << 2, Block::Core),
    (1 << 3, Block::Dpu),
    (1 << 4, Block::DpuRdma),
    (1 << 5, Block::Ppu),
    (1 << 6, Block::PpuRdma),
];

/// Every op-enable of a chain in order, with the registers that hold then.
///
/// Values persist in their group from program to program. A block whose `S_POINTER` turns ping-pong on writes the
/// group that is next in turn; the DPU's `S_POINTER` also covers CNA and CORE, whose own no known matmul program
/// writes.
#[must_use]
pub fn tasks(programs: &[&[Cmd]]) -> Vec<Task> {
    let mut files = [Registers::default(), Registers::default()];
    let mut groups: HashMap<Block, Groups> = HashMap::new();
    let mut tasks = Vec::new();
    for (program, words) in programs.iter().enumerate() {
        let (mut table_entries, mut table_place, mut table) = (0, None, Vec::new());
        for (index, cmd) in words.iter().enumerate() {
            let place = Place { program, word: index };
            match cmd.kind() {
                CmdKind::Write { block, offset, value } => {
                    if offset & 0xFFF == regs::dpu::SPointer::DESC.offset & 0xFFF {
                        point(&mut groups, block, regs::dpu::SPointer(value));
                    }
                    let pointer = groups.entry(block).or_default().pointer;
                    files[pointer].write(block, offset, value, place);
                    if (block, offset) == (Block::Dpu, regs::dpu::LutAccessData::DESC.offset)
                        && files[pointer].get::<regs::dpu::LutAccessCfg>().lut_access_type() == 1
                    {
                        table_entries += 1;
                        table_place = Some(place);
                        table.push((place, (value as u16).cast_signed()));
                    }
                }
                CmdKind::OpEnable { mask } => {
                    let mut registers = Registers::default();
                    for block in Block::ALL {
                        let pointer = groups.entry(block).or_default().pointer;
                        let own = files[pointer].values.iter().filter(|((owner, _), _)| *owner == block);
                        registers.values.extend(own.map(|(key, value)| (*key, *value)));
                    }
                    let enable = regs::global::OperationEnable(mask);
                    tasks.push(Task {
                        place,
                        enable,
                        registers,
                        table_entries,
                        table_place,
                        table: table.clone(),
                    });
                    for (bit, block) in BY_MASK {
                        let group = groups.entry(block).or_default();
                        if mask & bit != 0 && group.alternating {
                            group.pointer ^= 1;
                        }
                    }
                }
                CmdKind::PreOpEnable | CmdKind::Nop | CmdKind::Unknown => {}
            }
        }
    }
    tasks
}

fn point(groups: &mut HashMap<Block, Groups>, block: Block, value: regs::dpu::SPointer) {
    let covered: &[Block] =
        if block == Block::Dpu { &[Block::Dpu, Block::Cna, Block::Core] } else { &[block] };
    for block in covered {
        let group = groups.entry(*block).or_default();
        if value.pointer_pp_clear() == 1 {
            group.pointer = 0;
        }
        group.alternating = value.pointer_pp_en() == 1 && value.executer_pp_en() == 1;
        if !group.alternating && value.pointer_pp_clear() == 0 {
            group.pointer = value.pointer() as usize;
        }
    }
}

impl Task {
    /// Whether the mask starts `block`.
    #[must_use]
    pub fn starts(&self, block: Block) -> bool {
        BY_MASK.iter().any(|(bit, known)| *known == block && self.enable.0 & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regs::{cna, dpu};

    fn write<R: Register>(register: R) -> Cmd {
        Cmd::write(register).unwrap()
    }

    #[test]
    fn values_persist_in_their_group() {
        let program = |banks: Option<u32>| {
            let mut words = vec![write(dpu::SPointer(0xE))];
            words.extend(banks.map(|banks| write(cna::CbufCon0(banks))));
            words.push(Cmd::op_enable(0xD));
            words
        };
        let programs = [program(Some(0xB1)), program(Some(0xA2)), program(None), program(None)];
        let programs: Vec<&[Cmd]> = programs.iter().map(Vec::as_slice).collect();
        let tasks = tasks(&programs);
        let held: Vec<u32> = tasks.iter().map(|task| task.registers.get::<cna::CbufCon0>().0).collect();
        assert_eq!(held, [0xB1, 0xA2, 0xB1, 0xA2], "two groups (NS-32)");
        assert_eq!(tasks[2].registers.place::<cna::CbufCon0>(), Some(Place { program: 0, word: 1 }));
    }

    #[test]
    fn without_ping_pong_there_is_one_group() {
        let first = [write(dpu::SPointer(0x30)), write(cna::CbufCon0(0xB1)), Cmd::op_enable(0xD)];
        let tasks = tasks(&[&first, &[Cmd::op_enable(0xD)]]);
        assert_eq!(tasks[1].registers.get::<cna::CbufCon0>().0, 0xB1);
        assert_eq!(tasks[0].registers.get::<dpu::BsCfg>().0, 0x53, "an untouched stage passes data through");
        assert_eq!(tasks[0].registers.written::<dpu::BsCfg>(), None);
    }

    #[test]
    fn words_behind_op_enable_are_for_the_next_group() {
        let words = [
            write(dpu::SPointer(0xE)),
            write(cna::CbufCon0(0xB1)),
            Cmd::op_enable(0xD),
            write(cna::CbufCon0(0xA2)),
            Cmd::op_enable(0xD),
        ];
        let tasks = tasks(&[&words]);
        assert_eq!(tasks[0].registers.get::<cna::CbufCon0>().0, 0xB1);
        assert_eq!(tasks[1].registers.get::<cna::CbufCon0>().0, 0xA2);
    }

    #[test]
    fn only_write_access_fills_a_table() {
        let words = [
            write(dpu::LutAccessCfg(0)),
            write(dpu::LutAccessData(1)),
            write(dpu::LutAccessCfg(0x2_0000)),
            write(dpu::LutAccessData(2)),
            write(dpu::LutAccessData(3)),
            Cmd::op_enable(0x18),
        ];
        let task = &tasks(&[&words])[0];
        assert_eq!((task.table_entries, task.table_place), (2, Some(Place { program: 0, word: 4 })));
        assert_eq!(task.table.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [2, 3]);
        assert!(task.starts(Block::Dpu) && task.starts(Block::DpuRdma) && !task.starts(Block::Cna));
    }
}
