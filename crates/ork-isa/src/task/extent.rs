// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that a task reads and writes. An extent is the range from the first byte to the last one; strided access
//! may leave holes in it.

use std::fmt;

use super::mac::{group_lines, surface_atoms};
use super::{FeatureLayout, Feed, Mac, Output, Pool, Registers, Task};
use crate::regs::{cna, dpu, dpu_rdma, ppu, ppu_rdma};
use crate::{Block, Register};

/// Direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The task reads.
    Read,
    /// The task writes.
    Write,
}

/// A range of addresses that a task touches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// The operand: "features", "weights", "output", …
    pub what: &'static str,
    /// The register that holds its base address.
    pub base_register: &'static str,
    /// Direction.
    pub access: Access,
    /// First address. Strides can lead below 0 or above 4 GiB; both are kept to be seen.
    pub start: i64,
    /// One behind the last address.
    pub end: i64,
}

impl Extent {
    /// Bytes from the first to the last.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.end - self.start).unwrap_or(0)
    }

    /// Whether the two ranges share an address.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match self.access {
            Access::Read => "reads",
            Access::Write => "writes",
        };
        let address = |at: i64| match u64::try_from(at) {
            Ok(at) => format!("{at:#010x}"),
            Err(_) => format!("-{:#x}", at.unsigned_abs()),
        };
        write!(
            f,
            "{access} {} {}..{} ({} bytes)",
            self.what,
            address(self.start),
            address(self.end),
            self.bytes()
        )
    }
}

/// Collects ranges relative to base registers; a base that no word wrote gives no range.
struct Ranges<'a> {
    registers: &'a Registers,
    found: Vec<Extent>,
}

impl Ranges<'_> {
    /// `from..to` in bytes relative to the base register `R`, whose value is an address.
    fn push<R: Register>(&mut self, what: &'static str, access: Access, range: (i64, i64)) {
        if let Some((register, _)) = self.registers.written::<R>() {
            let base = i64::from(register.bits());
            let (start, end) = (base + range.0, base + range.1);
            self.found.push(Extent { what, base_register: R::DESC.name, access, start, end });
        }
    }

    fn read<R: Register>(&mut self, what: &'static str, range: (i64, i64)) {
        self.push::<R>(what, Access::Read, range);
    }
}

/// Every range of a task whose base address some word of the chain wrote.
#[must_use]
pub fn extents(task: &Task) -> Vec<Extent> {
    let mut ranges = Ranges { registers: &task.registers, found: Vec::new() };
    let mac = task.starts(Block::Cna).then(|| Mac::read(&task.registers));
    if let Some(mac) = &mac {
        if !mac.data_reuse {
            let range = features(&task.registers, mac);
            ranges.read::<cna::FeatureDataAddr>("features", range);
        }
        if !mac.weight_reuse {
            ranges.read::<cna::DcompAddr0>("weights", (0, signed(mac.weight_bytes())));
        }
    }
    if task.starts(Block::Dpu) {
        let output = Output::read(&task.registers, mac.as_ref());
        if task.starts(Block::DpuRdma) {
            operands(&mut ranges, &output);
        }
        if output.to_memory {
            let range = (0, signed(output.span_bytes()));
            ranges.push::<dpu::DstBaseAddr>("output", Access::Write, range);
        }
    }
    if task.starts(Block::Ppu) {
        let pool = Pool::read(&task.registers);
        if task.starts(Block::PpuRdma) {
            let (line, surface) = pool.source_strides;
            let last = (pool.surfaces() - 1) * surface + u64::from(pool.input.0 - 1) * line;
            let range = (0, signed(last + u64::from(pool.input.1) * 16));
            ranges.read::<ppu_rdma::RdmaSrcBaseAddr>("pool input", range);
        }
        let area = u64::from(pool.output.0) * u64::from(pool.output.1) * 16;
        let range = (0, signed((pool.surfaces() - 1) * pool.out_surface + area));
        ranges.push::<ppu::DstBaseAddr>("pool output", Access::Write, range);
    }
    ranges.found
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 2)
}

