// SPDX-License-Identifier: MIT OR Apache-2.0
//! The convolution and its buffer (`isa.md` §10, §13).

use super::table::{
    BANK_OVERLAP, BANK_SUM, CNA_UNCONFIGURED, COLUMNS, DATA_ENTRIES, DATA_REUSE, DATA_REUSE_STALE,
    DECOMPRESSION, DEPTHWISE_DISAGREES, FC_DATA_BANK, FC_SKIP, FEATURE_CAPACITY, KERNEL_BYTES, MAC_PRECISION,
    NARROW_COLUMNS, NO_FEATURE_BANK, NO_WEIGHT_BANK, OUTPUT_SIZE, WEIGHT_GROUP, WEIGHT_REUSE,
    WEIGHT_REUSE_STALE, WEIGHT_TOTAL,
};
use super::{Context, Event};
use crate::regs::{cna, core, dpu};
use crate::task::{FeatureLayout, Mac, Task};
use crate::{Block, Precision, soc};

/// Columns that one program can have: the DPU's channel field has 13 bits.
const COLUMNS_MAX: u32 = 8192;

pub(super) fn check(context: &mut Context<'_>, index: usize, task: &Task) {
    if !task.starts(Block::Cna) {
        return;
    }
    let r = &task.registers;
    let sizes = r.place::<cna::DataSize0>().is_some()
        && r.place::<cna::DataSize1>().is_some()
        && r.place::<cna::WeightSize1>().is_some()
        && r.place::<cna::WeightSize2>().is_some();
    if !sizes {
        let first = context.at(task.place, "starts CNA");
        let second = Event::rule("no word of the chain gave this register group its sizes");
        context.report(&CNA_UNCONFIGURED, task.place.program, first, second);
        return;
    }
    let mac = Mac::read(r);
    modes(context, task, &mac);
    if r.place::<cna::CbufCon0>().is_some() {
        banks(context, task, &mac);
        reuse(context, index, task, &mac);
    }
    sizes_agree(context, task, &mac);
}

fn modes(context: &mut Context<'_>, task: &Task, mac: &Mac) {
    let r = &task.registers;
    let program = task.place.program;
    let dcomp: cna::DcompCtrl = r.get();
    if dcomp.decomp_control() != 0 {
        let first = context.of::<cna::DcompCtrl>(task, "turns weight decompression on");
        let second = context.of::<cna::DcompAddr0>(task, "names the weights");
        context.report(&DECOMPRESSION, program, first, second);
    }
    if r.get::<cna::FcCon0>().fc_skip_en() == 1 {
        let first = context.of::<cna::FcCon0>(task, "");
        let second = context.at(task.place, "starts CNA");
        context.report(&FC_SKIP, program, first, second);
    }
    let both = r.place::<cna::ConvCon1>().is_some() && r.place::<core::MiscCfg>().is_some();
    if both && mac.precision.is_none() {
        let con1: cna::ConvCon1 = r.get();
        let codes = format!("IN_PRECISION {}, PROC_PRECISION {}", con1.in_precision(), con1.proc_precision());
        let first = context.of::<cna::ConvCon1>(task, codes);
        let code = r.get::<core::MiscCfg>().proc_precision();
        let second = context.of::<core::MiscCfg>(task, format!("PROC_PRECISION {code}"));
        context.report(&MAC_PRECISION, program, first, second);
    }
    if both && mac.depthwise != (r.get::<core::MiscCfg>().dw_en() == 1) {
        let mode = r.get::<cna::ConvCon1>().conv_mode();
        let first = context.of::<cna::ConvCon1>(task, format!("CONV_MODE {mode}"));
        let second = context.of::<core::MiscCfg>(task, format!("DW_EN {}", u32::from(!mac.depthwise)));
        context.report(&DEPTHWISE_DISAGREES, program, first, second);
    }
    if mac.kernels > COLUMNS_MAX {
        let first = context.of::<cna::WeightSize2>(task, format!("{} kernels", mac.kernels));
        let second = Event::rule(format!("the DPU counts at most {COLUMNS_MAX} channels"));
        context.report(&COLUMNS, program, first, second);
    }
}

