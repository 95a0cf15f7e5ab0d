// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes wrong when features or weights do not fit their banks (`isa.md` §10, §13).

use ork_isa::Precision;
use ork_isa::regs::{cna, dpu};

use crate::cbuf::BANK;
use crate::cna::Conv;
use crate::diagnosis::{Category, Effect, Finding, Site, Stop, hang, rule, unmodelled};
use crate::options::FeatureGrains;
use crate::pc::Machine;
use crate::regs::View;

/// FEATURE_GRAINS below which one author found fp16 results wrong (`isa.md` §7.6); another measured no influence.
const FP16_GRAINS: u32 = 80;

/// Depth from which an int4 stream is right with one split only (`isa-int4-sdp.md` §1.6).
const INT4_DEEP: usize = 4096;
/// That split: feature banks, weight banks.
const INT4_DEEP_SPLIT: (u32, u32) = (1, 11);

/// Output pixels whose values silicon gets wrong, in ways nobody has recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poison {
    /// Every value.
    pub(crate) all: bool,
    /// Every value is 0.
    pub(crate) zeros: bool,
    /// Two values of three.
    pub(crate) two_thirds: bool,
    /// Values that depend on input lines from this one on.
    pub(crate) from_line: Option<usize>,
    /// Output pixels from this one on.
    pub(crate) from_pixel: Option<usize>,
}

