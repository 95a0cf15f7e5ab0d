// SPDX-License-Identifier: MIT OR Apache-2.0
//! DPU: from sums or memory through the stages and the converter to the write DMA (`isa.md` §14.3).

use std::sync::atomic::Ordering;

use ork_isa::regs::{cna, core, dpu};
use ork_isa::{Iova, Precision};

use crate::cbuf_rules::Poison;
use crate::cna::{ATOM, Conv};
use crate::conv::{SUMS_MAX, too_large};
use crate::converter::Converter;
use crate::core::Sums;
use crate::diagnosis::{Category, Effect, Finding, Origin, Site, Stop, hang, rule, unmodelled};
use crate::dpu_rdma::Operands;
use crate::pc::Machine;
use crate::regs::View;
use crate::stages::Stages;
use crate::wdma::{self, Place};

/// What kernels without weights leave in the output: any value will do, a noticeable one is best.
const UNSPECIFIED: u8 = 0x5A;
/// Turns a right value into a wrong one.
const POISON: u8 = 0xA5;
/// Bytes of one piece of work of a thread.
const PIECE_BYTES: usize = 1 << 15;

/// What comes into the DPU.
pub(crate) struct Main<'a> {
    pub(crate) sums: Sums,
    /// Channels of a group, and channels that have data.
    pub(crate) group: usize,
    pub(crate) channels: usize,
    pub(crate) size: (usize, usize),
    pub(crate) conv: Option<&'a Conv>,
    pub(crate) poison: Poison,
    /// Operand of OW with the feature sums.
    pub(crate) ow: Option<(i64, Vec<i32>, usize)>,
}