fn banks(context: &mut Context<'_>, task: &Task, mac: &Mac) {
    let program = task.place.program;
    let bank = u64::from(soc::RK3588.bank_bytes);
    let (data, weight) = mac.split;
    let split = |what: String| context.of::<cna::CbufCon0>(task, what);
    let kernel = |what: String| context.of::<cna::WeightSize1>(task, what);
    let mut found = Vec::new();
    let fc = task.registers.get::<cna::CbufCon0>().fc_data_bank();
    if fc != 0 {
        let rule = Event::rule("it is live in convolution mode: most elements come out wrong");
        found.push((&FC_DATA_BANK, split(format!("FC_DATA_BANK {fc}")), rule));
    }
    if weight == 0 {
        let second = kernel(format!("{} bytes a kernel are to be loaded", mac.bytes_per_kernel));
        found.push((&NO_WEIGHT_BANK, split("W = 0".into()), second));
    }
    if data == 0 {
        let second = context.of::<cna::DataSize0>(task, format!("{} lines are to be loaded", mac.height));
        found.push((&NO_FEATURE_BANK, split("D = 0".into()), second));
    }
    let sum = data + weight;
    if data != 0 && weight != 0 && sum != soc::RK3588.cbuf_banks {
        let wanted = mac.weight_bytes().div_ceil(bank);
        let used = u64::from(data) + wanted.min(weight.into());
        let first = split(format!("D = {data}, W = {weight}"));
        if used > soc::RK3588.cbuf_banks.into() {
            let second =
                kernel(format!("the weights take {} banks: {used} in all", wanted.min(weight.into())));
            found.push((&BANK_OVERLAP, first, second));
        } else {
            found.push((&BANK_SUM, first, Event::rule(format!("D + W is {sum}, not 12"))));
        }
    }
    let room = u64::from(weight) * bank;
    let group = mac.group_bytes();
    let precise = mac.precision.is_some();
    if precise && weight != 0 && group > room {
        let second = kernel(format!("one kernel group has {group} bytes"));
        found.push((&WEIGHT_GROUP, split(format!("W = {weight} holds {room} bytes")), second));
    }
    let narrow = weight == 1 && group == room && mac.kernels <= 2 * mac.group();
    if precise && !mac.depthwise && !mac.weight_reuse && narrow {
        let second = context.of::<cna::WeightSize2>(
            task,
            format!("{} kernels of {} bytes", mac.kernels, mac.bytes_per_kernel),
        );
        found.push((&NARROW_COLUMNS, split("one weight bank holds exactly one kernel group".into()), second));
    }
    // The int4 stream form computes every fourth line only (`isa-int4-sdp.md` §1.3); packed pixels are laid out
    // by rules of their own.
    let stream = mac.precision == Some(Precision::Int4) && task.registers.get::<dpu::WdmaSize1>().0 == 0;
    let aligned = !matches!(mac.layout, FeatureLayout::Pixels { .. });
    let line = mac.line_bytes();
    let need = line * u64::from(mac.height);
    if precise && aligned && !stream && data != 0 && need > u64::from(data) * bank {
        let first =
            split(format!("D = {data} holds {} lines of {line} bytes", u64::from(data) * bank / line));
        let second = context.of::<cna::DataSize0>(task, format!("{} lines are convolved", mac.height));
        found.push((&FEATURE_CAPACITY, first, second));
    }
    let entries: cna::CbufCon1 = task.registers.get();
    let written = task.registers.place::<cna::CbufCon1>().is_some();
    if precise && aligned && written && u64::from(entries.data_entries()) * 64 < line {
        let first = context
            .of::<cna::CbufCon1>(task, format!("{} bytes a line", u64::from(entries.data_entries()) * 64));
        let what = format!("{} pixels of {} channels take {line} bytes", mac.width, mac.channels);
        found.push((&DATA_ENTRIES, first, context.of::<cna::DataSize1>(task, what)));
    }
    for (lint, first, second) in found {
        context.report(lint, program, first, second);
    }
}

