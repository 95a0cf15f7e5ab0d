// SPDX-License-Identifier: MIT OR Apache-2.0
//! Products of operands as they are, in every precision.

use half::{bf16, f16};
use ork_layout::{Element, Format, Int4, OutputLayout};
use ork_plan::{HostWork, Lowered, Product};
use ork_synth::OutputStage;

use crate::accumulate::{copy_rows, each_row, float_rows, widen_row};
use crate::driver::{Driver, Job, Loaded, NARROW_SUM_K_MAX, check_len};
use crate::{DriverError, Weight};

/// How sums become int8: `clamp(round_half_even(sum * multiplier / 2^shift) + offset)` (`isa.md` §7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requantise {
    /// Multiplier.
    pub multiplier: i16,
    /// Right shift, at most 4095.
    pub shift: u32,
    /// Added after the shift.
    pub offset: i32,
}

/// Both operands of a product: `a` has M rows of K elements, `b` has N rows (output channels) of K elements.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "a and b are described above")]
pub enum Operands<'a> {
    /// [`Product::Int8`]: [`Values::I32`], or [`Values::I64`] where 32 bits might not hold a sum.
    Int8 { a: &'a [i8], b: &'a [i8] },
    /// [`Product::Int8ToInt8`]: [`Values::I8`].
    Int8ToInt8 { a: &'a [i8], b: &'a [i8], by: Requantise },
    /// [`Product::Int4`]: [`Values::I32`], the sum over the K slices of sums that saturate at 16 bits.
    Int4 { a: &'a [Int4], b: &'a [Int4] },
    /// [`Product::Int16`]: [`Values::I64`].
    Int16 { a: &'a [i16], b: &'a [i16] },
    /// [`Product::Int16Native`]: [`Values::I64`].
    Int16Native { a: &'a [i16], b: &'a [i16] },
    /// [`Product::Fp16`]: [`Values::F32`].
    Fp16 { a: &'a [f16], b: &'a [f16] },
    /// [`Product::Fp16ToFp16`]: [`Values::F16`].
    Fp16ToFp16 { a: &'a [f16], b: &'a [f16] },
    /// [`Product::Bf16`]: [`Values::F32`].
    Bf16 { a: &'a [bf16], b: &'a [bf16] },
    /// [`Product::Tf32`]: [`Values::F32`].
    Tf32 { a: &'a [f32], b: &'a [f32] },
}

/// The result of a product: M rows of N values.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the types say it")]
pub enum Values {
    I8(Vec<i8>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Operands<'_> {
    /// Which product it is.
    #[must_use]
    pub const fn product(&self) -> Product {
        match self {
            Self::Int8 { .. } => Product::Int8,
            Self::Int8ToInt8 { .. } => Product::Int8ToInt8,
            Self::Int4 { .. } => Product::Int4,
            Self::Int16 { .. } => Product::Int16,
            Self::Int16Native { .. } => Product::Int16Native,
            Self::Fp16 { .. } => Product::Fp16,
            Self::Fp16ToFp16 { .. } => Product::Fp16ToFp16,
            Self::Bf16 { .. } => Product::Bf16,
            Self::Tf32 { .. } => Product::Tf32,
        }
    }
}

/// Sizes of a product.
#[derive(Clone, Copy)]
struct Size {
    m: usize,
    k: usize,
    n: usize,
}

impl Driver {
    /// Multiplies `a` (M x K) by `b` (N rows of K). The weight lives on the device for this one product; a weight that
    /// stays is loaded with [`Driver::load_elements`].
    ///
    /// # Errors
    /// [`DriverError`]: [`DriverError::Declined`] with the law that forbids it, and whatever fails later.
    pub fn product(
        &self,
        m: usize,
        k: usize,
        n: usize,
        operands: &Operands<'_>,
    ) -> Result<Values, DriverError> {
        let size = Size { m, k, n };
        let lowered = operands.product().lower(u32::try_from(k).unwrap_or(u32::MAX));
        if lowered.host != HostWork::Nothing {
            self.counters.lock().host_finished += 1;
        }
        match *operands {
            Operands::Int8 { a, b } if k <= NARROW_SUM_K_MAX => {
                let weight = self.load_slice("operand", lowered.format, size, b)?;
                let mut out = vec![0; m * n];
                self.matmul_codes(&weight, m, a, &mut out)?;
                Ok(Values::I32(out))
            }
            Operands::Int8 { a, b } => Ok(Values::I64(self.sums::<_, i32, i64>(lowered, size, a, b)?)),
            Operands::Int8ToInt8 { a, b, by } => self.requantised(lowered, size, a, b, by).map(Values::I8),
            Operands::Int4 { a, b } => Ok(Values::I32(self.sums::<_, i16, i32>(lowered, size, a, b)?)),
            Operands::Int16 { a, b } => self.bytewise(size, a, b).map(Values::I64),
            Operands::Int16Native { a, b } => {
                check_int16_sum(k, a, b)?;
                Ok(Values::I64(self.sums::<_, i32, i64>(lowered, size, a, b)?))
            }
            Operands::Fp16 { a, b } => self.float_sums(lowered, size, a, b).map(Values::F32),
            Operands::Fp16ToFp16 { a, b } if lowered.host == HostWork::Narrow => {
                let sums: Vec<f64> = self.sums::<_, f32, f64>(lowered, size, a, b)?;
                Ok(Values::F16(sums.into_iter().map(f16::from_f64).collect()))
            }
            Operands::Fp16ToFp16 { a, b } => {
                let weight = self.load_slice("operand", lowered.format, size, b)?;
                let mut out = vec![f16::ZERO; m * n];
                self.multiply(&weight, m, a, &mut out, OutputStage::Plain, copy_rows)?;
                Ok(Values::F16(out))
            }
            Operands::Bf16 { a, b } => self.float_sums(lowered, size, a, b).map(Values::F32),
            Operands::Tf32 { a, b } => self.float_sums(lowered, size, a, b).map(Values::F32),
        }
    }

