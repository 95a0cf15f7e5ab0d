// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights whose tiles lie ready, as a pack keeps them.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ork_layout::{Format, WeightLayout};
use ork_plan::{Decision, Problem, decide};
use ork_quant::{Basis, Codebook, GROUP, GROUP_BYTES, Scale, Tier, inflate, inflate_groups};
use rayon::prelude::*;

use crate::driver::Driver;
use crate::{DriverError, Weight};

/// Bytes that stay readable and unchanged as long as the value lives: a tensor of a mapped pack. A streamed weight is
/// brought in from them again and again, and nothing else is kept of it in RAM.
pub trait TileBytes: Send + Sync + fmt::Debug {
    /// All of them.
    fn bytes(&self) -> &[u8];

    /// Where they lie in a file that does not change, at the start of a page, if they do: a device that can use them in place
    /// ([`ork_device::Device::lends_files`]) then copies nothing.
    fn file(&self) -> Option<FileRange<'_>> {
        None
    }
}

/// A part of an open file.
#[derive(Clone, Debug)]
pub struct FileRange<'a> {
    /// The file: the one that is mapped, whatever its name means by now.
    pub file: BorrowedFd<'a>,
    /// The bytes.
    pub range: Range<u64>,
}

impl TileBytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A weight whose tiles lie ready.
#[derive(Clone, Debug)]
pub struct Tiles {
    /// Input channels.
    pub k: usize,
    /// Output channels.
    pub n: usize,
    /// How it is stored and multiplied.
    pub tier: Tier,
    /// Channels of each K slice, padding included, that the tiles were cut in.
    pub k_slices: Vec<u32>,
    /// The tiles of `ork_layout::WeightLayout`; of `i4a8` the same elements as nibbles, the even one low, or as stored groups.
    pub bytes: Arc<dyn TileBytes>,
    /// One per output channel.
    pub scales: Vec<Scale>,
    /// What the weight went through before it was quantised, and activations have to go through.
    pub basis: Basis,
}

/// How stored bytes become the bytes that the NPU reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpack {
    /// They are those bytes.
    Copy,
    /// Two int8 codes for each byte.
    Inflate(Codebook),
    /// 32 int8 codes for each stored group.
    InflateGroups,
}

impl Unpack {
    /// Bytes for the NPU.
    pub(crate) const fn device_bytes(self, stored: u64) -> u64 {
        match self {
            Self::Copy => stored,
            Self::Inflate(_) => 2 * stored,
            // A rest that is no group makes a size that is none of any tiles.
            Self::InflateGroups => stored / GROUP_BYTES as u64 * GROUP as u64 + stored % GROUP_BYTES as u64,
        }
    }

    /// Makes them, with all threads. `target` holds [`Self::device_bytes`].
    pub(crate) fn write(self, stored: &[u8], target: &mut [u8]) {
        /// Bytes of the target for one thread at a time: what a second-level cache holds beside the source.
        const CHUNK: usize = 1 << 18;
        let stored_chunk = match self {
            Self::Copy => CHUNK,
            Self::Inflate(_) => CHUNK / 2,
            Self::InflateGroups => CHUNK / GROUP * GROUP_BYTES,
        };
        let chunks = target.par_chunks_mut(CHUNK).zip(stored.par_chunks(stored_chunk));
        chunks.for_each(|(target, stored)| self.write_alone(stored, target));
    }

    /// Makes them, with this thread.
    pub(crate) fn write_alone(self, stored: &[u8], target: &mut [u8]) {
        match self {
            Self::Copy => target.copy_from_slice(stored),
            Self::Inflate(codebook) => inflate(stored, codebook, codes_of(target)),
            Self::InflateGroups => inflate_groups(stored, codes_of(target)),
        }
    }
}

fn codes_of(bytes: &mut [u8]) -> &mut [i8] {
    zerocopy::FromBytes::mut_from_bytes(bytes).expect("bytes are bytes")
}

impl Tiles {
    /// The datapath that multiplies by it.
    #[must_use]
    pub const fn format(&self) -> Format {
        match self.tier {
            Tier::W8A8 | Tier::I4A8 { .. } | Tier::I4A8Group => Format::INT8_INT32,
            Tier::W4A4 => Format::INT4_INT16,
        }
    }

    pub(crate) const fn unpack(&self) -> Unpack {
        match self.tier {
            Tier::W8A8 | Tier::W4A4 => Unpack::Copy,
            Tier::I4A8 { codebook } => Unpack::Inflate(codebook),
            Tier::I4A8Group => Unpack::InflateGroups,
        }
    }

    /// How they lie, if everything about them fits together.
    pub(crate) fn layout(&self, name: &str) -> Result<WeightLayout, DriverError> {
        let narrow = |dimension: usize| u32::try_from(dimension).unwrap_or(u32::MAX);
        let layout = WeightLayout::new(self.format(), narrow(self.k), narrow(self.n), &self.k_slices)
            .map_err(|source| DriverError::Layout { name: name.to_owned(), source })?;
        let misfit = |what: String| Err(DriverError::Tiles { name: name.to_owned(), what });
        let stored = self.bytes.bytes().len() as u64;
        if self.unpack().device_bytes(stored) != layout.bytes() {
            return misfit(format!(
                "{stored} bytes of {} do not make the {} bytes of its tiles",
                self.tier,
                layout.bytes()
            ));
        }
        if self.scales.len() != self.n {
            return misfit(format!("{} scales for {} output channels", self.scales.len(), self.n));
        }
        if self.basis.k() != self.k {
            return misfit(format!("a basis of {} channels for {}", self.basis.k(), self.k));
        }
        Ok(layout)
    }
}

impl Driver {
    /// Uploads a weight whose tiles lie ready: nothing is quantised or laid out again.
    ///
    /// They are copied, and `i4a8` becomes int8, by another thread. A product that needs the weight earlier does it itself, and
    /// [`Weight::make_ready`] waits for it. A streamed one stays as it is stored and is copied or becomes int8 each time that it
    /// is brought in, which halves what is read of `i4a8`. Products by it bring their activations into its basis.
    ///
    /// # Errors
    /// [`DriverError::Tiles`] and [`DriverError::Layout`] if they do not fit together, [`DriverError::Declined`] if the
    /// planner has no program for such tiles, [`DriverError::Hold`] without room. Nothing stays allocated then.
    pub fn load_tiles(&self, name: &str, tiles: Tiles) -> Result<Weight, DriverError> {
        let layout = tiles.layout(name)?;
        self.check_tiles(&layout)?;
        let weight = Weight::from_tiles((&self.residency, self.options.verify), layout, name, tiles)?;
        self.counters.lock().weights_ready += 1;
        self.count_weight(weight)
    }

    /// Whether tiles can be multiplied by, with one row and with many. They were cut elsewhere, so no rule of this
    /// planner has seen them.
    fn check_tiles(&self, layout: &WeightLayout) -> Result<(), DriverError> {
        let mut known = self.tiles_known.lock();
        if known.contains(layout) {
            return Ok(());
        }
        for m in Self::ROWS_ASKED {
            let problem = Problem { m, weight: layout.clone() };
            if let Decision::Decline(decline) = decide(&problem, &self.soc, &self.options.plan) {
                return Err(DriverError::Declined(decline));
            }
        }
        known.insert(layout.clone());
        Ok(())
    }
}
