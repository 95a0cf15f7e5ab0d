// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the output of a job shows that the job wrote it.
//!
//! Before a job starts, the cells that it will write are filled with a *seed*. A cell that holds something else
//! afterwards was written. What that proves depends on the seed, and a [`Seed`] carries it:
//!
//! - *Unreachable*: no product can have this value, so that every cell must differ. Whoever makes such a seed shows
//!   the bound ([`Seed::int32_sum`], [`Seed::fp32`]).
//! - *In-band*: a result may have the value of the seed (int16 results that saturate, every int8). Then an atom (16
//!   bytes, the unit in which the output stage writes, `isa.md` §5.3) counts as written when any of its elements
//!   differs; an atom that is all seed proves nothing. Such atoms are given a second, different seed and the job runs
//!   again: a result that equals one seed cannot equal the other.
//!
//! Every written cell is looked at: the order in which an output arrives is not that of its addresses
//! (`isa-int4-sdp.md` §1.10). Cells that no program writes are never seeded and never looked at.

use std::ops::Range;

/// Bytes of an atom.
const ATOM_BYTES: usize = 16;

/// What one program writes: `rows` runs of `row_bytes`, `pitch_bytes` apart, from `offset` in the output buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cells {
    /// First byte.
    pub offset: u64,
    /// Runs; at least 1.
    pub rows: u32,
    /// Bytes of a run: whole atoms.
    pub row_bytes: u32,
    /// From run to run; at least `row_bytes` when there are several.
    pub pitch_bytes: u64,
}

impl Cells {
    /// One run.
    #[must_use]
    pub const fn run(offset: u64, bytes: u32) -> Self {
        Self { offset, rows: 1, row_bytes: bytes, pitch_bytes: bytes as u64 }
    }

    /// The byte ranges, by rising address; runs that touch are one.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let dense = self.pitch_bytes == u64::from(self.row_bytes);
        let (runs, bytes) = if dense {
            (1, u64::from(self.rows) * u64::from(self.row_bytes))
        } else {
            (self.rows, u64::from(self.row_bytes))
        };
        let Self { offset, pitch_bytes, .. } = *self;
        (0..u64::from(runs)).map(move |row| {
            let start = (offset + row * pitch_bytes) as usize;
            start..start + bytes as usize
        })
    }

    /// From the first byte to the last.
    #[must_use]
    pub fn hull(&self) -> Range<u64> {
        let last = self.offset + u64::from(self.rows.saturating_sub(1)) * self.pitch_bytes;
        self.offset..last + u64::from(self.row_bytes)
    }

    /// Bytes that are written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.row_bytes)
    }

    /// Whether the cells are whole atoms inside a buffer of `len` bytes.
    pub(crate) fn fits(&self, len: u64) -> bool {
        let whole = |bytes: u64| bytes.is_multiple_of(ATOM_BYTES as u64);
        let apart = self.rows <= 1 || self.pitch_bytes >= u64::from(self.row_bytes);
        self.rows != 0
            && self.row_bytes != 0
            && apart
            && whole(self.offset)
            && whole(u64::from(self.row_bytes))
            && (self.rows == 1 || whole(self.pitch_bytes))
            && self.hull().end <= len
    }
}

/// Whether results can have the value of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// They cannot; shown by the constructor.
    Unreachable,
    /// They can.
    InBand,
}

/// A value that outputs are filled with before a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seed {
    /// The element's bits, repeated to 32.
    word: u32,
    /// Bytes of an element: 1, 2 or 4.
    element_bytes: u8,
    reach: Reach,
}

/// A bound that does not keep the seed out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sums of {terms} products of at most {product_max} can reach the seed {seed}")]
pub struct Reachable {
    /// Products that are added.
    pub terms: u64,
    /// Largest magnitude of one.
    pub product_max: u64,
    /// The seed.
    pub seed: i64,
}

impl Seed {
    /// For int32 sums of `terms` products, none larger in magnitude than `product_max` (16384 for int8).
    ///
    /// # Errors
    /// [`Reachable`] when the sum could be `i32::MIN`, or saturate there.
    pub fn int32_sum(terms: u64, product_max: u64) -> Result<Self, Reachable> {
        let seed = i32::MIN;
        match terms.checked_mul(product_max) {
            Some(bound) if bound < u64::from(seed.unsigned_abs()) => {
                Ok(Self { word: seed as u32, element_bytes: 4, reach: Reach::Unreachable })
            }
            _ => Err(Reachable { terms, product_max, seed: i64::from(seed) }),
        }
    }

