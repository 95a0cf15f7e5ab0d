// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pooling from memory to memory (`isa-notes.md` E).

use std::fmt;

use super::Registers;
use crate::regs::{ppu, ppu_rdma};

/// A pooling pass as its registers say it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pool {
    /// What is kept of a window.
    pub method: PoolMethod,
    /// Input height and width.
    pub input: (u32, u32),
    /// Output height and width.
    pub output: (u32, u32),
    /// Channels.
    pub channels: u32,
    /// Window height and width.
    pub kernel: (u32, u32),
    /// Stride in y and x.
    pub stride: (u32, u32),
    /// Padding: top, left, bottom, right.
    pub pad: [u32; 4],
    /// Bytes from line to line and from surface to surface of the input.
    pub source_strides: (u64, u64),
    /// Bytes from surface to surface of the output.
    pub out_surface: u64,
}

/// What a window becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMethod {
    /// Its mean; the divisor is always the full window.
    Average,
    /// Its largest element.
    Max,
    /// Its smallest element.
    Min,
    /// A code that no source describes.
    Unknown,
}

impl fmt::Display for PoolMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Average => "average",
            Self::Max => "max",
            Self::Min => "min",
            Self::Unknown => "unknown",
        })
    }
}

impl Pool {
    /// What the registers say.
    #[must_use]
    pub fn read(r: &Registers) -> Self {
        let kernel: ppu::PoolingKernelCfg = r.get();
        let pad: ppu::PoolingPaddingCfg = r.get();
        Self {
            method: match r.get::<ppu::OperationModeCfg>().pooling_method() {
                0 => PoolMethod::Average,
                1 => PoolMethod::Max,
                2 => PoolMethod::Min,
                _ => PoolMethod::Unknown,
            },
            input: (
                r.get::<ppu::DataCubeInHeight>().cube_in_height() + 1,
                r.get::<ppu::DataCubeInWidth>().cube_in_width() + 1,
            ),
            output: (
                r.get::<ppu::DataCubeOutHeight>().cube_out_height() + 1,
                r.get::<ppu::DataCubeOutWidth>().cube_out_width() + 1,
            ),
            channels: r.get::<ppu::DataCubeInChannel>().cube_in_channel() + 1,
            kernel: (kernel.kernel_height() + 1, kernel.kernel_width() + 1),
            stride: (kernel.kernel_stride_height() + 1, kernel.kernel_stride_width() + 1),
            pad: [pad.pad_top(), pad.pad_left(), pad.pad_bottom(), pad.pad_right()],
            source_strides: (
                u64::from(r.get::<ppu_rdma::RdmaSrcLineStride>().src_line_stride()) * 16,
                u64::from(r.get::<ppu_rdma::RdmaSrcSurfStride>().src_surf_stride()) * 16,
            ),
            out_surface: u64::from(r.get::<ppu::DstSurfStride>().dst_surf_stride()) * 16,
        }
    }

    /// Surfaces of 8 channels: the unit pools fp16 only (`isa-notes.md` G-11).
    #[must_use]
    pub fn surfaces(&self) -> u64 {
        u64::from(self.channels).div_ceil(8)
    }
}
