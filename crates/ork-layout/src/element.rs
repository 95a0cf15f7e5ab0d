// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt::Debug;

use half::{bf16, f16};
use ork_isa::Precision;
use zerocopy::{Immutable, IntoBytes};

mod sealed {
    pub trait Sealed {}
}

/// An element of a matrix as the host holds it, typed so that no two precisions of one size can be confused.
///
/// Device memory is little endian whatever the host is.
pub trait Element: sealed::Sealed + Copy + Default + Debug + PartialEq + Send + Sync {
    /// The precision of an operand of such elements.
    const OPERAND: Precision;
    /// The precision of a result of such elements. It differs for `f32` only: as an operand it is tf32.
    const RESULT: Precision;

    /// Writes `source` to `target`, which has [`stored_bytes`] bytes.
    fn store(source: &[Self], target: &mut [u8]);

    /// Reads as many elements as `target` holds.
    fn load(source: &[u8], target: &mut [Self]);

    /// The elements as they are stored, if the host holds them alike: nibbles it does not, and nothing wider than a byte
    /// if it is big endian.
    fn as_stored(elements: &[Self]) -> Option<&[u8]>;

    /// As [`as_stored`](Self::as_stored), to be filled.
    fn as_stored_mut(elements: &mut [Self]) -> Option<&mut [u8]>;
}

/// Bytes that so many elements take in memory.
#[must_use]
pub const fn stored_bytes<T: Element>(elements: usize) -> usize {
    (elements * T::OPERAND.bits() as usize).div_ceil(8)
}

impl sealed::Sealed for i8 {}
impl Element for i8 {
    const OPERAND: Precision = Precision::Int8;
    const RESULT: Precision = Precision::Int8;

    #[inline]
    fn store(source: &[Self], target: &mut [u8]) {
        // Nearly every call stores one row of a weight tile; a known length makes it one vector move.
        if let (Ok(source), Ok(target)) =
            (<&[i8; 32]>::try_from(source), <&mut [u8; 32]>::try_from(&mut *target))
        {
            target.iter_mut().zip(source).for_each(|(byte, element)| *byte = element.cast_unsigned());
            return;
        }
        for (byte, element) in target.iter_mut().zip(source) {
            *byte = element.cast_unsigned();
        }
    }

    #[inline]
    fn load(source: &[u8], target: &mut [Self]) {
        for (element, byte) in target.iter_mut().zip(source) {
            *element = byte.cast_signed();
        }
    }

    fn as_stored(elements: &[Self]) -> Option<&[u8]> {
        Some(elements.as_bytes())
    }

    fn as_stored_mut(elements: &mut [Self]) -> Option<&mut [u8]> {
        Some(elements.as_mut_bytes())
    }
}

macro_rules! whole_bytes {
    ($($type:ty: $operand:ident, $result:ident;)*) => { $(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const OPERAND: Precision = Precision::$operand;
            const RESULT: Precision = Precision::$result;

            #[inline]
            fn store(source: &[Self], target: &mut [u8]) {
                // Cubes are stored atom by atom; a known length makes it one vector move.
                const ATOM: usize = 16 / size_of::<$type>();
                if let (Ok(source), Ok(target)) =
                    (<&[Self; ATOM]>::try_from(source), <&mut [u8; 16]>::try_from(&mut *target))
                {
                    for (bytes, element) in target.as_chunks_mut().0.iter_mut().zip(source) {
                        *bytes = element.to_le_bytes();
                    }
                    return;
                }
                for (bytes, element) in target.as_chunks_mut().0.iter_mut().zip(source) {
                    *bytes = element.to_le_bytes();
                }
            }

            #[inline]
            fn load(source: &[u8], target: &mut [Self]) {
                const ATOM: usize = 16 / size_of::<$type>();
                if let (Ok(source), Ok(target)) =
                    (<&[u8; 16]>::try_from(source), <&mut [Self; ATOM]>::try_from(&mut *target))
                {
                    for (element, bytes) in target.iter_mut().zip(source.as_chunks().0) {
                        *element = Self::from_le_bytes(*bytes);
                    }
                    return;
                }
                for (element, bytes) in target.iter_mut().zip(source.as_chunks().0) {
                    *element = Self::from_le_bytes(*bytes);
                }
            }

            fn as_stored(elements: &[Self]) -> Option<&[u8]> {
                cfg!(target_endian = "little").then(|| elements.as_bytes())
            }

            fn as_stored_mut(elements: &mut [Self]) -> Option<&mut [u8]> {
                if cfg!(target_endian = "little") { Some(elements.as_mut_bytes()) } else { None }
            }
        }
    )* };
}

whole_bytes! {
    i16: Int16, Int16;
    i32: Int32, Int32;
    f16: Fp16, Fp16;
    bf16: Bf16, Bf16;
    f32: Tf32, Fp32;
}

/// A signed 4-bit integer, -8 to 7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Int4(i8);

impl Int4 {
    /// -8.
    pub const MIN: Self = Self(-8);
    /// 7.
    pub const MAX: Self = Self(7);

