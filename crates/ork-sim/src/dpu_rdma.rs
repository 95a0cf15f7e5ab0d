// SPDX-License-Identifier: MIT OR Apache-2.0
//! DPU_RDMA: the readers that feed the output stages (`isa-int4-sdp.md` §3, `isa-notes.md` D.3, NS.2).

use ork_isa::regs::{dpu, dpu_rdma};
use ork_isa::{Iova, Precision};

use crate::cbuf_rules::Poison;
use crate::cna::ATOM;
use crate::core::Sums;
use crate::diagnosis::{Category, Effect, Finding, Site, Stop, hang, rule, unmodelled};
use crate::element;
use crate::options::LongRows;
use crate::pc::Machine;
use crate::regs::View;

/// Rows up to which an element-wise pass completes (`isa-int4-sdp.md` §3.2).
const ROWS_MAX: usize = 8176;
/// The same for fp16 by another count, which is also exact two rows further on (`isa-notes.md` M-10).
const FP16_ROWS_EXACT: usize = 8188;
/// Positions that fray beyond (`isa-notes.md` G-4); which ones is not known, the last are as good as any.
const FRAYED: usize = 54;

/// Where the main data come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feed {
    /// The accumulator, with or without an operand behind it.
    Accumulator,
    /// MRDMA.
    Memory,
}

/// The cube that the readers walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cube {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) channels: usize,
}

impl Cube {
    pub(crate) fn decode(view: View<'_>) -> Self {
        Self {
            width: view.get::<dpu_rdma::RdmaDataCubeWidth>().width() as usize + 1,
            height: view.get::<dpu_rdma::RdmaDataCubeHeight>().height() as usize + 1,
            channels: view.get::<dpu_rdma::RdmaDataCubeChannel>().channel() as usize + 1,
        }
    }

    pub(crate) fn pixels(&self) -> usize {
        self.width * self.height
    }
}

/// An operand of the EW stage: atoms as `[surface][pixel]`, or one value per channel.
#[derive(Debug)]
pub(crate) struct Operand {
    bytes: Vec<u8>,
    precision: Precision,
    pixels: usize,
    per_channel: bool,
}

impl Operand {
    /// One value per channel instead of one per pixel.
    pub(crate) fn is_per_channel(&self) -> bool {
        self.per_channel
    }

    fn place(&self, channel: usize, pixel: usize) -> usize {
        if self.per_channel {
            return channel;
        }
        let lanes = ATOM * 8 / self.precision.bits() as usize;
        (channel / lanes * self.pixels + pixel) * lanes + channel % lanes
    }

    pub(crate) fn int(&self, channel: usize, pixel: usize) -> i64 {
        i64::from(element::int(self.precision, &self.bytes, self.place(channel, pixel)))
    }

    pub(crate) fn float(&self, channel: usize, pixel: usize) -> f32 {
        element::float(self.precision, &self.bytes, self.place(channel, pixel))
    }
}

/// What BRDMA or NRDMA delivers: one operand per channel.
#[derive(Debug, Default)]
pub(crate) struct PerChannel {
    /// 32-bit words, int32 or fp32.
    alu: Option<Vec<u32>>,
    /// fp16.
    mul: Option<Vec<u16>>,
}

impl PerChannel {
    pub(crate) fn has_alu(&self) -> bool {
        self.alu.is_some()
    }

    pub(crate) fn has_mul(&self) -> bool {
        self.mul.is_some()
    }

    /// The adder's operand; 0 without one.
    pub(crate) fn alu(&self, channel: usize) -> u32 {
        self.alu.as_ref().and_then(|words| words.get(channel)).copied().unwrap_or(0)
    }

    /// The multiplier's operand; 0 without one.
    pub(crate) fn mul(&self, channel: usize) -> u16 {
        self.mul.as_ref().and_then(|halves| halves.get(channel)).copied().unwrap_or(0)
    }
}

/// What the readers deliver.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    /// From BRDMA.
    pub(crate) bs: PerChannel,
    /// From NRDMA.
    pub(crate) bn: PerChannel,
    pub(crate) ew: Option<Operand>,
    /// Memory that was read: reader, first and last address plus one.
    pub(crate) ranges: Vec<(&'static str, u64, u64)>,
}

