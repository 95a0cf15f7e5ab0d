// SPDX-License-Identifier: MIT OR Apache-2.0
use std::ops::Range;

use serde::Serialize;

use crate::atoms::{ATOM, Moved};
use crate::weight::{host, host_range};
use crate::{Element, Format};

/// A run of output columns that one core computes with its own programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ColumnSegment {
    /// First column: a multiple of the kernel group.
    pub n0: u32,
    /// Columns, padding included: a multiple of the kernel group.
    pub cols: u32,
}

/// How the NPU leaves the results of one column segment and K slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum OutputForm {
    /// Row-major, `[M][columns of the segment]` (`isa.md` §4.3 with a row stride of the segment's own width; measured
    /// elsewhere).
    Rows,
    /// A cube, `[columns / elements of an atom][rows][elements of an atom]` (`isa.md` §4.2, captured).
    Cube {
        /// Rows of a surface: at least M.
        surface_rows: u32,
    },
    /// int4 batches (`isa-int4-sdp.md` §1.3, measured elsewhere): for each batch of H rows a slot of 4 x H blocks of 64
    /// columns for each 64 columns of the segment. Row `j` of a batch of `h` rows and column block `b` is block
    /// `4 j + 4 h b`; the other three quarters of a slot are never written.
    Batches {
        /// H for each K slice, at least 1; 1 is a batch of one row, whose columns follow each other.
        rows: Vec<u32>,
    },
}

/// Where the NPU leaves `C` (M x N): for each column segment, for each K slice, a surface in one of the
/// [forms](OutputForm). The surfaces of a segment lie behind each other, slice by slice; the host adds them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct OutputLayout {
    format: Format,
    rows: u32,
    n: u32,
    k_slices: u32,
    form: OutputForm,
    segments: Vec<ColumnSegment>,
    /// Where the surfaces begin, K slices innermost, and where the last ends.
    offsets: Vec<u64>,
}

/// Columns of one block of an int4 batch.
const BLOCK_COLUMNS: u32 = 64;
/// Lines of a batch for each of its rows: every fourth carries results.
const LINES_PER_ROW: u32 = 4;
const ATOM_BYTES: u64 = 16;
/// A line of the CPU's caches (Cortex-A76 and A55). Surfaces begin on one: what the CPU does to the results of one core
/// must not touch those of another that still computes.
const CACHE_LINE_BYTES: u64 = 64;

/// A contiguous part of one output row: the same columns in every K slice's surface.
#[derive(Clone, Debug)]
pub struct OutputPiece<'a> {
    /// Which columns, without padding.
    pub n: Range<u32>,
    /// K slices to add.
    pub k_slices: u32,
    layout: &'a OutputLayout,
    segment: usize,
    m: u32,
}

impl OutputLayout {
    /// The surfaces of `rows` rows and `n` columns in these segments, row-major.
    ///
    /// # Panics
    /// If the segments are empty, do not follow each other from column 0, or do not cover `n`.
    #[must_use]
    pub fn new(format: Format, rows: u32, n: u32, k_slices: u32, segments: Vec<ColumnSegment>) -> Self {
        Self::in_form(format, rows, n, k_slices, segments, OutputForm::Rows)
    }

    /// The surfaces of `rows` rows and `n` columns in these segments.
    ///
    /// # Panics
    /// As [`OutputLayout::new`], and if the form does not fit the rows or the slices.
    #[must_use]
    pub fn in_form(
        format: Format,
        rows: u32,
        n: u32,
        k_slices: u32,
        segments: Vec<ColumnSegment>,
        form: OutputForm,
    ) -> Self {
        match &form {
            OutputForm::Rows => {}
            OutputForm::Cube { surface_rows } => {
                assert!(*surface_rows >= rows, "{rows} rows in surfaces of {surface_rows}");
            }
            OutputForm::Batches { rows: batches } => {
                assert_eq!(batches.len() as u64, u64::from(k_slices), "one batch size for each K slice");
                assert!(!batches.contains(&0), "a batch has rows");
            }
        }
        let mut next = 0u32;
        let mut bytes = 0u64;
        let mut offsets = vec![0];
        for segment in &segments {
            assert_eq!(segment.n0, next, "segments follow each other");
            assert_ne!(segment.cols, 0, "a segment has columns");
            next += segment.cols;
            for slice in 0..k_slices {
                bytes +=
                    surface_bytes(format, rows, *segment, &form, slice).next_multiple_of(CACHE_LINE_BYTES);
                offsets.push(bytes);
            }
        }
        assert!(next >= n, "segments hold {next} of {n} columns");
        Self { format, rows, n, k_slices, form, segments, offsets }
    }