    /// For fp32 results of products of fp16, bf16 or tf32 numbers, whatever they are: a quiet NaN with a payload that
    /// reaches into the low 13 bits. No operand of these precisions can carry such a payload, and a unit that makes a NaN
    /// of its own gives it none (assumed of the silicon, see docs/assumptions.md).
    #[must_use]
    pub const fn fp32() -> Self {
        Self { word: 0x7FC5_EED5, element_bytes: 4, reach: Reach::Unreachable }
    }

    /// For int16 results of at most this magnitude before saturation: unreachable below 32768, else in-band, with a value
    /// that is far from those at which results saturate and from zero.
    #[must_use]
    pub fn int16(magnitude_max: u64) -> Self {
        let (word, reach) = match magnitude_max {
            ..0x8000 => (0x8000_8000, Reach::Unreachable),
            _ => (0x6B3D_6B3D, Reach::InBand),
        };
        Self { word, element_bytes: 2, reach }
    }

    /// For elements of `element_bytes` (1, 2 or 4) of which nothing is known.
    ///
    /// # Panics
    /// For another number of bytes.
    #[must_use]
    pub fn in_band(element_bytes: u8) -> Self {
        assert!(matches!(element_bytes, 1 | 2 | 4), "elements of {element_bytes} bytes");
        Self { word: 0x8181_8181, element_bytes, reach: Reach::InBand }
    }

    /// A seed of this value, for elements of `element_bytes` (1, 2 or 4) of which nothing is known. The value is
    /// the low bytes of `word`, repeated.
    ///
    /// # Panics
    /// For another number of bytes.
    #[must_use]
    pub fn in_band_of(element_bytes: u8, word: u32) -> Self {
        let word = match element_bytes {
            1 => (word & 0xFF) * 0x0101_0101,
            2 => (word & 0xFFFF) * 0x0001_0001,
            _ => word,
        };
        Self { word, ..Self::in_band(element_bytes) }
    }

    /// Whether results can have its value.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// A seed that differs from this one in every element.
    pub(crate) fn other(self) -> Self {
        let word = match self.reach {
            // Every byte changes, so every element does.
            Reach::InBand => self.word ^ 0x3C3C_3C3C,
            Reach::Unreachable => self.word,
        };
        Self { word, ..self }
    }

    fn atom(self) -> [u8; ATOM_BYTES] {
        let mut atom = [0; ATOM_BYTES];
        atom.chunks_exact_mut(4).for_each(|place| place.copy_from_slice(&self.word.to_le_bytes()));
        atom
    }

    /// Fills cells.
    pub(crate) fn fill<'c>(self, cells: impl IntoIterator<Item = &'c Cells>, bytes: &mut [u8]) {
        let word = self.word.to_le_bytes();
        for range in cells.into_iter().flat_map(Cells::ranges) {
            bytes[range].chunks_exact_mut(4).for_each(|place| place.copy_from_slice(&word));
        }
    }

    /// Fills these atoms.
    pub(crate) fn fill_atoms(self, atoms: &[usize], bytes: &mut [u8]) {
        let own = self.atom();
        atoms.iter().for_each(|at| bytes[*at..*at + ATOM_BYTES].copy_from_slice(&own));
    }

    /// The atoms of these cells of which nothing shows that they were written.
    pub(crate) fn missing<'c>(self, cells: impl IntoIterator<Item = &'c Cells>, bytes: &[u8]) -> Vec<usize> {
        let atoms = cells.into_iter().flat_map(Cells::ranges).flat_map(|range| range.step_by(ATOM_BYTES));
        self.still_missing(atoms, bytes)
    }

    /// Which of these atoms still are.
    pub(crate) fn still_missing(self, atoms: impl Iterator<Item = usize>, bytes: &[u8]) -> Vec<usize> {
        atoms.filter(|at| self.survives_in(&bytes[*at..*at + ATOM_BYTES])).collect()
    }

    /// Whether some cell still holds the seed, where that decides.
    fn survives_in(self, bytes: &[u8]) -> bool {
        match (self.reach, self.element_bytes) {
            (Reach::InBand, _) => {
                let atom = self.atom();
                bytes.chunks_exact(ATOM_BYTES).any(|place| *place == atom)
            }
            (Reach::Unreachable, 4) => words(bytes).any(|word| word == self.word),
            (Reach::Unreachable, _) => halves(bytes).any(|half| half == self.word as u16),
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word))
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half))
}

