// SPDX-License-Identifier: MIT OR Apache-2.0
//! PPU: pooling from memory to memory, fp16 (`isa-notes.md` E, NS-28, NS-29).

use half::f16;
use ork_isa::Iova;
use ork_isa::regs::{ppu, ppu_rdma};

use crate::cna::ATOM;
use crate::conv::{SUMS_MAX, too_large};
use crate::diagnosis::{Category, Effect, Finding, Origin, Site, Stop, hang, rule, unmodelled};
use crate::pc::Machine;
use crate::regs::View;

/// Channels of an atom.
const LANES: usize = ATOM / 2;
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

#[derive(Clone, Copy, Debug)]
struct Pool {
    method: Method,
    input: (usize, usize),
    output: (usize, usize),
    channels: usize,
    kernel: (usize, usize),
    stride: (usize, usize),
    pad: (usize, usize),
    pad_value: f32,
    recip: (f32, f32),
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
    let (Some(method), 1, 0, 0, 0) =
        (method, mode.flying_mode(), mode.index_en(), mode.use_cnt(), mode.notch_addr())
    else {
        return Err(unmodelled(
            site,
            "pool-mode",
            vec![view.show::<ppu::OperationModeCfg>()],
            "known programs pool from memory by average, maximum or minimum, without index output",
            "this one does something else",
            "isa-notes E",
        ));
    };
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
    let bits = |value: u32| f16::from_bits(value as u16).to_f32();
    let pool = Pool {
        method,
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
        pad_value: bits(view.get::<ppu::PaddingValue1Cfg>().pad_value_0()),
        recip: (
            bits(view.get::<ppu::RecipKernelHeight>().recip_kernel_height()),
            bits(view.get::<ppu::RecipKernelWidth>().recip_kernel_width()),
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
    let format: ppu::DataFormat = view.get();
    if format.proc_precision() != 2 || view.get::<ppu_rdma::RdmaDataFormat>().in_precision() != 2 {
        machine.diagnoses.push(site.finding(Finding {
            category: Category::InvalidProgram,
            effect: Effect::Wrong,
            check: "pool-precision",
            registers: vec![view.show::<ppu::DataFormat>(), view.show::<ppu_rdma::RdmaDataFormat>()],
            first: rule("pooling is fp16 only"),
            second: site.here("the bytes are taken as fp16 all the same"),
            source: "isa-notes E, G-11",
        }));
    }
    let source =
        u64::from(view.get::<ppu_rdma::RdmaSrcBaseAddr>().src_base_addr()) + u64::from(machine.dma_base.0);
    let line_stride = u64::from(view.get::<ppu_rdma::RdmaSrcLineStride>().src_line_stride()) * 16;
    let surf_stride = u64::from(view.get::<ppu_rdma::RdmaSrcSurfStride>().src_surf_stride()) * 16;
    let target =
        u64::from(view.get::<ppu::DstBaseAddr>().dst_base_addr()) * 16 + u64::from(machine.dma_base.0);
    let out_stride = u64::from(view.get::<ppu::DstSurfStride>().dst_surf_stride()) * 16;
    let spoiled = spoiled_by(machine, site, view, source)?;
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
    for surface in 0..pool.channels.div_ceil(LANES) {
        let mut plane = Vec::with_capacity(height * width * LANES);
        for h in 0..height as u64 {
            let at = source + surface as u64 * surf_stride + h * line_stride;
            let len = width * ATOM;
            let iova = u32::try_from(at).map_err(|_| fault(at, len, window(), true))?;
            let line = machine
                .bus
                .read(Iova(iova), len as u64)
                .map_err(|error| fault(at, len, error.to_string(), true))?;
            plane.extend(line.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()));
            machine.stats.operand_bytes += len as u64;
        }
        let mut out = pooled(&pool, &plane);
        if spoiled && surface % 2 == 1 {
            // Half the channels are garbage.
            out.iter_mut().for_each(|byte| *byte ^= 0xA5);
        }
        let at = target + surface as u64 * out_stride;
        let iova = u32::try_from(at).map_err(|_| fault(at, out.len(), window(), false))?;
        machine.store(Iova(iova), &out).map_err(|error| fault(at, out.len(), error.to_string(), false))?;
        machine.stats.written_bytes += out.len() as u64;
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

/// One surface, as bytes.
fn pooled(pool: &Pool, plane: &[f32]) -> Vec<u8> {
    let (height, width) = pool.input;
    let mut out = Vec::with_capacity(pool.output.0 * pool.output.1 * ATOM);
    for oy in 0..pool.output.0 {
        for ox in 0..pool.output.1 {
            for lane in 0..LANES {
                let mut result: Option<f32> = None;
                for ky in 0..pool.kernel.0 {
                    for kx in 0..pool.kernel.1 {
                        let y = (oy * pool.stride.0 + ky).checked_sub(pool.pad.0);
                        let x = (ox * pool.stride.1 + kx).checked_sub(pool.pad.1);
                        let value = match (y, x) {
                            (Some(y), Some(x)) if y < height && x < width => {
                                plane[(y * width + x) * LANES + lane]
                            }
                            _ => pool.pad_value,
                        };
                        result = Some(match (result, pool.method) {
                            (None, _) => value,
                            (Some(sum), Method::Average) => sum + value,
                            (Some(best), Method::Max) => best.max(value),
                            (Some(best), Method::Min) => best.min(value),
                        });
                    }
                }
                let result = result.unwrap_or(0.0);
                let half = match pool.method {
                    // The sum times both reciprocals, one rounding (NS-28).
                    Method::Average => f16::from_f64(
                        f64::from(result) * f64::from(pool.recip.0) * f64::from(pool.recip.1)
                            / 4_294_967_296.0,
                    ),
                    _ => f16::from_f32(result),
                };
                out.extend_from_slice(&half.to_le_bytes());
            }
        }
    }
    out
}
