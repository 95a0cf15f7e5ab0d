// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why test data must not repeat, and checks that it does not.
//!
//! A layout error moves whole tiles: a wrong stride reads tile 5 where tile 3 belongs. If the data
//! repeats with a period that fits the tile size, tiles 3 and 5 hold the same bytes, and the
//! result is right for the wrong reason. Handy fill patterns such as `i % 251` or a small linear
//! congruential generator do exactly that. Data of period `p` cut into tiles of `t` shows only
//! `p / gcd(p, t)` different tiles.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

use crate::Stream;

/// The counter-example: full-range data that repeats after exactly `period` elements. Use it to
/// show that a period check fires, never as input of another test.
///
/// # Panics
/// If `period` is zero.
pub fn periodic_i8s(seed: u64, period: usize, len: usize) -> Vec<i8> {
    assert!(period > 0, "a period has at least one element");
    // −128 opens the block and occurs nowhere else in it, so no shorter period exists.
    let tail = Stream::new(seed).i8s(period - 1).into_iter().map(|x| x.max(-127));
    let block: Vec<_> = std::iter::once(i8::MIN).chain(tail).collect();
    block.iter().copied().cycle().take(len).collect()
}

/// The smallest period that the data shows at least twice in full, if there is one.
pub fn measured_period<T: PartialEq>(data: &[T]) -> Option<usize> {
    // border[i]: length of the longest proper prefix of data[..=i] that is also its suffix.
    let mut border = vec![0; data.len()];
    for i in 1..data.len() {
        let mut length = border[i - 1];
        while length > 0 && data[i] != data[length] {
            length = border[length - 1];
        }
        border[i] = length + usize::from(data[i] == data[length]);
    }
    let period = data.len() - border.last()?;
    (2 * period <= data.len()).then_some(period)
}

/// Refuses data whose period shares a factor with a tile size.
///
/// Coprime alone is enough only as long as there are at most `period` tiles;
/// [`assert_tiles_differ`] checks the data itself.
///
/// # Panics
/// If `period` and `tile` have a common factor, or either is zero.
pub fn assert_period_coprime(period: u64, tile: u64) {
    assert!(period > 0 && tile > 0, "a period of {period} and tiles of {tile}: both must be positive");
    let common = gcd(period, tile);
    assert!(
        common == 1,
        "data of period {period} in tiles of {tile} shows only {} different tiles: swapped tiles \
         would go unnoticed (common factor {common})",
        period / common,
    );
}

/// Refuses data in which two whole tiles are equal.
///
/// # Panics
/// If two tiles are equal, naming both, or if `tile` is zero.
pub fn assert_tiles_differ<T: Eq + Hash + Debug>(data: &[T], tile: usize) {
    let mut first_seen = HashMap::new();
    for (index, content) in data.chunks_exact(tile).enumerate() {
        if let Some(earlier) = first_seen.insert(content, index) {
            panic!(
                "tiles {earlier} and {index} of {tile} elements are equal: swapping them would go unnoticed"
            );
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_of_periodic_data_is_found() {
        for period in [1, 2, 3, 31, 32, 64, 251, 1000] {
            let data = periodic_i8s(1, period, 3 * period + period / 2);
            assert_eq!(measured_period(&data), Some(period));
        }
        assert_eq!(measured_period::<i8>(&[]), None);
        assert_eq!(measured_period(&[1]), None);
        assert_eq!(measured_period(&[1, 1]), Some(1));
        assert_eq!(measured_period(&[1, 2, 1]), None);
    }

    #[test]
    fn streams_show_no_period_and_no_equal_tiles() {
        let data = Stream::new(1).i8s(1 << 20);
        assert_eq!(measured_period(&data), None);
        assert_tiles_differ(&data, 32);
    }

    #[test]
    fn coprime_periods_pass() {
        assert_period_coprime(251, 32);
        assert_period_coprime(1, 32);
        assert_period_coprime(u64::MAX, 32);
    }

    #[test]
    #[should_panic(expected = "shows only 2 different tiles")]
    fn a_common_factor_is_refused() {
        let data = periodic_i8s(1, 64, 4096);
        let period = measured_period(&data).expect("it is periodic");
        assert_period_coprime(period as u64, 32);
    }

    #[test]
    #[should_panic(expected = "tiles 0 and 2 of 32 elements are equal")]
    fn equal_tiles_are_refused() {
        assert_tiles_differ(&periodic_i8s(1, 64, 4096), 32);
    }

    #[test]
    #[should_panic(expected = "tiles 0 and 3 of 32 elements are equal")]
    fn a_coprime_period_that_is_too_short_is_refused() {
        assert_period_coprime(3, 32);
        assert_tiles_differ(&periodic_i8s(1, 3, 4096), 32);
    }

    #[test]
    fn a_swap_of_tiles_hides_in_periodic_data_only() {
        let swap = |data: &[i8]| {
            let mut moved = data.to_vec();
            moved[32..].rotate_left(64);
            moved != data
        };
        assert!(!swap(&periodic_i8s(1, 32, 512)));
        assert!(swap(&Stream::new(1).i8s(512)));
    }
}
