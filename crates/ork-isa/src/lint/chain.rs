// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trailers and links.

use super::table::{
    AMOUNT_LONG, AMOUNT_SHORT, LINK_HALF, LINK_SELF, LINK_UNALIGNED, LINK_UNRESOLVED, NO_MARKER,
    NO_OP_ENABLE, NO_S_POINTER, OP_ENABLE_AGAIN,
};
use super::{Context, Event};
use crate::program::fetch_amount;
use crate::regs::dpu;
use crate::task::{Next, Place, Trailer};
use crate::{Block, CmdKind, Register};

pub(super) fn check(context: &mut Context<'_>) {
    for program in 0..context.programs.len() {
        let trailer = Trailer::read(&context.programs[program].words);
        starts(context, program, &trailer);
        links(context, program, &trailer);
        pointers(context, program);
    }
}

fn starts(context: &mut Context<'_>, program: usize, trailer: &Trailer) {
    let Some((_, word)) = trailer.op_enable else {
        let last = context.programs[program].words.len().checked_sub(1);
        let first = match last {
            Some(word) => context.at(Place { program, word }, "the last word"),
            None => Event::rule("the program has no words"),
        };
        context.report(&NO_OP_ENABLE, program, first, Event::rule("no word starts a block"));
        return;
    };
    let start = Place { program, word };
    if trailer.marker.is_none() {
        let first = context.at(start, "starts the blocks");
        context.report(&NO_MARKER, program, first, Event::rule("the marker word is nowhere"));
    }
    if let Some(word) = trailer.second_op_enable {
        let first = context.at(start, "starts the blocks");
        let second = context.at(Place { program, word }, "starts blocks again");
        context.report(&OP_ENABLE_AGAIN, program, first, second);
    }
}

fn links(context: &mut Context<'_>, program: usize, trailer: &Trailer) {
    if let Some((value, word)) = trailer.link
        && value & 0xF != 0
    {
        let first = context.at(Place { program, word }, format!("the low 4 bits are {:#x}", value & 0xF));
        let rule = "programs lie on 16-byte addresses; bit 0 would switch to slave mode";
        context.report(&LINK_UNALIGNED, program, first, Event::rule(rule));
    }
    let event = |context: &Context<'_>, found: Option<(u32, usize)>, what: &str, missing: &str| match found {
        Some((_, word)) => context.at(Place { program, word }, what),
        None => Event::rule(missing),
    };
    let address = trailer.next_address();
    let amount = trailer.next_amount();
    match (address, amount) {
        (Some(_), 0) => {
            let first = event(context, trailer.link, "links to a program", "");
            let second =
                event(context, trailer.amount, "but nothing of it is fetched", "no word gives its amount");
            context.report(&LINK_HALF, program, first, second);
            return;
        }
        (None, 1..) => {
            let first = event(context, trailer.amount, "gives the amount of a next program", "");
            let second = event(context, trailer.link, "but its address is 0", "no word gives its address");
            context.report(&LINK_HALF, program, first, second);
            return;
        }
        (None, _) => return,
        (Some(_), _) => {}
    }
    let link = event(context, trailer.link, "links onward", "");
    let own = context.programs[program].at;
    if own.is_some_and(|own| Some(own.0) == address) {
        context.report(&LINK_SELF, program, link, Event::rule("that is this program"));
        return;
    }
    match context.links.next(program) {
        Next::Program(other) => {
            let words = context.programs[other].words.len();
            let exact = if words == 0 { 0 } else { u32::from(fetch_amount(words)) };
            let (lint, how) = if amount < exact {
                (&AMOUNT_SHORT, "its last words are never fetched")
            } else if amount > exact {
                (&AMOUNT_LONG, "words behind it are fetched as well")
            } else {
                return;
            };
            let first = event(context, trailer.amount, "", "");
            let what = format!("program {other} has {words} words: {exact:#x} is exact, {how}");
            context.report(lint, program, first, Event::rule(what));
        }
        Next::Elsewhere(address) if context.programs.iter().any(|program| program.at.is_some()) => {
            let second = Event::rule(format!("no program of this listing lies at {address:#010x}"));
            context.report(&LINK_UNRESOLVED, program, link, second);
        }
        Next::Elsewhere(_) | Next::End => {}
    }
}

/// Where a chain alternates between register groups, each program must write `S_POINTER` of every block that it
/// starts and that its predecessors armed.
fn pointers(context: &mut Context<'_>, program: usize) {
    let Some(before) = context.links.linked_from(program) else { return };
    let Some(task) = context.tasks.iter().find(|task| task.place.program == program) else { return };
    let armed = |index: usize, block: Block| {
        let words = &context.programs[index].words;
        words.iter().enumerate().find_map(|(word, cmd)| match cmd.kind() {
            CmdKind::Write { block: owner, offset, value }
                if owner == block && offset & 0xFFF == dpu::SPointer::DESC.offset & 0xFFF =>
            {
                Some((Place { program: index, word }, dpu::SPointer(value).pointer_pp_en() == 1))
            }
            _ => None,
        })
    };
    let mut missing = Vec::new();
    for block in [Block::Dpu, Block::DpuRdma, Block::Ppu, Block::PpuRdma] {
        if let Some((place, true)) = armed(before, block)
            && task.starts(block)
            && armed(program, block).is_none()
        {
            missing.push((place, block));
        }
    }
    let start = task.place;
    for (place, block) in missing {
        let first = context.at(place, "ping-pong is on");
        let second =
            context.at(start, format!("starts {block}, whose S_POINTER this program does not write"));
        context.report(&NO_S_POINTER, program, first, second);
    }
}
