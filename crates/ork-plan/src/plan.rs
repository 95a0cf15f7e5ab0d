// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_isa::{PROGRAM_ALIGN_BYTES, TRAILER_WORDS};
use ork_layout::{FeatureLayout, Format, OutputLayout};

use crate::cost::Modelled;
use crate::laws::{BankSplit, Geometry};

/// Words of a recipe-2 program without its trailer (`isa.md` §7): what the vendor driver calls `regcfg_amount`.
pub const PROGRAM_BODY_WORDS: usize = 108;

/// Distance of consecutive programs in a register-command buffer (0x380).
pub const PROGRAM_PITCH_BYTES: u64 =
    (((PROGRAM_BODY_WORDS + TRAILER_WORDS) * 8).next_multiple_of(PROGRAM_ALIGN_BYTES)) as u64;

/// What one program computes: some rows of one column segment over one K slice.
///
/// Offsets are bytes from the start of the `A`, `B` and `C` buffers. Rows count from the start of the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileProgram {
    /// First row.
    pub m0: u32,
    /// Rows.
    pub rows: u32,
    /// Which K slice.
    pub k_slice: u32,
    /// Channels of the slice, padding included.
    pub k: u32,
    /// Which column segment of the pass's [`OutputLayout`].
    pub segment: u32,
    /// First column.
    pub n0: u32,
    /// Columns, padding included.
    pub n: u32,
    /// Distance of the rows of `C`, in elements.
    pub row_stride: u32,
    /// Split of the convolution buffer.
    pub split: BankSplit,
    /// `FEATURE_GRAINS`.
    pub grains: u32,
    /// Where the tile's first row of `A` begins.
    pub a_offset: u64,
    /// Where the segment's weights begin.
    pub b_offset: u64,
    /// Where the tile's first row of `C` begins.
    pub c_offset: u64,
}

impl TileProgram {
    /// The tile as the laws see it.
    #[must_use]
    pub fn geometry(&self, format: Format, k_slices: u32) -> Geometry {
        Geometry {
            format,
            rows: self.rows,
            k: self.k,
            n: self.n,
            row_stride: self.row_stride,
            split: self.split,
            grains: self.grains,
            k_slices,
        }
    }
}

/// The programs of one core, in order.
///
/// Column segments outermost, then K slices, then rows. Rows innermost: consecutive programs read the same weights,
/// which is the order that `WEIGHT_REUSE` needs (`isa.md` §10.6), and a core walks its weights once per row tile in
/// rising addresses. K slices inside a segment: the partial surfaces that the host adds together are finished
/// together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Which core, counted from 0.
    pub core: u8,
    /// The programs.
    pub programs: Vec<TileProgram>,
}

/// The programs and layouts of a number of rows. Passes with the same number of rows share one shape: their
/// programs are the same to the last bit, because `A` and `C` lie where they lay.
#[derive(Clone, Debug, PartialEq)]
pub struct PassShape {
    /// Rows of the pass.
    pub rows: u32,
    /// Where `A` lies.
    pub features: FeatureLayout,
    /// Where `C` lies.
    pub outputs: OutputLayout,
    /// One chain for each core that has work; they run at the same time.
    pub chains: Vec<Chain>,
    /// Modelled time of the pass, without host work.
    pub modelled: Modelled,
}

impl PassShape {
    /// The chain of a core, if it has work.
    #[must_use]
    pub fn chain(&self, core: u8) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.core == core)
    }
}

/// One round of: write `A`, submit, wait, read `C`.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// First row of the matmul that the pass computes.
    pub m0: u32,
    /// Index of the shape in [`Plan::shapes`].
    pub shape_index: usize,
    /// Its programs and layouts.
    pub shape: &'a PassShape,
}

/// How a matmul is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(crate) m: u32,
    pub(crate) k: u32,
    pub(crate) n: u32,
    pub(crate) format: Format,
    pub(crate) k_slices: u32,
    pub(crate) weight_bytes: u64,
    /// All passes but perhaps the last have the first shape.
    pub(crate) shapes: Vec<PassShape>,
    pub(crate) rules: Vec<&'static str>,
}

/// Bytes and tasks that a plan needs; the only place where buffer sizes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Feature buffer, shared by all cores and passes.
    pub a_bytes: u64,
    /// Weight buffer.
    pub b_bytes: u64,
    /// Output buffer, shared by all cores and passes.
    pub c_bytes: u64,
    /// Register-command buffer of each core, from core 0.
    pub regcmd_bytes: Vec<u64>,
    /// Task descriptors of each core, from core 0.
    pub tasks: Vec<u32>,
}

impl Plan {
    /// Rows.
    #[must_use]
    pub fn m(&self) -> u32 {
        self.m
    }

    /// Channels, without padding.
    #[must_use]
    pub fn k(&self) -> u32 {
        self.k
    }

    /// Columns, without padding.
    #[must_use]
    pub fn n(&self) -> u32 {
        self.n
    }

    /// Precisions.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Partial results that the host adds for each element; 1 means none.
    #[must_use]
    pub fn k_slices(&self) -> u32 {
        self.k_slices
    }

    /// The different passes: one shape, or two when the last pass is shorter.
    #[must_use]
    pub fn shapes(&self) -> &[PassShape] {
        &self.shapes
    }

    /// Names of the rules that the plan follows.
    #[must_use]
    pub fn rules(&self) -> &[&'static str] {
        &self.rules
    }

    /// Number of passes.
    #[must_use]
    pub fn pass_count(&self) -> u32 {
        self.m.div_ceil(self.shapes[0].rows)
    }

    /// The passes, by rising row. They use the same buffers, so one must be read before the next is submitted.
    pub fn passes(&self) -> impl Iterator<Item = Pass<'_>> {
        let (rows, last) = (self.shapes[0].rows, self.pass_count() - 1);
        (0..=last).map(move |index| {
            let shape_index = if index == last { self.shapes.len() - 1 } else { 0 };
            Pass { m0: index * rows, shape_index, shape: &self.shapes[shape_index] }
        })
    }

    /// What the plan needs.
    #[must_use]
    pub fn extents(&self) -> Extents {
        let most = |of: fn(&PassShape) -> u64| self.shapes.iter().map(of).max().unwrap_or(0);
        let cores =
            self.shapes.iter().flat_map(|s| &s.chains).map(|c| usize::from(c.core) + 1).max().unwrap_or(0);
        let mut tasks = vec![0u32; cores];
        for chain in self.shapes.iter().flat_map(|shape| &shape.chains) {
            let core = &mut tasks[usize::from(chain.core)];
            *core = (*core).max(u32::try_from(chain.programs.len()).expect("a chain has at most 4095 tasks"));
        }
        Extents {
            a_bytes: most(|shape| shape.features.bytes()),
            b_bytes: self.weight_bytes,
            c_bytes: most(|shape| shape.outputs.bytes()),
            regcmd_bytes: tasks.iter().map(|&count| u64::from(count) * PROGRAM_PITCH_BYTES).collect(),
            tasks,
        }
    }

    /// Modelled time of all passes, without host work.
    #[must_use]
    pub fn modelled(&self) -> Modelled {
        self.passes().map(|pass| pass.shape.modelled).sum()
    }
}