/// The rules of `isa.md` §10 on the split of the buffer.
pub(crate) fn check_split(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    conv: &Conv,
) -> Result<Poison, Stop> {
    let mut poison = Poison::default();
    let (data, weight) = conv.split;
    let cbuf: cna::CbufCon0 = view.get();
    let registers = || vec![view.show::<cna::CbufCon0>(), view.show::<cna::WeightSize1>()];
    if weight == 0 {
        return Err(hang(
            site,
            Category::Resource,
            "no-weight-bank",
            registers(),
            site.here(format!("{} bytes per kernel are to be loaded", conv.bytes_per_kernel)),
            "WEIGHT_BANK is 0",
            "isa.md §10.2, §13 row 1",
        ));
    }
    if data == 0 {
        return Err(unmodelled(
            site,
            "no-feature-bank",
            registers(),
            "every known program has at least one feature bank",
            "DATA_BANK is 0",
            "isa.md §10.1",
        ));
    }
    let mut wrong = |check, first, second: String, source| {
        machine.diagnoses.push(site.finding(Finding {
            category: Category::Resource,
            effect: Effect::Wrong,
            check,
            registers: vec![
                view.show::<cna::CbufCon0>(),
                view.show::<cna::DataSize0>(),
                view.show::<cna::DataSize1>(),
                view.show::<cna::WeightSize1>(),
                view.show::<cna::WeightSize2>(),
            ],
            first,
            second: site.here(second),
            source,
        }));
    };
    if cbuf.fc_data_bank() != 0 {
        wrong(
            "fc-data-bank",
            rule("FC_DATA_BANK is 0 outside fully-connected mode"),
            format!("it is {}: two thirds of all values are wrong", cbuf.fc_data_bank()),
            "isa-notes G-14",
        );
        poison.two_thirds = true;
    }
    // Weights: one kernel group at a time must fit.
    let group_bytes = if conv.depthwise {
        conv.taps() * conv.group() * conv.precision.bits() as usize / 8
    } else {
        conv.bytes_per_kernel * conv.kernels.min(conv.group())
    };
    let room = weight as usize * BANK;
    let int8 = conv.precision == Precision::Int8;
    if group_bytes > room {
        let (first, second) = (
            rule(format!("a kernel group must fit the weight banks: {weight} banks hold {room} bytes")),
            format!("one group has {group_bytes} bytes"),
        );
        if !int8 {
            return Err(hang(
                site,
                Category::Resource,
                "weight-group",
                registers(),
                first,
                second,
                "isa.md §10.2, §13 row 2",
            ));
        }
        wrong("weight-group", first, second, "isa.md §10.2, §13 row 2");
        poison.all = true;
    } else if weight == 1
        && !conv.depthwise
        && group_bytes == room
        && conv.kernels <= 2 * conv.group()
        && !conv.weight_reuse
    {
        let (first, second) = (
            rule("one weight bank holds exactly one kernel group: two groups or fewer fail"),
            format!("{} kernels of {} bytes", conv.kernels, conv.bytes_per_kernel),
        );
        if !int8 {
            return Err(hang(
                site,
                Category::Resource,
                "single-weight-bank",
                registers(),
                first,
                second,
                "isa.md §10.4, §10.5, §13 row 3",
            ));
        }
        wrong("single-weight-bank", first, second, "isa.md §10.4");
        poison.all = true;
    }
    // Features: line by line, as many as the banks hold.
    let held = conv.lines_held();
    // The int4 stream computes lines 0, 4, 8, … only (`isa-int4-sdp.md` §1.3): later ones need no room.
    let stream = conv.precision == Precision::Int4 && view.get::<dpu::WdmaSize1>().0 == 0;
    let needed = if stream { (conv.height - 1) / 4 * 4 + 1 } else { conv.height };
    if held < needed {
        wrong(
            "feature-capacity",
            rule(format!("{data} feature banks hold {held} lines of {} bytes", conv.line_bytes())),
            format!("{} lines are convolved: what depends on lines from {held} on is wrong", conv.height),
            "isa.md §10.2, §10.4, §13 row 4",
        );
        poison.from_line = Some(held);
    }
    if stream && conv.channels >= INT4_DEEP && conv.split != INT4_DEEP_SPLIT {
        let (only_data, only_weight) = INT4_DEEP_SPLIT;
        wrong(
            "int4-deep-split",
            rule(format!(
                "an int4 stream of {INT4_DEEP} channels or more needs D = {only_data}, W = {only_weight}"
            )),
            format!("{} channels, D = {data}, W = {weight}", conv.channels),
            "isa-int4-sdp.md §1.6, §1.7",
        );
        poison.all = true;
    }
    // Both sides meet.
    let wanted = conv.weight_bytes().div_ceil(BANK);
    if data as usize + wanted.min(weight as usize) > 12 {
        wrong(
            "split-overlaps",
            rule("D + min(banks that all weights need, W) <= 12"),
            format!("D = {data}, W = {weight}, the weights need {wanted}: the sides overlap"),
            "isa.md §10.5, §13 row 5",
        );
        if data >= 12 && weight == 11 {
            poison.zeros = true;
        } else {
            poison.all = true;
        }
    }
    if conv.kernels == 0 {
        wrong(
            "no-kernels",
            rule("WEIGHT_KERNELS has 14 bits: 16384 reads as 0"),
            "no kernel has weights".to_owned(),
            "isa.md §3, §13 row 6",
        );
        poison.all = true;
    }
    let grains = view.get::<cna::ConvCon2>().feature_grains();
    let fp16 = conv.precision == Precision::Fp16;
    if fp16
        && grains < FP16_GRAINS
        && machine.options.silicon.feature_grains == FeatureGrains::Fp16NeedsEighty
    {
        machine.diagnoses.push(site.finding(Finding {
            category: Category::Resource,
            effect: Effect::Wrong,
            check: "feature-grains",
            registers: vec![view.show::<cna::ConvCon2>()],
            first: rule(format!("fp16 needs FEATURE_GRAINS of at least {FP16_GRAINS} on this silicon")),
            second: site.here(format!("it is {grains}")),
            source: "isa.md §7.6, §10.8",
        }));
        poison.all = true;
    }
    let entries = view.get::<cna::CbufCon1>().data_entries() as usize;
    if entries * 64 < conv.line_bytes() {
        return Err(unmodelled(
            site,
            "data-entries",
            vec![view.show::<cna::CbufCon1>(), view.show::<cna::DataSize1>()],
            "DATA_ENTRIES is the size of a line in units of 64 bytes",
            format!("it is {entries}, a line has {} bytes", conv.line_bytes()),
            "isa.md §6, §7.1, §9.2",
        ));
    }
    Ok(poison)
}
