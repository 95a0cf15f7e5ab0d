// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeSet;

use ork_isa::{PROGRAM_ALIGN_BYTES, Precision, TRAILER_WORDS};
use ork_layout::{FeatureLayout, Format, OutputLayout};
use serde::{Serialize, Serializer};

use crate::cost::Modelled;
use crate::datapath::Datapath;
use crate::form::{Form, Reuse};
use crate::laws::{BankSplit, Geometry};
use crate::rules;

/// Words of a matmul program without its trailer (`isa.md` §7).
pub const PROGRAM_BODY_WORDS: usize = 108;

/// Words that the program counter is told to fetch of a program, without the trailer: what the vendor driver calls
/// `regcfg_amount`. int4 programs carry words behind their op-enable word, as captured, and 108 hung the bus
/// (`isa-int4-sdp.md` §1.4, measured elsewhere).
#[must_use]
pub const fn program_fetch_words(format: Format) -> usize {
    match format.input() {
        Precision::Int4 => 116,
        _ => PROGRAM_BODY_WORDS,
    }
}

/// Distance of consecutive programs in a register-command buffer: 0x380 bytes, or 0x3C0 for int4.
#[must_use]
pub const fn program_pitch_bytes(format: Format) -> u64 {
    ((program_fetch_words(format) + TRAILER_WORDS) * 8).next_multiple_of(PROGRAM_ALIGN_BYTES) as u64
}

/// What one program computes: some rows of one column segment over one K slice.
///
/// Offsets are bytes from the start of the `A`, `B` and `C` buffers. Rows count from the start of the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TileProgram {
    /// Kind of program.
    pub form: Form,
    /// First row.
    pub m0: u32,
    /// Rows, padding included: the last tile of a cube or fold may reach beyond the pass.
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
    /// What the program takes from the buffer as the program before left it.
    pub reuse: Reuse,
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
    pub fn geometry(&self, format: Format, k_slices: u32, cores: u8) -> Geometry {
        Geometry {
            format,
            form: self.form,
            rows: self.rows,
            k: self.k,
            n: self.n,
            row_stride: self.row_stride,
            split: self.split,
            grains: self.grains,
            k_slices,
            cores,
        }
    }
}

/// The programs of one core, in order.
///
/// Unless a rule says otherwise, column segments outermost, then K slices, then rows. Rows innermost: consecutive
/// programs read the same weights, which is the order that `WEIGHT_REUSE` needs (`isa.md` §10.6), and a core walks its
/// weights once per row tile in rising addresses. K slices inside a segment: the partial surfaces that the host adds
/// together are finished together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Chain {
    /// Which core, counted from 0.
    pub core: u8,
    /// The programs.
    pub programs: Vec<TileProgram>,
}

/// The programs and layouts of a number of rows. Passes with the same number of rows share one shape: their
/// programs are the same to the last bit, because `A` and `C` lie where they lay.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    #[serde(rename = "modelled_us", serialize_with = "microseconds")]
    pub modelled: Modelled,
    pub(crate) rules: BTreeSet<&'static str>,
}

/// Writes modelled time as a number; the field's name has the unit and the word.
pub(crate) fn microseconds<S: Serializer>(modelled: &Modelled, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(modelled.us)
}

impl PassShape {
    /// The chain of a core, if it has work.
    #[must_use]
    pub fn chain(&self, core: u8) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.core == core)
    }
}

impl PassShape {
    /// The byte ranges of `C` that the programs of a core write, in no particular order: the cells that a driver can seed
    /// and watch. Everything else of the output buffer keeps its contents.
    pub fn written(&self, core: u8) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        let programs = self.chain(core).into_iter().flat_map(|chain| &chain.programs);
        programs
            .flat_map(|tile| self.outputs.written(tile.segment as usize, tile.k_slice, tile.m0, tile.rows))
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
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub(crate) m: u32,
    pub(crate) k: u32,
    pub(crate) n: u32,
    pub(crate) format: Format,
    pub(crate) k_slices: u32,
    pub(crate) weight_bytes: u64,
    /// All passes but perhaps the last have the first shape.
    pub(crate) shapes: Vec<PassShape>,
    pub(crate) rules: BTreeSet<&'static str>,
}

/// Bytes and tasks that a plan needs; the only place where buffer sizes come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

    /// Names of the rules that the plan follows, in the order of the alphabet.
    pub fn rules(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.rules.iter().copied()
    }

    /// Which datapath its programs run in: what a driver must bring the NPU into first.
    #[must_use]
    pub fn datapath(&self) -> Datapath {
        Datapath::of(self.format)
    }

    /// Whether programs of it are fold tiles; see [`DatapathState::may_fold`](crate::DatapathState::may_fold).
    #[must_use]
    pub fn folds(&self) -> bool {
        self.rules.iter().any(|rule| rules::FOLDS.contains(rule))
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
        let pitch = program_pitch_bytes(self.format);
        Extents {
            a_bytes: most(|shape| shape.features.bytes()),
            b_bytes: self.weight_bytes,
            c_bytes: most(|shape| shape.outputs.bytes()),
            regcmd_bytes: tasks.iter().map(|&count| u64::from(count) * pitch).collect(),
            tasks,
        }
    }

    /// Modelled time of all passes, without host work.
    #[must_use]
    pub fn modelled(&self) -> Modelled {
        self.passes().map(|pass| pass.shape.modelled).sum()
    }
}
