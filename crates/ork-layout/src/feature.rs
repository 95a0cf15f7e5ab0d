// SPDX-License-Identifier: MIT OR Apache-2.0
use std::ops::Range;

use crate::weight::host;
use crate::{Element, Format, WeightLayout};

/// Slices begin at a host cache line, so that a slice can be synchronised without touching its neighbours.
const SLICE_ALIGN_BYTES: u64 = 64;

/// One K slice of `A`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FeatureSlice {
    /// First channel.
    pub k0: u32,
    /// Elements of a stored row, padding included.
    pub len: u32,
    /// Elements that carry data; the rest are zeros.
    pub real: u32,
    /// Where the slice begins, in bytes.
    pub offset: u64,
}

/// Where the elements of `A` (M x K) lie: K slices outermost, then rows, then channels (`isa.md` §4.3, the
/// row-major form; measured elsewhere). Each slice is a dense matrix of its own, so that a program reads rows at
/// a line stride of exactly its K.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FeatureLayout {
    format: Format,
    rows: u32,
    k: u32,
    slices: Vec<FeatureSlice>,
    bytes: u64,
}

/// The part of one row that lies in one slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeaturePiece {
    /// Which channels of the row.
    pub k: Range<u32>,
    /// Where they lie, in bytes.
    pub data: Range<usize>,
    /// The bytes behind them that must be zero; empty unless K ends inside the slice.
    pub padding: Range<usize>,
}

impl FeatureLayout {
    /// The layout of `rows` rows for a matmul with this weight.
    #[must_use]
    pub fn for_weight(weight: &WeightLayout, rows: u32) -> Self {
        let element = u64::from(weight.format().input_bytes());
        let mut bytes = 0u64;
        let slices = weight
            .slices()
            .iter()
            .map(|slice| {
                let offset = bytes.next_multiple_of(SLICE_ALIGN_BYTES);
                bytes = offset + u64::from(rows) * u64::from(slice.len) * element;
                FeatureSlice { k0: slice.k0, len: slice.len, real: slice.real, offset }
            })
            .collect();
        Self { format: weight.format(), rows, k: weight.k(), slices, bytes }
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

    /// K, without padding.
    #[must_use]
    pub fn k(&self) -> u32 {
        self.k
    }

    /// The K slices, by rising channel.
    #[must_use]
    pub fn slices(&self) -> &[FeatureSlice] {
        &self.slices
    }

    /// Size of the whole buffer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Byte offset of row `m` of a slice.
    ///
    /// # Panics
    /// If the slice or the row does not exist.
    #[must_use]
    pub fn row_offset(&self, slice: usize, m: u32) -> u64 {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        let slice = &self.slices[slice];
        slice.offset + u64::from(m) * u64::from(slice.len) * u64::from(self.format.input_bytes())
    }

    /// Byte offset of `A[m][k]`, padding included.
    ///
    /// # Panics
    /// If the element does not exist.
    #[must_use]
    pub fn offset(&self, m: u32, k: u32) -> u64 {
        let index = self.slices.partition_point(|slice| slice.k0 + slice.len <= k);
        assert!(index < self.slices.len(), "channel {k} lies behind the last slice");
        self.row_offset(index, m)
            + u64::from(k - self.slices[index].k0) * u64::from(self.format.input_bytes())
    }

    /// Where the parts of row `m` go, slice by slice: for a quantiser that writes into the buffer directly.
    ///
    /// # Panics
    /// If the row does not exist.
    pub fn row_pieces(&self, m: u32) -> impl Iterator<Item = FeaturePiece> + '_ {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        let element = u64::from(self.format.input_bytes());
        self.slices.iter().enumerate().map(move |(index, slice)| {
            let start = self.row_offset(index, m);
            let end = start + u64::from(slice.real) * element;
            FeaturePiece {
                k: slice.k0..slice.k0 + slice.real,
                data: host(start)..host(end),
                padding: host(end)..host(start + u64::from(slice.len) * element),
            }
        })
    }

    /// Writes row `m`, zeros beyond K included.
    ///
    /// # Panics
    /// If `row` does not hold K elements of the layout's size, or `features` is shorter than the layout.
    pub fn write_row<T: Element>(&self, m: u32, row: &[T], features: &mut [u8]) {
        self.check::<T>(row.len());
        for piece in self.row_pieces(m) {
            T::store(&row[piece.k.start as usize..piece.k.end as usize], &mut features[piece.data]);
            features[piece.padding].fill(0);
        }
    }

    /// Reads row `m` back.
    ///
    /// # Panics
    /// As [`FeatureLayout::write_row`].
    pub fn read_row<T: Element>(&self, m: u32, features: &[u8], row: &mut [T]) {
        self.check::<T>(row.len());
        for piece in self.row_pieces(m) {
            T::load(&features[piece.data], &mut row[piece.k.start as usize..piece.k.end as usize]);
        }
    }

    fn check<T: Element>(&self, elements: usize) {
        assert_eq!(elements as u64, u64::from(self.k), "one row has K elements");
        assert_eq!(T::BYTES as u64, u64::from(self.format.input_bytes()), "elements of {}", self.format);
    }
}