    /// The number, if it has 4 bits.
    #[must_use]
    pub const fn new(value: i8) -> Option<Self> {
        if value >= Self::MIN.0 && value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The low nibble, as two's complement.
    #[must_use]
    pub const fn from_low_nibble(byte: u8) -> Self {
        Self((byte << 4).cast_signed() >> 4)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> i8 {
        self.0
    }
}

impl sealed::Sealed for Int4 {}
impl Element for Int4 {
    const OPERAND: Precision = Precision::Int4;
    const RESULT: Precision = Precision::Int4;

    /// Elements with an even index in the low nibble (`isa-int4-sdp.md` §1.3, measured elsewhere); the high nibble
    /// behind an odd number of elements becomes 0.
    #[inline]
    fn store(source: &[Self], target: &mut [u8]) {
        // As 16-bit lanes with their even element low, whatever the host, blocks become vector instructions: a mask, a
        // product that brings both nibbles side by side into the upper byte, and a shift that narrows.
        let join = |pair: [u8; 2]| {
            let nibbles = u16::from_le_bytes(pair) & 0x0F0F;
            (nibbles.wrapping_mul(0x0110) >> 8) as u8
        };
        let (pairs, rest) = source.as_bytes().as_chunks::<2>();
        let (blocks, single) = pairs.as_chunks::<16>();
        let (places, behind) = target.as_chunks_mut::<16>();
        for (place, block) in places.iter_mut().zip(blocks) {
            // A loop, because `map` of an array is often not inlined.
            place.iter_mut().zip(block).for_each(|(byte, pair)| *byte = join(*pair));
        }
        let behind = if places.len() > blocks.len() { places[blocks.len()].as_mut_slice() } else { behind };
        for (byte, pair) in behind.iter_mut().zip(single) {
            *byte = join(*pair);
        }
        if let ([last], Some(byte)) = (rest, behind.get_mut(single.len())) {
            *byte = *last & 0xF;
        }
    }

    #[inline]
    fn load(source: &[u8], target: &mut [Self]) {
        for (pair, byte) in target.chunks_mut(2).zip(source) {
            for (element, nibble) in pair.iter_mut().zip([*byte, *byte >> 4]) {
                *element = Self::from_low_nibble(nibble);
            }
        }
    }

    fn as_stored(_: &[Self]) -> Option<&[u8]> {
        None
    }

    fn as_stored_mut(_: &mut [Self]) -> Option<&mut [u8]> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Element>(elements: &[T]) -> Vec<u8> {
        let mut bytes = vec![0xEE; stored_bytes::<T>(elements.len())];
        T::store(elements, &mut bytes);
        let mut back = vec![T::default(); elements.len()];
        T::load(&bytes, &mut back);
        assert_eq!(back, elements);
        bytes
    }

    #[test]
    fn memory_is_little_endian() {
        assert_eq!(round_trip(&[0x1234i16, -2]), [0x34, 0x12, 0xFE, 0xFF]);
        assert_eq!(round_trip(&[1.0f32]), [0, 0, 0x80, 0x3F]);
        assert_eq!(round_trip(&[f16::from_f32(-2.0)]), [0, 0xC0]);
        assert_eq!(round_trip(&[bf16::from_f32(-2.0)]), [0, 0xC0]);
        assert_eq!(round_trip(&[-1i32]), [0xFF; 4]);
        assert_eq!(round_trip(&[-1i8; 33]), [0xFF; 33]);
    }

    #[test]
    fn nibbles_are_low_first_and_signed() {
        let codes = |values: &[i8]| -> Vec<Int4> { values.iter().map(|&v| Int4::new(v).unwrap()).collect() };
        assert_eq!(round_trip(&codes(&[-8, 7, 1])), [0x78, 0x01]);
        assert_eq!(round_trip(&codes(&(-8..8).collect::<Vec<_>>())).len(), 8);
        assert_eq!([Int4::new(8), Int4::new(-9)], [None, None]);
    }

    #[test]
    fn every_number_of_nibbles_is_stored_alike_wherever_it_lies() {
        let all: Vec<Int4> = (0..200_u32).map(|i| Int4::from_low_nibble((i * 7 + i * i * 3) as u8)).collect();
        for len in 0..150 {
            for start in [0, 1, 5, 33] {
                let codes = &all[start..start + len];
                let mut naive = vec![0_u8; len.div_ceil(2)];
                for (index, code) in codes.iter().enumerate() {
                    naive[index / 2] |= (code.get().cast_unsigned() & 0xF) << (index % 2 * 4);
                }
                assert_eq!(round_trip(codes), naive, "{len} from {start}");
                // A longer target keeps what lies behind.
                let mut longer = vec![0xA5; naive.len() + 40];
                Int4::store(codes, &mut longer);
                assert_eq!(longer[..naive.len()], naive, "{len} from {start}");
                assert!(longer[naive.len()..].iter().all(|byte| *byte == 0xA5), "{len} from {start}");
            }
        }
    }

    #[test]
    fn elements_lie_in_the_host_as_they_are_stored() {
        fn check<T: Element>(elements: &mut [T]) {
            let bytes = round_trip(elements);
            if cfg!(target_endian = "little") {
                assert_eq!(T::as_stored(elements), Some(&bytes[..]));
                assert_eq!(T::as_stored_mut(elements), Some(&mut bytes.clone()[..]));
            }
        }
        check(&mut [1_i8, -2, 3]);
        check(&mut [1_i16, -2, 3]);
        check(&mut [1_i32, -2, 3]);
        check(&mut [1.5_f32, -2.0]);
        check(&mut [f16::from_f32(1.5)]);
        check(&mut [bf16::from_f32(1.5)]);
        assert_eq!((Int4::as_stored(&[Int4::MAX]), Int4::as_stored_mut(&mut [Int4::MAX])), (None, None));
    }
}
