// SPDX-License-Identifier: MIT OR Apache-2.0
//! The convolution that CNA and CORE are programmed for; a matrix product is one with a 1 x 1 kernel.

use std::fmt;

use super::Registers;
use crate::regs::{cna, core};
use crate::{Precision, soc};

/// A convolution as its registers say it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mac {
    /// Precision of features and weights; `None` when CNA and CORE disagree or hold a code that means nothing there.
    pub precision: Option<Precision>,
    /// Each output channel takes its own input channel.
    pub depthwise: bool,
    /// Input lines.
    pub height: u32,
    /// Input pixels of a line.
    pub width: u32,
    /// Input channels, padded.
    pub channels: u32,
    /// Output lines.
    pub out_height: u32,
    /// Output pixels of a line.
    pub out_width: u32,
    /// Output channels, padded.
    pub out_channels: u32,
    /// Kernels that have weights.
    pub kernels: u32,
    /// Kernel height and width.
    pub kernel: (u32, u32),
    /// Stride in y and x.
    pub stride: (u32, u32),
    /// Distance of kernel taps in y and x; 1 is a plain kernel.
    pub dilation: (u32, u32),
    /// Padding at the top and left.
    pub pad: (u32, u32),
    /// Bytes of one kernel (all taps and channels).
    pub bytes_per_kernel: u32,
    /// Feature banks (D) and weight banks (W).
    pub split: (u32, u32),
    /// Features are taken from the buffer as it is.
    pub data_reuse: bool,
    /// Weights are taken from the buffer as it is.
    pub weight_reuse: bool,
    /// How features lie in memory.
    pub layout: FeatureLayout,
}

/// How the feature DMA walks memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeatureLayout {
    /// Rows of channels, one behind the other at this pitch in bytes.
    RowMajor {
        /// Bytes from row to row.
        pitch: u64,
    },
    /// Surfaces of 16-byte atoms at this pitch in bytes.
    Cube {
        /// Bytes from surface to surface; negative strides are legal.
        pitch: i64,
    },
    /// Packed pixels of this many channels.
    Pixels {
        /// Channels, 1 to 4.
        channels: u32,
    },
}

impl fmt::Display for FeatureLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RowMajor { pitch } => write!(f, "row-major, {pitch} bytes a row"),
            Self::Cube { pitch } => write!(f, "cube, {pitch} bytes a surface"),
            Self::Pixels { channels } => write!(f, "packed pixels of {channels} channels"),
        }
    }
}

impl Mac {
    /// What the registers say.
    #[must_use]
    pub fn read(r: &Registers) -> Self {
        let con1: cna::ConvCon1 = r.get();
        let con3: cna::ConvCon3 = r.get();
        let size0: cna::DataSize0 = r.get();
        let kernels: cna::WeightSize2 = r.get();
        let out: core::DataoutSize0 = r.get();
        let cbuf: cna::CbufCon0 = r.get();
        let pad: cna::PadCon0 = r.get();
        let codes = [con1.in_precision(), con1.proc_precision(), r.get::<core::MiscCfg>().proc_precision()];
        let precision = Precision::from_code(codes[0]).filter(|precision| {
            codes.iter().all(|code| *code == codes[0])
                && !matches!(precision, Precision::Int32 | Precision::Fp32)
        });
        Self {
            precision,
            depthwise: con1.conv_mode() == 3,
            height: size0.datain_height(),
            width: size0.datain_width(),
            channels: r.get::<cna::DataSize1>().datain_channel(),
            out_height: out.dataout_height() + 1,
            out_width: out.dataout_width() + 1,
            out_channels: r.get::<core::DataoutSize1>().dataout_channel() + 1,
            kernels: kernels.weight_kernels(),
            kernel: (kernels.weight_height(), kernels.weight_width()),
            stride: (con3.conv_y_stride(), con3.conv_x_stride()),
            dilation: (con3.atrous_y_dilation() + 1, con3.atrous_x_dilation() + 1),
            pad: (pad.pad_top(), pad.pad_left()),
            bytes_per_kernel: r.get::<cna::WeightSize1>().weight_bytes_per_kernel(),
            split: (cbuf.data_bank(), cbuf.weight_bank()),
            data_reuse: cbuf.data_reuse() == 1,
            weight_reuse: cbuf.weight_reuse() == 1,
            layout: layout(r, size0),
        }
    }

