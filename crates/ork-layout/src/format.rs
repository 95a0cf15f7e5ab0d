// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_isa::Precision;
use serde::{Serialize, Serializer};

/// Operand and result precision of a matmul, with everything that follows from the pair.
///
/// New precisions are new rows of the two tables of this module; no code branches on a precision by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    input: Precision,
    output: Precision,
}

/// A pair of precisions that no known matmul program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no matmul program is known for {input} operands with {output} results")]
pub struct UnsupportedFormat {
    /// Precision of `A` and `B`.
    pub input: Precision,
    /// Precision of `C`.
    pub output: Precision,
}

/// Tile shape of one operand precision.
struct Tile {
    input: Precision,
    /// Kernels (columns of `B`) of a kernel group.
    kernels: u32,
    /// Channels (rows of `B`) of a weight block.
    channels: u32,
}

/// Source: `isa.md` §3 and §4.1 (int8, fp16), `isa-int4-sdp.md` §1.3 and §2.1 (int4, int16), `isa-notes.md` B and NS-17
/// (bf16, tf32); measured elsewhere for every row.
const TILES: [Tile; 6] = [
    Tile { input: Precision::Int8, kernels: 32, channels: 32 },
    Tile { input: Precision::Fp16, kernels: 16, channels: 32 },
    Tile { input: Precision::Int4, kernels: 64, channels: 32 },
    Tile { input: Precision::Int16, kernels: 16, channels: 32 },
    Tile { input: Precision::Bf16, kernels: 16, channels: 32 },
    Tile { input: Precision::Tf32, kernels: 16, channels: 16 },
];

/// Source: `isa.md` §7, `isa-int4-sdp.md` §1 and §2.1, `isa-notes.md` NS.3; measured elsewhere for every row, int16 for
/// small values only.
const PAIRS: [Format; 8] = [
    Format::INT8_INT32,
    Format::INT8_INT8,
    Format::FP16_FP32,
    Format::FP16_FP16,
    Format::INT4_INT16,
    Format::INT16_INT32,
    Format::BF16_FP32,
    Format::TF32_FP32,
];

const ATOM_BYTES: u32 = 16;
const ATOM_BITS: u32 = 8 * ATOM_BYTES;

impl Format {
    /// int8 x int8 -> int32, exact.
    pub const INT8_INT32: Self = Self { input: Precision::Int8, output: Precision::Int32 };
    /// int8 x int8 -> int8, requantised by the output converter.
    pub const INT8_INT8: Self = Self { input: Precision::Int8, output: Precision::Int8 };
    /// fp16 x fp16 -> fp32.
    pub const FP16_FP32: Self = Self { input: Precision::Fp16, output: Precision::Fp32 };
    /// fp16 x fp16 -> fp16.
    pub const FP16_FP16: Self = Self { input: Precision::Fp16, output: Precision::Fp16 };
    /// int4 x int4 -> int16, saturating.
    pub const INT4_INT16: Self = Self { input: Precision::Int4, output: Precision::Int16 };
    /// int16 x int16 -> int32, saturating.
    pub const INT16_INT32: Self = Self { input: Precision::Int16, output: Precision::Int32 };
    /// bf16 x bf16 -> fp32.
    pub const BF16_FP32: Self = Self { input: Precision::Bf16, output: Precision::Fp32 };
    /// tf32 x tf32 -> fp32: fp32 in memory, whose low 13 mantissa bits the array ignores.
    pub const TF32_FP32: Self = Self { input: Precision::Tf32, output: Precision::Fp32 };

    /// All formats, in the order of the table.
    pub const ALL: [Self; 8] = PAIRS;

    /// The format of this pair.
    ///
    /// # Errors
    /// [`UnsupportedFormat`] when the pair is not in the table.
    pub fn new(input: Precision, output: Precision) -> Result<Self, UnsupportedFormat> {
        let format = Self { input, output };
        if PAIRS.contains(&format) { Ok(format) } else { Err(UnsupportedFormat { input, output }) }
    }

