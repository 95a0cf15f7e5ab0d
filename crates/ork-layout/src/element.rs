// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt::Debug;

mod sealed {
    pub trait Sealed {}
    impl Sealed for i8 {}
    impl Sealed for u16 {}
}

/// An element of `A` or `B` as the host holds it: `i8`, or the 16 bits of a float as `u16`.
///
/// Device memory is little endian whatever the host is.
pub trait Element: sealed::Sealed + Copy + Default + Debug + PartialEq + Send + Sync {
    /// Size in memory.
    const BYTES: usize;

    /// Writes `source` to `target`, which is exactly as long.
    fn store(source: &[Self], target: &mut [u8]);

    /// Reads as many elements as `target` holds.
    fn load(source: &[u8], target: &mut [Self]);
}

impl Element for i8 {
    const BYTES: usize = 1;

    #[inline]
    fn store(source: &[Self], target: &mut [u8]) {
        // Nearly every call stores one row of a weight tile; a known length makes it one vector move.
        if let (Ok(source), Ok(target)) =
            (<&[i8; 32]>::try_from(source), <&mut [u8; 32]>::try_from(&mut *target))
        {
            *target = source.map(i8::cast_unsigned);
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
}

impl Element for u16 {
    const BYTES: usize = 2;

    #[inline]
    fn store(source: &[Self], target: &mut [u8]) {
        for (bytes, element) in target.chunks_exact_mut(2).zip(source) {
            bytes.copy_from_slice(&element.to_le_bytes());
        }
    }

    #[inline]
    fn load(source: &[u8], target: &mut [Self]) {
        for (element, bytes) in target.iter_mut().zip(source.chunks_exact(2)) {
            *element = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
    }
}
