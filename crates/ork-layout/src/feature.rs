// SPDX-License-Identifier: MIT OR Apache-2.0
use std::ops::Range;

use serde::Serialize;

use crate::atoms::{ATOM, Moved};
use crate::element::stored_bytes;
use crate::weight::host;
use crate::{Element, Format, WeightLayout};

/// Slices begin at a host cache line, so that a slice can be synchronised without touching its neighbours.
const SLICE_ALIGN_BYTES: u64 = 64;
const ATOM_BYTES: u64 = 16;

/// How the rows of one K slice lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum FeatureForm {
    /// Row-major: `A[m][k]` at `m * K + k` (`isa.md` §4.3, measured elsewhere). A program reads rows at a line stride
    /// of exactly its K.
    Rows,
    /// Row-major, each row followed by as many zero bytes: the lines of an int4 batch (`isa-int4-sdp.md` §1.3, measured
    /// elsewhere). Where batches begin does not matter: row `m` is at `2 m` lines in any case.
    SpacedRows,
    /// A cube: `A[m][k]` at `(k / elements of an atom * rows + m)` atoms (`isa.md` §4.2, captured).
    Cube {
        /// Rows of a surface: at least M.
        surface_rows: u32,
    },
}

/// One K slice of `A`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
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

/// Where the elements of `A` (M x K) lie: K slices outermost, inside each slice one of the [forms](FeatureForm). Each
/// slice is a matrix of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FeatureLayout {
    format: Format,
    form: FeatureForm,
    rows: u32,
    k: u32,
    slices: Vec<FeatureSlice>,
    bytes: u64,
}

/// A contiguous part of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeaturePiece {
    /// Which channels of the row.
    pub k: Range<u32>,
    /// Where they lie, in bytes.
    pub data: Range<usize>,
    /// The bytes behind them that must be zero.
    pub padding: Range<usize>,
}

impl FeatureLayout {
    /// The row-major layout of `rows` rows for a matmul with this weight.
    #[must_use]
    pub fn for_weight(weight: &WeightLayout, rows: u32) -> Self {
        Self::in_form(weight, rows, FeatureForm::Rows)
    }

    /// The layout of `rows` rows for a matmul with this weight.
    ///
    /// # Panics
    /// If a surface of the form has fewer rows than there are.
    #[must_use]
    pub fn in_form(weight: &WeightLayout, rows: u32, form: FeatureForm) -> Self {
        if let FeatureForm::Cube { surface_rows } = form {
            assert!(surface_rows >= rows, "{rows} rows in surfaces of {surface_rows}");
        }
        let mut bytes = 0u64;
        let slices = weight
            .slices()
            .iter()
            .map(|slice| {
                let offset = bytes.next_multiple_of(SLICE_ALIGN_BYTES);
                bytes = offset + slice_bytes(weight.format(), form, rows, slice.len);
                FeatureSlice { k0: slice.k0, len: slice.len, real: slice.real, offset }
            })
            .collect();
        Self { format: weight.format(), form, rows, k: weight.k(), slices, bytes }
    }