fn fault(site: Site, view: View<'_>, reader: &str, at: u64, len: usize, what: String) -> Stop {
    hang(
        site,
        Category::Resource,
        "operand-fault",
        vec![
            view.show::<dpu_rdma::RdmaSrcBaseAddr>(),
            view.show::<dpu_rdma::RdmaBsBaseAddr>(),
            view.show::<dpu_rdma::RdmaEwBaseAddr>(),
            view.show::<dpu_rdma::RdmaEwSurfStride>(),
        ],
        site.here(format!("{reader} reads {len} bytes at {at:#010x}")),
        what,
        "isa-int4-sdp.md §3, isa.md §14.1 step 5",
    )
}

fn read(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    reader: &str,
    at: u64,
    len: usize,
    into: &mut Vec<u8>,
) -> Result<(), Stop> {
    let address = at + u64::from(machine.dma_base.0);
    let iova = u32::try_from(address).map_err(|_| {
        fault(site, view, reader, address, len, "the address leaves the 32-bit window".to_owned())
    })?;
    let span = machine
        .bus
        .read(Iova(iova), len as u64)
        .map_err(|error| fault(site, view, reader, address, len, error.to_string()))?;
    into.extend_from_slice(&span);
    machine.stats.operand_bytes += len as u64;
    Ok(())
}

/// The rules on which reader runs, and what they then read.
pub(crate) fn fetch(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    feed: Feed,
    operand_wanted: bool,
) -> Result<Operands, Stop> {
    let mode: dpu_rdma::RdmaFeatureModeCfg = view.get();
    let erdma: dpu_rdma::RdmaErdmaCfg = view.get();
    let cube = Cube::decode(view);
    let registers = || {
        vec![
            view.show::<dpu_rdma::RdmaFeatureModeCfg>(),
            view.show::<dpu_rdma::RdmaErdmaCfg>(),
            view.show::<dpu::EwCfg>(),
        ]
    };
    let flying = mode.flying_mode() == 1;
    let comb = mode.comb_use();
    let paired = comb == 5 && !flying && erdma.erdma_disable() == 0;
    if view.get::<dpu::FeatureModeCfg>().flying_mode() == 0 && mode.mrdma_disable() == 0 && !paired {
        return Err(hang(
            site,
            Category::InvalidProgram,
            "mrdma-unfed",
            registers(),
            rule("without FLYING_MODE the DPU takes sums of CORE: MRDMA must be off unless COMB_USE is 5"),
            format!("MRDMA is on, COMB_USE is {comb}: it waits for data that nobody takes or sends"),
            "isa-notes G-2, D.3, isa-int4-sdp.md §3.8",
        ));
    }
    if flying != (feed == Feed::Memory) {
        return Err(unmodelled(
            site,
            "flying-disagrees",
            vec![view.show::<dpu::FeatureModeCfg>(), view.show::<dpu_rdma::RdmaFeatureModeCfg>()],
            "DPU and DPU_RDMA agree on where the main data come from",
            "they do not",
            "isa-notes D.3",
        ));
    }
    if flying && mode.mrdma_disable() == 1 {
        return Err(hang(
            site,
            Category::InvalidProgram,
            "mrdma-off",
            registers(),
            rule("flying mode takes its main data from MRDMA"),
            "MRDMA is off",
            "isa-notes D.3",
        ));
    }
    if comb != 0 && !paired {
        return Err(unmodelled(
            site,
            "comb-use",
            registers(),
            "COMB_USE is 0, or 5 with a convolution as main data and ERDMA on",
            format!("it is {comb}"),
            "isa-notes NS-10",
        ));
    }
    if view.get::<dpu_rdma::RdmaSrcDmaCfg>().0 != 0
        || view.get::<dpu_rdma::RdmaPadCfg>().0 != 0
        || view.get::<dpu_rdma::RdmaDataCubeHeight>().ew_line_notch_addr() != 0
        || erdma.erdma_surf_mode() == 1
        || erdma.erdma_nonalign() == 1
    {
        return Err(unmodelled(
            site,
            "rdma-mode",
            vec![
                view.show::<dpu_rdma::RdmaSrcDmaCfg>(),
                view.show::<dpu_rdma::RdmaPadCfg>(),
                view.show::<dpu_rdma::RdmaErdmaCfg>(),
                view.show::<dpu_rdma::RdmaDataCubeHeight>(),
            ],
            "no known program uses line notches, un-pooling, serial surfaces or packed operands",
            "this one does",
            "isa-notes NS-35",
        ));
    }
    if cube.pixels() > crate::conv::SUMS_MAX / cube.channels {
        return Err(crate::conv::too_large(site, format!("{cube:?}")));
    }
    let mut operands = Operands {
        bs: per_channel(
            machine,
            site,
            view,
            "BRDMA",
            view.get::<dpu_rdma::RdmaBrdmaCfg>().brdma_data_use(),
            view.get::<dpu_rdma::RdmaBsBaseAddr>().bs_base_addr(),
        )?,
        bn: per_channel(
            machine,
            site,
            view,
            "NRDMA",
            view.get::<dpu_rdma::RdmaNrdmaCfg>().nrdma_data_use(),
            view.get::<dpu_rdma::RdmaBnBaseAddr>().bn_base_addr(),
        )?,
        ..Operands::default()
    };
    if erdma.erdma_disable() == 1 {
        return Ok(operands);
    }
    if !operand_wanted && flying {
        // A recorded multi-step program leaves the reader on while EW is bypassed, and is right.
        return Ok(operands);
    }
    if !operand_wanted {
        return Err(unmodelled(
            site,
            "erdma-unused",
            registers(),
            "behind a convolution ERDMA is off unless the EW stage takes its operand from it",
            "it is on",
            "isa-notes NS-36",
        ));
    }
    if !flying && !paired {
        return Err(hang(
            site,
            Category::InvalidProgram,
            "operand-behind-matmul",
            registers(),
            rule("behind a convolution the EW operand needs COMB_USE 5"),
            format!("COMB_USE is {comb}"),
            "isa-int4-sdp.md §4.5",
        ));
    }
    operands.ew = Some(ew_operand(machine, site, view, cube, paired, &mut operands.ranges)?);
    Ok(operands)
}

