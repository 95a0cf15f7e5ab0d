// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output stage, its readers, pooling, and the memory that a task touches.

use super::table::{
    ADDRESS_WINDOW, FLYING_DISAGREES, FP16_UNCONVERTED, IN_PLACE, LUT_PING_PONG, MRDMA_OFF, MRDMA_UNFED,
    POOL_PRECISION, ROWS_MAXIMUM, ROWS_OVERLAP, SIZE_E_DIFFERS, SIZE_E_LONG, SIZE_E_SHORT, SURFACE_ADD_GAP,
    SURFACE_ADD_OVERLAP,
};
use super::{Context, Event};
use crate::regs::{dpu, dpu_rdma, ppu, ppu_rdma};
use crate::task::{Access, Extent, Feed, Mac, Output, OutputLayout, Task};
use crate::{Block, Precision};

/// Rows up to which an element-wise pass completes (`isa-int4-sdp.md` §3.2).
const FLYING_ROWS_MAX: u32 = 8176;
/// The code of 16-bit elements in `PPU_RDMA.IN_PRECISION`.
const POOL_16_BIT: u32 = 2;

pub(super) fn check(context: &mut Context<'_>, task: &Task, extents: &[Extent]) {
    if task.starts(Block::Dpu) {
        let mac = task.starts(Block::Cna).then(|| Mac::read(&task.registers));
        let output = Output::read(&task.registers, mac.as_ref());
        readers(context, task, &output);
        conversion(context, task, &output);
        if mac.as_ref().is_none_or(|mac| mac.precision.is_some()) {
            write_out(context, task, &output);
        }
        tables(context, task);
    }
    if task.starts(Block::Ppu) {
        pooling(context, task);
    }
    memory(context, task, extents);
}

fn readers(context: &mut Context<'_>, task: &Task, output: &Output) {
    let r = &task.registers;
    let program = task.place.program;
    if !task.starts(Block::DpuRdma) {
        return;
    }
    let Some((mode, _)) = r.written::<dpu_rdma::RdmaFeatureModeCfg>() else { return };
    let flying = output.feed == Feed::Memory;
    let mode_event = |what: &str| context.of::<dpu_rdma::RdmaFeatureModeCfg>(task, what);
    let dpu_event = |what: &str| context.of::<dpu::FeatureModeCfg>(task, what);
    if flying != (mode.flying_mode() == 1) {
        let first = dpu_event(if flying { "main data from MRDMA" } else { "main data from the MAC array" });
        let second = mode_event(if flying { "FLYING_MODE 0" } else { "FLYING_MODE 1" });
        context.report(&FLYING_DISAGREES, program, first, second);
        return;
    }
    let erdma_on = r.get::<dpu_rdma::RdmaErdmaCfg>().erdma_disable() == 0;
    let paired = mode.comb_use() == 5 && erdma_on;
    if !flying && mode.mrdma_disable() == 0 && !paired {
        let first = dpu_event("main data from the MAC array");
        let comb = mode.comb_use();
        let second =
            mode_event(&format!("MRDMA is on with COMB_USE {comb} and waits for data that nobody asks for"));
        context.report(&MRDMA_UNFED, program, first, second);
    } else if flying && mode.mrdma_disable() == 1 {
        let (first, second) = (dpu_event("main data from MRDMA"), mode_event("MRDMA is off"));
        context.report(&MRDMA_OFF, program, first, second);
    }
}

fn conversion(context: &mut Context<'_>, task: &Task, output: &Output) {
    let program = task.place.program;
    let r = &task.registers;
    let written = r.place::<dpu::DataFormat>().is_some();
    let from_mac = output.feed == Feed::Mac && task.starts(Block::Cna) && output.to_memory;
    let converts = r.get::<dpu::OutCvtScale>().fp32tofp16_en() == 1;
    if written && from_mac && output.precision == Some(Precision::Fp16) && !converts {
        let first = context.of::<dpu::DataFormat>(task, "OUT_PRECISION fp16 behind the MAC array");
        let second = context.of::<dpu::OutCvtScale>(task, "FP32TOFP16_EN 0");
        context.report(&FP16_UNCONVERTED, program, first, second);
    }
    if output.feed == Feed::Memory && output.width > FLYING_ROWS_MAX {
        let first = context.of::<dpu::FeatureModeCfg>(task, "main data from MRDMA");
        let second = context.of::<dpu::DataCubeWidth>(task, format!("{} rows", output.width));
        context.report(&ROWS_MAXIMUM, program, first, second);
    }
}

