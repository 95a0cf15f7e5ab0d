// SPDX-License-Identifier: MIT OR Apache-2.0
//! PPU: pooling from memory to memory (`isa-notes.md` E, NS-28, NS-29).

use half::f16;
use ork_isa::Iova;
use ork_isa::regs::{ppu, ppu_rdma};

use crate::Diagnosis;
use crate::cna::ATOM;
use crate::conv::{SUMS_MAX, too_large};
use crate::diagnosis::{Category, Effect, Finding, Origin, Site, Stop, hang, rule, unmodelled};
use crate::pc::Machine;
use crate::regs::View;

/// Below this side an output is read wrongly by the next pass (`isa-notes.md` G-10).
const SIDE_MIN: usize = 4;

/// An output with a short side, as the PPU left it in memory.
#[derive(Debug)]
pub(crate) struct SmallPool {
    by: Origin,
    base: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Method {
    Average,
    Max,
    Min,
}

/// What the bytes are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Int8,
    Int16,
    Fp16,
    /// 32-bit data: zeros are stored.
    Zeros,
}

impl Element {
    fn bytes(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Int16 | Self::Fp16 => 2,
            Self::Zeros => 4,
        }
    }

    /// Channels of an atom.
    fn lanes(self) -> usize {
        ATOM / self.bytes()
    }

    /// Every value fits, and so does the sum of a window of integers.
    fn read(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::Int8, [byte, ..]) => f32::from(byte.cast_signed()),
            (Self::Int16, [low, high, ..]) => f32::from(i16::from_le_bytes([*low, *high])),
            (Self::Fp16, [low, high, ..]) => f16::from_le_bytes([*low, *high]).to_f32(),
            _ => 0.0,
        }
    }

    fn store(self, value: f64, out: &mut Vec<u8>) {
        match self {
            // The conversion of integers saturates.
            Self::Int8 => out.push((value.round() as i8).cast_unsigned()),
            Self::Int16 => out.extend_from_slice(&(value.round() as i16).to_le_bytes()),
            Self::Fp16 => out.extend_from_slice(&f16::from_f64(value).to_le_bytes()),
            Self::Zeros => out.extend_from_slice(&[0; 4]),
        }
    }
}

/// A reciprocal of float pooling: 10 bits of fraction below 6 of exponent and a sign. Up to field 30 the bits are those
/// of the fp16 number 65536 times as large (`isa-notes.md` E).
fn fp17(bits: u32) -> f64 {
    let fraction = f64::from(bits & 0x3FF) / 1024.0;
    let size = match bits >> 10 & 0x3F {
        0 => fraction * (-30f64).exp2(),
        63 if bits & 0x3FF != 0 => f64::NAN,
        63 => f64::INFINITY,
        exponent => (1.0 + fraction) * (f64::from(exponent) - 31.0).exp2(),
    };
    if bits >> 16 & 1 == 1 { -size } else { size }
}

#[derive(Clone, Copy, Debug)]
struct Pool {
    method: Method,
    element: Element,
    /// Distance of the positions from the values, where they are written.
    index: Option<u64>,
    input: (usize, usize),
    output: (usize, usize),
    channels: usize,
    kernel: (usize, usize),
    stride: (usize, usize),
    pad: (usize, usize),
    pad_value: f32,
    /// Of height and width.
    recip: (f64, f64),
}

