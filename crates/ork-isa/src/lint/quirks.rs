// SPDX-License-Identifier: MIT OR Apache-2.0
//! Quirks of single units that can be seen in their registers (`isa-notes.md` G, `isa.md` §13).

use super::table::{
    DEPTHWISE_INT32, ENABLE_MASK, INT4_ROWS, LUT_ZERO, OUTPUT_CODE, SMALL_POOL, SURFACE_STRIDE, TF32_OUTPUT,
    WDMA_SIZE,
};
use super::{Context, Event};
use crate::regs::{cna, dpu, dpu_rdma, ppu, ppu_rdma};
use crate::task::{FeatureLayout, Mac, Pool, Task};
use crate::{Block, Precision};

/// Below this side a plane that the PPU wrote is read wrongly by the next pass.
const SIDE_MIN: u32 = 4;
/// SIZE_E with which int8 sums go out as int16.
const INT16_SIZE_E: u32 = 3;

pub(super) fn check(context: &mut Context<'_>, index: usize, task: &Task) {
    mask(context, task);
    let mac = task.starts(Block::Cna).then(|| Mac::read(&task.registers));
    if let Some(mac) = &mac {
        surfaces(context, task, mac);
        if task.starts(Block::Dpu) {
            behind_mac(context, task, mac);
        }
    }
    if task.starts(Block::Dpu) {
        table(context, task);
    }
    if task.starts(Block::Ppu) {
        pool(context, index, task);
    }
}

fn mask(context: &mut Context<'_>, task: &Task) {
    const PATHS: [&[Block]; 3] = [
        &[Block::Cna, Block::Core, Block::Dpu],
        &[Block::Dpu, Block::DpuRdma],
        &[Block::Ppu, Block::PpuRdma],
    ];
    let program = task.place.program;
    let whole = |path: &[Block]| path.iter().all(|block| task.starts(*block));
    if !PATHS.into_iter().any(whole) {
        let first = context.at(task.place, "");
        let second = Event::rule("nothing that it starts has both a source and a target");
        context.report(&ENABLE_MASK, program, first, second);
        return;
    }
    // DPU and DPU_RDMA alone must take their data from memory.
    let Some((mode, _)) = task.registers.written::<dpu::FeatureModeCfg>() else { return };
    let reader = task.registers.get::<dpu_rdma::RdmaFeatureModeCfg>();
    if !task.starts(Block::Cna)
        && task.starts(Block::Dpu)
        && mode.flying_mode() == 0
        && reader.flying_mode() == 0
    {
        let first = context.of::<dpu::FeatureModeCfg>(task, "waits for sums of the MAC array");
        let second = context.at(task.place, "starts neither CNA nor CORE");
        context.report(&ENABLE_MASK, program, first, second);
    }
}

/// Distance of the surfaces of a cube (`isa.md` §5.1).
fn surfaces(context: &mut Context<'_>, task: &Task, mac: &Mac) {
    let FeatureLayout::Cube { pitch } = mac.layout else { return };
    let r = &task.registers;
    let written = r.place::<cna::DmaCon2>().is_some() && r.place::<cna::FcDataSize0>().is_some();
    let atoms = u64::from(mac.channels).div_ceil(mac.atom_channels());
    // Neighbouring atoms (16) are rows, whatever the line groups say.
    if !written || mac.precision.is_none() || atoms < 2 || pitch == 16 || mac.height == 0 {
        return;
    }
    let plane = i64::from(mac.height) * i64::from(mac.width) * 16;
    let clamped = r.get::<cna::DmaCon2>().surf_stride() == 0
        && r.get::<cna::ConvCon1>().group_line_off() == 0
        && mac.height < SIDE_MIN
        && pitch > plane;
    if pitch.abs() >= plane && !clamped {
        return;
    }
    let what = format!("{} x {} pixels of {} channels", mac.height, mac.width, mac.channels);
    let first = context.of::<cna::DataSize0>(task, what);
    let how =
        if clamped { "four lines of which there are fewer" } else { "a plane and its surfaces overlap" };
    let second = context.of::<cna::DmaCon2>(task, format!("surfaces lie {pitch} bytes apart: {how}"));
    context.report(&SURFACE_STRIDE, task.place.program, first, second);
}