    /// A 1 x 1 kernel over one line or one column of pixels: M = pixels, K = channels, N = kernels.
    #[must_use]
    pub fn is_matmul(&self) -> bool {
        !self.depthwise
            && self.kernel == (1, 1)
            && self.stride == (1, 1)
            && self.pad == (0, 0)
            && (self.width == 1 || self.height == 1)
    }

    /// Bits of an element; 8 where the precision is not known.
    fn bits(&self) -> u64 {
        u64::from(self.precision.map_or(8, Precision::bits))
    }

    /// Channels in one 16-byte atom.
    #[must_use]
    pub fn atom_channels(&self) -> u64 {
        u64::from(soc::RK3588.atom_bytes) * 8 / self.bits()
    }

    /// Kernels of a group (`isa.md` §3; int4: `isa-int4-sdp.md` §1.3; tf32: `isa-notes.md` NS-17). Depthwise
    /// groups are twice as wide.
    #[must_use]
    pub fn group(&self) -> u32 {
        let kernels = match self.precision {
            Some(Precision::Int4) => 64,
            Some(Precision::Int8) | None => 32,
            Some(_) => 16,
        };
        if self.depthwise { 2 * kernels } else { kernels }
    }

    /// Bytes of one feature line in the buffer: whole atoms, rounded up to granules of 64 bytes (`isa.md` §10.2,
    /// `isa-notes.md` G-9a). The rounding is inferred; it fits every published point.
    #[must_use]
    pub fn line_bytes(&self) -> u64 {
        let pixel =
            u64::from(self.channels).div_ceil(self.atom_channels()) * u64::from(soc::RK3588.atom_bytes);
        (u64::from(self.width) * pixel).next_multiple_of(soc::RK3588.line_granule_bytes.into())
    }

    /// Kernel taps.
    #[must_use]
    pub fn taps(&self) -> u64 {
        u64::from(self.kernel.0) * u64::from(self.kernel.1)
    }

    /// Bytes that the weights of one kernel group need in the buffer.
    #[must_use]
    pub fn group_bytes(&self) -> u64 {
        if self.depthwise {
            self.taps() * u64::from(self.group()) * self.bits() / 8
        } else {
            u64::from(self.bytes_per_kernel) * u64::from(self.kernels.min(self.group()))
        }
    }

    /// Bytes of all weights.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        let kernels = if self.depthwise { 1 } else { self.kernels };
        u64::from(self.bytes_per_kernel) * u64::from(kernels)
    }

    /// Bytes that one kernel has by its taps and channels.
    #[must_use]
    pub fn kernel_bytes_by_shape(&self) -> u64 {
        self.taps() * u64::from(self.channels) * self.bits() / 8
    }
}

fn layout(r: &Registers, size: cna::DataSize0) -> FeatureLayout {
    let con1: cna::ConvCon1 = r.get();
    if con1.nonalign_dma() == 1 {
        // `ARGB_IN` is 7 plus the channels (`isa.md` §5.2).
        return FeatureLayout::Pixels { channels: con1.argb_in().saturating_sub(7) };
    }
    let surface = surface_atoms(r);
    let single = con1.group_line_off() == 1 || size.datain_height() <= 1;
    if surface == 1 && size.datain_width() <= 1 && single {
        return FeatureLayout::RowMajor { pitch: u64::from(r.get::<cna::DmaCon1>().line_stride()) * 16 };
    }
    FeatureLayout::Cube { pitch: surface * 16 }
}

/// Atoms from one channel group to the next: G * W + S (`isa.md` §5.1).
pub(super) fn surface_atoms(r: &Registers) -> i64 {
    let lines = group_lines(r);
    lines * i64::from(r.get::<cna::FcDataSize0>().dma_width()) + i64::from(surf_stride(r))
}

/// G of the address law: lines that the DMA takes together.
pub(super) fn group_lines(r: &Registers) -> i64 {
    if r.get::<cna::ConvCon1>().group_line_off() == 1 { 1 } else { 4 }
}

/// S of the address law: a signed 28-bit number.
fn surf_stride(r: &Registers) -> i32 {
    (r.get::<cna::DmaCon2>().surf_stride() << 4).cast_signed() >> 4
}
