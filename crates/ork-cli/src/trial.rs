// SPDX-License-Identifier: MIT OR Apache-2.0
//! One product with made-up operands, on the NPU and in plain loops.

use half::{bf16, f16};
use ork_driver::{Driver, DriverError, Operands, Requantise, Values};
use ork_layout::Int4;
use ork_plan::Product;

/// Sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
}

/// Operands of a product, of the whole range of their type.
pub(crate) struct Trial {
    size: Size,
    operands: Made,
}

enum Made {
    Int8(Vec<i8>, Vec<i8>),
    Int8ToInt8(Vec<i8>, Vec<i8>, Requantise),
    Int4(Vec<Int4>, Vec<Int4>),
    Int16(Vec<i16>, Vec<i16>),
    Int16Native(Vec<i16>, Vec<i16>),
    Fp16(Vec<f16>, Vec<f16>),
    Fp16ToFp16(Vec<f16>, Vec<f16>),
    Bf16(Vec<bf16>, Vec<bf16>),
    Tf32(Vec<f32>, Vec<f32>),
}

/// How a result compares with the plain loops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// Values that were compared.
    pub(crate) compared: usize,
    /// Values out of their bound.
    pub(crate) wrong: usize,
    /// Largest error as a share of its bound; 0 for integers that are all right.
    pub(crate) worst: f64,
    /// The first wrong value: row, column, what came out, what ought to.
    pub(crate) first_wrong: Option<(usize, usize, f64, f64)>,
}

/// SplitMix64: its period has no factor in common with any tile.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn many<T>(&mut self, count: usize, make: impl Fn(u64) -> T) -> Vec<T> {
        (0..count).map(|_| make(self.next())).collect()
    }
}

/// Between -2 and 2 in steps of 2^-22, so that no sum of a known model's depth leaves the range of fp16.
fn real(bits: u64) -> f32 {
    (bits & 0xFF_FFFF) as f32 / (1_u32 << 22) as f32 - 2.0
}

impl Trial {
    pub(crate) fn new(product: Product, size: Size, seed: u64) -> Self {
        let mut random = Random(seed);
        let (a, b) = (size.m * size.k, size.n * size.k);
        let mut pair = Pair { random: &mut random, a, b };
        // Operands of the int16 datapath stay where its 32-bit sums cannot saturate.
        let narrow = (f64::from(i32::MAX) / size.k as f64).sqrt().min(32767.0) as i16;
        let operands = match product {
            Product::Int8 => pair.of(|x| x as i8, Made::Int8),
            Product::Int8ToInt8 => {
                // A standard deviation of the sums becomes about 40.
                let deviation = 74.0 * 74.0 * (size.k as f64).sqrt();
                let multiplier = (40.0 / deviation * f64::from(1_u32 << 24)).clamp(1.0, 32767.0) as i16;
                let by = Requantise { multiplier, shift: 24, offset: 3 };
                pair.of(|x| x as i8, |a, b| Made::Int8ToInt8(a, b, by))
            }
            Product::Int4 => pair.of(|x| Int4::new((x % 16) as i8 - 8).unwrap_or_default(), Made::Int4),
            Product::Int16 => pair.of(|x| x as i16, Made::Int16),
            Product::Int16Native => {
                pair.of(|x| (x % (2 * narrow as u64 + 1)) as i16 - narrow, Made::Int16Native)
            }
            Product::Fp16 => pair.of(|x| f16::from_f32(real(x)), Made::Fp16),
            Product::Fp16ToFp16 => pair.of(|x| f16::from_f32(real(x)), Made::Fp16ToFp16),
            Product::Bf16 => pair.of(|x| bf16::from_f32(real(x)), Made::Bf16),
            Product::Tf32 => pair.of(real, Made::Tf32),
        };
        Self { size, operands }
    }

    /// On the NPU.
    pub(crate) fn run(&self, driver: &Driver) -> Result<Values, DriverError> {
        let operands = match &self.operands {
            Made::Int8(a, b) => Operands::Int8 { a, b },
            Made::Int8ToInt8(a, b, by) => Operands::Int8ToInt8 { a, b, by: *by },
            Made::Int4(a, b) => Operands::Int4 { a, b },
            Made::Int16(a, b) => Operands::Int16 { a, b },
            Made::Int16Native(a, b) => Operands::Int16Native { a, b },
            Made::Fp16(a, b) => Operands::Fp16 { a, b },
            Made::Fp16ToFp16(a, b) => Operands::Fp16ToFp16 { a, b },
            Made::Bf16(a, b) => Operands::Bf16 { a, b },
            Made::Tf32(a, b) => Operands::Tf32 { a, b },
        };
        driver.product(self.size.m, self.size.k, self.size.n, &operands)
    }