/// Operands of BS or BN: 32-bit words for the adder, or fp16 for the multiplier, never both. Behind a whole surface of
/// multipliers a short one is not read.
fn per_channel(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    reader: &str,
    data_use: u32,
    base: u32,
) -> Result<PerChannel, Stop> {
    let channels = Cube::decode(view).channels;
    let float = is_float_mode(view);
    let mut bytes = Vec::new();
    let mut operands = PerChannel::default();
    match data_use {
        0 => {}
        1 => {
            read(machine, site, view, reader, base.into(), channels * 4, &mut bytes)?;
            operands.alu =
                Some(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect());
        }
        4 if float && (channels <= ATOM / 2 || channels.is_multiple_of(ATOM / 2)) => {
            read(machine, site, view, reader, base.into(), channels * 2, &mut bytes)?;
            operands.mul =
                Some(bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half)).collect());
        }
        other => {
            return Err(unmodelled(
                site,
                "per-channel-operands",
                vec![
                    view.show::<dpu_rdma::RdmaBrdmaCfg>(),
                    view.show::<dpu_rdma::RdmaNrdmaCfg>(),
                    view.show::<dpu_rdma::RdmaDataCubeChannel>(),
                ],
                "the adders of BS and BN can take 32 bits for each channel, or in float the multipliers fp16, of one \
                 short surface or of whole ones",
                format!("{reader} DATA_USE is {other} with {channels} channels"),
                "isa.md §9.6, isa-notes D.1, docs/assumptions.md S-82",
            ));
        }
    }
    Ok(operands)
}

/// The DPU computes in float.
fn is_float_mode(view: View<'_>) -> bool {
    matches!(view.get::<dpu::DataFormat>().proc_precision(), 2 | 5)
}

