// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shows that a checker fires: flips one bit at a time and wants each flip noticed.
//!
//! A checker that has never refused anything proves nothing. This works on bytes; for
//! words, a register program for instance, pass their little-endian bytes and the bits of interest.
#![forbid(unsafe_code)]

/// Flips each of `bits` in turn (bit `i` is bit `i % 8` of byte `i / 8`) and returns those whose flip
/// `accepts` did not notice.
///
/// # Panics
/// If `accepts` refuses the unchanged bytes, or a bit lies outside them.
pub fn unnoticed(
    bytes: &[u8],
    bits: impl IntoIterator<Item = usize>,
    mut accepts: impl FnMut(&[u8]) -> bool,
) -> Vec<usize> {
    assert!(accepts(bytes), "the checker refuses even the unchanged bytes");
    let mut bytes = bytes.to_vec();
    let mut flip_is_accepted = |bit: &usize| {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let accepted = accepts(&bytes);
        bytes[bit / 8] ^= 1 << (bit % 8);
        accepted
    };
    bits.into_iter().filter(|bit| flip_is_accepted(bit)).collect()
}

/// Wants every flip of `bits` noticed.
///
/// # Panics
/// If a flip goes unnoticed, if there are no bits to flip, and as [`unnoticed`].
pub fn assert_fires(bytes: &[u8], bits: impl IntoIterator<Item = usize>, accepts: impl FnMut(&[u8]) -> bool) {
    let mut flips = 0;
    let missed = unnoticed(bytes, bits.into_iter().inspect(|_| flips += 1), accepts);
    assert!(flips > 0, "no bit was flipped, so nothing was shown");
    assert!(missed.is_empty(), "the checker missed {} of {flips} flips: bits {missed:?}", missed.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notices every change but one of bit 3 of byte 1.
    fn accepts(bytes: &[u8]) -> bool {
        bytes[0] == 7 && bytes[1] & !8 == 1
    }

    #[test]
    fn blind_spots_are_found() {
        assert_eq!(unnoticed(&[7, 1], 0..16, accepts), [11]);
        assert_fires(&[7, 1], (0..16).filter(|bit| *bit != 11), accepts);
    }

    #[test]
    #[should_panic(expected = "missed 1 of 16 flips: bits [11]")]
    fn a_blind_checker_is_refused() {
        assert_fires(&[7, 1], 0..16, accepts);
    }

    #[test]
    #[should_panic(expected = "refuses even the unchanged")]
    fn a_checker_that_refuses_everything_is_refused() {
        assert_fires(&[7, 1], 0..16, |_| false);
    }

    #[test]
    #[should_panic(expected = "nothing was shown")]
    fn no_flips_show_nothing() {
        assert_fires(&[7, 1], 0..0, accepts);
    }
}
