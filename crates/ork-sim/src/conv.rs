// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks: which units take part, in which order.

use std::borrow::Cow;

use ork_isa::Precision;
use ork_isa::regs::{cna as cna_regs, dpu as regs, dpu_rdma as rdma_regs};

use crate::diagnosis::{Category, Effect, Finding, Site, Stop, hang, rule, unmodelled};
use crate::dpu::Main;
use crate::dpu_rdma::{self, Cube, Feed, Operands};
use crate::element::is_float;
use crate::options::{Int4Saturation, PrecisionMixing};
use crate::pc::Machine;
use crate::regs::View;
use crate::stages::Stages;
use crate::{cbuf_rules, cna, cna_dma, core, dpu, timing};

/// Work that no known program comes near to; more of it is refused so that arbitrary words cannot stop the host.
const MACS_MAX: u64 = 1 << 35;
/// The same where only the plain loops exist.
const PLAIN_MACS_MAX: u64 = 1 << 31;
/// Weight bytes that a task may take from the buffer's ring, however often it goes round.
const REUSED_BYTES_MAX: usize = 1 << 28;
/// Sums that one task may hold.
pub(crate) const SUMS_MAX: usize = 1 << 26;

/// CNA + CORE + DPU, with DPU_RDMA or without.
pub(crate) fn run(machine: &mut Machine<'_>, site: Site, view: View<'_>, rdma: bool) -> Result<(), Stop> {
    let mut conv = cna::decode(site, view)?;
    conv.int4_passes = machine.options.silicon.int4_saturation == Int4Saturation::EveryPass;
    let lanes = core::groups(&conv).saturating_mul(conv.group());
    let limit = if conv.depthwise || machine.options.reference_kernels { PLAIN_MACS_MAX } else { MACS_MAX };
    if conv.macs() > limit
        || lanes.saturating_mul(conv.pixels()) > SUMS_MAX
        || (conv.weight_reuse && conv.weight_bytes() > REUSED_BYTES_MAX)
    {
        return Err(too_large(
            site,
            format!("{} multiply-adds, {} output pixels of {lanes} channels", conv.macs(), conv.pixels()),
        ));
    }
    let operands_before = machine.stats.operand_bytes;
    let operands = if rdma {
        dpu_rdma::fetch(machine, site, view, Feed::Accumulator, Stages::wants_operand(view))?
    } else {
        Operands::default()
    };
    let mut poison = cbuf_rules::check_split(machine, site, view, &conv)?;
    poison.all |= mixed_precisions(machine, site, view, conv.precision);
    cna_dma::load_features(machine, site, view, &conv)?;
    let sums = {
        let loaded = cna_dma::load_weights(machine, site, view, &conv)?;
        let held = match &loaded {
            Some(_) => Cow::default(),
            None => machine.cbuf.reused_weights(conv.split.1, conv.weight_bytes()),
        };
        let weights: &[u8] = loaded.as_deref().unwrap_or(&held);
        core::accumulate(
            machine.engine,
            machine.options,
            &conv,
            machine.cbuf.feature_bytes(conv.split.0),
            weights,
        )
    };
    let ow = feature_sums(machine, site, view, &conv)?;
    machine.stats.macs += conv.macs();
    let operand_bytes = machine.stats.operand_bytes - operands_before;
    machine.clock.run(&timing::mac_work(view, &conv, operand_bytes));
    let main = Main {
        sums,
        group: conv.group(),
        channels: if conv.depthwise { conv.channels } else { conv.kernels },
        size: (conv.out_height, conv.out_width),
        conv: Some(&conv),
        poison,
        ow,
    };
    dpu::finish(machine, site, view, main, &operands)
}

/// Whether values are wrong because no reset lies between int4 and another precision.
fn mixed_precisions(machine: &mut Machine<'_>, site: Site, view: View<'_>, precision: Precision) -> bool {
    let before = machine.last_precision.replace(precision);
    let mixed = before.is_some_and(|before| {
        before != precision && (before == Precision::Int4 || precision == Precision::Int4)
    });
    if !mixed || machine.options.silicon.precision_mixing == PrecisionMixing::Harmless {
        return false;
    }
    machine.diagnoses.push(site.finding(Finding {
        category: Category::Hazard,
        effect: Effect::Wrong,
        check: "precision-mixing",
        registers: vec![view.show::<cna_regs::ConvCon1>()],
        first: rule("a reset must lie between int4 and other tasks on this silicon"),
        second: site.here(format!("{precision} follows {}", before.unwrap_or(precision))),
        source: "isa.md §13 row 23, isa-int4-sdp.md §1.11, §6.3",
    }));
    true
}

