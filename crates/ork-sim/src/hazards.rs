// SPDX-License-Identifier: MIT OR Apache-2.0
//! Units of a task that get into each other's way, and operands that go to the wrong unit.

use ork_isa::Iova;
use ork_isa::regs::{dpu, dpu_rdma};

use crate::Diagnosis;
use crate::cna::ATOM;
use crate::diagnosis::{Category, Effect, Finding, Origin, Site, Stop, rule, unmodelled};
use crate::dpu_rdma::Operands;
use crate::regs::View;
use crate::stages::Stages;

/// Whether the output is the main data themselves, each atom at its own place: when an atom is read twice, it still
/// holds the same. Programs that load tables pass a scratch buffer through itself (`isa-int4-sdp.md` §3.5).
fn copies_to_itself(view: View<'_>, stages: &Stages<'_>, group_bytes: usize, operands: &Operands) -> bool {
    let base = u64::from(view.get::<dpu::DstBaseAddr>().dst_base_addr());
    let pitch = u64::from(view.get::<dpu::SurfaceAdd>().surf_add()) * 16;
    stages.is_empty()
        && group_bytes == ATOM
        && view.get::<dpu::DataCubeNotchAddr>().0 == 0
        && (0u64..).zip(&operands.ranges).all(|(group, (_, from, _))| *from == base + group * pitch)
}

/// Output over memory that a reader of the same task still reads (`isa-notes.md` G-18). `group_bytes` is what a pixel
/// has in a group of channels.
pub(crate) fn in_place(
    site: Site,
    view: View<'_>,
    (start, end): (u64, u64),
    dma_base: Iova,
    (stages, group_bytes): (&Stages<'_>, usize),
    operands: &Operands,
) -> Option<Diagnosis> {
    if copies_to_itself(view, stages, group_bytes, operands) {
        return None;
    }
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
pub(crate) fn over_input(
    site: Site,
    view: View<'_>,
    (start, end): (u64, u64),
    inputs: &[(&'static str, u64, u64)],
) -> Option<Diagnosis> {
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
pub(crate) fn table_race(site: Site, view: View<'_>, origins: [Option<Origin>; 2]) -> Option<Diagnosis> {
    if !view.alternating() {
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

/// An adder of EW whose operand is one value per channel to the reader, and one per pixel to EW (`isa-int4-sdp.md` §3.4
/// "Per-channel multiply").
pub(crate) fn per_channel_alu(
    site: Site,
    view: View<'_>,
    stages: &Stages<'_>,
) -> Result<Option<Diagnosis>, Stop> {
    if !stages.adds_per_channel() || view.get::<dpu::EwCfg>().ew_data_mode() == 0 {
        return Ok(None);
    }
    let registers = vec![view.show::<dpu_rdma::RdmaErdmaCfg>(), view.show::<dpu::EwCfg>()];
    let known = "with EW_DATA_MODE 1 an operand per channel (ERDMA_DATA_MODE 0) is multiplied rightly";
    if view.get::<dpu::EwCfg>().ew_alu_algo() != 2 {
        let found = "it goes to the ALU for something else than a sum";
        return Err(unmodelled(site, "per-channel-alu", registers, known, found, "isa-int4-sdp.md §3.4"));
    }
    Ok(Some(site.finding(Finding {
        category: Category::InvalidProgram,
        effect: Effect::Wrong,
        check: "per-channel-alu",
        registers,
        first: rule(known),
        second: site.here("it is added: 69 to 99 % of all values are wrong; EW_DATA_MODE 0 adds rightly"),
        source: "isa-int4-sdp.md §3.4, §9, docs/assumptions.md S-68",
    })))
}