    /// Precisions.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// M.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// N, without padding.
    #[must_use]
    pub fn n(&self) -> u32 {
        self.n
    }

    /// Surfaces of each segment, which the host adds.
    #[must_use]
    pub fn k_slices(&self) -> u32 {
        self.k_slices
    }

    /// How results lie inside a surface.
    #[must_use]
    pub fn form(&self) -> &OutputForm {
        &self.form
    }

    /// The column segments, by rising column.
    #[must_use]
    pub fn segments(&self) -> &[ColumnSegment] {
        &self.segments
    }

    /// Size of the whole buffer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Byte range of the surface of a segment and K slice, with what fills its last cache line.
    ///
    /// # Panics
    /// If the segment or the slice does not exist.
    #[must_use]
    pub fn surface(&self, segment: usize, k_slice: u32) -> Range<u64> {
        assert!(segment < self.segments.len(), "segment {segment} of {}", self.segments.len());
        assert!(k_slice < self.k_slices, "K slice {k_slice} of {}", self.k_slices);
        let index = segment * self.k_slices as usize + k_slice as usize;
        self.offsets[index]..self.offsets[index + 1]
    }

    /// Byte offset of column 0 of row `m` in the surface of a segment and K slice; of the batch that starts there, if
    /// `m` is the first row of one.
    ///
    /// # Panics
    /// If the segment, the slice or the row does not exist.
    #[must_use]
    pub fn row_offset(&self, segment: usize, k_slice: u32, m: u32) -> u64 {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        self.surface(segment, k_slice).start + self.in_surface(segment, k_slice, m, 0)
    }

    /// Byte offset of the partial result of `C[m][n]` that a K slice leaves.
    ///
    /// # Panics
    /// If the element does not exist.
    #[must_use]
    pub fn offset(&self, m: u32, n: u32, k_slice: u32) -> u64 {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        let segment = self.segments.partition_point(|s| s.n0 + s.cols <= n);
        assert!(segment < self.segments.len(), "column {n} lies behind the last segment");
        let column = n - self.segments[segment].n0;
        self.surface(segment, k_slice).start + self.in_surface(segment, k_slice, m, column)
    }

    /// Byte offset from the start of a surface; `column` counts from the segment's first.
    fn in_surface(&self, segment: usize, k_slice: u32, m: u32, column: u32) -> u64 {
        let cols = self.segments[segment].cols;
        let element = u64::from(self.format.output_bytes());
        let row_major = || (u64::from(m) * u64::from(cols) + u64::from(column)) * element;
        match &self.form {
            OutputForm::Rows => row_major(),
            OutputForm::Cube { surface_rows } => {
                let per_atom = self.format.output_per_atom();
                let atom = u64::from(column / per_atom) * u64::from(*surface_rows) + u64::from(m);
                atom * ATOM_BYTES + u64::from(column % per_atom) * element
            }
            OutputForm::Batches { rows } => match rows[k_slice as usize] {
                1 => row_major(),
                height => {
                    let (first, row) = (m / height * height, m % height);
                    let in_batch = height.min(self.rows - first);
                    let blocks =
                        u64::from(LINES_PER_ROW) * u64::from(first) * u64::from(cols / BLOCK_COLUMNS)
                            + u64::from(LINES_PER_ROW)
                                * (u64::from(row) + u64::from(in_batch) * u64::from(column / BLOCK_COLUMNS));
                    (blocks * u64::from(BLOCK_COLUMNS) + u64::from(column % BLOCK_COLUMNS)) * element
                }
            },
        }
    }

