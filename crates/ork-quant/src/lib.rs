// SPDX-License-Identifier: MIT OR Apache-2.0
//! Row quantisation for the NPU's integer matmul: floats in, codes and a scale out, and the way back.
//!
//! # The rule (W8A8, symmetric, one scale per row)
//!
//! A *row* is what shares one scale: the `k` weights of one output channel, or the `k` activations of
//! one row of the input. Both use the same rule, so `a·w` is an integer dot product times two scales.
//!
//! 1. `absmax` is the largest magnitude in the row. A NaN or an infinity is refused, with its place.
//! 2. `scale = max(absmax / 127, f32::MIN_POSITIVE)`.
//! 3. `code = round(x · (1 / scale))`, halves to even. Codes lie in −127…127; −128 is never produced.
//! 4. If every code would be zero (`absmax ≤ f32::MIN_POSITIVE / 2`, so also an all-zero row), the
//!    scale is zero. Hence *scale is zero ⇔ all codes are zero*.
//!
//! The floor in 2 matters only to rows whose largest magnitude is below 1.5e-36. Without it the scale
//! of such a row is subnormal (few significant bits) or zero (codes that decode to nothing). With it
//! the bound below holds for every finite row; the row merely uses fewer than 127 codes.
//!
//! **Error bound**: `|x − code · scale| ≤ scale · (1/2 + 2⁻¹⁵)`. The 2⁻¹⁵ covers the three roundings
//! (of the scale, of its reciprocal, of the product), each 2⁻²⁴ relative, at the largest code.
//!
//! # The way back
//!
//! `out = f32( f64(acc) · ( f64(row) · f64(column) ) )`, in this order.
//!
//! The product of two `f32` scales is exact in `f64`, and so is an `i32` accumulator; what remains is
//! one `f64` rounding and the final one to `f32`. The error is at most `1/2 + 2⁻²⁹` units in the last
//! place: the correctly rounded result, except when the exact value lies within 2⁻²⁹ ulp of a midpoint.
//! For `i64` accumulators (sums over slices of k that would overflow 32 bits) the same holds up
//! to `|acc| ≤ 2⁵³`, and one more `f64` rounding enters beyond.
//!
//! Staying in `f32` would be worse in both orders: the accumulator itself rounds from 2²⁴ on, which k ≥ 1041
//! can reach; two more roundings follow; `row · column` can overflow or vanish although the result is
//! an ordinary number; and an overflow times a zero accumulator would be NaN. None of that can happen here.
//! A result beyond `f32::MAX` becomes an infinity, one below the subnormals a zero.
//!
//! # Kernels
//!
//! [`Kernels`] holds one implementation per instruction set. `scalar` is the plain loop that
//! defines the result; the others must agree with it bit for bit, on every input (tested). All of it
//! assumes the default floating-point environment (round to nearest, subnormals kept), as Rust does.

mod error;
mod kernels;
mod scalar;
mod scale;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

pub use error::QuantError;
pub use kernels::{Kernels, dequantise_row, dequantise_row_i64, quantise_row};
pub use scale::{CODE_MAX, Scale};