/// Feature bytes relative to the base, by `isa.md` §5.1 and §5.2.
fn features(r: &Registers, mac: &Mac) -> (i64, i64) {
    let line = i64::from(r.get::<cna::DmaCon1>().line_stride());
    let width = i64::from(r.get::<cna::FcDataSize0>().dma_width());
    let lines = i64::from(mac.height.max(1));
    if let FeatureLayout::Pixels { channels } = mac.layout {
        let bytes = i64::from(mac.precision.map_or(8, |precision| precision.bits())) / 8;
        return (0, ((lines - 1) * line + width) * i64::from(channels) * bytes);
    }
    let group = group_lines(r);
    let start = |h: i64| (h / group) * line + (h % group) * width;
    // Line starts rise inside a group and with the groups: the last line, or the last of the group before it.
    let last_full = (lines / group) * group - 1;
    let furthest = start(lines - 1).max(if last_full >= 0 { start(last_full) } else { 0 });
    let pixel = i64::from(mac.width.max(1)) - 1;
    let atoms = u64::from(mac.channels).div_ceil(mac.atom_channels()).max(1);
    let surface = (signed(atoms) - 1) * surface_atoms(r);
    (16 * surface.min(0), 16 * (surface.max(0) + furthest + pixel + 1))
}

/// What DPU_RDMA reads (`isa-notes.md` D.3, NS-10; `isa-int4-sdp.md` §3.2).
fn operands(ranges: &mut Ranges<'_>, output: &Output) {
    let r = ranges.registers;
    let mode: dpu_rdma::RdmaFeatureModeCfg = r.get();
    let erdma: dpu_rdma::RdmaErdmaCfg = r.get();
    let pixels = (i64::from(r.get::<dpu_rdma::RdmaDataCubeWidth>().width()) + 1)
        * (i64::from(r.get::<dpu_rdma::RdmaDataCubeHeight>().height()) + 1);
    let channels = i64::from(r.get::<dpu_rdma::RdmaDataCubeChannel>().channel()) + 1;
    let surface = pixels * 16;
    let ew_on = erdma.erdma_disable() == 0 && r.get::<dpu::EwCfg>().ew_op_src() == 1;
    let paired = mode.comb_use() == 5 && output.feed == Feed::Mac && ew_on;
    // Sizes are coded as powers of two of 4 bits.
    let element_bits = 4_i64 << erdma.erdma_data_size();
    let surfaces_of = |bits: i64| (channels * bits + 127) / 128;
    if output.feed == Feed::Memory && mode.mrdma_disable() == 0 {
        let bits = crate::Precision::from_code(mode.in_precision()).map_or(8, |p| i64::from(p.bits()));
        let surfaces = surfaces_of(bits);
        let notch = i64::from(r.get::<dpu_rdma::RdmaSurfNotch>().surf_notch_addr()) * 16;
        ranges.read::<dpu_rdma::RdmaSrcBaseAddr>(
            "main operand",
            (0, (surfaces - 1) * (surface + notch) + surface),
        );
    }
    if r.get::<dpu_rdma::RdmaBrdmaCfg>().brdma_data_use() & 1 == 1 {
        ranges.read::<dpu_rdma::RdmaBsBaseAddr>("BS operand (32 bits a channel)", (0, channels * 4));
    }
    if paired {
        // Even surfaces through MRDMA, odd ones through ERDMA (NS-10).
        let surfaces = surfaces_of(element_bits);
        let pitch = |notch: u32| surface + i64::from(notch) * 16;
        let even = pitch(r.get::<dpu_rdma::RdmaSurfNotch>().surf_notch_addr());
        let odd = pitch(r.get::<dpu_rdma::RdmaEwSurfNotch>().ew_surf_notch());
        ranges.read::<dpu_rdma::RdmaSrcBaseAddr>(
            "EW operand, even surfaces",
            (0, (surfaces - 1) / 2 * even + surface),
        );
        if surfaces > 1 {
            ranges.read::<dpu_rdma::RdmaEwBaseAddr>(
                "EW operand, odd surfaces",
                (0, (surfaces / 2 - 1) * odd + surface),
            );
        }
    } else if ew_on {
        let range = if erdma.erdma_data_mode() == 0 {
            (0, (channels * element_bits + 7) / 8)
        } else {
            let stride = i64::from(r.get::<dpu_rdma::RdmaEwSurfStride>().ew_surf_stride()) * 16;
            (0, (surfaces_of(element_bits) - 1) * stride + surface)
        };
        ranges.read::<dpu_rdma::RdmaEwBaseAddr>("EW operand", range);
    }
}