fn write_out(context: &mut Context<'_>, task: &Task, output: &Output) {
    let r = &task.registers;
    let program = task.place.program;
    let known = r.place::<dpu::DataFormat>().is_some() && r.place::<dpu::DataCubeChannel>().is_some();
    let (true, Some(precision), Some((ow, _))) =
        (known && output.to_memory, output.precision, r.written::<dpu::BsOwCfg>())
    else {
        return;
    };
    let mut found = Vec::new();
    let ow_event = |what: String| context.of::<dpu::BsOwCfg>(task, what);
    let format_event = |what: String| context.of::<dpu::DataFormat>(task, what);
    let sizes = [ow.size_e_0(), ow.size_e_1(), ow.size_e_2()];
    if sizes[0] != sizes[1] || sizes[1] != sizes[2] {
        let first = ow_event(format!("SIZE_E_0 {}, SIZE_E_1 {}, SIZE_E_2 {}", sizes[0], sizes[1], sizes[2]));
        found.push((&SIZE_E_DIFFERS, first, Event::rule("every known program writes one number")));
    }
    // A single narrow group needs only the atoms of its channels.
    let channels = output.channels.min(output.group);
    let needed = (channels * precision.bits()).div_ceil(128).max(1);
    let atoms = format!("{channels} channels of {precision} are {needed} atoms a group");
    if output.size_e < needed {
        let second = ow_event(format!("SIZE_E {} emits {}", sizes[0], output.size_e));
        found.push((&SIZE_E_SHORT, format_event(atoms), second));
    } else if output.feed == Feed::Mac && output.size_e > output.group_atoms {
        let second = ow_event(format!("SIZE_E {} asks for {}", sizes[0], output.size_e));
        found.push((&SIZE_E_LONG, format_event(atoms), second));
    }
    let strides = r.place::<dpu::DstSurfStride>().is_some() && r.place::<dpu::SurfaceAdd>().is_some();
    if strides && output.groups() > 1 {
        let plane = u64::from(output.emitted() - 1) * output.surf_stride;
        let surface = output.line(output.height - 1) + u64::from(output.width) * 16;
        let row_major = matches!(output.layout(), OutputLayout::RowMajor { .. });
        let content = if row_major { plane + 16 } else { plane + surface };
        let dense = u64::from(output.emitted()) * output.surf_stride;
        let add = || {
            let what = format!("groups lie {} bytes apart", output.surface_add);
            context.of::<dpu::SurfaceAdd>(task, what)
        };
        let emitted = output.emitted();
        if output.surface_add < content {
            let what = format!("{precision}: a group of {emitted} atoms reaches over {content} bytes");
            found.push((&SURFACE_ADD_OVERLAP, format_event(what), add()));
        } else if output.surface_add > dense {
            let what = format!("{precision}: a group of {emitted} atoms is dense at {dense} bytes");
            found.push((&SURFACE_ADD_GAP, format_event(what), add()));
        }
    }
    if strides
        && output.height > 1
        && let OutputLayout::RowMajor { first_pitch, pitch } = output.layout()
    {
        let shortest = if output.height > 2 { first_pitch.min(pitch) } else { first_pitch };
        let row = u64::from(output.groups() - 1) * output.surface_add + u64::from(output.emitted_last()) * 16;
        if shortest < row {
            let first = context.of::<dpu::DataCubeChannel>(task, format!("a row takes {row} bytes"));
            let second =
                context.of::<dpu::DataCubeNotchAddr>(task, format!("rows lie {shortest} bytes apart"));
            found.push((&ROWS_OVERLAP, first, second));
        }
    }
    for (lint, first, second) in found {
        context.report(lint, program, first, second);
    }
}

fn tables(context: &mut Context<'_>, task: &Task) {
    let Some(place) = task.table_place else { return };
    let Some((pointer, at)) = task.registers.written::<dpu::SPointer>() else { return };
    if at.program == task.place.program && pointer.pointer_pp_en() == 1 {
        let first = context.at(at, "ping-pong is on");
        let second = context.at(place, format!("last of {} table entries", task.table_entries));
        context.report(&LUT_PING_PONG, task.place.program, first, second);
    }
}

fn pooling(context: &mut Context<'_>, task: &Task) {
    let r = &task.registers;
    let unit = r.get::<ppu::DataFormat>().proc_precision();
    let reader = r.get::<ppu_rdma::RdmaDataFormat>().in_precision();
    let unit_wrong = r.place::<ppu::DataFormat>().is_some() && unit != Precision::Fp16.code();
    let reader_wrong = r.place::<ppu_rdma::RdmaDataFormat>().is_some() && reader != POOL_16_BIT;
    if unit_wrong || reader_wrong {
        let first = context.of::<ppu::DataFormat>(task, format!("PROC_PRECISION {unit}; fp16 is 2"));
        let second =
            context.of::<ppu_rdma::RdmaDataFormat>(task, format!("IN_PRECISION {reader}; 16 bits is 2"));
        context.report(&POOL_PRECISION, task.place.program, first, second);
    }
}

fn memory(context: &mut Context<'_>, task: &Task, extents: &[Extent]) {
    let program = task.place.program;
    let start = task.place;
    for extent in extents {
        if extent.start < 0 || extent.end > 1 << 32 {
            let first = context.at(start, extent.to_string());
            let second = Event::rule("addresses have 32 bits");
            context.report(&ADDRESS_WINDOW, program, first, second);
        }
    }
    for written in extents.iter().filter(|extent| extent.access == Access::Write) {
        for read in extents.iter().filter(|extent| extent.access == Access::Read && extent.overlaps(written))
        {
            let first = context.at(start, read.to_string());
            context.report(&IN_PLACE, program, first, Event::rule(written.to_string()));
        }
    }
}