    /// The byte ranges that a program writes which computes the rows from `m0` on of a segment and K slice, padding columns
    /// included, in no particular order. Rows beyond M are those of a cube's padding. What lies between the ranges keeps
    /// its contents: in int4 batches that is three quarters of the surface.
    ///
    /// # Panics
    /// If the segment or the slice does not exist, or a row is neither one of M nor of a surface.
    pub fn written(
        &self,
        segment: usize,
        k_slice: u32,
        m0: u32,
        rows: u32,
    ) -> impl Iterator<Item = Range<u64>> + '_ {
        let surface_rows = match self.form {
            OutputForm::Cube { surface_rows } => surface_rows,
            OutputForm::Rows | OutputForm::Batches { .. } => self.rows,
        };
        assert!(m0 + rows <= surface_rows, "rows {m0} to {} of {surface_rows}", m0 + rows);
        let (start, cols, run) =
            (self.surface(segment, k_slice).start, self.segments[segment].cols, self.run(segment));
        let bytes = u64::from(run) * u64::from(self.format.output_bytes());
        (m0..m0 + rows).flat_map(move |m| {
            (0..cols).step_by(run as usize).map(move |column| {
                let at = start + self.in_surface(segment, k_slice, m, column);
                at..at + bytes
            })
        })
    }

    /// Columns that follow each other in memory, counted from a multiple of itself in the segment.
    fn run(&self, segment: usize) -> u32 {
        match &self.form {
            OutputForm::Rows => self.segments[segment].cols,
            OutputForm::Cube { .. } => self.format.output_per_atom(),
            OutputForm::Batches { rows } if rows.iter().all(|rows| *rows == 1) => self.segments[segment].cols,
            OutputForm::Batches { .. } => BLOCK_COLUMNS,
        }
    }

    /// The contiguous pieces of row `m`, by rising column: what a de-tiling pass walks.
    ///
    /// # Panics
    /// If the row does not exist.
    pub fn row_pieces(&self, m: u32) -> impl Iterator<Item = OutputPiece<'_>> + '_ {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        self.segments.iter().enumerate().flat_map(move |(index, segment)| {
            let end = self.n.min(segment.n0 + segment.cols);
            let run = self.run(index);
            (segment.n0..end).step_by(run as usize).map(move |from| OutputPiece {
                n: from..end.min(from + run),
                k_slices: self.k_slices,
                layout: self,
                segment: index,
                m,
            })
        })
    }
}

/// A row of one K slice at once: what [`OutputLayout::row_pieces`] walks piece by piece, for forms whose pieces are as
/// small as an atom.
impl OutputLayout {
    /// Reads the partial results of row `m` that a K slice left, without padding.
    ///
    /// # Panics
    /// If the row or the slice does not exist, `out` does not hold N results of the layout's precision, or `surfaces` is
    /// shorter than the layout.
    pub fn load_row<S: Element>(&self, m: u32, k_slice: u32, surfaces: &[u8], out: &mut [S]) {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        assert_eq!(out.len() as u64, u64::from(self.n), "one row has N elements");
        assert_eq!(S::RESULT, self.format.output(), "results of {}", self.format);
        let element = self.format.output_bytes() as usize;
        for (index, segment) in self.segments.iter().enumerate() {
            let run = self.run(index);
            let start = self.surface(index, k_slice).start;
            let first = self.in_surface(index, k_slice, m, 0);
            // Runs lie equally far apart in every form.
            let pitch = if run < segment.cols { self.in_surface(index, k_slice, m, run) - first } else { 0 };
            let (mut at, pitch) = (host(start + first), host(pitch));
            let columns = host(segment.n0.into())..host(self.n.min(segment.n0 + segment.cols).into());
            for target in out[columns].chunks_mut(run as usize) {
                S::load(&surfaces[at..at + target.len() * element], target);
                at += pitch;
            }
        }
    }
}

impl OutputLayout {
    /// Reads the partial results that a K slice left of the rows from `m0` on, as many as `out` holds, N results each.
    ///
    /// # Panics
    /// As [`OutputLayout::load_row`], and if `out` holds no whole rows.
    pub fn load_rows<S: Element>(&self, m0: u32, k_slice: u32, surfaces: &[u8], out: &mut [S]) {
        let n = self.n as usize;
        assert!(out.len().is_multiple_of(n), "{} results are no rows of {n}", out.len());
        let rows = out.len() / n;
        assert!(u64::from(m0) + rows as u64 <= self.rows.into(), "{rows} rows from {m0} of {}", self.rows);
        assert_eq!(S::RESULT, self.format.output(), "results of {}", self.format);
        match (&self.form, S::as_stored_mut(out)) {
            (OutputForm::Rows, Some(bytes)) if rows != 0 => {
                return self.load_lines(m0, k_slice, surfaces, (rows, bytes));
            }
            (OutputForm::Cube { surface_rows }, Some(bytes)) => {
                return self.load_cube(m0, k_slice, *surface_rows, surfaces, (rows, bytes));
            }
            _ => {}
        }
        for (row, out) in out.chunks_exact_mut(n).enumerate() {
            self.load_row(m0 + row as u32, k_slice, surfaces, out);
        }
    }