    /// Uploads a weight whose rows are elements of the format's operand precision. `rows(j, out)` fills `out` with row
    /// `j`; it is called once for each row, from several threads.
    ///
    /// # Errors
    /// As [`Driver::load`], and [`DriverError::Precision`] for elements of another precision.
    pub fn load_elements<T: Element>(
        &self,
        name: &str,
        format: Format,
        k: usize,
        n: usize,
        rows: &(dyn Fn(usize, &mut [T]) + Sync),
    ) -> Result<Weight, DriverError> {
        check_precision::<T>(name, format)?;
        let layout = self.layout(name, format, k, n)?;
        self.count_weight(Weight::from_elements((&self.residency, self.options.verify), layout, name, rows)?)
    }

    fn load_slice<T: Element>(
        &self,
        name: &str,
        format: Format,
        Size { k, n, .. }: Size,
        b: &[T],
    ) -> Result<Weight, DriverError> {
        check_len("the weight", b.len(), n * k)?;
        self.load_elements(name, format, k, n, &|row, out| out.copy_from_slice(&b[row * k..(row + 1) * k]))
    }

    /// Multiplies rows of elements by a weight. `read` turns a pass's surfaces into its rows of results.
    pub(crate) fn multiply<T: Element, R>(
        &self,
        weight: &Weight,
        m: usize,
        a: &[T],
        out: &mut [R],
        stage: OutputStage,
        read: impl Fn(&OutputLayout, &[u8], &mut [R]),
    ) -> Result<(), DriverError> {
        let (k, n) = (weight.k(), weight.n());
        check_precision::<T>(weight.name(), weight.format())?;
        check_len("the activation", a.len(), m * k)?;
        check_len("the result", out.len(), m * n)?;
        let mut engine = self.engine.lock();
        self.run(
            &mut engine,
            Job { weight, m, stage },
            &mut Loaded::default(),
            |features, m0, host, _| {
                features.write_rows(&a[m0 * k..][..features.rows() as usize * k], host);
                Ok(())
            },
            |outputs, m0, surfaces, _| {
                read(outputs, surfaces, &mut out[m0 * n..][..outputs.rows() as usize * n]);
            },
        )
    }

    /// Sums of type `S` on the NPU, whose K slices the host adds as `W`.
    fn sums<T: Element, S: Element, W>(
        &self,
        lowered: Lowered,
        size: Size,
        a: &[T],
        b: &[T],
    ) -> Result<Vec<W>, DriverError>
    where
        W: Copy + Default + std::ops::AddAssign + From<S>,
    {
        let weight = self.load_slice("operand", lowered.format, size, b)?;
        let mut out = vec![W::default(); size.m * size.n];
        self.multiply(&weight, size.m, a, &mut out, OutputStage::Plain, each_row(widen_row::<S, W>))?;
        Ok(out)
    }

    /// fp32 sums; those of K slices are added in f64 and rounded once.
    fn float_sums<T: Element>(
        &self,
        lowered: Lowered,
        size: Size,
        a: &[T],
        b: &[T],
    ) -> Result<Vec<f32>, DriverError> {
        let weight = self.load_slice("operand", lowered.format, size, b)?;
        let mut out = vec![0.0; size.m * size.n];
        self.multiply(&weight, size.m, a, &mut out, OutputStage::Plain, float_rows)?;
        Ok(out)
    }

    fn requantised(
        &self,
        lowered: Lowered,
        size: Size,
        a: &[i8],
        b: &[i8],
        by: Requantise,
    ) -> Result<Vec<i8>, DriverError> {
        if lowered.host == HostWork::Requantise {
            let sums: Vec<i64> = self.sums::<_, i32, i64>(lowered, size, a, b)?;
            return Ok(sums.into_iter().map(|sum| by.apply(sum)).collect());
        }
        let weight = self.load_slice("operand", lowered.format, size, b)?;
        let mut out = vec![0i8; size.m * size.n];
        let Requantise { multiplier, shift, offset } = by;
        let stage = OutputStage::Requantise { multiplier, shift, offset };
        self.multiply(&weight, size.m, a, &mut out, stage, copy_rows)?;
        Ok(out)
    }