/// What OW needs: its operand and the feature sums that it weighs (`isa.md` §9.1).
fn feature_sums(
    machine: &Machine<'_>,
    site: Site,
    view: View<'_>,
    conv: &cna::Conv,
) -> Result<Option<(i64, Vec<i32>, usize)>, Stop> {
    let operand = (view.get::<regs::BsOwOp>().ow_op() as u16).cast_signed();
    // In float it has no effect (NS-25).
    if view.get::<regs::BsOwCfg>().od_bypass() == 1 || operand == 0 || is_float(conv.precision) {
        return Ok(None);
    }
    if !conv.qd_en {
        return Err(unmodelled(
            site,
            "ow-without-sums",
            vec![view.show::<regs::BsOwOp>(), view.show::<ork_isa::regs::core::MiscCfg>()],
            "OW weighs the feature sums, which CORE adds up with QD_EN",
            "OW is on, QD_EN is 0",
            "isa.md §9.1",
        ));
    }
    let sums = core::feature_sums(conv, machine.cbuf.feature_bytes(conv.split.0));
    Ok(Some((i64::from(operand), sums, if conv.depthwise { conv.channels } else { 1 })))
}

/// Refuses work beyond the model's bounds.
pub(crate) fn too_large(site: Site, found: String) -> Stop {
    unmodelled(
        site,
        "task-too-large",
        vec![],
        "the model bounds the work of a task",
        found,
        "no source: a limit of the model",
    )
}

/// An int16 pass with two operands and BS on never completes inside a chain (`isa-int4-sdp.md` §4.5, §6.2).
fn two_int16_operands(
    machine: &Machine<'_>,
    site: Site,
    view: View<'_>,
    operands: &Operands,
) -> Result<(), Stop> {
    let int16 = view.get::<regs::DataFormat>().proc_precision() == Precision::Int16.code();
    let bs: regs::BsCfg = view.get();
    if !machine.chained || !int16 || operands.ew.is_none() || bs.bs_bypass() == 1 || bs.bs_alu_bypass() == 1 {
        return Ok(());
    }
    Err(hang(
        site,
        Category::InvalidProgram,
        "int16-operand-in-chain",
        vec![view.show::<regs::DataFormat>(), view.show::<regs::BsCfg>(), view.show::<regs::EwCfg>()],
        rule("an int16 pass with two operands and the BS adder on completes only as the one task of its job"),
        "the job has more tasks",
        "isa-int4-sdp.md §4.5, §6.2, §9",
    ))
}

/// DPU + DPU_RDMA: element-wise work on memory.
pub(crate) fn run_flying(machine: &mut Machine<'_>, site: Site, view: View<'_>) -> Result<(), Stop> {
    let (unit, reader) = (
        view.get::<regs::FeatureModeCfg>().flying_mode(),
        view.get::<rdma_regs::RdmaFeatureModeCfg>().flying_mode(),
    );
    if (unit, reader) == (0, 0) {
        return Err(hang(
            site,
            Category::InvalidProgram,
            "dpu-unfed",
            vec![view.show::<regs::FeatureModeCfg>(), view.show::<rdma_regs::RdmaFeatureModeCfg>()],
            rule("without FLYING_MODE the DPU waits for sums of CORE"),
            "op-enable starts neither CNA nor CORE",
            "isa-notes G-27",
        ));
    }
    let mut operands = dpu_rdma::fetch(machine, site, view, Feed::Memory, Stages::wants_operand(view))?;
    two_int16_operands(machine, site, view, &operands)?;
    let (sums, lanes, poison) = dpu_rdma::main_data(machine, site, view, &mut operands.ranges)?;
    let cube = Cube::decode(view);
    let main = Main {
        sums,
        group: lanes,
        channels: cube.channels,
        size: (cube.height, cube.width),
        conv: None,
        poison,
        ow: None,
    };
    dpu::finish(machine, site, view, main, &operands)
}
