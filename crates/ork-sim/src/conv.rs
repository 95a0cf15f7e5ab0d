// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks: which units take part, in which order.

use std::borrow::Cow;

use ork_isa::Precision;
use ork_isa::regs::dpu as regs;

use crate::cbuf::BANK;
use crate::diagnosis::{Site, Stop, unmodelled};
use crate::dpu::Main;
use crate::dpu_rdma::{self, Cube, Feed, Operands};
use crate::element::is_float;
use crate::options::Int4Saturation;
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
    let operands = if rdma {
        dpu_rdma::fetch(machine, site, view, Feed::Accumulator, Stages::wants_operand(view))?
    } else {
        Operands::default()
    };
    let poison = cbuf_rules::check_split(machine, site, view, &conv)?;
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
    let group_bytes = conv.bytes_per_kernel * conv.group();
    machine.clock.mac_task(timing::MacTask {
        macs: conv.macs(),
        weight_bytes: if conv.weight_reuse { 0 } else { conv.weight_bytes() as u64 },
        kernel_groups: core::groups(&conv) as u64,
        overlapped: 2 * group_bytes <= conv.split.1 as usize * BANK,
        rate: match conv.precision {
            Precision::Int4 => 2.0,
            Precision::Int8 => 1.0,
            Precision::Tf32 => 0.25,
            _ => 0.5,
        },
    });
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

/// DPU + DPU_RDMA: element-wise work on memory.
pub(crate) fn run_flying(machine: &mut Machine<'_>, site: Site, view: View<'_>) -> Result<(), Stop> {
    let mut operands = dpu_rdma::fetch(machine, site, view, Feed::Memory, Stages::wants_operand(view))?;
    let (sums, lanes) = dpu_rdma::main_data(machine, site, view, &mut operands.ranges)?;
    let cube = Cube::decode(view);
    let main = Main {
        sums,
        group: lanes,
        channels: cube.channels,
        size: (cube.height, cube.width),
        conv: None,
        poison: cbuf_rules::Poison::default(),
        ow: None,
    };
    dpu::finish(machine, site, view, main, &operands)
}
