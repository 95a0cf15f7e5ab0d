// SPDX-License-Identifier: MIT OR Apache-2.0
//! Feature and weight DMA of the CNA (`isa.md` §4.1, §5.1, §10.6, §10.7).

use std::cell::Cell;

use ork_isa::Iova;
use ork_isa::regs::cna;

use crate::cbuf::{BANK, FeatureLoad, WeightLoad};
use crate::cna::{ATOM, Conv};
use crate::diagnosis::{Category, Effect, Finding, Site, Stop, hang, rule, unmodelled};
use crate::pc::Machine;
use crate::regs::View;

/// Feature DMA: fills the buffer's lines by the address laws of `isa.md` §5.1, or leaves it as it is.
pub(crate) fn load_features(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    conv: &Conv,
) -> Result<(), Stop> {
    machine.cbuf.open_features(machine.bus, conv.split.0);
    let base = Iova(view.get::<cna::FeatureDataAddr>().feature_base_addr());
    let load = FeatureLoad {
        by: site.origin(),
        base,
        lines: conv.height,
        line_bytes: conv.line_bytes(),
        banks: conv.split.0,
    };
    if conv.data_reuse {
        let stale = match machine.cbuf.features {
            Some(held) => (FeatureLoad { by: load.by, ..held } != load).then(|| {
                (
                    site.at(
                        held.by,
                        format!(
                            "loaded {} lines of {} bytes from {} into {} banks",
                            held.lines, held.line_bytes, held.base, held.banks
                        ),
                    ),
                    Category::Hazard,
                )
            }),
            None => Some((rule("nothing was loaded since reset"), Category::Hazard)),
        };
        if let Some((first, category)) = stale {
            machine.diagnoses.push(site.finding(Finding {
                category,
                effect: Effect::Wrong,
                check: "data-reuse",
                registers: vec![view.show::<cna::CbufCon0>(), view.show::<cna::FeatureDataAddr>()],
                first,
                second: site.here(format!(
                    "DATA_REUSE reads them as {} lines of {} bytes from {base}",
                    conv.height,
                    conv.line_bytes()
                )),
                source: "isa.md §10.7, §13 row 14",
            }));
        }
        return Ok(());
    }
    let con1: cna::ConvCon1 = view.get();
    if con1.nonalign_dma() == 1 || con1.argb_in() != 0 {
        return crate::cna_packed::load(machine, site, view, conv, load);
    }
    if view.get::<cna::CvtCon0>().cvt_bypass() == 0 {
        return Err(unmodelled(
            site,
            "input-converter",
            vec![view.show::<cna::CvtCon0>()],
            "the input converter is on with packed pixels only",
            "CVT_BYPASS is 0 in aligned mode",
            "isa.md §9.2",
        ));
    }
    let group_lines = group_lines(view);
    let dma_width = i64::from(view.get::<cna::FcDataSize0>().dma_width());
    let line_stride = i64::from(view.get::<cna::DmaCon1>().line_stride());
    let surface = surface_atoms(view);
    let atoms = conv.channels.div_ceil(conv.atom_channels());
    let origin = i64::from(base.0) + i64::from(machine.dma_base.0);
    let pixel_bytes = conv.pixel_bytes();
    let bus = machine.bus;
    let fault = |address: i64, len, what| feature_fault(site, view, address.cast_unsigned(), len, what);
    let extent = Cell::new((u64::MAX, 0));
    let read = |address: i64, len: usize| {
        let at = u32::try_from(address)
            .map_err(|_| fault(address, len, "the address leaves the 32-bit window".to_owned()))?;
        let (low, high) = extent.get();
        extent.set((low.min(u64::from(at)), high.max(u64::from(at) + len as u64)));
        bus.read(Iova(at), len as u64).map_err(|error| fault(address, len, error.to_string()))
    };
    let held = conv.lines_held();
    let line_bytes = conv.line_bytes();
    let buffer = machine.cbuf.feature_bytes_mut(conv.split.0);
    let used = conv.width * pixel_bytes;
    for line in buffer.chunks_exact_mut(line_bytes).take(held) {
        line[used..].fill(0);
    }
    let line_start =
        |h: usize| 16 * ((h as i64 / group_lines) * line_stride + (h as i64 % group_lines) * dma_width);
    if surface == 1 && conv.width == 1 {
        // The atoms of a pixel are neighbours: a line is one run.
        for (h, line) in buffer.chunks_exact_mut(line_bytes).take(held).enumerate() {
            line[..used].copy_from_slice(&read(origin + line_start(h), used)?);
        }
    } else if dma_width == conv.width as i64 && (held <= 1 || line_stride == group_lines * dma_width) {
        // The lines of a surface are neighbours: a surface is one run.
        for c1 in 0..atoms {
            let run = read(origin + 16 * c1 as i64 * surface, held * conv.width * ATOM)?;
            scatter(&run, buffer, line_bytes, pixel_bytes, c1, conv.width);
        }
    } else {
        for (h, line) in buffer.chunks_exact_mut(line_bytes).take(held).enumerate() {
            for c1 in 0..atoms {
                let address = origin + line_start(h) + 16 * c1 as i64 * surface;
                let run = read(address, conv.width * ATOM)?;
                scatter(&run, line, line_bytes, pixel_bytes, c1, conv.width);
            }
        }
    }
    machine.stats.feature_bytes += (conv.lines_held() * conv.width * pixel_bytes) as u64;
    machine.cbuf.features = Some(load);
    machine.inputs.push(("feature DMA", extent.get().0, extent.get().1));
    Ok(())
}