fn decode(site: Site, view: View<'_>) -> Result<Pool, Stop> {
    let mode: ppu::OperationModeCfg = view.get();
    let kernel: ppu::PoolingKernelCfg = view.get();
    let padding: ppu::PoolingPaddingCfg = view.get();
    let format: ppu::DataFormat = view.get();
    let misc: ppu::MiscCtrl = view.get();
    let method = match mode.pooling_method() {
        0 => Some(Method::Average),
        1 => Some(Method::Max),
        2 => Some(Method::Min),
        _ => None,
    };
    let pads = [padding.pad_top(), padding.pad_left(), padding.pad_right(), padding.pad_bottom()];
    let sides = [kernel.kernel_height(), kernel.kernel_width()];
    let element = element(site, view)?;
    // USE_CNT has no effect.
    let (Some(method), 1, 0) = (method, mode.flying_mode(), mode.notch_addr()) else {
        return Err(unmodelled(
            site,
            "pool-mode",
            vec![view.show::<ppu::OperationModeCfg>()],
            "known programs pool from memory by average, maximum or minimum, without notches",
            "this one does something else",
            "isa-notes E",
        ));
    };
    let indices = mode.index_en() == 1;
    if indices && !(matches!(method, Method::Max) && element == Element::Fp16 && pads == [0; 4]) {
        return Err(unmodelled(
            site,
            "pool-index",
            vec![view.show::<ppu::OperationModeCfg>(), view.show::<ppu::PoolingPaddingCfg>()],
            "positions are known for maxima of fp16 without padding",
            "INDEX_EN is on for something else",
            "docs/assumptions.md S-84",
        ));
    }
    if sides.contains(&15) && pads.contains(&7) {
        return Err(unmodelled(
            site,
            "pool-mode",
            vec![view.show::<ppu::PoolingKernelCfg>(), view.show::<ppu::PoolingPaddingCfg>()],
            "windows of 16 and padding of 7 work one without the other; together silicon gave something else",
            "this program has both",
            "docs/assumptions.md S-83",
        ));
    }
    if format.dpu_flyin() == 1 || misc.nonalign() == 1 || misc.mc_surf_out() == 1 {
        return Err(unmodelled(
            site,
            "pool-output",
            vec![view.show::<ppu::DataFormat>(), view.show::<ppu::MiscCtrl>()],
            "known programs write aligned atoms of data read by PPU_RDMA",
            "this one does something else",
            "isa-notes E",
        ));
    }
    let recip = |bits: u32| match element {
        // Q16 for integers.
        Element::Int8 | Element::Int16 => f64::from(bits) / 65_536.0,
        _ => fp17(bits),
    };
    let pool = Pool {
        method,
        element,
        index: indices.then(|| u64::from(format.index_add()) * 16),
        input: (
            view.get::<ppu::DataCubeInHeight>().cube_in_height() as usize + 1,
            view.get::<ppu::DataCubeInWidth>().cube_in_width() as usize + 1,
        ),
        output: (
            view.get::<ppu::DataCubeOutHeight>().cube_out_height() as usize + 1,
            view.get::<ppu::DataCubeOutWidth>().cube_out_width() as usize + 1,
        ),
        channels: view.get::<ppu::DataCubeInChannel>().cube_in_channel() as usize + 1,
        kernel: (kernel.kernel_height() as usize + 1, kernel.kernel_width() as usize + 1),
        stride: (kernel.kernel_stride_height() as usize + 1, kernel.kernel_stride_width() as usize + 1),
        pad: (padding.pad_top() as usize, padding.pad_left() as usize),
        pad_value: element.read(&view.get::<ppu::PaddingValue1Cfg>().pad_value_0().to_le_bytes()),
        recip: (
            recip(view.get::<ppu::RecipKernelHeight>().recip_kernel_height()),
            recip(view.get::<ppu::RecipKernelWidth>().recip_kernel_width()),
        ),
    };
    let reader = (
        view.get::<ppu_rdma::RdmaCubeInHeight>().cube_in_height() as usize + 1,
        view.get::<ppu_rdma::RdmaCubeInWidth>().cube_in_width() as usize + 1,
    );
    let out_channels = view.get::<ppu::DataCubeOutChannel>().cube_out_channel() as usize + 1;
    let in_channels = view.get::<ppu_rdma::RdmaCubeInChannel>().cube_in_channel() as usize + 1;
    if reader != pool.input || out_channels != pool.channels || in_channels != pool.channels {
        return Err(unmodelled(
            site,
            "pool-size-disagrees",
            vec![
                view.show::<ppu::DataCubeInWidth>(),
                view.show::<ppu::DataCubeInHeight>(),
                view.show::<ppu::DataCubeInChannel>(),
                view.show::<ppu::DataCubeOutChannel>(),
                view.show::<ppu_rdma::RdmaCubeInWidth>(),
                view.show::<ppu_rdma::RdmaCubeInHeight>(),
            ],
            "PPU and PPU_RDMA are programmed with one input size, and pooling keeps the channels",
            "they disagree",
            "isa-notes E",
        ));
    }
    let window = pool.kernel.0 * pool.kernel.1;
    let pixels = pool.output.0 * pool.output.1;
    if pixels.saturating_mul(pool.channels).saturating_mul(window) > SUMS_MAX
        || pool.input.0 * pool.input.1 * pool.channels > SUMS_MAX
    {
        return Err(too_large(site, format!("{pool:?}")));
    }
    Ok(pool)
}