    /// [`load_rows`](Self::load_rows) from row-major surfaces, of results as they are stored.
    fn load_lines(&self, m0: u32, k_slice: u32, surfaces: &[u8], (rows, out): (usize, &mut [u8])) {
        let row_pitch = out.len() / rows;
        let element = u64::from(self.format.output_bytes());
        for (index, segment) in self.segments.iter().enumerate() {
            let bytes = |columns: u32| host(u64::from(columns) * element);
            let end = self.n.min(segment.n0 + segment.cols);
            let (row_at, len) = (bytes(segment.n0), bytes(end.saturating_sub(segment.n0)));
            if len == 0 {
                continue;
            }
            let pitch = bytes(segment.cols);
            let at = host(self.surface(index, k_slice).start + self.in_surface(index, k_slice, m0, 0));
            let lines = &surfaces[at..at + rows * pitch];
            if len == row_pitch && len == pitch {
                out.copy_from_slice(lines);
                continue;
            }
            for (line, row) in lines.chunks_exact(pitch).zip(out.chunks_exact_mut(row_pitch)) {
                row[row_at..row_at + len].copy_from_slice(&line[..len]);
            }
        }
    }

    /// [`load_rows`](Self::load_rows) from a cube, of results as they are stored.
    fn load_cube(
        &self,
        m0: u32,
        k_slice: u32,
        surface_rows: u32,
        surfaces: &[u8],
        (rows, out): (usize, &mut [u8]),
    ) {
        if rows == 0 {
            return;
        }
        let row_pitch = out.len() / rows;
        let surface_pitch = host(u64::from(surface_rows) * ATOM_BYTES);
        let element = self.format.output_bytes();
        for (index, segment) in self.segments.iter().enumerate() {
            let end = self.n.min(segment.n0 + segment.cols);
            let bytes = |columns: u32| host(u64::from(columns) * u64::from(element));
            let (row_at, len) = (bytes(segment.n0), bytes(end.saturating_sub(segment.n0)));
            let cube_at = host(self.surface(index, k_slice).start + self.in_surface(index, k_slice, m0, 0));
            let atoms = len / ATOM;
            Moved { rows, atoms, row_at, row_pitch, cube_at, surface_pitch }.gather(surfaces, out);
            let rest = len % ATOM;
            if rest == 0 {
                continue;
            }
            let surface = &surfaces[cube_at + atoms * surface_pitch..][..rows * ATOM];
            for (place, row) in surface.chunks_exact(ATOM).zip(out.chunks_exact_mut(row_pitch)) {
                row[row_at + atoms * ATOM..][..rest].copy_from_slice(&place[..rest]);
            }
        }
    }
}

impl OutputPiece<'_> {
    /// The piece's bytes in the surface of one K slice.
    ///
    /// # Panics
    /// If the slice does not exist or `surfaces` is shorter than the layout.
    #[must_use]
    pub fn bytes<'s>(&self, surfaces: &'s [u8], k_slice: u32) -> &'s [u8] {
        let layout = self.layout;
        let column = self.n.start - layout.segments[self.segment].n0;
        let start = layout.surface(self.segment, k_slice).start
            + layout.in_surface(self.segment, k_slice, self.m, column);
        let bytes = u64::from(self.n.end - self.n.start) * u64::from(layout.format.output_bytes());
        &surfaces[host_range(start..start + bytes)]
    }

    /// The piece's elements of one row of `C`.
    ///
    /// # Panics
    /// If `row` is shorter than N.
    #[must_use]
    pub fn target<'t, T>(&self, row: &'t mut [T]) -> &'t mut [T] {
        &mut row[host(u64::from(self.n.start))..host(u64::from(self.n.end))]
    }
}

fn surface_bytes(format: Format, rows: u32, segment: ColumnSegment, form: &OutputForm, slice: u32) -> u64 {
    let rows = match form {
        OutputForm::Cube { surface_rows } => u64::from(*surface_rows),
        OutputForm::Batches { rows: batches } if batches[slice as usize] > 1 => {
            u64::from(LINES_PER_ROW) * u64::from(rows)
        }
        OutputForm::Rows | OutputForm::Batches { .. } => u64::from(rows),
    };
    rows * u64::from(segment.cols) * u64::from(format.output_bytes())
}