    /// int16 through bytes: with `x = X + 128` and `X = 256 h + l`, `h` and `l` signed bytes, the sum of `x y` is the sum of
    /// `X Y` plus 128 times the sums of all `X` of the row and all `Y` of the column, plus 128 * 128 * K. One int8
    /// product of 2 M rows and 2 N columns holds the sums of `h h`, `h l`, `l h` and `l l`.
    fn bytewise(&self, size: Size, a: &[i16], b: &[i16]) -> Result<Vec<i64>, DriverError> {
        let Size { m, k, n } = size;
        check_len("the activation", a.len(), m * k)?;
        check_len("the weight", b.len(), n * k)?;
        let doubled = Size { m: 2 * m, k, n: 2 * n };
        let lowered = Product::Int8.lower(u32::try_from(k).unwrap_or(u32::MAX));
        let partial: Vec<i64> = self.sums::<_, i32, i64>(lowered, doubled, &bytes_of(a), &bytes_of(b))?;
        let shifted = |row: &[i16]| row.iter().map(|x| i64::from(*x) - 128).sum::<i64>();
        let columns: Vec<i64> = b.chunks_exact(k).map(shifted).collect();
        let mut out = Vec::with_capacity(m * n);
        for (row, x) in a.chunks_exact(k).map(shifted).enumerate() {
            let (high, low) = (&partial[row * 2 * n..][..2 * n], &partial[(m + row) * 2 * n..][..2 * n]);
            for (column, y) in columns.iter().enumerate() {
                let (hh, hl, lh, ll) = (high[column], high[n + column], low[column], low[n + column]);
                out.push(65536 * hh + 256 * (hl + lh) + ll + 128 * (x + y) + 128 * 128 * k as i64);
            }
        }
        Ok(out)
    }
}

impl Requantise {
    /// What the output stage makes of a sum.
    #[must_use]
    pub fn apply(self, sum: i64) -> i8 {
        // The accumulator holds 32 bits.
        let sum = sum.clamp(i32::MIN.into(), i32::MAX.into());
        let product = sum * i64::from(self.multiplier);
        let scaled = match self.shift {
            0 => product,
            // Less than half of one.
            shift if shift > 62 => 0,
            shift => {
                let (floor, half) = (product >> shift, 1i64 << (shift - 1));
                let rest = product - (floor << shift);
                floor + i64::from(rest > half || (rest == half && floor & 1 == 1))
            }
        };
        scaled.saturating_add(self.offset.into()).clamp(-128, 127) as i8
    }
}

/// The high bytes of all elements, then the low ones: `x - 128 = 256 h + l`.
fn bytes_of(elements: &[i16]) -> Vec<i8> {
    let high = elements.iter().map(|x| (x >> 8) as i8);
    // l = x - 128 - 256 h is the unsigned low byte less 128.
    let low = elements.iter().map(|x| ((x & 0xFF) - 128) as i8);
    high.chain(low).collect()
}

/// The int16 datapath saturates at 32 bits; a product is asked for only where no sum can get there.
fn check_int16_sum(k: usize, a: &[i16], b: &[i16]) -> Result<(), DriverError> {
    let largest = |row: &[i16]| row.iter().map(|x| u64::from(x.unsigned_abs())).max().unwrap_or(0);
    let largest = largest(a) * largest(b);
    // A slice is at most K deep, and what fits K fits a slice.
    if largest.saturating_mul(k as u64) <= i32::MAX as u64 {
        Ok(())
    } else {
        Err(DriverError::Int16Sum { k, largest })
    }
}

pub(crate) fn check_precision<T: Element>(name: &str, format: Format) -> Result<(), DriverError> {
    if T::OPERAND == format.input() {
        Ok(())
    } else {
        Err(DriverError::Precision { name: name.to_owned(), format, found: T::OPERAND })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_int16() {
        let all: Vec<i16> = (i16::MIN..=i16::MAX).collect();
        let bytes = bytes_of(&all);
        let (high, low) = bytes.split_at(all.len());
        for ((x, h), l) in all.iter().zip(high).zip(low) {
            assert_eq!(i32::from(*x), 256 * i32::from(*h) + i32::from(*l) + 128);
        }
    }

    #[test]
    fn requantising_rounds_half_to_even() {
        let by = |multiplier, shift, offset| Requantise { multiplier, shift, offset };
        let halves = [1, 3, 5, -3, -1, -5].map(|sum| by(1, 1, 0).apply(sum));
        assert_eq!(halves, [0, 2, 2, -2, 0, -2]);
        assert_eq!([300, -300].map(|sum| by(1, 0, 0).apply(sum)), [127, -128]);
        assert_eq!(by(-1, 0, 5).apply(100), -95);
        assert_eq!(by(0x4000, 14, -3).apply(77), 74);
        assert_eq!(by(i16::MAX, 4095, 7).apply(i64::MAX), 7);
        assert_eq!(by(i16::MIN, 0, i32::MIN).apply(i64::MAX), -128);
    }
}
