// SPDX-License-Identifier: MIT OR Apache-2.0
//! DPU: from sums or memory through the stages and the converter to the write DMA (`isa.md` §14.3).

use std::sync::atomic::Ordering;

use ork_isa::Precision;
use ork_isa::regs::dpu;

use crate::cbuf_rules::Poison;
use crate::cna::{ATOM, Conv};
use crate::conv::{SUMS_MAX, too_large};
use crate::core::Sums;
use crate::diagnosis::{Category, Effect, Finding, Site, Stop, rule};
use crate::dpu_checks::{Form, check_geometry, check_mode, output_format};
use crate::dpu_rdma::Operands;
use crate::hazards::{in_place, over_input, per_channel_alu, table_race};
use crate::options::LutRace;
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
    let form = check_geometry(machine, site, view, &main)?;
    let pixels = main.size.0 * main.size.1;
    let group = main.group;
    let lane_bytes = converter.out.bits() as usize / 8;
    let channels = view.get::<dpu::DataCubeChannel>().channel() as usize + 1;
    let groups = channels.div_ceil(group);
    if groups.saturating_mul(group).saturating_mul(pixels) > SUMS_MAX {
        return Err(too_large(site, format!("{pixels} output pixels of {channels} channels")));
    }
    let raced = table_race(site, view, machine.tables.origin);
    let stages = Stages::decode(
        site,
        view,
        float,
        operands,
        if raced.is_some() && machine.options.silicon.lut_race == LutRace::OldTable {
            &machine.tables.before_job
        } else {
            &machine.tables.entries
        },
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
    let int8_depthwise = main.conv.is_some_and(|conv| conv.depthwise && conv.precision == Precision::Int8);
    let double = int8_depthwise && converter.out == Precision::Int32;
    let place = if double { place.with_double_pixels() } else { place };
    let mut poison = main.poison;
    if form == (Form::Stream { rows_wrong: true }) {
        poison.from_line = Some(poison.from_line.unwrap_or(1).min(1));
    }
    let extent = match form {
        Form::Stream { .. } => wdma::stream_extent(view, machine.dma_base, pixels, groups, row_bytes),
        _ => place.extent(),
    };
    if let Some(finding) = in_place(site, view, extent, machine.dma_base, (&stages, row_bytes), operands) {
        machine.diagnoses.push(finding);
        poison.all = true;
    }
    if let Some(finding) = over_input(site, view, extent, &machine.inputs) {
        machine.diagnoses.push(finding);
    }
    if let Some(finding) = raced.filter(|_| stages.uses_table()) {
        machine.diagnoses.push(finding);
    }
    if let Some(finding) = per_channel_alu(site, view, &stages)? {
        machine.diagnoses.push(finding);
        poison.all = true;
    }
    let mut data = vec![0u8; groups * pixels * row_bytes];
    let plain = stages.is_empty();
    let wrong = |pixel: usize| {
        poison.all
            || poison.from_pixel.is_some_and(|from| pixel >= from)
            || main.conv.zip(poison.from_line).is_some_and(|(conv, line)| touches(conv, pixel, line))
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
                    } else if plain && converter.saturates_to_16_bits() {
                        for (out, lane) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(lanes) {
                            let narrow = (*lane).clamp(i16::MIN.into(), i16::MAX.into()) as i16;
                            *out = narrow.to_le_bytes();
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
            } else if poison.two_thirds {
                for (lane, bytes) in bytes.chunks_exact_mut(lane_bytes.max(1)).enumerate() {
                    if !(g * group + lane + pixel).is_multiple_of(3) {
                        bytes.iter_mut().for_each(|byte| *byte ^= POISON);
                    }
                }
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
    match form {
        Form::Stream { .. } => wdma::write_stream(machine, site, view, &data, pixels, groups, row_bytes),
        Form::OneTile => wdma::write(machine, site, view, place.one_tile(), &data),
        Form::Transposed => wdma::write_transposed(machine, site, view, &data, pixels, main.channels),
        Form::Laws => wdma::write(machine, site, view, place, &data),
    }
}

/// Whether an output pixel depends on input lines from `line` on.
fn touches(conv: &Conv, pixel: usize, line: usize) -> bool {
    let oy = pixel / conv.out_width;
    let last = oy * conv.stride.0 + (conv.kernel.0 - 1) * conv.dilation.0;
    last >= line + conv.pad.0
}