/// Reuse is right only if the task before loaded the very same thing into the same banks (`isa.md` §10.6, §10.7).
fn reuse(context: &mut Context<'_>, index: usize, task: &Task, mac: &Mac) {
    if !mac.data_reuse && !mac.weight_reuse {
        return;
    }
    let program = task.place.program;
    let earlier = context.tasks[..index].iter().rev().find(|other| {
        let before = other.place.program;
        (before == program || context.links.predecessor(program) == Some(before)) && other.starts(Block::Cna)
    });
    let bits = if mac.weight_reuse { (&WEIGHT_REUSE, "weights") } else { (&DATA_REUSE, "features") };
    let Some(earlier) = earlier else {
        let first = Event::rule("the listing shows no task before this one");
        let second = context.of::<cna::CbufCon0>(task, format!("takes {} from the buffer", bits.1));
        context.report(bits.0, program, first, second);
        return;
    };
    let held = Mac::read(&earlier.registers);
    let mut found = Vec::new();
    let resplit = held.split != mac.split;
    let here = || context.of::<cna::CbufCon0>(task, format!("D = {}, W = {}", mac.split.0, mac.split.1));
    let there = || {
        context
            .of::<cna::CbufCon0>(earlier, format!("loaded with D = {}, W = {}", held.split.0, held.split.1))
    };
    if mac.weight_reuse {
        let room = u64::from(mac.split.1) * u64::from(soc::RK3588.bank_bytes);
        let address = |task: &Task| task.registers.get::<cna::DcompAddr0>();
        if resplit {
            found.push((&WEIGHT_REUSE_STALE, there(), here()));
        } else if held.weight_bytes() > room {
            let what = format!("loaded {} bytes, the banks hold {room}", held.weight_bytes());
            let first = context.of::<cna::WeightSize2>(earlier, what);
            let second = context.of::<cna::CbufCon0>(task, "takes them from the buffer");
            found.push((&WEIGHT_REUSE_STALE, first, second));
        } else if address(earlier) != address(task) {
            let first = context.of::<cna::DcompAddr0>(earlier, "loaded from here");
            let second = context.of::<cna::DcompAddr0>(task, "names other weights, which are not loaded");
            found.push((&WEIGHT_REUSE_STALE, first, second));
        } else {
            found.push((&WEIGHT_REUSE, there(), here()));
        }
    }
    if mac.data_reuse {
        let address = |task: &Task| task.registers.get::<cna::FeatureDataAddr>();
        let shape = |mac: &Mac| (mac.height, mac.line_bytes());
        if resplit {
            found.push((&DATA_REUSE_STALE, there(), here()));
        } else if address(earlier) != address(task) || shape(&held) != shape(mac) {
            let first = context.of::<cna::FeatureDataAddr>(earlier, format!("loaded {} lines", held.height));
            let what = format!("names {} lines, which are not loaded", mac.height);
            found.push((&DATA_REUSE_STALE, first, context.of::<cna::FeatureDataAddr>(task, what)));
        } else {
            found.push((&DATA_REUSE, there(), here()));
        }
    }
    for (lint, first, second) in found {
        context.report(lint, program, first, second);
    }
}

/// Sizes that are written more than once must say the same.
fn sizes_agree(context: &mut Context<'_>, task: &Task, mac: &Mac) {
    let r = &task.registers;
    let program = task.place.program;
    let mut found = Vec::new();
    let shape = mac.kernel_bytes_by_shape();
    if mac.precision.is_some() && u64::from(mac.bytes_per_kernel) != shape {
        let first = context.of::<cna::WeightSize1>(task, format!("{} bytes a kernel", mac.bytes_per_kernel));
        let (h, w) = mac.kernel;
        let what = format!("{h} x {w} taps of {} channels have {shape} bytes", mac.channels);
        found.push((&KERNEL_BYTES, first, context.of::<cna::WeightSize2>(task, what)));
    }
    if let Some((total, _)) = r.written::<cna::WeightSize0>()
        && u64::from(total.weight_bytes()) != mac.weight_bytes()
    {
        let first = context.of::<cna::WeightSize0>(task, format!("{} bytes in all", total.weight_bytes()));
        let what = format!("{} kernels have {} bytes", mac.kernels, mac.weight_bytes());
        found.push((&WEIGHT_TOTAL, first, context.of::<cna::WeightSize2>(task, what)));
    }
    let out = (mac.out_height, mac.out_width);
    let core_written = r.place::<core::DataoutSize0>().is_some();
    if let Some((atomics, _)) = r.written::<cna::DataSize3>()
        && core_written
        && u64::from(atomics.dataout_atomics()) != u64::from(out.0) * u64::from(out.1)
    {
        let first = context.of::<cna::DataSize3>(task, format!("{} pixels", atomics.dataout_atomics()));
        let second = context.of::<core::DataoutSize0>(task, format!("{} x {} pixels", out.0, out.1));
        found.push((&OUTPUT_SIZE, first, second));
    }
    let dpu_fed = task.starts(Block::Dpu) && r.get::<dpu::FeatureModeCfg>().flying_mode() == 0;
    if dpu_fed
        && core_written
        && let (Some((height, _)), Some((width, _))) =
            (r.written::<dpu::DataCubeHeight>(), r.written::<dpu::DataCubeWidth>())
    {
        let cube = (height.height() + 1, width.width() + 1);
        if cube != out {
            let first = context.of::<core::DataoutSize0>(task, format!("{} x {} pixels", out.0, out.1));
            let second = context.of::<dpu::DataCubeHeight>(task, format!("{} x {} pixels", cube.0, cube.1));
            found.push((&OUTPUT_SIZE, first, second));
        }
    }
    for (lint, first, second) in found {
        context.report(lint, program, first, second);
    }
}
