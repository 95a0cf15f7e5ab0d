// SPDX-License-Identifier: MIT OR Apache-2.0
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A seeded stream of test data: xoshiro256**, whose period is 2²⁵⁶ − 1.
///
/// The same seed gives the same data on every machine. For several streams in one test take
/// [`lane`](Self::lane)s of one seed: neighbouring lanes are 2¹²⁸ draws apart and never meet.
#[derive(Clone, Debug)]
pub struct Stream(Xoshiro256StarStar);

impl Stream {
    /// The stream of this seed; the same as its lane 0.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256StarStar::seed_from_u64(seed))
    }

    /// One of several streams of the same seed that do not overlap. Costs `lane` jumps.
    pub fn lane(seed: u64, lane: u32) -> Self {
        let mut stream = Self::new(seed);
        for _ in 0..lane {
            stream.0.jump();
        }
        stream
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing lies below zero");
        // The largest multiple of `bound` in 64 bits; draws beyond it would favour small results.
        let limit = u64::MAX - u64::MAX % bound;
        loop {
            let draw = self.next_u64();
            if draw < limit {
                return draw % bound;
            }
        }
    }

    /// Uniform in an inclusive range.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn within(&mut self, range: RangeInclusive<u32>) -> u32 {
        assert!(!range.is_empty(), "nothing lies in {range:?}");
        let width = u64::from(range.end() - range.start()) + 1;
        range.start() + self.below(width) as u32
    }

    /// In `1..=max`, every order of magnitude as likely as the next: a bit length is drawn first,
    /// then a number of that length.
    ///
    /// # Panics
    /// If `max` is zero.
    pub fn log_uniform(&mut self, max: u64) -> u64 {
        assert!(max > 0, "no positive number is at most zero");
        let bits_max = u64::from(64 - max.leading_zeros());
        let bits = self.below(bits_max) + 1;
        let low = 1_u64 << (bits - 1);
        let high = (low + (low - 1)).min(max);
        low + self.below(high - low + 1)
    }

    /// Puts a slice into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for unplaced in (2..=items.len()).rev() {
            let pick = self.below(unplaced as u64) as usize;
            items.swap(unplaced - 1, pick);
        }
    }

    /// Uniform bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Uniform over all of int8, −128 included.
    pub fn i8s(&mut self, len: usize) -> Vec<i8> {
        self.bytes(len).into_iter().map(u8::cast_signed).collect()
    }

    /// Only −128 and 127: the largest sums an int8 matmul can produce, of both signs.
    pub fn i8s_extreme(&mut self, len: usize) -> Vec<i8> {
        self.bytes(len).into_iter().map(|b| if b & 1 == 0 { i8::MIN } else { i8::MAX }).collect()
    }

    /// Uniform over all of int4: −8 to 7.
    pub fn i4s(&mut self, len: usize) -> Vec<i8> {
        self.bytes(len).into_iter().map(|byte| (byte as i8) >> 4).collect()
    }

    /// Uniform integers of at most this magnitude: as floats they make sums without rounding, so that a float path can be
    /// checked bit by bit.
    pub fn integers(&mut self, len: usize, magnitude: u32) -> Vec<f32> {
        let width = 2 * u64::from(magnitude) + 1;
        (0..len).map(|_| (self.below(width) as i64 - i64::from(magnitude)) as f32).collect()
    }

    /// Of both signs, with magnitudes of every power of two from 2^`low` to 2^`high`, all as likely.
    pub fn f32s_between(&mut self, len: usize, low: i32, high: i32) -> Vec<f32> {
        let powers = u64::from(high.abs_diff(low)) + 1;
        (0..len)
            .map(|_| {
                let power = low + self.below(powers) as i32;
                let mantissa = 1.0 + self.below(1 << 23) as f32 / (1 << 23) as f32;
                let sign = if self.next_u64() & 1 == 0 { 1.0 } else { -1.0 };
                sign * mantissa * (power as f32).exp2()
            })
            .collect()
    }

    /// Uniform over all of int16.
    pub fn i16s(&mut self, len: usize) -> Vec<i16> {
        self.bytes(2 * len).as_chunks().0.iter().map(|b| i16::from_le_bytes(*b)).collect()
    }

    /// Uniform over the bit patterns of finite `f32`: every exponent, both signs, subnormals, −0.0.
    pub fn f32s(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| {
                loop {
                    let value = f32::from_bits((self.next_u64() >> 32) as u32);
                    if value.is_finite() {
                        break value;
                    }
                }
            })
            .collect()
    }

    /// Uniform in −1…1, in steps of 2⁻²³ (each exact in `f32`).
    pub fn f32s_unit(&mut self, len: usize) -> Vec<f32> {
        const STEPS: i64 = 1 << 23;
        (0..len)
            .map(|_| {
                let step = self.below(2 * STEPS as u64 + 1) as i64 - STEPS;
                step as f32 / STEPS as f32
            })
            .collect()
    }

    /// Bell-shaped around zero with a standard deviation of one, and one value in 256 sixteen times as
    /// large: the outliers that make activations hard to quantise.
    pub fn f32s_activation(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| {
                let bits = self.next_u64();
                // Twelve uniform numbers have a sum of variance 1; five bits each are enough for a bell.
                let sum: u32 = (0..12).map(|i| (bits >> (5 * i)) as u32 & 31).sum();
                let bell = (sum as f32 - 12.0 * 15.5) / 32.0;
                if self.below(256) == 0 { 16.0 * bell } else { bell }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_xoshiro256_star_star() {
        // The published recurrence, written out. First result by hand from the state 1, 2, 3, 4:
        // rotl(2 · 5, 7) · 9 = 1280 · 9 = 11520.
        let mut state = [1_u64, 2, 3, 4];
        let mut step = || {
            let result = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
            let shifted = state[1] << 17;
            state[2] ^= state[0];
            state[3] ^= state[1];
            state[1] ^= state[2];
            state[0] ^= state[3];
            state[2] ^= shifted;
            state[3] = state[3].rotate_left(45);
            result
        };
        let mut seed = [0; 32];
        for (word, value) in seed.as_chunks_mut::<8>().0.iter_mut().zip([1_u64, 2, 3, 4]) {
            *word = value.to_le_bytes();
        }
        let mut generator = Xoshiro256StarStar::from_seed(seed);
        assert_eq!(generator.clone().next_u64(), 11520);
        for _ in 0..1000 {
            assert_eq!(generator.next_u64(), step());
        }
    }

    #[test]
    fn streams_are_pinned() {
        // A change here silently changes every test input of the project.
        assert_eq!(Stream::new(0).next_u64(), 0x99ec_5f36_cb75_f2b4);
        assert_eq!(Stream::new(1).i8s(8), [-59, 16, -57, 15, 109, -81, -14, -77]);
    }

    #[test]
    fn lanes_differ_and_lane_zero_is_the_seed() {
        let draws: Vec<_> = (0..4).map(|lane| Stream::lane(7, lane).next_u64()).collect();
        assert_eq!(draws[0], Stream::new(7).next_u64());
        for (i, a) in draws.iter().enumerate() {
            assert!(draws[..i].iter().all(|b| a != b));
        }
    }

    #[test]
    fn integers_cover_their_whole_range() {
        let mut stream = Stream::new(2);
        let mut seen = [0_u32; 256];
        for x in stream.i8s(256 * 1024) {
            seen[usize::from(x.cast_unsigned())] += 1;
        }
        // 1024 expected each, with a standard deviation of 32.
        assert!(seen.iter().all(|count| (800..1250).contains(count)), "{seen:?}");

        let wide = stream.i16s(1 << 20);
        assert!(wide.contains(&i16::MIN) && wide.contains(&i16::MAX) && wide.contains(&0));
        let extreme = stream.i8s_extreme(1000);
        assert!(extreme.contains(&i8::MIN) && extreme.contains(&i8::MAX));
        assert!(extreme.iter().all(|x| matches!(*x, i8::MIN | i8::MAX)));
    }

    #[test]
    fn floats_cover_every_exponent_and_are_finite() {
        let mut seen = [false; 256];
        let values = Stream::new(3).f32s(1 << 14);
        for x in &values {
            assert!(x.is_finite());
            seen[(x.to_bits() >> 23 & 0xff) as usize] = true;
        }
        assert!(seen[..255].iter().all(|seen| *seen));
        assert!(values.iter().any(|x| x.is_subnormal()));
    }

    #[test]
    fn bounded_draws_stay_in_bounds_and_reach_them() {
        let mut stream = Stream::new(4);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[stream.below(7) as usize] = true;
            assert!((3..=5).contains(&stream.within(3..=5)));
            assert!((1..=1000).contains(&stream.log_uniform(1000)));
            assert_eq!(stream.log_uniform(1), 1);
            assert!(stream.log_uniform(u64::MAX) > 0);
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(stream.within(9..=9), 9);
        assert!(stream.f32s_unit(1000).iter().all(|x| x.abs() <= 1.0));
    }

    #[test]
    fn activations_have_unit_spread_and_outliers() {
        let values = Stream::new(5).f32s_activation(1 << 16);
        let typical: Vec<_> = values.iter().filter(|x| x.abs() < 6.0).map(|x| f64::from(*x)).collect();
        let mean = typical.iter().sum::<f64>() / typical.len() as f64;
        let variance = typical.iter().map(|x| x * x).sum::<f64>() / typical.len() as f64;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((0.9..1.1).contains(&variance), "{variance}");
        assert!(values.iter().any(|x| x.abs() > 16.0));
    }

    #[test]
    fn a_shuffle_keeps_the_items() {
        let mut items: Vec<_> = (0..100).collect();
        Stream::new(6).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
