// SPDX-License-Identifier: MIT OR Apache-2.0

use std::fmt;

use crate::group::{GROUP, GROUP_BYTES};
use crate::{QuantError, Scale, scalar};

/// Bits of positive infinity: from here on, a magnitude is not finite.
const INFINITY_BITS: u32 = f32::INFINITY.to_bits();

/// The row kernels for one instruction set.
///
/// A value of this type is the proof that the processor has the instructions: it comes from
/// [`detect`](Self::detect), [`available`](Self::available) or [`scalar`](Self::scalar) only.
/// All kernels give the same bits; they differ in speed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Kernels(Isa);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Isa {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// Runs a kernel function of the module that belongs to `$isa`.
macro_rules! dispatch {
    ($isa:expr, $kernel:ident($($arg:expr),*)) => {
        match $isa {
            Isa::Scalar => scalar::$kernel($($arg),*),
            // SAFETY: `Kernels` values with this instruction set are made only where it was detected.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { crate::avx2::$kernel($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { crate::avx512::$kernel($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { crate::neon::$kernel($($arg),*) },
        }
    };
}

impl Kernels {
    /// The plain loops.
    pub const fn scalar() -> Self {
        Self(Isa::Scalar)
    }

    /// The fastest set this processor has. Cheap enough to call per row.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
                return Self(Isa::Avx512);
            }
            if is_x86_feature_detected!("avx2") {
                return Self(Isa::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Self(Isa::Neon);
        }
        Self::scalar()
    }

    /// Every set this processor has, slowest first: for tests and benches.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::scalar()];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            all.push(Self(Isa::Avx2));
        }
        let best = Self::detect();
        if !all.contains(&best) {
            all.push(best);
        }
        all
    }

    /// Name of the instruction set.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Isa::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
        }
    }

    /// [`quantise_row`] with this instruction set.
    ///
    /// # Errors
    /// [`QuantError::NonFinite`] at the first NaN or infinity; `codes` is then untouched.
    ///
    /// # Panics
    /// If `row` and `codes` differ in length.
    pub fn quantise_row(self, row: &[f32], codes: &mut [i8]) -> Result<Scale, QuantError> {
        assert_eq!(row.len(), codes.len(), "one code per element of the row");
        let abs_max_bits = dispatch!(self.0, abs_max_bits(row));
        if abs_max_bits >= INFINITY_BITS {
            return Err(non_finite(row));
        }
        let scale = Scale::for_abs_max(f32::from_bits(abs_max_bits));
        if scale.is_zero() {
            codes.fill(0);
        } else {
            // The scale lies between MIN_POSITIVE and MAX / 127, so the reciprocal is normal and finite.
            dispatch!(self.0, encode(row, 1.0 / scale.get(), codes));
        }
        Ok(scale)
    }

    /// [`dequantise_row`] with this instruction set.
    ///
    /// # Panics
    /// If `acc`, `columns` and `out` differ in length.
    pub fn dequantise_row(self, acc: &[i32], row: Scale, columns: &[Scale], out: &mut [f32]) {
        assert_columns(acc.len(), columns, out);
        dispatch!(self.0, dequantise(acc, row, columns, out));
    }

    /// [`dequantise_row_i64`] with this instruction set.
    ///
    /// # Panics
    /// If `acc`, `columns` and `out` differ in length.
    pub fn dequantise_row_i64(self, acc: &[i64], row: Scale, columns: &[Scale], out: &mut [f32]) {
        assert_columns(acc.len(), columns, out);
        dispatch!(self.0, dequantise_i64(acc, row, columns, out));
    }

    /// [`inflate_groups`] with this instruction set.
    ///
    /// # Panics
    /// If `stored` is not whole groups, or `codes` does not hold their codes.
    pub fn inflate_groups(self, stored: &[u8], codes: &mut [i8]) {
        let (groups, rest) = stored.as_chunks::<GROUP_BYTES>();
        let (codes, left) = codes.as_chunks_mut::<GROUP>();
        assert!(rest.is_empty() && left.is_empty() && groups.len() == codes.len(), "whole groups");
        dispatch!(self.0, inflate_groups(groups, codes));
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernels({})", self.name())
    }
}

/// Quantises one row to int8 codes by the rule in the crate documentation, and returns its scale.
///
/// Serves weights (one output channel) and activations (one input row) alike. Slices need no
/// alignment. Where the hardware wants a row padded, pass the first `row.len()` codes of the padded
/// row here and zero the rest.
///
/// # Errors
/// [`QuantError::NonFinite`] at the first NaN or infinity; `codes` is then untouched. The row number is
/// the caller's to add, with [`QuantError::in_row`].
///
/// # Panics
/// If `row` and `codes` differ in length.
pub fn quantise_row(row: &[f32], codes: &mut [i8]) -> Result<Scale, QuantError> {
    Kernels::detect().quantise_row(row, codes)
}

/// Turns one row of `n` accumulators into floats: `out[i] = acc[i] · row · columns[i]`, with the order
/// of operations and the error bound given in the crate documentation.
///
/// `row` is the scale of the activation row, `columns` are those of the output channels.
///
/// # Panics
/// If `acc`, `columns` and `out` differ in length.
pub fn dequantise_row(acc: &[i32], row: Scale, columns: &[Scale], out: &mut [f32]) {
    Kernels::detect().dequantise_row(acc, row, columns, out);
}

/// [`dequantise_row`] for sums over several slices of k, which may need more than 32 bits: full-range int8
/// products can overflow an `i32` from k = 131072 on.
///
/// # Panics
/// If `acc`, `columns` and `out` differ in length.
pub fn dequantise_row_i64(acc: &[i64], row: Scale, columns: &[Scale], out: &mut [f32]) {
    Kernels::detect().dequantise_row_i64(acc, row, columns, out);
}

/// Turns stored groups ([`crate::quantise_grouped_row`]) into int8 codes. Works on groups in any order: a stored tensor keeps the
/// order of the int8 tiles, so this one linear pass makes the tiles.
///
/// # Panics
/// If `stored` is not whole groups of 18 bytes, or `codes` does not hold 32 codes for each.
pub fn inflate_groups(stored: &[u8], codes: &mut [i8]) {
    Kernels::detect().inflate_groups(stored, codes);
}

/// The largest magnitude of a row, or its first element that is not finite.
pub(crate) fn finite_abs_max(row: &[f32]) -> Result<f32, QuantError> {
    let bits = dispatch!(Kernels::detect().0, abs_max_bits(row));
    if bits >= INFINITY_BITS { Err(non_finite(row)) } else { Ok(f32::from_bits(bits)) }
}

fn assert_columns(n: usize, columns: &[Scale], out: &[f32]) {
    assert_eq!(columns.len(), n, "one column scale per accumulator");
    assert_eq!(out.len(), n, "one output per accumulator");
}

#[cold]
fn non_finite(row: &[f32]) -> QuantError {
    let index = row.iter().position(|x| !x.is_finite());
    let index = index.expect("the largest magnitude of the row is not finite");
    QuantError::NonFinite { row: None, index, value: row[index] }
}
