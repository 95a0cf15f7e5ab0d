// SPDX-License-Identifier: MIT OR Apache-2.0
//! One product with a weight that is there, by the types of its operands.

use half::{bf16, f16};
use ork_layout::{Element, Format, Int4};
use ork_plan::Datapath;
use ork_synth::OutputStage;

use crate::accumulate::{copy_rows, each_row, float_rows, widen_row};
use crate::driver::{Driver, check_len};
use crate::transitions::Operation;
use crate::{DriverError, Requantise, Weight};

/// Rows to multiply with a weight (M x K), and where the result goes (M x N). Each is for weights of one format; what
/// happens to the sums is said at [`Product`](ork_plan::Product).
#[derive(Debug)]
#[allow(missing_docs, reason = "a and out are described above")]
pub enum Work<'a> {
    /// [`Format::INT8_INT32`]: exact sums.
    Int8 { a: &'a [i8], out: &'a mut [i32] },
    /// [`Format::INT8_INT8`]: requantised sums.
    Int8ToInt8 { a: &'a [i8], by: Requantise, out: &'a mut [i8] },
    /// [`Format::INT4_INT16`]: sums saturate at 16 bits in each K slice, which the host adds.
    Int4 { a: &'a [Int4], out: &'a mut [i32] },
    /// [`Format::INT16_INT32`]: sums saturate at 32 bits in each K slice, which the host adds.
    Int16 { a: &'a [i16], out: &'a mut [i64] },
    /// [`Format::FP16_FP32`]: K slices are added in f64 and rounded once.
    Fp16 { a: &'a [f16], out: &'a mut [f32] },
    /// [`Format::FP16_FP16`]: rounded sums.
    Fp16ToFp16 { a: &'a [f16], out: &'a mut [f16] },
    /// [`Format::BF16_FP32`]: as for fp16.
    Bf16 { a: &'a [bf16], out: &'a mut [f32] },
    /// [`Format::TF32_FP32`]: as for fp16.
    Tf32 { a: &'a [f32], out: &'a mut [f32] },
}

impl Work<'_> {
    /// The format that the weight must have.
    #[must_use]
    pub const fn format(&self) -> Format {
        match self {
            Self::Int8 { .. } => Format::INT8_INT32,
            Self::Int8ToInt8 { .. } => Format::INT8_INT8,
            Self::Int4 { .. } => Format::INT4_INT16,
            Self::Int16 { .. } => Format::INT16_INT32,
            Self::Fp16 { .. } => Format::FP16_FP32,
            Self::Fp16ToFp16 { .. } => Format::FP16_FP16,
            Self::Bf16 { .. } => Format::BF16_FP32,
            Self::Tf32 { .. } => Format::TF32_FP32,
        }
    }

    /// What it is to the table of transitions.
    pub(crate) fn operation(&self) -> Operation {
        Operation::matmul(Datapath::of(self.format()))
    }

    /// Elements of the operand and of the result.
    fn lens(&self) -> (usize, usize) {
        match self {
            Self::Int8 { a, out } => (a.len(), out.len()),
            Self::Int8ToInt8 { a, out, .. } => (a.len(), out.len()),
            Self::Int4 { a, out } => (a.len(), out.len()),
            Self::Int16 { a, out } => (a.len(), out.len()),
            Self::Fp16 { a, out } => (a.len(), out.len()),
            Self::Fp16ToFp16 { a, out } => (a.len(), out.len()),
            Self::Bf16 { a, out } => (a.len(), out.len()),
            Self::Tf32 { a, out } => (a.len(), out.len()),
        }
    }

    /// Refuses operands and weights that do not fit.
    pub(crate) fn check(&self, weight: &Weight, m: usize) -> Result<(), DriverError> {
        check_format(weight, self.format())?;
        let (a, out) = self.lens();
        check_len("the activation", a, m * weight.k())?;
        check_len("the result", out, m * weight.n())
    }
}

/// Refuses a weight of another format.
pub(crate) fn check_format(weight: &Weight, needed: Format) -> Result<(), DriverError> {
    let format = weight.format();
    if format == needed {
        Ok(())
    } else {
        Err(DriverError::Format { name: weight.name().to_owned(), format, needed })
    }
}

impl Driver {
    /// Does one piece of work.
    ///
    /// # Errors
    /// [`DriverError`]: [`DriverError::Format`] for a weight of another format, and whatever else a product can meet.
    pub fn work(&self, weight: &Weight, m: usize, work: &mut Work<'_>) -> Result<(), DriverError> {
        work.check(weight, m)?;
        match work {
            Work::Int8 { a, out } => self.matmul_codes(weight, m, a, out),
            Work::Int8ToInt8 { a, by, out } => {
                let Requantise { multiplier, shift, offset } = *by;
                let stage = OutputStage::Requantise { multiplier, shift, offset };
                self.multiply(weight, m, a, out, stage, copy_rows)
            }
            Work::Int4 { a, out } => self.widened::<_, i16, i32>(weight, m, a, out),
            Work::Int16 { a, out } => self.widened::<_, i32, i64>(weight, m, a, out),
            Work::Fp16 { a, out } => self.multiply(weight, m, a, out, OutputStage::Plain, float_rows),
            Work::Fp16ToFp16 { a, out } => self.multiply(weight, m, a, out, OutputStage::Plain, copy_rows),
            Work::Bf16 { a, out } => self.multiply(weight, m, a, out, OutputStage::Plain, float_rows),
            Work::Tf32 { a, out } => self.multiply(weight, m, a, out, OutputStage::Plain, float_rows),
        }
    }

    /// Sums of type `S` on the NPU, whose K slices the host adds as `W`.
    fn widened<T: Element, S: Element, W>(
        &self,
        weight: &Weight,
        m: usize,
        a: &[T],
        out: &mut [W],
    ) -> Result<(), DriverError>
    where
        W: Copy + std::ops::AddAssign + From<S>,
    {
        self.multiply(weight, m, a, out, OutputStage::Plain, each_row(widen_row::<S, W>))
    }
}