/// Converts and stores.
pub(crate) fn finish(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    main: Main<'_>,
    operands: &Operands,
) -> Result<(), Stop> {
    check_mode(site, view, &main)?;
    let float = matches!(main.sums, Sums::Float(_));
    let Some(converter) = output_format(machine, site, view, &main)? else { return Ok(()) };
    let stream = check_geometry(site, view, &main)?;
    let pixels = main.size.0 * main.size.1;
    let group = main.group;
    let lane_bytes = converter.out.bits() as usize / 8;
    let channels = view.get::<dpu::DataCubeChannel>().channel() as usize + 1;
    let groups = channels.div_ceil(group);
    if groups.saturating_mul(group).saturating_mul(pixels) > SUMS_MAX {
        return Err(too_large(site, format!("{pixels} output pixels of {channels} channels")));
    }
    let stages = Stages::decode(
        site,
        view,
        float,
        operands,
        &machine.tables.entries,
        &machine.options.silicon,
        main.ow,
    )?;
    let row_bytes = group * lane_bytes;
    let place = Place::decode(
        view,
        machine.dma_base,
        (row_bytes / ATOM).max(1),
        (channels * lane_bytes).div_ceil(ATOM),
    );
    let mut poison = main.poison;
    let extent = if stream {
        wdma::stream_extent(view, machine.dma_base, pixels, groups, row_bytes)
    } else {
        place.extent()
    };
    if let Some(finding) = in_place(site, view, extent, machine.dma_base, operands) {
        machine.diagnoses.push(finding);
        poison.all = true;
    }
    if let Some(finding) = over_input(site, view, extent, &machine.inputs) {
        machine.diagnoses.push(finding);
    }
    if let Some(finding) = table_race(site, view, &stages, machine.tables.origin) {
        machine.diagnoses.push(finding);
    }
    let mut data = vec![0u8; groups * pixels * row_bytes];
    let plain = stages.is_empty();
    let wrong = |pixel: usize| {
        poison.all || main.conv.zip(poison.from_line).is_some_and(|(conv, line)| touches(conv, pixel, line))
    };
    let rows_per_piece = (PIECE_BYTES / row_bytes).max(1);
    let sums = &main.sums;
    machine.engine.for_each_chunk(&mut data, row_bytes * rows_per_piece, |index, piece| {
        for (row, bytes) in piece.chunks_exact_mut(row_bytes).enumerate() {
            let row = index * rows_per_piece + row;
            let (g, pixel) = (row / pixels, row % pixels);
            let used = main.channels.saturating_sub(g * group).min(group);
            let lanes = row * group..row * group + used;
            match sums {
                Sums::Int(sums) => {
                    let lanes = sums.get(lanes).unwrap_or(&[]);
                    if plain && converter.is_identity() {
                        for (out, lane) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
                            *out = lane.to_le_bytes();
                        }
                    } else if plain && lane_bytes == 1 {
                        for (out, lane) in bytes.iter_mut().zip(lanes) {
                            *out = converter.int(i64::from(*lane)) as u8;
                        }
                    } else {
                        for ((lane, sum), out) in
                            lanes.iter().enumerate().zip(bytes.chunks_exact_mut(lane_bytes))
                        {
                            converter.store_int(stages.int(*sum, g * group + lane, pixel), out);
                        }
                    }
                }
                Sums::Float(sums) => {
                    let lanes = sums.get(lanes).unwrap_or(&[]);
                    for ((lane, sum), out) in lanes.iter().enumerate().zip(bytes.chunks_exact_mut(lane_bytes))
                    {
                        converter.store_float(stages.float(*sum, g * group + lane, pixel), out);
                    }
                }
            }
            bytes[used * lane_bytes..].fill(UNSPECIFIED);
            if poison.zeros {
                bytes.fill(0);
            } else if wrong(pixel) {
                bytes.iter_mut().for_each(|byte| *byte ^= POISON);
            }
        }
    });
    if stages.operand_wrapped.load(Ordering::Relaxed) {
        machine.diagnoses.push(site.finding(Finding {
            category: Category::InvalidProgram,
            effect: Effect::Wrong,
            check: "operand-wraps",
            registers: vec![view.show::<dpu::EwCfg>(), view.show::<dpu::EwCvtOffsetValue>()],
            first: rule("the EW multiplier takes the low 16 bits of its operand, signed"),
            second: site.here("an operand needs more: it wrapped"),
            source: "isa-notes NS-15",
        }));
    }
    drop(stages);
    if stream {
        return wdma::write_stream(machine, site, view, &data, pixels, groups, row_bytes);
    }
    wdma::write(machine, site, view, place, &data)
}

/// Output over memory that a reader of the same task still reads (`isa-notes.md` G-18).
fn in_place(
    site: Site,
    view: View<'_>,
    (start, end): (u64, u64),
    dma_base: Iova,
    operands: &Operands,
) -> Option<crate::Diagnosis> {
    let base = u64::from(dma_base.0);
    let (reader, from, to) =
        operands.ranges.iter().find(|(_, from, to)| from + base < end && start < to + base)?;
    Some(site.finding(Finding {
        category: Category::Hazard,
        effect: Effect::Wrong,
        check: "in-place",
        registers: vec![view.show::<dpu::DstBaseAddr>()],
        first: site.here(format!("{reader} reads {from:#010x} to {to:#010x}")),
        second: site.here(format!("the write DMA stores into {start:#010x} to {end:#010x} meanwhile")),
        source: "isa-notes G-18, isa-int4-sdp.md §3.2",
    }))
}

