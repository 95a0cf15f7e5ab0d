// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operands that DPU_RDMA reads for the EW stage (`isa-notes.md` D.3, NS.2, `isa-int4-sdp.md` §3.3, §4.5).

use super::table::{
    INT16_CHAIN, OPERAND_BEHIND_MAC, OPERAND_BROADCAST, OPERAND_MODE, OPERAND_NOTCH, OPERAND_WIDE,
    PER_CHANNEL_ADD,
};
use super::{Context, Event};
use crate::regs::{dpu, dpu_rdma};
use crate::task::{Next, Task};
use crate::{Block, Precision};

/// The notch that known programs write at least, in atoms (`isa-notes.md` D.3).
const NOTCH_MIN: u32 = 12;
/// EDATA_SIZE of 32-bit elements.
const WIDE: u32 = 3;
/// EW_ALU_ALGO of a sum.
const ADD: u32 = 2;

pub(super) fn check(context: &mut Context<'_>, task: &Task) {
    if !task.starts(Block::Dpu) || !task.starts(Block::DpuRdma) {
        return;
    }
    let r = &task.registers;
    let program = task.place.program;
    let (Some((ew, _)), Some((erdma, _)), Some((mode, _))) = (
        r.written::<dpu::EwCfg>(),
        r.written::<dpu_rdma::RdmaErdmaCfg>(),
        r.written::<dpu_rdma::RdmaFeatureModeCfg>(),
    ) else {
        return;
    };
    let acts = ew.ew_bypass() == 0 && ew.ew_lut_bypass() == 1 && ew.ew_op_bypass() == 0;
    if !acts || ew.ew_op_src() == 0 || erdma.erdma_disable() == 1 {
        return;
    }
    let behind = mode.flying_mode() == 0;
    let adds = ew.ew_op_type() == 0;
    let integer = matches!(r.get::<dpu::DataFormat>().proc_precision(), 0 | 1);
    let format_known = r.place::<dpu::DataFormat>().is_some();
    let pixels = (r.get::<dpu_rdma::RdmaDataCubeWidth>().width() + 1)
        * (r.get::<dpu_rdma::RdmaDataCubeHeight>().height() + 1);
    let channels = r.get::<dpu_rdma::RdmaDataCubeChannel>().channel() + 1;
    // Sizes are coded as powers of two of 4 bits.
    let surfaces = (u64::from(channels) * (4 << erdma.erdma_data_size())).div_ceil(128);
    let ew_event = |what: &str| context.of::<dpu::EwCfg>(task, what);
    let erdma_event = |what: String| context.of::<dpu_rdma::RdmaErdmaCfg>(task, what);
    let mut found = Vec::new();
    if behind && mode.comb_use() != 5 {
        let first = ew_event("takes an operand from memory");
        let second = context.of::<dpu_rdma::RdmaFeatureModeCfg>(
            task,
            format!("the main data come from the MAC array, COMB_USE is {}", mode.comb_use()),
        );
        found.push((&OPERAND_BEHIND_MAC, first, second));
    }
    match erdma.erdma_data_mode() {
        0 if adds && ew.ew_alu_algo() == ADD => {
            let second = erdma_event("one value per channel".into());
            found.push((&PER_CHANNEL_ADD, ew_event("adds its operand"), second));
        }
        0 => {}
        1 if behind && mode.comb_use() == 5 => {
            let notch = r.get::<dpu_rdma::RdmaEwSurfNotch>().ew_surf_notch();
            if surfaces > 2 && pixels < NOTCH_MIN && notch == NOTCH_MIN {
                let first = context.of::<dpu_rdma::RdmaDataCubeHeight>(task, format!("{pixels} pixels"));
                let what = format!("{surfaces} surfaces with a notch of {notch} atoms");
                found.push((&OPERAND_NOTCH, first, context.of::<dpu_rdma::RdmaEwSurfNotch>(task, what)));
            }
        }
        1 if !behind && surfaces > 1 => {
            let stride: dpu_rdma::RdmaEwSurfStride = r.get();
            if stride.ew_surf_stride() == 0 {
                let first = context.of::<dpu_rdma::RdmaDataCubeChannel>(
                    task,
                    format!("{channels} channels are {surfaces} surfaces"),
                );
                let second = context.of::<dpu_rdma::RdmaEwSurfStride>(task, "they all lie in one place");
                found.push((&OPERAND_BROADCAST, first, second));
            }
        }
        1 => {}
        other => {
            let rule = Event::rule("only modes 0 and 1 complete");
            found.push((&OPERAND_MODE, erdma_event(format!("ERDMA_DATA_MODE {other}")), rule));
        }
    }
    if format_known && integer && adds && ew.edata_size() == WIDE {
        let first = context.of::<dpu::DataFormat>(task, "the stages work on integers");
        found.push((&OPERAND_WIDE, first, ew_event("adds a 32-bit operand")));
    }
    let bs: dpu::BsCfg = r.get();
    let int16 = format_known && r.get::<dpu::DataFormat>().proc_precision() == Precision::Int16.code();
    let linked = context.links.linked_from(program).is_some() || context.links.next(program) != Next::End;
    if !behind && int16 && linked && bs.bs_bypass() == 0 && bs.bs_alu_bypass() == 0 {
        let first = context.of::<dpu::BsCfg>(task, "the BS adder is on in an int16 pass with two operands");
        let second = context.at(task.place, "the program is one of a chain");
        found.push((&INT16_CHAIN, first, second));
    }
    for (lint, first, second) in found {
        context.report(lint, program, first, second);
    }
}