/// What the cells of one program hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Elements that the program writes.
    pub elements: u64,
    /// Elements that hold the seed.
    pub survivors: u64,
    /// Atoms that hold nothing but the seed.
    pub blank_atoms: u64,
    /// Where the first element with the seed stands among the program's, counted in order of addresses.
    pub first: Option<u64>,
    /// Where the last one stands.
    pub last: Option<u64>,
}

/// What a census says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every cell was written.
    Written,
    /// Every atom was written; some results have the value of the seed.
    WrittenWithSeedValues,
    /// Some cells were not written, or are not visible yet, or have the value of the seed.
    Partial,
    /// No cell was written: the program did not run.
    Untouched,
}

impl Census {
    /// Counts.
    #[must_use]
    pub fn of<'c>(cells: impl IntoIterator<Item = &'c Cells>, seed: Seed, bytes: &[u8]) -> Self {
        let mut census = Self::default();
        let atom = seed.atom();
        let element = usize::from(seed.element_bytes);
        for range in cells.into_iter().flat_map(Cells::ranges) {
            for place in bytes[range].chunks_exact(ATOM_BYTES) {
                if place == atom {
                    census.blank_atoms += 1;
                }
                for (index, value) in place.chunks_exact(element).enumerate() {
                    if *value == atom[..element] {
                        let at = census.elements + index as u64;
                        census.survivors += 1;
                        census.first.get_or_insert(at);
                        census.last = Some(at);
                    }
                }
                census.elements += (ATOM_BYTES / element) as u64;
            }
        }
        census
    }

    /// What follows from the counts, for a seed of this reach.
    #[must_use]
    pub fn verdict(&self, reach: Reach) -> Verdict {
        match reach {
            _ if self.survivors == 0 => Verdict::Written,
            _ if self.survivors == self.elements => Verdict::Untouched,
            Reach::InBand if self.blank_atoms == 0 => Verdict::WrittenWithSeedValues,
            _ => Verdict::Partial,
        }
    }
}