pub(crate) fn run(machine: &mut Machine<'_>, site: Site, view: View<'_>) -> Result<(), Stop> {
    let pool = decode(site, view)?;
    let surfaces = pool.channels.div_ceil(pool.element.lanes());
    if let Some(finding) = precision_finding(site, view) {
        machine.diagnoses.push(finding);
    }
    let source =
        u64::from(view.get::<ppu_rdma::RdmaSrcBaseAddr>().src_base_addr()) + u64::from(machine.dma_base.0);
    let line_stride = u64::from(view.get::<ppu_rdma::RdmaSrcLineStride>().src_line_stride()) * 16;
    let surf_stride = u64::from(view.get::<ppu_rdma::RdmaSrcSurfStride>().src_surf_stride()) * 16;
    let target =
        u64::from(view.get::<ppu::DstBaseAddr>().dst_base_addr()) * 16 + u64::from(machine.dma_base.0);
    let out_stride = u64::from(view.get::<ppu::DstSurfStride>().dst_surf_stride()) * 16;
    // A single surface is right (`spoiled_by` is about half the channels).
    let spoiled = surfaces > 1 && spoiled_by(machine, site, view, source)?;
    let fault = |at: u64, len: usize, what: String, reads: bool| {
        hang(
            site,
            Category::Resource,
            if reads { "pool-read-fault" } else { "pool-write-fault" },
            vec![
                view.show::<ppu_rdma::RdmaSrcBaseAddr>(),
                view.show::<ppu_rdma::RdmaSrcSurfStride>(),
                view.show::<ppu::DstBaseAddr>(),
                view.show::<ppu::DstSurfStride>(),
            ],
            site.here(format!("the pooling DMA accesses {len} bytes at {at:#010x}")),
            what,
            "isa-notes E, isa.md §14.1 step 5",
        )
    };
    let window = || "the address leaves the 32-bit window".to_owned();
    let (height, width) = pool.input;
    for surface in 0..surfaces {
        let mut plane = Vec::with_capacity(height * width * pool.element.lanes());
        for h in 0..height as u64 {
            let at = source + surface as u64 * surf_stride + h * line_stride;
            let len = width * ATOM;
            let iova = u32::try_from(at).map_err(|_| fault(at, len, window(), true))?;
            let line = machine
                .bus
                .read(Iova(iova), len as u64)
                .map_err(|error| fault(at, len, error.to_string(), true))?;
            plane.extend(line.chunks_exact(pool.element.bytes()).map(|bytes| pool.element.read(bytes)));
            machine.stats.operand_bytes += len as u64;
        }
        let (mut out, positions) = pooled(&pool, &plane);
        if spoiled && surface % 2 == 1 {
            // Half the channels are garbage.
            out.iter_mut().for_each(|byte| *byte ^= 0xA5);
        }
        let at = target + surface as u64 * out_stride;
        let indices = pool.index.map(|distance| (at + distance, &positions));
        for (at, bytes) in [(at, &out)].into_iter().chain(indices) {
            let iova = u32::try_from(at).map_err(|_| fault(at, bytes.len(), window(), false))?;
            machine
                .store(Iova(iova), bytes)
                .map_err(|error| fault(at, bytes.len(), error.to_string(), false))?;
            machine.stats.written_bytes += bytes.len() as u64;
        }
        if surface == 0 {
            let short = pool.output.0.min(pool.output.1) < SIDE_MIN;
            *machine.small_pool = short.then(|| SmallPool { by: site.origin(), base: target, bytes: out });
        }
    }
    Ok(())
}

