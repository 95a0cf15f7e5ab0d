// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words and registers, one at a time.

use std::collections::HashMap;

use super::table::{
    ADDRESS_UNALIGNED, MULTI_CORE_BITS, OVERWRITTEN, RESERVED_BITS, UNDOCUMENTED, UNKNOWN_REGISTER,
    UNKNOWN_WORD, WIDTH_MAXIMUM,
};
use super::{Context, Event};
use crate::regs::{self, cna, core, dpu, dpu_rdma, pc, ppu, ppu_rdma};
use crate::task::Place;
use crate::{Block, CmdKind, Register, RegisterDesc, find_register};

/// Largest value of the 13-bit size fields; it stands for 8192.
const SIZE_MAX: u32 = 8191;

pub(super) fn check(context: &mut Context<'_>) {
    for program in 0..context.programs.len() {
        words(context, program);
        overwritten(context, program);
    }
}

fn words(context: &mut Context<'_>, program: usize) {
    for (word, cmd) in context.programs[program].words.iter().enumerate() {
        let place = Place { program, word };
        let mut report = |lint, first: &str, second: String| {
            let event = context.at(place, first);
            context.report(lint, program, event, Event::rule(second));
        };
        match cmd.kind() {
            CmdKind::Unknown => {
                let target = cmd.target();
                report(&UNKNOWN_WORD, "", format!("no block or more than one has target {target:#06x}"));
            }
            CmdKind::OpEnable { mask } => {
                let reserved = mask & !regs::global::OperationEnable::DESC.named_mask();
                if reserved != 0 {
                    report(&RESERVED_BITS, "", format!("bits {reserved:#x} start no known block"));
                }
            }
            CmdKind::Write { block, value, .. } => match cmd.register() {
                None => report(&UNKNOWN_REGISTER, "", format!("{block} has no such register")),
                Some(desc) => register(desc, value, &mut report),
            },
            CmdKind::PreOpEnable | CmdKind::Nop => {}
        }
    }
}

fn register(
    desc: &'static RegisterDesc,
    value: u32,
    report: &mut impl FnMut(&'static super::Lint, &str, String),
) {
    let is = |other: &RegisterDesc| desc == other;
    let reserved = value & !desc.named_mask();
    let multi_core = (is(cna::ConvCon2::DESC) && reserved & 0x0FFF_FFFF == 0)
        || (is(pc::RegisterAmounts::DESC) && reserved & 0xFFFF == 0);
    if reserved != 0 && multi_core {
        report(&MULTI_CORE_BITS, "", format!("bits {reserved:#x} belong to no field"));
    } else if reserved != 0 && !is(pc::BaseAddress::DESC) {
        report(&RESERVED_BITS, "", format!("bits {reserved:#x} belong to no field"));
    }
    let undocumented = [core::Unknown3030::DESC, dpu::Unknown40c4::DESC].into_iter().any(is);
    if undocumented && value != 0 {
        report(&UNDOCUMENTED, "", "every known program writes 0".into());
    }
    let addresses = [cna::FeatureDataAddr::DESC, cna::DcompAddr0::DESC, dpu::DstBaseAddr::DESC];
    if addresses.into_iter().any(is) && value & 0xF != 0 {
        report(&ADDRESS_UNALIGNED, "", "its low 4 bits are not 0".into());
    }
    for (owner, name) in SIZES {
        let at_maximum = |field: &crate::FieldDesc| field.name == *name && field.get(value) == SIZE_MAX;
        if is(owner) && desc.fields.iter().any(at_maximum) {
            report(&WIDTH_MAXIMUM, "", format!("{name} is at its maximum, {SIZE_MAX} for 8192"));
        }
    }
}

/// The 13-bit size fields (`isa-notes.md` A.5, G-4).
const SIZES: &[(&RegisterDesc, &str)] = &[
    (dpu::DataCubeWidth::DESC, "WIDTH"),
    (dpu::DataCubeHeight::DESC, "HEIGHT"),
    (dpu_rdma::RdmaDataCubeWidth::DESC, "WIDTH"),
    (dpu_rdma::RdmaDataCubeHeight::DESC, "HEIGHT"),
    (ppu::DataCubeInWidth::DESC, "CUBE_IN_WIDTH"),
    (ppu::DataCubeInHeight::DESC, "CUBE_IN_HEIGHT"),
    (ppu_rdma::RdmaCubeInWidth::DESC, "CUBE_IN_WIDTH"),
    (ppu_rdma::RdmaCubeInHeight::DESC, "CUBE_IN_HEIGHT"),
];

/// A register that gets two different values before op-enable. Ports and pointers are meant to be written often.
fn overwritten(context: &mut Context<'_>, program: usize) {
    let mut seen: HashMap<(Block, u16), (u32, usize)> = HashMap::new();
    for (word, cmd) in context.programs[program].words.iter().enumerate() {
        let (block, offset, value) = match cmd.kind() {
            CmdKind::Write { block, offset, value } => (block, offset, value),
            // What follows is for the next group.
            CmdKind::OpEnable { .. } => {
                seen.clear();
                continue;
            }
            _ => continue,
        };
        let port = block == Block::Dpu
            && [dpu::LutAccessCfg::DESC.offset, dpu::LutAccessData::DESC.offset].contains(&offset);
        if port || block == Block::Pc || offset & 0xFFF <= 4 {
            continue;
        }
        let Some((before, place)) = seen.insert((block, offset), (value, word)) else { continue };
        if before != value {
            let first = context.at(Place { program, word: place }, "");
            let second = context.at(Place { program, word }, changes(block, offset, before, value));
            context.report(&OVERWRITTEN, program, first, second);
        }
    }
}

/// "FIELD a becomes b" for every field that differs.
fn changes(block: Block, offset: u16, before: u32, after: u32) -> String {
    let fields = find_register(block, offset).map_or(&[][..], |desc| desc.fields);
    let mut parts: Vec<String> = fields
        .iter()
        .filter(|field| field.get(before) != field.get(after))
        .map(|field| format!("{} {:#x} becomes {:#x}", field.name, field.get(before), field.get(after)))
        .collect();
    if parts.is_empty() {
        parts.push(format!("{before:#x} becomes {after:#x}"));
    }
    format!("{}; the later word wins", parts.join(", "))
}
