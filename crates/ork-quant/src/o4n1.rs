// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `O4N1` blob: a stored-int4 weight as ork-driver keeps it (`isa-int4-sdp.md` §7.2). Little-endian: magic,
//! version, K, N, kind (0 uniform, 1 NF4), N scales, then N · K/2 bytes of nibbles, channel after channel.
#![forbid(unsafe_code)]

use crate::{Codebook, QuantError, Scale};

/// `O4N1` as a number.
pub const O4N1_MAGIC: u32 = 0x4F34_4E31;
/// The version that is written and read.
pub const O4N1_VERSION: u32 = 1;

/// A stored-int4 weight.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredWeight {
    /// Input channels, even.
    pub k: u32,
    /// Output channels.
    pub n: u32,
    /// Meaning of a nibble.
    pub codebook: Codebook,
    /// One per output channel.
    pub scales: Vec<Scale>,
    /// N · K/2 bytes, the even input channel in the low half.
    pub nibbles: Vec<u8>,
}

/// Bytes that are no `O4N1` blob.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// Another magic or version.
    #[error(
        "this is magic {magic:#010x} version {version}, not O4N1 ({O4N1_MAGIC:#010x}) version {O4N1_VERSION}"
    )]
    Foreign {
        /// Magic found.
        magic: u32,
        /// Version found.
        version: u32,
    },
    /// Fields that make no weight.
    #[error("a blob of K = {k}, N = {n}, kind {kind}: K is even and positive, N positive, the kind 0 or 1")]
    Fields {
        /// K found.
        k: i32,
        /// N found.
        n: i32,
        /// Kind found.
        kind: u32,
    },
    /// More or fewer bytes than the fields say.
    #[error("a blob of {found} bytes that should have {wanted}")]
    Length {
        /// Bytes there.
        found: usize,
        /// Bytes due.
        wanted: u64,
    },
    /// A bad scale.
    #[error(transparent)]
    Scale(#[from] QuantError),
}

impl StoredWeight {
    /// The blob.
    pub fn to_blob(&self) -> Vec<u8> {
        let kind = match self.codebook {
            Codebook::Uniform => 0u32,
            Codebook::Nf4 => 1,
        };
        let mut blob = Vec::with_capacity(20 + self.scales.len() * 4 + self.nibbles.len());
        for word in [O4N1_MAGIC, O4N1_VERSION, self.k, self.n, kind] {
            blob.extend_from_slice(&word.to_le_bytes());
        }
        self.scales.iter().for_each(|scale| blob.extend_from_slice(&scale.get().to_le_bytes()));
        blob.extend_from_slice(&self.nibbles);
        blob
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// [`BlobError`] if the bytes are not exactly one blob.
    pub fn from_blob(blob: &[u8]) -> Result<Self, BlobError> {
        let (words, rest) = blob.as_chunks::<4>();
        let _ = rest;
        let [magic, version, k, n, kind] = match words {
            [a, b, c, d, e, ..] => [*a, *b, *c, *d, *e].map(u32::from_le_bytes),
            _ => return Err(BlobError::Length { found: blob.len(), wanted: 20 }),
        };
        if (magic, version) != (O4N1_MAGIC, O4N1_VERSION) {
            return Err(BlobError::Foreign { magic, version });
        }
        let codebook = match kind {
            0 => Some(Codebook::Uniform),
            1 => Some(Codebook::Nf4),
            _ => None,
        };
        let (signed_k, signed_n) = (k.cast_signed(), n.cast_signed());
        let Some(codebook) = codebook.filter(|_| signed_k > 0 && signed_n > 0 && k.is_multiple_of(2)) else {
            return Err(BlobError::Fields { k: signed_k, n: signed_n, kind });
        };
        let (scales, nibbles) = (4 * u64::from(n), u64::from(n) * u64::from(k / 2));
        let wanted = 20 + scales + nibbles;
        if blob.len() as u64 != wanted {
            return Err(BlobError::Length { found: blob.len(), wanted });
        }
        let scales = words[5..5 + n as usize]
            .iter()
            .map(|word| Scale::new(f32::from_le_bytes(*word)))
            .collect::<Result<_, _>>()?;
        Ok(Self { k, n, codebook, scales, nibbles: blob[20 + 4 * n as usize..].to_vec() })
    }
}
