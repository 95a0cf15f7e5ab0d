// SPDX-License-Identifier: MIT OR Apache-2.0
use std::ops::Range;

use crate::Format;
use crate::weight::{host, host_range};

/// A run of output columns that one core computes with its own programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColumnSegment {
    /// First column: a multiple of the kernel group.
    pub n0: u32,
    /// Columns, padding included: a multiple of the kernel group.
    pub cols: u32,
}

/// Where the NPU leaves `C` (M x N): for each column segment, for each K slice, a dense row-major surface
/// `[M][columns of the segment]` (`isa.md` §4.3 with a row stride of the segment's own width; measured
/// elsewhere). The surfaces of a segment lie behind each other, slice by slice; the host adds them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutputLayout {
    format: Format,
    rows: u32,
    n: u32,
    k_slices: u32,
    segments: Vec<ColumnSegment>,
    offsets: Vec<u64>,
    bytes: u64,
}

/// The part of one output row that lies in one segment: the same columns in every K slice's surface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPiece {
    /// Which columns, without padding.
    pub n: Range<u32>,
    /// Byte range in the surface of K slice 0.
    pub first: Range<u64>,
    /// Distance of the surfaces of consecutive K slices.
    pub slice_stride_bytes: u64,
    /// K slices to add.
    pub k_slices: u32,
}

impl OutputLayout {
    /// The surfaces of `rows` rows and `n` columns in these segments.
    ///
    /// # Panics
    /// If the segments are empty, do not follow each other from column 0, or do not cover `n`.
    #[must_use]
    pub fn new(format: Format, rows: u32, n: u32, k_slices: u32, segments: Vec<ColumnSegment>) -> Self {
        let mut next = 0u32;
        let mut bytes = 0u64;
        let mut offsets = Vec::with_capacity(segments.len());
        for segment in &segments {
            assert_eq!(segment.n0, next, "segments follow each other");
            assert_ne!(segment.cols, 0, "a segment has columns");
            next += segment.cols;
            offsets.push(bytes);
            bytes += u64::from(k_slices) * surface_bytes(format, rows, *segment);
        }
        assert!(next >= n, "segments hold {next} of {n} columns");
        Self { format, rows, n, k_slices, segments, offsets, bytes }
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

    /// The column segments, by rising column.
    #[must_use]
    pub fn segments(&self) -> &[ColumnSegment] {
        &self.segments
    }

    /// Size of the whole buffer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Byte range of the surface of a segment and K slice.
    ///
    /// # Panics
    /// If the segment or the slice does not exist.
    #[must_use]
    pub fn surface(&self, segment: usize, k_slice: u32) -> Range<u64> {
        assert!(k_slice < self.k_slices, "K slice {k_slice} of {}", self.k_slices);
        let bytes = surface_bytes(self.format, self.rows, self.segments[segment]);
        let start = self.offsets[segment] + u64::from(k_slice) * bytes;
        start..start + bytes
    }

    /// Byte offset of row `m` in the surface of a segment and K slice.
    ///
    /// # Panics
    /// If the segment, the slice or the row does not exist.
    #[must_use]
    pub fn row_offset(&self, segment: usize, k_slice: u32, m: u32) -> u64 {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        self.surface(segment, k_slice).start
            + u64::from(m) * u64::from(self.segments[segment].cols) * u64::from(self.format.output_bytes())
    }

    /// Byte offset of the partial result of `C[m][n]` that a K slice leaves.
    ///
    /// # Panics
    /// If the element does not exist.
    #[must_use]
    pub fn offset(&self, m: u32, n: u32, k_slice: u32) -> u64 {
        let segment = self.segments.partition_point(|s| s.n0 + s.cols <= n);
        assert!(segment < self.segments.len(), "column {n} lies behind the last segment");
        self.row_offset(segment, k_slice, m)
            + u64::from(n - self.segments[segment].n0) * u64::from(self.format.output_bytes())
    }

    /// The contiguous pieces of row `m`, by rising column: what a de-tiling pass walks.
    ///
    /// # Panics
    /// If the row does not exist.
    pub fn row_pieces(&self, m: u32) -> impl Iterator<Item = OutputPiece> + '_ {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        let element = u64::from(self.format.output_bytes());
        self.segments.iter().enumerate().filter(|(_, segment)| segment.n0 < self.n).map(
            move |(index, segment)| {
                let n = segment.n0..self.n.min(segment.n0 + segment.cols);
                let start = self.row_offset(index, 0, m);
                OutputPiece {
                    first: start..start + u64::from(n.end - n.start) * element,
                    n,
                    slice_stride_bytes: surface_bytes(self.format, self.rows, *segment),
                    k_slices: self.k_slices,
                }
            },
        )
    }
}

impl OutputPiece {
    /// The piece's bytes in the surface of one K slice.
    ///
    /// # Panics
    /// If the slice does not exist or `surfaces` is shorter than the layout.
    #[must_use]
    pub fn bytes<'a>(&self, surfaces: &'a [u8], k_slice: u32) -> &'a [u8] {
        assert!(k_slice < self.k_slices, "K slice {k_slice} of {}", self.k_slices);
        let shift = u64::from(k_slice) * self.slice_stride_bytes;
        &surfaces[host_range(self.first.start + shift..self.first.end + shift)]
    }

    /// The piece's elements of one row of `C`.
    ///
    /// # Panics
    /// If `row` is shorter than N.
    #[must_use]
    pub fn target<'a, T>(&self, row: &'a mut [T]) -> &'a mut [T] {
        &mut row[host(u64::from(self.n.start))..host(u64::from(self.n.end))]
    }
}

fn surface_bytes(format: Format, rows: u32, segment: ColumnSegment) -> u64 {
    u64::from(rows) * u64::from(segment.cols) * u64::from(format.output_bytes())
}