    /// Precisions.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// How rows lie inside a slice.
    #[must_use]
    pub fn form(&self) -> FeatureForm {
        self.form
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

    /// The slice and the distance of its rows in bytes, when there is one slice and its rows follow each other without
    /// a gap: each row can then be written in its place by a thread of its own.
    #[must_use]
    pub fn dense_rows(&self) -> Option<(FeatureSlice, usize)> {
        match (self.form, self.slices.as_slice()) {
            (FeatureForm::Rows, [slice]) => Some((*slice, host(self.pitch(slice)))),
            _ => None,
        }
    }

    /// Byte offset of row `m` of a slice: of its first atom.
    ///
    /// # Panics
    /// If the slice or the row does not exist.
    #[must_use]
    pub fn row_offset(&self, slice: usize, m: u32) -> u64 {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        let slice = &self.slices[slice];
        slice.offset + u64::from(m) * self.pitch(slice)
    }

    /// Byte offset of `A[m][k]`, padding included; of the byte that holds it, if it has half a byte.
    ///
    /// # Panics
    /// If the element does not exist.
    #[must_use]
    pub fn offset(&self, m: u32, k: u32) -> u64 {
        let index = self.slices.partition_point(|slice| slice.k0 + slice.len <= k);
        assert!(index < self.slices.len(), "channel {k} lies behind the last slice");
        let channel = k - self.slices[index].k0;
        let whole = |elements: u32| u64::from(elements) * u64::from(self.format.input().bits()) / 8;
        self.row_offset(index, m)
            + match self.form {
                FeatureForm::Rows | FeatureForm::SpacedRows => whole(channel),
                FeatureForm::Cube { surface_rows } => {
                    let per_atom = self.format.input_per_atom();
                    u64::from(channel / per_atom) * u64::from(surface_rows) * ATOM_BYTES
                        + whole(channel % per_atom)
                }
            }
    }

    /// Where the parts of row `m` go, by rising channel: for a quantiser that writes into the buffer directly.
    ///
    /// # Panics
    /// If the row does not exist.
    pub fn row_pieces(&self, m: u32) -> impl Iterator<Item = FeaturePiece> + '_ {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        self.slices.iter().enumerate().flat_map(move |(index, slice)| {
            let start = self.row_offset(index, m);
            // Channels that follow each other, and the distance of such runs.
            let (run, pitch) = match self.form {
                FeatureForm::Rows | FeatureForm::SpacedRows => (slice.len, 0),
                FeatureForm::Cube { surface_rows } => {
                    (self.format.input_per_atom(), u64::from(surface_rows) * ATOM_BYTES)
                }
            };
            let stored = match self.form {
                FeatureForm::SpacedRows => self.pitch(slice),
                FeatureForm::Rows | FeatureForm::Cube { .. } => self.format.input_bytes(run.into()),
            };
            (0..slice.len).step_by(run as usize).map(move |from| {
                let real = slice.real.saturating_sub(from).min(run);
                let first = slice.k0 + from.min(slice.real);
                let at = start + u64::from(from / run) * pitch;
                let end = at + self.format.input_bytes(real.into());
                FeaturePiece {
                    k: first..first + real,
                    data: host(at)..host(end),
                    padding: host(end)..host(at + stored),
                }
            })
        })
    }

    /// Writes row `m`, zeros beyond K included.
    ///
    /// # Panics
    /// If `row` does not hold K elements of the layout's precision, or `features` is shorter than the layout.
    pub fn write_row<T: Element>(&self, m: u32, row: &[T], features: &mut [u8]) {
        self.check::<T>(row.len());
        if let FeatureForm::Cube { surface_rows } = self.form {
            return self.write_atoms(m, surface_rows, row, features);
        }
        for piece in self.row_pieces(m) {
            let elements = &row[piece.k.start as usize..piece.k.end as usize];
            debug_assert_eq!(stored_bytes::<T>(elements.len()), piece.data.len());
            T::store(elements, &mut features[piece.data]);
            features[piece.padding].fill(0);
        }
    }

    /// Writes all rows, M x K elements, zeros beyond K included.
    ///
    /// # Panics
    /// If `rows` does not hold M x K elements of the layout's precision, or `features` is shorter than the layout.
    pub fn write_rows<T: Element>(&self, rows: &[T], features: &mut [u8]) {
        let k = self.k as usize;
        assert_eq!(rows.len(), self.rows as usize * k, "{} rows of {k} elements", self.rows);
        self.check::<T>(k);
        match (self.form, T::as_stored(rows)) {
            (FeatureForm::Rows, Some(bytes)) => return self.write_lines(bytes, features),
            (FeatureForm::SpacedRows, None) => return self.write_spaced(rows, features),
            (FeatureForm::Cube { surface_rows }, Some(bytes)) => {
                return self.write_cube(surface_rows, bytes, features);
            }
            _ => {}
        }
        for (m, row) in rows.chunks_exact(k).enumerate() {
            self.write_row(m as u32, row, features);
        }
    }

    /// [`write_rows`](Self::write_rows) into row-major slices, of elements as they are stored.
    fn write_lines(&self, rows: &[u8], features: &mut [u8]) {
        let count = self.rows as usize;
        if count == 0 {
            return;
        }
        let row_pitch = rows.len() / count;
        for slice in &self.slices {
            let bytes = |elements: u32| host(self.format.input_bytes(elements.into()));
            let (row_at, real) = (bytes(slice.k0), bytes(slice.real));
            let pitch = host(self.pitch(slice));
            let lines = &mut features[host(slice.offset)..][..count * pitch];
            if real == row_pitch && real == pitch {
                lines.copy_from_slice(rows);
                continue;
            }
            for (line, row) in lines.chunks_exact_mut(pitch).zip(rows.chunks_exact(row_pitch)) {
                let (data, padding) = line.split_at_mut(real);
                data.copy_from_slice(&row[row_at..row_at + real]);
                padding.fill(0);
            }
        }
    }

    /// [`write_rows`](Self::write_rows) into the lines of int4 batches.
    fn write_spaced<T: Element>(&self, rows: &[T], features: &mut [u8]) {
        let k = host(self.k.into());
        for slice in &self.slices {
            let (k0, real) = (host(slice.k0.into()), host(slice.real.into()));
            let (stored, pitch) = (stored_bytes::<T>(real), host(self.pitch(slice)));
            let lines = &mut features[host(slice.offset)..][..host(self.rows.into()) * pitch];
            for (line, row) in lines.chunks_exact_mut(pitch).zip(rows.chunks_exact(k)) {
                let (data, padding) = line.split_at_mut(stored);
                T::store(&row[k0..k0 + real], data);
                padding.fill(0);
            }
        }
    }

    /// [`write_rows`](Self::write_rows) into a cube, of elements as they are stored.
    fn write_cube(&self, surface_rows: u32, rows: &[u8], features: &mut [u8]) {
        let count = self.rows as usize;
        if count == 0 {
            return;
        }
        let row_pitch = rows.len() / count;
        let surface_pitch = host(u64::from(surface_rows) * ATOM_BYTES);
        for slice in &self.slices {
            let bytes = |elements: u32| host(self.format.input_bytes(elements.into()));
            let (row_at, real) = (bytes(slice.k0), bytes(slice.real));
            let atoms = real / ATOM;
            let cube_at = host(slice.offset);
            Moved { rows: count, atoms, row_at, row_pitch, cube_at, surface_pitch }.scatter(rows, features);
            for atom in atoms..bytes(slice.len).div_ceil(ATOM) {
                let surface = &mut features[cube_at + atom * surface_pitch..][..count * ATOM];
                surface.fill(0);
                let rest = real.saturating_sub(atom * ATOM).min(ATOM);
                if rest == 0 {
                    continue;
                }
                for (place, row) in surface.chunks_exact_mut(ATOM).zip(rows.chunks_exact(row_pitch)) {
                    place[..rest].copy_from_slice(&row[row_at + atom * ATOM..][..rest]);
                }
            }
        }
    }

    /// [`write_row`](Self::write_row) into a cube, whose pieces are single atoms.
    fn write_atoms<T: Element>(&self, m: u32, surface_rows: u32, row: &[T], features: &mut [u8]) {
        let per_atom = self.format.input_per_atom() as usize;
        let pitch = host(u64::from(surface_rows) * ATOM_BYTES);
        for (index, slice) in self.slices.iter().enumerate() {
            let mut at = host(self.row_offset(index, m));
            let real = &row[host(slice.k0.into())..][..host(slice.real.into())];
            let whole = real.chunks_exact(per_atom);
            let rest = whole.remainder();
            for atom in whole {
                T::store(atom, &mut features[at..at + ATOM]);
                at += pitch;
            }
            let mut left = (slice.len as usize).div_ceil(per_atom) - real.len() / per_atom;
            if !rest.is_empty() {
                let place = &mut features[at..at + ATOM];
                place.fill(0);
                T::store(rest, &mut place[..stored_bytes::<T>(rest.len())]);
                (at, left) = (at + pitch, left - 1);
            }
            for _ in 0..left {
                features[at..at + ATOM].fill(0);
                at += pitch;
            }
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

    /// Distance of the rows of a slice.
    fn pitch(&self, slice: &FeatureSlice) -> u64 {
        match self.form {
            FeatureForm::Rows => self.format.input_bytes(slice.len.into()),
            FeatureForm::SpacedRows => 2 * self.format.input_bytes(slice.len.into()),
            FeatureForm::Cube { .. } => ATOM_BYTES,
        }
    }

    fn check<T: Element>(&self, elements: usize) {
        assert_eq!(elements as u64, u64::from(self.k), "one row has K elements");
        assert_eq!(T::OPERAND, self.format.input(), "elements of {}", self.format);
    }
}

/// Bytes of a slice.
fn slice_bytes(format: Format, form: FeatureForm, rows: u32, len: u32) -> u64 {
    let line = format.input_bytes(len.into());
    match form {
        FeatureForm::Rows => u64::from(rows) * line,
        // Behind a row, three more lines are read of which nothing is computed, one atom further on each.
        FeatureForm::SpacedRows => {
            u64::from(rows.saturating_sub(1)) * 2 * line + (2 * line).max(line + 3 * ATOM_BYTES)
        }
        FeatureForm::Cube { surface_rows } => {
            u64::from(surface_rows) * u64::from(len.div_ceil(format.input_per_atom())) * ATOM_BYTES
        }
    }
}