    /// Compares a result with plain loops: integers exactly, floats within the error of fp32 sums in any order
    /// (K + 2 roundings of the sum of magnitudes) and of the output's own rounding.
    pub(crate) fn compare(&self, values: &Values) -> Comparison {
        let got = |at: usize| match values {
            Values::I8(v) => f64::from(v[at]),
            Values::I32(v) => f64::from(v[at]),
            // Sums of the products here have fewer than 53 bits.
            Values::I64(v) => v[at] as f64,
            Values::F16(v) => v[at].to_f64(),
            Values::F32(v) => f64::from(v[at]),
        };
        match &self.operands {
            Made::Int8(a, b) => self.check(got, a, b, |x| i64::from(*x), |s| s as f64),
            Made::Int8ToInt8(a, b, by) => {
                self.check(got, a, b, |x| i64::from(*x), |s| f64::from(by.apply(s)))
            }
            Made::Int4(a, b) => self.check(got, a, b, |x| i64::from(x.get()), |s| s as f64),
            Made::Int16(a, b) | Made::Int16Native(a, b) => {
                self.check(got, a, b, |x| i64::from(*x), |s| s as f64)
            }
            Made::Fp16(a, b) => self.check_floats(got, a, b, |x| x.to_f64(), 24),
            Made::Fp16ToFp16(a, b) => self.check_floats(got, a, b, |x| x.to_f64(), 11),
            Made::Bf16(a, b) => self.check_floats(got, a, b, |x| x.to_f64(), 24),
            Made::Tf32(a, b) => {
                self.check_floats(got, a, b, |x| f64::from(f32::from_bits(x.to_bits() & !0x1FFF)), 24)
            }
        }
    }

    fn check<T>(
        &self,
        got: impl Fn(usize) -> f64,
        a: &[T],
        b: &[T],
        value: impl Fn(&T) -> i64,
        finish: impl Fn(i64) -> f64,
    ) -> Comparison {
        let expected = |row: &[T], column: &[T]| {
            let sum = row.iter().zip(column).map(|(x, y)| value(x) * value(y)).sum();
            (finish(sum), 0.0)
        };
        self.each(got, a, b, expected)
    }

    fn check_floats<T>(
        &self,
        got: impl Fn(usize) -> f64,
        a: &[T],
        b: &[T],
        value: impl Fn(&T) -> f64,
        mantissa_bits: i32,
    ) -> Comparison {
        let expected = |row: &[T], column: &[T]| {
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for product in row.iter().zip(column).map(|(x, y)| value(x) * value(y)) {
                sum += product;
                magnitude += product.abs();
            }
            let sums = (row.len() + 2) as f64 * magnitude * 2.0_f64.powi(-24);
            (sum, sums + sum.abs() * 2.0_f64.powi(-mantissa_bits))
        };
        self.each(got, a, b, expected)
    }

    fn each<T>(
        &self,
        got: impl Fn(usize) -> f64,
        a: &[T],
        b: &[T],
        expected: impl Fn(&[T], &[T]) -> (f64, f64),
    ) -> Comparison {
        let Size { k, n, .. } = self.size;
        let mut out = Comparison { compared: self.size.m * n, wrong: 0, worst: 0.0, first_wrong: None };
        for (row, x) in a.chunks_exact(k).enumerate() {
            for (column, y) in b.chunks_exact(k).enumerate() {
                let (right, bound) = expected(x, y);
                let got = got(row * n + column);
                let error = (got - right).abs();
                let is_wrong = error.is_nan() || error > bound;
                if is_wrong {
                    out.wrong += 1;
                    out.first_wrong.get_or_insert((row, column, got, right));
                } else if bound > 0.0 {
                    out.worst = out.worst.max(error / bound);
                }
            }
        }
        out
    }
}

struct Pair<'a> {
    random: &'a mut Random,
    a: usize,
    b: usize,
}

impl Pair<'_> {
    fn of<T>(&mut self, make: impl Fn(u64) -> T + Copy, both: impl FnOnce(Vec<T>, Vec<T>) -> Made) -> Made {
        // The upper half of the bits is the better one.
        let high = move |bits: u64| make(bits >> 32);
        let a = self.random.many(self.a, high);
        let b = self.random.many(self.b, high);
        both(a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_use_the_range_of_their_type() {
        let mut random = Random(1);
        let drawn = random.many(100_000, |bits| real(bits >> 32));
        assert!(drawn.iter().all(|x| (-2.0..2.0).contains(x)));
        assert!(drawn.iter().any(|x| *x < -1.99) && drawn.iter().any(|x| *x > 1.99));
        let Made::Int4(a, _) = Trial::new(Product::Int4, Size { m: 10, k: 100, n: 1 }, 1).operands else {
            unreachable!()
        };
        assert!((-8..8).all(|code| a.iter().any(|x| x.get() == code)));
    }

    #[test]
    fn a_wrong_value_is_found() {
        let trial = Trial::new(Product::Int8, Size { m: 2, k: 5, n: 3 }, 7);
        let Made::Int8(a, b) = &trial.operands else { unreachable!() };
        let mut right: Vec<i32> = Vec::new();
        for row in a.chunks(5) {
            for column in b.chunks(5) {
                right.push(row.iter().zip(column).map(|(x, y)| i32::from(*x) * i32::from(*y)).sum());
            }
        }
        assert_eq!(trial.compare(&Values::I32(right.clone())).wrong, 0);
        right[4] += 1;
        let found = trial.compare(&Values::I32(right));
        assert_eq!((found.compared, found.wrong), (6, 1));
        assert_eq!(found.first_wrong.map(|(row, column, ..)| (row, column)), Some((1, 1)));
    }
}
