// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;

use ork_isa::Precision;

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

/// Source: `isa.md` §3 and §4.1; measured elsewhere for every row.
const TILES: [Tile; 2] = [
    Tile { input: Precision::Int8, kernels: 32, channels: 32 },
    Tile { input: Precision::Fp16, kernels: 16, channels: 32 },
];

/// Source: `isa.md` §7; measured elsewhere for every row.
const PAIRS: [Format; 4] = [Format::INT8_INT32, Format::INT8_INT8, Format::FP16_FP32, Format::FP16_FP16];

const ATOM_BYTES: u32 = 16;

impl Format {
    /// int8 x int8 -> int32, exact.
    pub const INT8_INT32: Self = Self { input: Precision::Int8, output: Precision::Int32 };
    /// int8 x int8 -> int8, requantised by the output converter.
    pub const INT8_INT8: Self = Self { input: Precision::Int8, output: Precision::Int8 };
    /// fp16 x fp16 -> fp32.
    pub const FP16_FP32: Self = Self { input: Precision::Fp16, output: Precision::Fp32 };
    /// fp16 x fp16 -> fp16.
    pub const FP16_FP16: Self = Self { input: Precision::Fp16, output: Precision::Fp16 };

    /// All formats, in the order of the table.
    pub const ALL: [Self; 4] = PAIRS;

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

    /// Bytes of one element of `A` and `B`.
    #[must_use]
    pub const fn input_bytes(self) -> u32 {
        self.input.bits() / 8
    }

    /// Bytes of one element of `C`.
    #[must_use]
    pub const fn output_bytes(self) -> u32 {
        self.output.bits() / 8
    }

    /// Elements of `A` in one 16-byte atom.
    #[must_use]
    pub const fn input_per_atom(self) -> u32 {
        ATOM_BYTES / self.input_bytes()
    }

    /// Elements of `C` in one 16-byte atom.
    #[must_use]
    pub const fn output_per_atom(self) -> u32 {
        ATOM_BYTES / self.output_bytes()
    }

    fn tile(self) -> &'static Tile {
        TILES.iter().find(|tile| tile.input == self.input).expect("every pair has a tile")
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
    fn sizes_of_the_reference_table() {
        // isa.md §3: kernels per group, input elements per atom, output elements per atom.
        let rows = Format::ALL.map(|f| (f.kernel_group(), f.input_per_atom(), f.output_per_atom()));
        assert_eq!(rows, [(32, 16, 4), (32, 16, 16), (16, 8, 4), (16, 8, 8)]);
        assert!(Format::ALL.iter().all(|f| f.channel_block() == 32));
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
