// SPDX-License-Identifier: MIT OR Apache-2.0
//! 16-bit floats to fp32, alone and as blocks of weights.

use crate::{BLOCK_CHANNELS, FLOAT_LANES};

/// A 16-bit float format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HalfKind {
    /// IEEE half.
    Fp16,
    /// The upper half of an fp32.
    Bf16,
}

impl HalfKind {
    /// The number with these bits; a NaN stays some NaN.
    #[inline]
    #[must_use]
    pub fn widen(self, bits: u16) -> f32 {
        match self {
            Self::Bf16 => f32::from_bits(u32::from(bits) << 16),
            Self::Fp16 => {
                // Without branches, so that loops over it vectorise.
                let magnitude = u32::from(bits & 0x7FFF) << 13;
                // Rebiases the exponent; subnormals come out right because the product is exact.
                let finite = f32::from_bits(magnitude) * f32::from_bits((254 - 15) << 23);
                let special = if bits & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
                f32::from_bits((finite.to_bits() | special) | u32::from(bits & 0x8000) << 16)
            }
        }
    }

    /// Fills `out` from little-endian numbers; what `bytes` lacks is 0.
    pub fn widen_all(self, bytes: &[u8], out: &mut [f32]) {
        let numbers = bytes.as_chunks::<2>().0;
        let (now, rest) = out.split_at_mut(numbers.len().min(out.len()));
        match self {
            Self::Fp16 => {
                for (out, bits) in now.iter_mut().zip(numbers) {
                    *out = Self::Fp16.widen(u16::from_le_bytes(*bits));
                }
            }
            Self::Bf16 => {
                for (out, bits) in now.iter_mut().zip(numbers) {
                    *out = Self::Bf16.widen(u16::from_le_bytes(*bits));
                }
            }
        }
        rest.fill(0.0);
    }
}

/// Bytes of a block of weights: 16 kernels of 32 channels.
pub const HALF_BLOCK_BYTES: usize = FLOAT_LANES * BLOCK_CHANNELS * 2;
/// Numbers of such a block.
pub const HALF_BLOCK: usize = FLOAT_LANES * BLOCK_CHANNELS;

/// Turns a block `[16 kernels][32 channels]` of 16-bit floats to `[32][16]` fp32.
pub fn turn_half_block(kind: HalfKind, block: &[u8; HALF_BLOCK_BYTES], out: &mut [f32; HALF_BLOCK]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was detected just now.
        return unsafe { crate::half_x86::turn(kind, block, out) };
    }
    turn_plain(kind, block, out);
}

/// The definition of [`turn_half_block`].
#[inline]
fn turn_plain(kind: HalfKind, block: &[u8; HALF_BLOCK_BYTES], out: &mut [f32; HALF_BLOCK]) {
    let mut wide = [0f32; HALF_BLOCK];
    kind.widen_all(block, &mut wide);
    let kernels = wide.as_chunks::<BLOCK_CHANNELS>().0;
    for (channel, out) in out.as_chunks_mut::<FLOAT_LANES>().0.iter_mut().enumerate() {
        for (out, kernel) in out.iter_mut().zip(kernels) {
            *out = kernel[channel];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_turned_as_the_definition_says() {
        let mut state = 7u64;
        for kind in [HalfKind::Fp16, HalfKind::Bf16] {
            // All bit patterns, in an order that has nothing to do with the block.
            for _ in 0..256 {
                let mut block = [0u8; HALF_BLOCK_BYTES];
                for byte in &mut block {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    *byte = (state >> 56) as u8;
                }
                let (mut plain, mut fast) = ([1f32; HALF_BLOCK], [2f32; HALF_BLOCK]);
                turn_plain(kind, &block, &mut plain);
                turn_half_block(kind, &block, &mut fast);
                for (at, (plain, fast)) in plain.iter().zip(&fast).enumerate() {
                    let same = plain.to_bits() == fast.to_bits() || (plain.is_nan() && fast.is_nan());
                    assert!(same, "{kind:?} {at}: {plain} {fast}");
                }
            }
        }
    }

    #[test]
    fn one_number_in_each_place() {
        for place in 0..HALF_BLOCK {
            let mut block = [0u8; HALF_BLOCK_BYTES];
            block[2 * place..2 * place + 2].copy_from_slice(&0x3C00u16.to_le_bytes());
            let mut out = [9f32; HALF_BLOCK];
            turn_half_block(HalfKind::Fp16, &block, &mut out);
            let (kernel, channel) = (place / 32, place % 32);
            for (at, value) in out.iter().enumerate() {
                assert_eq!(*value, f32::from(at == channel * 16 + kernel), "{place} at {at}");
            }
        }
    }

    #[test]
    fn missing_numbers_are_zero() {
        let mut out = [5f32; 3];
        HalfKind::Bf16.widen_all(&[0x80, 0x3F, 0x80, 0x3F, 1], &mut out);
        assert_eq!(out, [1.0, 1.0, 0.0]);
    }
}