/// G of the address law: lines that are taken together.
fn group_lines(view: View<'_>) -> i64 {
    if view.get::<cna::ConvCon1>().group_line_off() == 1 { 1 } else { 4 }
}

/// Atoms from one channel group to the next: G W + S (`isa.md` §5.1).
pub(crate) fn surface_atoms(view: View<'_>) -> i64 {
    let width = i64::from(view.get::<cna::FcDataSize0>().dma_width());
    // A signed 28-bit number.
    let stride = i64::from((view.get::<cna::DmaCon2>().surf_stride() << 4).cast_signed() >> 4);
    group_lines(view) * width + stride
}

pub(crate) fn feature_fault(site: Site, view: View<'_>, address: u64, len: usize, what: String) -> Stop {
    hang(
        site,
        Category::Resource,
        "feature-fault",
        vec![view.show::<cna::FeatureDataAddr>(), view.show::<cna::DmaCon1>(), view.show::<cna::DmaCon2>()],
        site.here(format!("the feature DMA reads {len} bytes at {address:#010x}")),
        what,
        "isa.md §5.1, §5.2, §14.1 step 5",
    )
}

/// Puts the atoms of channel group `c1` into the pixels of consecutive lines.
fn scatter(run: &[u8], lines: &mut [u8], line_bytes: usize, pixel_bytes: usize, c1: usize, width: usize) {
    for (atoms, line) in run.chunks_exact(width * ATOM).zip(lines.chunks_exact_mut(line_bytes)) {
        for (atom, pixel) in atoms.as_chunks::<ATOM>().0.iter().zip(line.chunks_exact_mut(pixel_bytes)) {
            pixel[c1 * ATOM..(c1 + 1) * ATOM].copy_from_slice(atom);
        }
    }
}

/// Weight DMA: the sequential stream, or none if the task takes what the ring still holds (`isa.md` §4.1, §10.6).
pub(crate) fn load_weights<'a>(
    machine: &mut Machine<'a>,
    site: Site,
    view: View<'_>,
    conv: &Conv,
) -> Result<Option<crate::Span<'a>>, Stop> {
    let base = Iova(view.get::<cna::DcompAddr0>().decompress_addr0());
    let len = conv.weight_bytes();
    let load = WeightLoad { by: site.origin(), base, bytes: len as u64, split: conv.split };
    let room = conv.split.1 as usize * BANK;
    if conv.weight_reuse {
        let held = machine.cbuf.weights;
        let same = held.is_some_and(|held| WeightLoad { by: load.by, ..held } == load);
        if !same || len > room {
            let first = match held {
                Some(held) => site.at(
                    held.by,
                    format!(
                        "loaded {} bytes from {} under D, W = {:?}; the ring holds the last {}",
                        held.bytes,
                        held.base,
                        held.split,
                        held.split.1 as usize * BANK
                    ),
                ),
                None => rule("nothing was loaded since reset"),
            };
            machine.diagnoses.push(site.finding(Finding {
                category: Category::Hazard,
                effect: Effect::Wrong,
                check: "weight-reuse",
                registers: vec![view.show::<cna::CbufCon0>(), view.show::<cna::DcompAddr0>()],
                first,
                second: site.here(format!(
                    "WEIGHT_REUSE reads {len} bytes of {base} under D, W = {:?} from a ring of {room}",
                    conv.split
                )),
                source: "isa.md §10.6, §13 row 13",
            }));
        }
        machine.cbuf.settle(machine.bus);
        return Ok(None);
    }
    let fault = |what: String| {
        hang(
            site,
            Category::Resource,
            "weight-fault",
            vec![view.show::<cna::DcompAddr0>(), view.show::<cna::WeightSize1>()],
            site.here(format!("the weight DMA reads {len} bytes at {base}")),
            what,
            "isa.md §14.1 step 5",
        )
    };
    let at = base
        .checked_add(u64::from(machine.dma_base.0))
        .ok_or_else(|| fault("the address leaves the 32-bit window".to_owned()))?;
    let span = machine.bus.read(at, len as u64).map_err(|error| fault(error.to_string()))?;
    machine.cbuf.load_weights(machine.bus, conv.split, at, len);
    machine.cbuf.weights = Some(load);
    machine.stats.weight_bytes += len as u64;
    machine.inputs.push(("weight DMA", u64::from(at.0), u64::from(at.0) + len as u64));
    Ok(Some(span))
}
