// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a caller can ask for, by precision, and what of it the NPU computes.

use std::fmt;
use std::str::FromStr;

use ork_layout::Format;
use serde::{Serialize, Serializer};

use crate::laws::{narrowed, requantised};

/// A product by the types that go in and come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Product {
    /// int8 operands, exact 32-bit sums.
    Int8,
    /// int8 operands, sums requantised to int8.
    Int8ToInt8,
    /// int4 operands; each K slice's sum saturates at 16 bits.
    Int4,
    /// int16 operands, exact 64-bit sums, from the products of their bytes.
    Int16,
    /// int16 operands in the int16 datapath, whose 32-bit sums saturate.
    Int16Native,
    /// fp16 operands, fp32 sums.
    Fp16,
    /// fp16 operands, sums rounded to fp16.
    Fp16ToFp16,
    /// bf16 operands, fp32 sums.
    Bf16,
    /// fp32 operands of which the low 13 mantissa bits are ignored, fp32 sums.
    Tf32,
}

/// What the host does with the sums that the NPU leaves, besides adding those of K slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostWork {
    /// Nothing.
    Nothing,
    /// Scales, rounds and clamps them: K is deeper than the output stage was measured with.
    Requantise,
    /// Rounds them to fp16: K needs several slices, and rounded results must not be added.
    Narrow,
    /// Combines the four products of high and low bytes.
    CombineBytes,
}

/// A product as one matmul of the NPU and work for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Lowered {
    /// Precisions of the matmul.
    pub format: Format,
    /// Rows of the matmul for each row of the product.
    pub rows: u32,
    /// Columns of the matmul for each column of the product.
    pub columns: u32,
    /// The rest.
    pub host: HostWork,
}

/// A name of no product.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no product `{0}`; there are int8, int8-int8, int4, int16, int16-native, fp16, fp16-fp16, bf16 and tf32"
)]
pub struct UnknownProduct(
    /// The name.
    pub String,
);

impl Product {
    /// All products.
    pub const ALL: [Self; 9] = [
        Self::Int8,
        Self::Int8ToInt8,
        Self::Int4,
        Self::Int16,
        Self::Int16Native,
        Self::Fp16,
        Self::Fp16ToFp16,
        Self::Bf16,
        Self::Tf32,
    ];

    /// Its name, as options and reports have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int8ToInt8 => "int8-int8",
            Self::Int4 => "int4",
            Self::Int16 => "int16",
            Self::Int16Native => "int16-native",
            Self::Fp16 => "fp16",
            Self::Fp16ToFp16 => "fp16-fp16",
            Self::Bf16 => "bf16",
            Self::Tf32 => "tf32",
        }
    }

    /// What the NPU computes of it, for a K.
    ///
    /// Results that are rounded to fewer bits are rounded by the NPU where a law lets it see all of K, and by the host
    /// otherwise. int16 takes the route through bytes: `x = 256 h + l + 128` with signed bytes `h` and `l` holds for
    /// every `x`, so a product of 2 M rows and 2 N columns of bytes has all four partial products, and the sums of rows
    /// and columns that the 128 asks for are the host's. (`isa-int4-sdp.md` §2.1 and `isa-notes.md` C.3: the int16
    /// datapath is measured for small values only, and for more than one tile its two sources contradict each other.
    /// The four int8 products are what was validated, there without the 128 and so not for all values.)
    #[must_use]
    pub const fn lower(self, k: u32) -> Lowered {
        match self {
            Self::Int8 => Lowered::plain(Format::INT8_INT32),
            Self::Int8ToInt8 if k <= requantised::DEPTH_MAX => Lowered::plain(Format::INT8_INT8),
            Self::Int8ToInt8 => Lowered { host: HostWork::Requantise, ..Lowered::plain(Format::INT8_INT32) },
            Self::Int4 => Lowered::plain(Format::INT4_INT16),
            Self::Int16 => {
                Lowered { format: Format::INT8_INT32, rows: 2, columns: 2, host: HostWork::CombineBytes }
            }
            Self::Int16Native => Lowered::plain(Format::INT16_INT32),
            Self::Fp16 => Lowered::plain(Format::FP16_FP32),
            Self::Fp16ToFp16 if k <= narrowed::DEPTH_MAX => Lowered::plain(Format::FP16_FP16),
            Self::Fp16ToFp16 => Lowered { host: HostWork::Narrow, ..Lowered::plain(Format::FP16_FP32) },
            Self::Bf16 => Lowered::plain(Format::BF16_FP32),
            Self::Tf32 => Lowered::plain(Format::TF32_FP32),
        }
    }
}

impl Lowered {
    const fn plain(format: Format) -> Self {
        Self { format, rows: 1, columns: 1, host: HostWork::Nothing }
    }
}

impl FromStr for Product {
    type Err = UnknownProduct;

    fn from_str(name: &str) -> Result<Self, UnknownProduct> {
        let found = Self::ALL.into_iter().find(|product| product.name() == name);
        found.ok_or_else(|| UnknownProduct(name.to_owned()))
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Product {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for HostWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Requantise => "requantises the sums to int8",
            Self::Narrow => "rounds the sums to fp16",
            Self::CombineBytes => "combines four products of bytes to sums of int16 products",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for product in Product::ALL {
            assert_eq!(product.name().parse(), Ok(product));
        }
        let error = "int2".parse::<Product>().unwrap_err().to_string();
        assert!(Product::ALL.iter().all(|product| error.contains(product.name())), "{error}");
    }

    #[test]
    fn rounding_moves_to_the_host_beyond_one_slice() {
        let at = |product: Product, k| product.lower(k).host;
        assert_eq!(at(Product::Int8ToInt8, 4096), HostWork::Nothing);
        assert_eq!(at(Product::Int8ToInt8, 4097), HostWork::Requantise);
        assert_eq!(at(Product::Fp16ToFp16, 1024), HostWork::Nothing);
        assert_eq!(at(Product::Fp16ToFp16, 1025), HostWork::Narrow);
        assert_eq!(at(Product::Int16, 1), HostWork::CombineBytes);
    }
}