fn behind_mac(context: &mut Context<'_>, task: &Task, mac: &Mac) {
    let r = &task.registers;
    let program = task.place.program;
    let Some(precision) = mac.precision else { return };
    let mut found = Vec::new();
    if let Some((format, _)) = r.written::<dpu::DataFormat>() {
        let (code, own) = (format.out_precision(), Precision::from_code(format.out_precision()));
        let event = |what: String| context.of::<dpu::DataFormat>(task, what);
        let ow = context.of::<dpu::BsOwCfg>(task, "");
        if code == 7 || format.in_precision() == 7 {
            let what = format!("IN_PRECISION {}, OUT_PRECISION {code}", format.in_precision());
            found.push((&TF32_OUTPUT, event(what), Event::rule("tf32 goes through the DPU as fp32 (5)")));
        } else if precision == Precision::Int8 && mac.depthwise && own == Some(Precision::Int32) {
            let first = context.of::<cna::ConvCon1>(task, "depthwise, int8");
            found.push((&DEPTHWISE_INT32, first, event("OUT_PRECISION int32".into())));
        } else if precision == Precision::Int8 && !mac.depthwise {
            let size_e = r.get::<dpu::BsOwCfg>().size_e_0();
            match own {
                Some(Precision::Int16) if size_e != INT16_SIZE_E => {
                    let first = event("OUT_PRECISION int16 behind int8 sums".into());
                    found.push((&OUTPUT_CODE, first, Event { what: format!("SIZE_E {size_e}"), ..ow }));
                }
                Some(Precision::Bf16 | Precision::Int4) | None => {
                    let rule = Event::rule("no program stores int8 sums so");
                    found.push((&OUTPUT_CODE, event(format!("OUT_PRECISION {code}")), rule));
                }
                _ => {}
            }
        }
    }
    let cube = (r.get::<dpu::DataCubeHeight>().height() + 1, r.get::<dpu::DataCubeWidth>().width() + 1);
    let flying = r.get::<dpu::FeatureModeCfg>().flying_mode() == 1;
    let sized = r.place::<dpu::DataCubeHeight>().is_some() && r.place::<dpu::DataCubeWidth>().is_some();
    if let Some((size, _)) = r.written::<dpu::WdmaSize1>()
        && sized
        && !flying
    {
        let rows = precision == Precision::Int4
            && r.place::<dpu::DstSurfStride>().is_some()
            && r.get::<dpu::DstSurfStride>().dst_surf_stride() == 1;
        let stored = (size.height_wdma() + 1, size.width_wdma() + 1);
        let size_event = |what: String| context.of::<dpu::WdmaSize1>(task, what);
        if rows && size.0 != 0 && cube.0 > 1 {
            let first = context.of::<dpu::DstSurfStride>(task, format!("int4, {} rows", cube.0));
            found.push((&INT4_ROWS, first, size_event("only row 0 comes out right".into())));
        } else if stored != cube && !(precision == Precision::Int4 && size.0 == 0) {
            let first = context.of::<dpu::DataCubeHeight>(task, format!("{} x {} pixels", cube.0, cube.1));
            found.push((&WDMA_SIZE, first, size_event(format!("stores {} x {}", stored.0, stored.1))));
        }
        let stride = r.get::<cna::DmaCon1>().line_stride();
        let stream = precision == Precision::Int4 && size.0 == 0 && cube.0 > 1;
        if stream && r.place::<cna::DmaCon1>().is_some() && u64::from(stride) * 16 != u64::from(mac.channels)
        {
            let first = context.of::<cna::DataSize1>(task, format!("K = {}", mac.channels));
            let second = context.of::<cna::DmaCon1>(task, format!("{stride}, not {}", mac.channels / 16));
            found.push((&INT4_ROWS, first, second));
        }
    }
    for (lint, first, second) in found {
        context.report(lint, program, first, second);
    }
}

/// Table entries that the affine converter turns into something else than 0.
fn table(context: &mut Context<'_>, task: &Task) {
    let r = &task.registers;
    let (Some((ew, _)), Some((shift, _))) = (r.written::<dpu::EwCfg>(), r.written::<dpu::OutCvtShift>())
    else {
        return;
    };
    let reads = ew.ew_bypass() == 0 && ew.ew_lut_bypass() == 0;
    let affine = shift.cvt_type() == 1
        && shift.minus_exp() != 0
        && r.get::<dpu::OutCvtScale>().fp32tofp16_en() == 1
        && r.get::<dpu::DataFormat>().out_precision() == Precision::Fp16.code();
    if !reads || !affine {
        return;
    }
    let offset = r.get::<dpu::OutCvtOffset>().out_cvt_offset().cast_signed();
    let cancels = |value: i16| i64::from(value) + i64::from(offset) == 0;
    let count = task.table.iter().filter(|(_, value)| cancels(*value)).count();
    let Some((place, value)) = task.table.iter().find(|(_, value)| cancels(*value)) else { return };
    let power = 17 - i64::from(shift.minus_exp() & 31);
    let first = context.at(*place, format!("entry {value}, the first of {count} like it"));
    let what = format!("plus {offset} is 0, which MINUS_EXP {} decodes to 2^{power}", shift.minus_exp());
    let second = context.of::<dpu::OutCvtOffset>(task, what);
    context.report(&LUT_ZERO, task.place.program, first, second);
}

/// Whether a chain leads from one program to another, or they are the same.
fn follows(context: &Context<'_>, from: usize, to: usize) -> bool {
    let mut at = Some(to);
    // A chain that loops has no more links than programs.
    for _ in 0..=context.programs.len() {
        match at {
            Some(program) if program == from => return true,
            Some(program) => at = context.links.linked_from(program),
            None => return false,
        }
    }
    false
}

/// A pool whose input the pool before it in the chain wrote with a short side.
fn pool(context: &mut Context<'_>, index: usize, task: &Task) {
    let program = task.place.program;
    let Some((source, _)) = task.registers.written::<ppu_rdma::RdmaSrcBaseAddr>() else { return };
    let writes_it = |other: &&Task| {
        let target = other.registers.written::<ppu::DstBaseAddr>();
        follows(context, other.place.program, program)
            && other.starts(Block::Ppu)
            && target.is_some_and(|(target, _)| target.dst_base_addr() * 16 == source.src_base_addr())
    };
    let Some(earlier) = context.tasks[..index].iter().rev().find(writes_it) else { return };
    let (height, width) = Pool::read(&earlier.registers).output;
    if height.min(width) < SIDE_MIN {
        let first = context.of::<ppu::DstBaseAddr>(earlier, format!("writes planes of {height} x {width}"));
        let second = context.of::<ppu_rdma::RdmaSrcBaseAddr>(task, "reads them");
        context.report(&SMALL_POOL, program, first, second);
    }
}