    /// Precision of `A` and `B`.
    #[must_use]
    pub const fn input(self) -> Precision {
        self.input
    }

    /// Precision of `C`.
    #[must_use]
    pub const fn output(self) -> Precision {
        self.output
    }

    /// Columns of `B` that form one kernel group; N is padded to a multiple of it.
    #[must_use]
    pub fn kernel_group(self) -> u32 {
        self.tile().kernels
    }

    /// Rows of `B` that form one weight block; K is padded to a multiple of it.
    #[must_use]
    pub fn channel_block(self) -> u32 {
        self.tile().channels
    }

    /// Bytes that so many consecutive elements of `A` or `B` take; half a byte counts as one.
    #[must_use]
    pub const fn input_bytes(self, elements: u64) -> u64 {
        elements.saturating_mul(self.input.bits() as u64).div_ceil(8)
    }

    /// Bytes of one element of `C`.
    #[must_use]
    pub const fn output_bytes(self) -> u32 {
        self.output.bits() / 8
    }

    /// Elements of `A` in one 16-byte atom.
    #[must_use]
    pub const fn input_per_atom(self) -> u32 {
        ATOM_BITS / self.input.bits()
    }

    /// Elements of `C` in one 16-byte atom.
    #[must_use]
    pub const fn output_per_atom(self) -> u32 {
        ATOM_BYTES / self.output_bytes()
    }

    /// Atoms of `C` that one kernel group makes of one row. It is the write DMA's `SIZE_E` plus 1, for every precision:
    /// smaller values leave columns unwritten (`isa-notes.md` G-3, NS-27; measured elsewhere).
    #[must_use]
    pub fn group_atoms(self) -> u32 {
        self.kernel_group() / self.output_per_atom()
    }

    /// Whether the hardware adds in floating point.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self.input, Precision::Fp16 | Precision::Bf16 | Precision::Tf32)
    }

    fn tile(self) -> &'static Tile {
        TILES.iter().find(|tile| tile.input == self.input).expect("every pair has a tile")
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{0}x{0}->{1}", self.input, self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_reference_tables() {
        // isa.md §3, isa-notes B and D.4: kernels per group, channels per block, elements of A per atom, of C per atom,
        // SIZE_E.
        let rows = [
            (Format::INT8_INT32, (32, 32, 16, 4, 7)),
            (Format::INT8_INT8, (32, 32, 16, 16, 1)),
            (Format::FP16_FP32, (16, 32, 8, 4, 3)),
            (Format::FP16_FP16, (16, 32, 8, 8, 1)),
            (Format::INT4_INT16, (64, 32, 32, 8, 7)),
            (Format::INT16_INT32, (16, 32, 8, 4, 3)),
            (Format::BF16_FP32, (16, 32, 8, 4, 3)),
            (Format::TF32_FP32, (16, 16, 4, 4, 3)),
        ];
        assert_eq!(rows.map(|(format, _)| format), Format::ALL);
        for (f, sizes) in rows {
            let found = (f.kernel_group(), f.channel_block(), f.input_per_atom(), f.output_per_atom());
            assert_eq!((found.0, found.1, found.2, found.3, f.group_atoms() - 1), sizes, "{f}");
        }
    }

    #[test]
    fn nibbles_take_half_a_byte() {
        let bytes = |elements| Format::INT4_INT16.input_bytes(elements);
        assert_eq!([0, 1, 2, 3, 64].map(bytes), [0, 1, 1, 2, 32]);
        assert_eq!(Format::TF32_FP32.input_bytes(3), 12);
    }

    #[test]
    fn unknown_pairs_are_refused() {
        let error = Format::new(Precision::Int8, Precision::Int16).unwrap_err();
        assert_eq!(error.to_string(), "no matmul program is known for int8 operands with int16 results");
        for format in Format::ALL {
            assert_eq!(Format::new(format.input(), format.output()), Ok(format));
        }
    }
}
