// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output stage and its write DMA (`isa.md` §5.3).

use std::fmt;

use super::{Mac, Registers};
use crate::regs::dpu;
use crate::{Precision, soc};

/// Where the DPU takes its main data from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// The accumulator.
    Mac,
    /// MRDMA, from memory ("flying").
    Memory,
}

/// How the DPU processes and stores.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// Source of the main data.
    pub feed: Feed,
    /// Whether results go to memory; they may go to the PPU instead or as well.
    pub to_memory: bool,
    /// Precision of the stored elements; `None` for tf32's code, which stores nothing (`isa-notes.md` G-12).
    pub precision: Option<Precision>,
    /// Lines.
    pub height: u32,
    /// Pixels of a line.
    pub width: u32,
    /// Channels, padded: groups are written up to here.
    pub channels: u32,
    /// Channels of a group: a kernel group behind the MAC array, one input atom in flying mode.
    pub group: u32,
    /// 16-byte atoms that a group has for each pixel.
    pub group_atoms: u32,
    /// `SIZE_E` + 1: atoms that the write DMA emits for each group and pixel.
    pub size_e: u32,
    /// Bytes between the atoms of a group.
    pub surf_stride: u64,
    /// Bytes between groups.
    pub surface_add: u64,
    /// Atoms skipped behind line 0, and behind every later line.
    pub notch: (u32, u32),
}

/// How the results lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputLayout {
    /// The channels of a pixel are neighbours; rows lie at these pitches in bytes (row 0 to 1, then row to row).
    RowMajor {
        /// Bytes from row 0 to row 1.
        first_pitch: u64,
        /// Bytes from each later row to the next.
        pitch: u64,
    },
    /// Surfaces of 16-byte atoms at this pitch in bytes.
    Cube {
        /// Bytes from surface to surface.
        pitch: u64,
    },
}

impl fmt::Display for OutputLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RowMajor { first_pitch, pitch } if first_pitch == pitch => {
                write!(f, "row-major, {pitch} bytes a row")
            }
            Self::RowMajor { first_pitch, pitch } => {
                write!(f, "row-major, row 1 at {first_pitch} bytes, later rows {pitch} bytes apart")
            }
            Self::Cube { pitch } => write!(f, "cube, {pitch} bytes a surface"),
        }
    }
}

impl Output {
    /// What the registers say; `mac` when the MAC array runs in the same task.
    #[must_use]
    pub fn read(r: &Registers, mac: Option<&Mac>) -> Self {
        let mode: dpu::FeatureModeCfg = r.get();
        let format: dpu::DataFormat = r.get();
        let notch: dpu::DataCubeNotchAddr = r.get();
        let feed = if mode.flying_mode() == 1 { Feed::Memory } else { Feed::Mac };
        let precision =
            Precision::from_code(format.out_precision()).filter(|precision| *precision != Precision::Tf32);
        let group = match (feed, mac) {
            (Feed::Mac, Some(mac)) => mac.group(),
            // One atom of the input.
            _ => 16 * 8 / Precision::from_code(format.in_precision()).map_or(8, Precision::bits).clamp(8, 16),
        };
        let group_bytes = group * precision.map_or(8, Precision::bits) / 8;
        Self {
            feed,
            to_memory: mode.output_mode() & 2 != 0,
            precision,
            height: r.get::<dpu::DataCubeHeight>().height() + 1,
            width: r.get::<dpu::DataCubeWidth>().width() + 1,
            channels: r.get::<dpu::DataCubeChannel>().channel() + 1,
            group,
            group_atoms: group_bytes.div_ceil(soc::RK3588.atom_bytes),
            size_e: r.get::<dpu::BsOwCfg>().size_e_0() + 1,
            surf_stride: u64::from(r.get::<dpu::DstSurfStride>().dst_surf_stride()) * 16,
            surface_add: u64::from(r.get::<dpu::SurfaceAdd>().surf_add()) * 16,
            notch: (notch.notch_addr_0(), notch.notch_addr_1()),
        }
    }

    /// Groups that are written.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.channels.div_ceil(self.group)
    }

    /// Atoms of a full group that are written.
    #[must_use]
    pub fn emitted(&self) -> u32 {
        self.size_e.min(self.group_atoms)
    }

    /// Atoms of the last group that are written; it may have fewer channels.
    #[must_use]
    pub fn emitted_last(&self) -> u32 {
        let rest = self.channels - (self.groups() - 1) * self.group;
        let bits = self.precision.map_or(8, Precision::bits);
        self.size_e.min((rest * bits / 8).div_ceil(soc::RK3588.atom_bytes).max(1))
    }

    /// Byte offset of line `h` from line 0.
    #[must_use]
    pub fn line(&self, h: u32) -> u64 {
        let atoms = |notch: u32| u64::from(self.width) + u64::from(notch);
        match h {
            0 => 0,
            h => 16 * (atoms(self.notch.0) + u64::from(h - 1) * atoms(self.notch.1)),
        }
    }

    /// How the results lie.
    #[must_use]
    pub fn layout(&self) -> OutputLayout {
        if self.surf_stride == 16 && self.width == 1 {
            OutputLayout::RowMajor { first_pitch: self.line(1), pitch: self.line(2) - self.line(1) }
        } else {
            OutputLayout::Cube { pitch: self.surf_stride }
        }
    }

    /// Bytes behind the first written one, from the address law of `isa.md` §5.3.
    #[must_use]
    pub fn span_bytes(&self) -> u64 {
        let groups = u64::from(self.groups() - 1);
        // The last group may emit fewer atoms than the one before it.
        let atoms = |emitted: u32| u64::from(emitted - 1) * self.surf_stride;
        let last = groups * self.surface_add + atoms(self.emitted_last());
        let before = match groups {
            0 => 0,
            groups => (groups - 1) * self.surface_add + atoms(self.emitted()),
        };
        let line = self.line(self.height - 1).max(self.line(self.height.min(2) - 1));
        last.max(before) + line + u64::from(self.width) * 16
    }
}