/// Whether the input is what an earlier pass left with a side below 4, untouched since.
fn spoiled_by(machine: &mut Machine<'_>, site: Site, view: View<'_>, source: u64) -> Result<bool, Stop> {
    let Some(small) = machine.small_pool.as_ref().filter(|small| small.base == source) else {
        return Ok(false);
    };
    let same = u32::try_from(source)
        .ok()
        .and_then(|at| machine.bus.read(Iova(at), small.bytes.len() as u64).ok())
        .is_some_and(|now| *now == *small.bytes);
    if same {
        let first = site.at(small.by, "the PPU wrote a plane with a side below 4");
        machine.diagnoses.push(site.finding(Finding {
            category: Category::Hazard,
            effect: Effect::Wrong,
            check: "pool-of-small-pool",
            registers: vec![view.show::<ppu_rdma::RdmaSrcBaseAddr>()],
            first,
            second: site.here("the PPU reads it: about half the channels are garbage"),
            source: "isa-notes G-10",
        }));
    }
    Ok(same)
}

/// One surface as bytes, and where in its window each maximum stands: three bits of row, three of column.
fn pooled(pool: &Pool, plane: &[f32]) -> (Vec<u8>, Vec<u8>) {
    let (height, width) = pool.input;
    let lanes = pool.element.lanes();
    let (mut out, mut positions) = (Vec::new(), Vec::new());
    for oy in 0..pool.output.0 {
        for ox in 0..pool.output.1 {
            for lane in 0..lanes {
                let mut result: Option<f32> = None;
                let mut position = 0u16;
                for ky in 0..pool.kernel.0 {
                    for kx in 0..pool.kernel.1 {
                        let y = (oy * pool.stride.0 + ky).checked_sub(pool.pad.0);
                        let x = (ox * pool.stride.1 + kx).checked_sub(pool.pad.1);
                        let value = match (y, x) {
                            (Some(y), Some(x)) if y < height && x < width => {
                                plane[(y * width + x) * lanes + lane]
                            }
                            _ => pool.pad_value,
                        };
                        if result.is_none_or(|best| value > best) {
                            position = ((ky & 7) << 3 | (kx & 7)) as u16;
                        }
                        result = Some(match (result, pool.method) {
                            (None, _) => value,
                            (Some(sum), Method::Average) => sum + value,
                            (Some(best), Method::Max) => best.max(value),
                            (Some(best), Method::Min) => best.min(value),
                        });
                    }
                }
                let result = f64::from(result.unwrap_or(0.0));
                // The sum times both reciprocals, one rounding (NS-28).
                let result = match pool.method {
                    Method::Average => result * pool.recip.0 * pool.recip.1,
                    _ => result,
                };
                pool.element.store(result, &mut out);
                if pool.index.is_some() {
                    positions.extend_from_slice(&position.to_le_bytes());
                }
            }
        }
    }
    (out, positions)
}

/// The pairs of storage width and processing precision that programs have.
fn element(site: Site, view: View<'_>) -> Result<Element, Stop> {
    let width = view.get::<ppu_rdma::RdmaDataFormat>().in_precision();
    match (width, view.get::<ppu::DataFormat>().proc_precision()) {
        (1, 0) => Ok(Element::Int8),
        (2, 1) => Ok(Element::Int16),
        (2, 2) | (0, 0) => Ok(Element::Fp16),
        (3, 4 | 5) => Ok(Element::Zeros),
        (_, precision) => Err(unmodelled(
            site,
            "pool-precision",
            vec![view.show::<ppu::DataFormat>(), view.show::<ppu_rdma::RdmaDataFormat>()],
            "PPU_RDMA reads 8 bits for int8, 16 for int16 and fp16, 32 for int32 and fp32",
            format!("PROC_PRECISION is {precision}, the storage width code {width}"),
            "docs/assumptions.md S-50",
        )),
    }
}

/// Pairs that store something else than a maximum, minimum or average.
fn precision_finding(site: Site, view: View<'_>) -> Option<Diagnosis> {
    let (what, source) = match view.get::<ppu_rdma::RdmaDataFormat>().in_precision() {
        0 => ("the storage width is 4 bits: the bytes are taken as fp16", "isa-notes E, G-11"),
        3 => ("the data are 32 bits wide: zeros are stored", "docs/assumptions.md S-50"),
        _ => return None,
    };
    Some(site.finding(Finding {
        category: Category::InvalidProgram,
        effect: Effect::Wrong,
        check: "pool-precision",
        registers: vec![view.show::<ppu::DataFormat>(), view.show::<ppu_rdma::RdmaDataFormat>()],
        first: rule("pooling is for int8, int16 and fp16"),
        second: site.here(what),
        source,
    }))
}