fn ew_operand(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    cube: Cube,
    paired: bool,
    ranges: &mut Vec<(&'static str, u64, u64)>,
) -> Result<Operand, Stop> {
    let erdma: dpu_rdma::RdmaErdmaCfg = view.get();
    let ew: dpu::EwCfg = view.get();
    let float = is_float_mode(view);
    let size = erdma.erdma_data_size();
    let precision = match (size, float) {
        (1, false) => Precision::Int8,
        (2, false) => Precision::Int16,
        (2, true) => Precision::Fp16,
        (3, false) => Precision::Int32,
        _ => {
            return Err(unmodelled(
                site,
                "operand-size",
                vec![view.show::<dpu_rdma::RdmaErdmaCfg>()],
                "operands are int8, int16, int32 or fp16",
                format!("ERDMA_DATA_SIZE is {size}"),
                "isa-int4-sdp.md §3.3",
            ));
        }
    };
    if ew.edata_size() != size {
        return Err(unmodelled(
            site,
            "operand-size",
            vec![view.show::<dpu_rdma::RdmaErdmaCfg>(), view.show::<dpu::EwCfg>()],
            "ERDMA_DATA_SIZE and EDATA_SIZE hold one number",
            format!("they hold {size} and {}", ew.edata_size()),
            "isa-int4-sdp.md §3.3",
        ));
    }
    let base = u64::from(view.get::<dpu_rdma::RdmaEwBaseAddr>().ew_base_addr());
    let stride = u64::from(view.get::<dpu_rdma::RdmaEwSurfStride>().ew_surf_stride()) * 16;
    let notch = u64::from(view.get::<dpu_rdma::RdmaEwSurfNotch>().ew_surf_notch()) * 16;
    let pixels = cube.pixels();
    let surface_bytes = pixels * ATOM;
    let mut operand = Operand { bytes: Vec::new(), precision, pixels, per_channel: false };
    match erdma.erdma_data_mode() {
        // One value per channel, in an atom for each surface of them: EW expects it so too.
        0 if !paired && ew.ew_data_mode() == 0 => {
            operand.per_channel = true;
            let lanes = ATOM * 8 / precision.bits() as usize;
            for surface in 0..cube.channels.div_ceil(lanes) as u64 {
                let at = base + surface * stride;
                read(machine, site, view, "ERDMA", at, ATOM, &mut operand.bytes)?;
                ranges.push(("ERDMA", at, at + ATOM as u64));
            }
        }
        // EW expects one per pixel: contiguous (`isa-int4-sdp.md` §3.4 "Per-channel multiply").
        0 if !paired => {
            operand.per_channel = true;
            let len = cube.channels * precision.bits() as usize / 8;
            read(machine, site, view, "ERDMA", base, len, &mut operand.bytes)?;
            ranges.push(("ERDMA", base, base + len as u64));
        }
        1 => {
            let lanes = ATOM * 8 / precision.bits() as usize;
            let surfaces = cube.channels.div_ceil(lanes);
            let main = u64::from(view.get::<dpu_rdma::RdmaSrcBaseAddr>().src_base_addr());
            let main_notch = u64::from(view.get::<dpu_rdma::RdmaSurfNotch>().surf_notch_addr()) * 16;
            if !paired && notch != 0 && surfaces > 1 {
                return Err(unmodelled(
                    site,
                    "operand-notch",
                    vec![view.show::<dpu_rdma::RdmaEwSurfNotch>()],
                    "EW_SURF_NOTCH is 0 in flying mode",
                    "it is not",
                    "isa-int4-sdp.md §3.3",
                ));
            }
            for surface in 0..surfaces as u64 {
                let (reader, at) = if !paired {
                    ("ERDMA", base + surface * stride)
                } else if surface % 2 == 0 {
                    // MRDMA takes the even surfaces, ERDMA the odd ones (NS-10).
                    ("MRDMA", main + surface / 2 * (surface_bytes as u64 + main_notch))
                } else {
                    ("ERDMA", base + surface / 2 * (surface_bytes as u64 + notch))
                };
                read(machine, site, view, reader, at, surface_bytes, &mut operand.bytes)?;
                ranges.push((reader, at, at + surface_bytes as u64));
            }
        }
        mode => {
            return Err(hang(
                site,
                Category::InvalidProgram,
                "operand-mode",
                vec![view.show::<dpu_rdma::RdmaErdmaCfg>()],
                rule("ERDMA_DATA_MODE is 1 (per pixel) or 0 (per channel)"),
                format!("it is {mode}"),
                "isa-int4-sdp.md §3.3",
            ));
        }
    }
    Ok(operand)
}

/// Main data of a flying pass as `[surface][pixel][lane]`, with the number of lanes.
pub(crate) fn main_data(
    machine: &mut Machine<'_>,
    site: Site,
    view: View<'_>,
    ranges: &mut Vec<(&'static str, u64, u64)>,
) -> Result<(Sums, usize, Poison), Stop> {
    let mode: dpu_rdma::RdmaFeatureModeCfg = view.get();
    let cube = Cube::decode(view);
    let precision = match Precision::from_code(mode.in_precision()) {
        Some(precision @ (Precision::Int8 | Precision::Int16 | Precision::Int32 | Precision::Fp16)) => {
            precision
        }
        _ => {
            return Err(unmodelled(
                site,
                "main-precision",
                vec![view.show::<dpu_rdma::RdmaFeatureModeCfg>()],
                "element-wise programs take int8, int16, int32 or fp16",
                format!("RDMA IN_PRECISION is {}", mode.in_precision()),
                "isa-int4-sdp.md §3.1",
            ));
        }
    };
    let format: dpu::DataFormat = view.get();
    if mode.proc_precision() != mode.in_precision()
        || format.in_precision() != mode.in_precision()
        || format.proc_precision() != mode.in_precision()
    {
        return Err(unmodelled(
            site,
            "main-precision",
            vec![view.show::<dpu_rdma::RdmaFeatureModeCfg>(), view.show::<dpu::DataFormat>()],
            "DPU_RDMA in and proc, DPU in and proc hold one precision",
            "they do not",
            "isa-int4-sdp.md §3.3",
        ));
    }
    let longest = cube.width.max(cube.height);
    let frays = machine.options.silicon.long_rows == LongRows::Fp16Frays && precision == Precision::Fp16;
    if longest > ROWS_MAX && !frays {
        return Err(hang(
            site,
            Category::InvalidProgram,
            "sdp-rows",
            vec![view.show::<dpu_rdma::RdmaDataCubeWidth>(), view.show::<dpu_rdma::RdmaDataCubeHeight>()],
            rule(format!("element-wise passes are exact up to {ROWS_MAX} rows; 8184 times out")),
            format!("{} x {} pixels", cube.width, cube.height),
            "isa-int4-sdp.md §3.2, §3.8",
        ));
    }
    let mut poison = Poison::default();
    if longest == FP16_ROWS_EXACT + 1 || longest > FP16_ROWS_EXACT + 2 {
        machine.diagnoses.push(site.finding(Finding {
            category: Category::InvalidProgram,
            effect: Effect::Wrong,
            check: "sdp-rows",
            registers: vec![
                view.show::<dpu_rdma::RdmaDataCubeWidth>(),
                view.show::<dpu_rdma::RdmaDataCubeHeight>(),
            ],
            first: rule("fp16 passes are exact up to 8188 rows and at 8190 on this silicon"),
            second:
                site.here(format!("{} x {} pixels: {FRAYED} positions are wrong", cube.width, cube.height)),
            source: "isa-notes G-4, M-10",
        }));
        poison.from_pixel = Some(cube.pixels().saturating_sub(FRAYED));
    }
    let lanes = ATOM * 8 / precision.bits() as usize;
    let surfaces = cube.channels.div_ceil(lanes);
    let base = u64::from(view.get::<dpu_rdma::RdmaSrcBaseAddr>().src_base_addr());
    let notch = u64::from(view.get::<dpu_rdma::RdmaSurfNotch>().surf_notch_addr()) * 16;
    let surface_bytes = cube.pixels() * ATOM;
    let mut bytes = Vec::new();
    for surface in 0..surfaces as u64 {
        // A surface has no pitch register: the next one follows, after the notch (`isa-int4-sdp.md` §3.2).
        let at = base + surface * (surface_bytes as u64 + notch);
        read(machine, site, view, "MRDMA", at, surface_bytes, &mut bytes)?;
        ranges.push(("MRDMA", at, at + surface_bytes as u64));
    }
    let count = surfaces * cube.pixels() * lanes;
    let sums = if element::is_float(precision) {
        Sums::Float((0..count).map(|i| element::float(precision, &bytes, i)).collect())
    } else {
        Sums::Int((0..count).map(|i| element::int(precision, &bytes, i)).collect())
    };
    Ok((sums, lanes, poison))
}