/// How many programs, from the first, have written everything: a hole stops the count.
pub(crate) fn frontier(writes: &[Vec<Cells>], seed: Seed, from: usize, bytes: &[u8]) -> usize {
    let written = |cells: &&Vec<Cells>| {
        !cells.iter().flat_map(Cells::ranges).any(|range| seed.survives_in(&bytes[range]))
    };
    from + writes[from.min(writes.len())..].iter().take_while(written).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rows of two atoms, 64 bytes apart, from byte 32.
    const CELLS: Cells = Cells { offset: 32, rows: 2, row_bytes: 32, pitch_bytes: 64 };

    fn seeded(seed: Seed) -> Vec<u8> {
        let mut bytes = vec![0; 160];
        seed.fill([&CELLS], &mut bytes);
        bytes
    }

    #[test]
    fn only_cells_are_seeded() {
        let seed = Seed::int32_sum(4096, 16384).unwrap();
        let bytes = seeded(seed);
        let is_seed: Vec<bool> = words(&bytes).map(|word| word == 0x8000_0000).collect();
        let expected: Vec<bool> =
            (0..40).map(|word| (8..16).contains(&word) || (24..32).contains(&word)).collect();
        assert_eq!(is_seed, expected);
        assert_eq!((CELLS.hull(), CELLS.bytes()), (32..128, 64));
        assert!(CELLS.fits(128) && !CELLS.fits(127));
        assert!(!Cells { row_bytes: 24, ..CELLS }.fits(1000));
        assert!(!Cells { pitch_bytes: 16, ..CELLS }.fits(1000));
    }

    #[test]
    fn dense_rows_are_one_run() {
        let dense = Cells { offset: 0, rows: 3, row_bytes: 16, pitch_bytes: 16 };
        assert_eq!(dense.ranges().collect::<Vec<_>>(), vec![0..48]);
        assert_eq!(CELLS.ranges().collect::<Vec<_>>(), vec![32..64, 96..128]);
    }

    #[test]
    fn bounds_decide_about_reach() {
        // 131071 * 2^14 < 2^31 = 131072 * 2^14.
        assert_eq!(Seed::int32_sum(131_071, 16384).unwrap().reach(), Reach::Unreachable);
        let error = Seed::int32_sum(131_072, 16384).unwrap_err();
        assert!(error.to_string().contains("can reach the seed -2147483648"), "{error}");
        assert!(Seed::int32_sum(u64::MAX, 2).is_err());
        assert_eq!(Seed::int16(32_767).reach(), Reach::Unreachable);
        assert_eq!(Seed::int16(32_768).reach(), Reach::InBand);
        let payload = Seed::fp32().word;
        assert!(f32::from_bits(payload).is_nan() && payload & 0x1FFF != 0);
    }

    #[test]
    fn an_unreachable_seed_wants_every_element_changed() {
        let seed = Seed::int32_sum(32, 16384).unwrap();
        let mut bytes = seeded(seed);
        assert_eq!(Census::of([&CELLS], seed, &bytes).verdict(seed.reach()), Verdict::Untouched);
        assert_eq!(frontier(&[vec![CELLS]], seed, 0, &bytes), 0);
        for range in CELLS.ranges() {
            bytes[range].fill(7);
        }
        bytes[100..104].copy_from_slice(&i32::MIN.to_le_bytes());
        assert_eq!(seed.missing([&CELLS], &bytes), [96], "an atom with one such element is missing");
        let census = Census::of([&CELLS], seed, &bytes);
        assert_eq!(
            census,
            Census { elements: 16, survivors: 1, blank_atoms: 0, first: Some(9), last: Some(9) }
        );
        assert_eq!(census.verdict(seed.reach()), Verdict::Partial);
        assert_eq!(frontier(&[vec![CELLS]], seed, 0, &bytes), 0);
        bytes[100] = 1;
        assert_eq!(Census::of([&CELLS], seed, &bytes).verdict(seed.reach()), Verdict::Written);
        assert_eq!(frontier(&[vec![CELLS]], seed, 0, &bytes), 1);
    }

    #[test]
    fn an_in_band_seed_judges_by_atoms() {
        for seed in [Seed::int16(200_000), Seed::in_band(1), Seed::in_band(2), Seed::in_band(4)] {
            let element = usize::from(seed.element_bytes);
            let mut bytes = seeded(seed);
            let old = bytes[32..48].to_vec();
            for range in CELLS.ranges() {
                bytes[range].fill(7);
            }
            // A result that has the seed's value.
            bytes[96..96 + element].copy_from_slice(&old[..element]);
            let census = Census::of([&CELLS], seed, &bytes);
            assert_eq!((census.survivors, census.blank_atoms), (1, 0));
            assert_eq!(census.verdict(seed.reach()), Verdict::WrittenWithSeedValues);
            assert_eq!(frontier(&[vec![CELLS]], seed, 0, &bytes), 1);
            // An atom of nothing else decides nothing.
            bytes[96..112].copy_from_slice(&old);
            assert_eq!(Census::of([&CELLS], seed, &bytes).verdict(seed.reach()), Verdict::Partial);
            assert_eq!(frontier(&[vec![CELLS]], seed, 0, &bytes), 0);
        }
    }

    #[test]
    fn a_second_seed_settles_an_atom_whatever_it_holds() {
        for seed in [Seed::int16(200_000), Seed::in_band(1)] {
            let other = seed.other();
            let differs = |element: usize| {
                seed.atom().chunks(element).zip(other.atom().chunks(element)).all(|(a, b)| a != b)
            };
            assert!(differs(usize::from(seed.element_bytes)), "{seed:?} {other:?}");
            let mut bytes = seeded(seed);
            for range in CELLS.ranges() {
                bytes[range].fill(7);
            }
            bytes[32..48].copy_from_slice(&seed.atom());
            let missing = seed.missing([&CELLS], &bytes);
            assert_eq!(missing, [32]);
            other.fill_atoms(&missing, &mut bytes);
            // Not run again: the second seed stays.
            assert_eq!(other.still_missing(missing.iter().copied(), &bytes), [32]);
            // Run again, with a result that is the first seed; another result is the second one.
            bytes[32..48].copy_from_slice(&seed.atom());
            bytes[48..64].copy_from_slice(&other.atom());
            assert_eq!(other.still_missing(missing.into_iter(), &bytes), [0; 0]);
            assert_eq!(other.other(), seed);
        }
    }

    #[test]
    fn a_hole_stops_the_frontier() {
        let seed = Seed::int32_sum(32, 16384).unwrap();
        let writes: Vec<Vec<Cells>> = (0..4).map(|index| vec![Cells::run(index * 32, 32)]).collect();
        let mut bytes = vec![7; 128];
        seed.fill(&writes[1], &mut bytes);
        assert_eq!(frontier(&writes, seed, 0, &bytes), 1);
        seed.fill(&writes[0], &mut bytes);
        assert_eq!(frontier(&writes, seed, 0, &bytes), 0);
        assert_eq!(frontier(&writes, seed, 2, &bytes), 4);
        assert_eq!(frontier(&writes, seed, 4, &bytes), 4);
    }
}