/// Output over features or weights of the same convolution: nobody has recorded what happens, and it depends on
/// how far the loaders are ahead.
fn over_input(
    site: Site,
    view: View<'_>,
    (start, end): (u64, u64),
    inputs: &[(&'static str, u64, u64)],
) -> Option<crate::Diagnosis> {
    let (reader, from, to) = inputs.iter().find(|(_, from, to)| *from < end && start < *to)?;
    Some(site.finding(Finding {
        category: Category::Hazard,
        effect: Effect::Unknown,
        check: "output-over-input",
        registers: vec![view.show::<dpu::DstBaseAddr>()],
        first: site.here(format!("the {reader} reads {from:#010x} to {to:#010x}")),
        second: site.here(format!("the write DMA stores into {start:#010x} to {end:#010x} meanwhile")),
        source: "no source: a race between units",
    }))
}

/// A table that an earlier task of the job loads while the groups alternate (`isa.md` §13 row 30).
fn table_race(
    site: Site,
    view: View<'_>,
    stages: &Stages<'_>,
    origins: [Option<Origin>; 2],
) -> Option<crate::Diagnosis> {
    if !stages.uses_table() || !view.alternating() {
        return None;
    }
    let loader =
        origins.into_iter().flatten().find(|origin| origin.job == site.job && origin.task != site.task)?;
    Some(site.finding(Finding {
        category: Category::Hazard,
        effect: Effect::Wrong,
        check: "table-race",
        registers: vec![view.show::<dpu::EwCfg>()],
        first: site.at(loader, "loads a lookup table with ping-pong on"),
        second: site.here("reads it, perhaps before it is complete"),
        source: "isa.md §13 row 30, isa-int4-sdp.md §3.5",
    }))
}

/// Whether an output pixel depends on input lines from `line` on.
fn touches(conv: &Conv, pixel: usize, line: usize) -> bool {
    let oy = pixel / conv.out_width;
    let last = oy * conv.stride.0 + (conv.kernel.0 - 1) * conv.dilation.0;
    last >= line + conv.pad.0
}

/// Modes of the DPU as a whole.
fn check_mode(site: Site, view: View<'_>, main: &Main<'_>) -> Result<(), Stop> {
    let mode: dpu::FeatureModeCfg = view.get();
    let format: dpu::DataFormat = view.get();
    let depthwise = main.conv.is_some_and(|conv| conv.depthwise);
    let flying = main.conv.is_none();
    let registers = || vec![view.show::<dpu::FeatureModeCfg>(), view.show::<dpu::DataFormat>()];
    if mode.flying_mode() != u32::from(flying) {
        return Err(unmodelled(
            site,
            "flying-disagrees",
            registers(),
            "FLYING_MODE is 1 exactly where CNA and CORE take no part",
            format!("it is {}", mode.flying_mode()),
            "isa-int4-sdp.md §3.3",
        ));
    }
    if mode.output_mode() != 2
        || mode.conv_mode() != if depthwise { 3 } else { 0 }
        || mode.nonalign() == 1
        || mode.tp_en() == 1
        || mode.comb_use() == 1
        || mode.rgp_type() != 0
        || format.mc_surf_out() == 1
        || view.get::<dpu::OffsetPend>().offset_pend() != 0
        || view.get::<dpu::DataCubeHeight>().minmax_ctl() != 0
    {
        return Err(unmodelled(
            site,
            "dpu-mode",
            registers(),
            "known programs write to memory, in atoms, with the conv mode of the CNA",
            "this one does something else",
            "isa.md §6, §9.5",
        ));
    }
    Ok(())
}

/// The output precision; `None` where nothing is written.
fn output_format(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    main: &Main<'_>,
) -> Result<Option<Converter>, Stop> {
    let format: dpu::DataFormat = view.get();
    let registers =
        || vec![view.show::<dpu::DataFormat>(), view.show::<dpu::OutCvtScale>(), view.show::<dpu::BsOwCfg>()];
    let code = format.out_precision();
    let out = Precision::from_code(code);
    let refuse = |known: &str| {
        Err(unmodelled(
            site,
            "output-format",
            registers(),
            known,
            format!("output precision code {code}"),
            "isa.md §7, isa-int4-sdp.md §2, isa-notes C",
        ))
    };
    let invalid = |known: &str| {
        Err(hang(
            site,
            Category::InvalidProgram,
            "output-format",
            registers(),
            rule(known),
            format!("output precision code {code}"),
            "isa.md §7.5, §13 row 22",
        ))
    };
    let silicon = machine.options.silicon;
    let converter = |out| Converter::decode(view, out, silicon);
    let Some(conv) = main.conv else {
        let float = matches!(main.sums, Sums::Float(_));
        return match out {
            Some(out @ (Precision::Fp16 | Precision::Fp32)) if float => Ok(Some(converter(out))),
            Some(out @ (Precision::Int8 | Precision::Int16 | Precision::Int32)) if !float => {
                Ok(Some(converter(out)))
            }
            _ => refuse("element-wise programs store integers from integers, fp16 or fp32 from fp16"),
        };
    };
    let expected = if conv.precision == Precision::Tf32 { Precision::Fp32 } else { conv.precision };
    if conv.precision == Precision::Tf32 && format.in_precision() == 7 {
        return nothing_written(machine, site, view);
    }
    if format.in_precision() != expected.code() || format.proc_precision() != expected.code() {
        return Err(unmodelled(
            site,
            "dpu-precision",
            registers(),
            "DPU in and proc precision are those of the MAC array (tf32: fp32)",
            format!(
                "MAC {}, DPU in {}, proc {}",
                conv.precision,
                format.in_precision(),
                format.proc_precision()
            ),
            "isa.md §7.1, isa-notes C.1, NS-17",
        ));
    }
    match (conv.precision, out) {
        (Precision::Int8, Some(Precision::Int32)) if conv.depthwise => {
            refuse("depthwise int8 sums go out as int8 only (isa-notes G-20)")
        }
        (Precision::Int8, Some(out @ (Precision::Int8 | Precision::Int32 | Precision::Fp32))) => {
            Ok(Some(converter(out)))
        }
        (Precision::Int8, Some(Precision::Int16)) => {
            if view.get::<dpu::BsOwCfg>().size_e_0() == 3 {
                return Ok(Some(converter(Precision::Int16)));
            }
            invalid("int8 to int16 works with SIZE_E 3 only; other words hang for about 61 s")
        }
        (Precision::Int8, Some(Precision::Fp16)) => {
            let converter = converter(Precision::Fp16);
            if converter.to_fp16 {
                return Ok(Some(converter));
            }
            machine.diagnoses.push(site.finding(Finding {
                category: Category::InvalidProgram,
                effect: Effect::Wrong,
                check: "int8-to-fp16",
                registers: registers(),
                first: rule("int8 to fp16 needs FP32TOFP16_EN"),
                second: site.here("it is 0: zeros are stored"),
                source: "isa.md §7.5, §13 row 21, isa-notes NS-21",
            }));
            // Scale 0 stores zeros.
            Ok(Some(converter.zero()))
        }
        (Precision::Int8, _) => {
            invalid("int8 sums go out as int8, int16, int32, fp16 or fp32; other codes hang for about 61 s")
        }
        (Precision::Int16, Some(Precision::Int32)) => Ok(Some(converter(Precision::Int32))),
        (Precision::Int4, Some(Precision::Int16)) => Ok(Some(converter(Precision::Int16))),
        (Precision::Fp16 | Precision::Bf16 | Precision::Tf32, Some(Precision::Fp32)) => {
            Ok(Some(converter(Precision::Fp32)))
        }
        (Precision::Fp16, Some(Precision::Fp16)) => {
            let converter = converter(Precision::Fp16);
            if converter.to_fp16 {
                return Ok(Some(converter));
            }
            Err(hang(
                site,
                Category::InvalidProgram,
                "fp16-narrowing",
                registers(),
                rule("a convolution that stores fp16 needs FP32TOFP16_EN"),
                "it is 0",
                "isa.md §7.2, §13 row 20",
            ))
        }
        (Precision::Bf16 | Precision::Tf32 | Precision::Fp16, Some(Precision::Tf32)) => {
            nothing_written(machine, site, view)
        }
        _ => refuse("no program is known for this pair of precisions"),
    }
}

fn nothing_written(machine: &mut Machine<'_>, site: Site, view: View<'_>) -> Result<Option<Converter>, Stop> {
    machine.diagnoses.push(site.finding(Finding {
        category: Category::InvalidProgram,
        effect: Effect::Wrong,
        check: "dpu-tf32",
        registers: vec![view.show::<dpu::DataFormat>()],
        first: rule("the DPU has no precision 7"),
        second: site.here("nothing is written"),
        source: "isa-notes C.1, G-12",
    }));
    Ok(None)
}

/// The output cube must be what comes in; says whether the task is an int4 stream.
fn check_geometry(site: Site, view: View<'_>, main: &Main<'_>) -> Result<bool, Stop> {
    let width = view.get::<dpu::DataCubeWidth>().width() as usize + 1;
    let height = view.get::<dpu::DataCubeHeight>().height() as usize + 1;
    if (height, width) != main.size {
        return Err(unmodelled(
            site,
            "dpu-size-disagrees",
            vec![
                view.show::<core::DataoutSize0>(),
                view.show::<dpu::DataCubeWidth>(),
                view.show::<dpu::DataCubeHeight>(),
            ],
            "the DPU is programmed with the size of what it gets",
            format!("it gets {} x {}, and is set to {width} x {height}", main.size.1, main.size.0),
            "isa.md §6, §9.2",
        ));
    }
    let ow: dpu::BsOwCfg = view.get();
    if ow.size_e_0() != ow.size_e_1()
        || ow.size_e_0() != ow.size_e_2()
        || ow.tp_org_en() == 1
        || ow.rgp_cnter() != 0
        || ow.ow_src() == 1
    {
        return Err(unmodelled(
            site,
            "size-e",
            vec![view.show::<dpu::BsOwCfg>()],
            "the three SIZE_E fields hold one number, without transposition, regrouping or OW operands",
            "they do not",
            "isa.md §5.3",
        ));
    }
    let Some(conv) = main.conv else { return Ok(false) };
    if view.get::<core::DataoutSize1>().dataout_channel() as usize + 1 < main.channels {
        return Err(unmodelled(
            site,
            "core-channels",
            vec![view.show::<core::DataoutSize1>(), view.show::<cna::WeightSize2>()],
            "CORE delivers at least as many channels as there are kernels",
            "it delivers fewer",
            "isa.md §9.2",
        ));
    }
    let size: dpu::WdmaSize1 = view.get();
    let written = (size.width_wdma() as usize + 1, size.height_wdma() as usize + 1);
    let dense = u64::from(view.get::<dpu::DstSurfStride>().dst_surf_stride()) != 1;
    if conv.precision == Precision::Int4 {
        // Two forms (`isa-int4-sdp.md` §1.3, §1.8b): a stream without a write size, or the general laws.
        if written == (1, 1) && (!dense || (width, height) != (1, 1)) {
            return Ok(true);
        }
        if !dense {
            return Err(unmodelled(
                site,
                "int4-rows",
                vec![view.show::<dpu::WdmaSize1>(), view.show::<dpu::DstSurfStride>()],
                "int4 in rows needs WDMA_SIZE_1 = 0; any other value was measured to corrupt rows above 0",
                "it is not 0",
                "isa-int4-sdp.md §1.4, §1.8b",
            ));
        }
    }
    if written != (width, height) {
        return Err(hang(
            site,
            Category::InvalidProgram,
            "wdma-size",
            vec![view.show::<dpu::WdmaSize1>(), view.show::<dpu::DataCubeHeight>()],
            site.here(format!("the DPU delivers {width} x {height} pixels")),
            format!("WDMA_SIZE_1 stores {} x {}", written.0, written.1),
            "isa.md §7.1, §13 row 12",
        ));
    }
    Ok(false)
}
