// SPDX-License-Identifier: MIT OR Apache-2.0
//! Quantisation for the NPU's integer matmul: floats in, codes and a scale out, and the way back.
//!
//! Four schemes: **W8A8**, below; **int4 stored, int8 computed** with one scale per output channel
//! ([`quantise_stored_row`], [`inflate`]) or with levels per group ([`quantise_grouped_row`], [`inflate_groups`]); and **native W4A4** ([`quantise_native_weight`], [`quantise_native_activation`]), which needs the *ladder*.
//!
//! # The ladder
//!
//! Steps that keep a four-bit model readable, each a value that composes with the others. Their order:
//!
//! 1. A [`Basis`] for both operands: [`Step::Smooth`] ([`smoothing`], alpha 0.5), [`Step::Signs`],
//!    [`Step::Rotate`]. Rotation is *the* lever (it divides perplexity by 11; every other step by 1.3 to 1.5).
//! 2. [`Hessian::in_basis`] of the calibration [`TensorStatistics`], and a [`Factor`] of it.
//! 3. [`Factor::quantise`] (GPTQ) with the self-tuning clip search, or [`quantise_native_rows`] without a Hessian.
//! 4. [`promote`]: int8 for some layers, within a budget of bits.
//!
//! What measured null or negative elsewhere is not offered, and is written down so that nobody tries it twice without a
//! reason (perplexities in `isa-int4-sdp.md` §7.7; the screen resolves about 2 %):
//!
//! | idea | result |
//! |---|---|
//! | act-order in GPTQ | +3.6 %: its gain comes from group boundaries, and a scale per row has none |
//! | channels back to front (Babai's order) | 1.3 % better on GPTQ's own objective, 0.45 % end to end: null |
//! | signs on top of GPTQ | null three times; they are substitutes (without GPTQ: ÷1.32) |
//! | smoothing with alpha 0.25 or 0.75 | worse both ways |
//! | smoothing without rotation | worse than nothing: the outliers move into the weights |
//! | a fixed clip grid | pins rows to its end: 100 % at floor 0.781, 50 % at 0.531 |
//! | finer or deeper activation clips | within 0.7 % |
//! | promotion by rounding error | 3.8 % worse than the prior at equal bits |
//! | promotion beyond 4.9 bits per weight | less than 1 % |
//! | factoring H in f32 | +7.2 % |
//! | native int4 with a scale per group of channels | runs, at 24 times the cost of a matmul |
//! | NF4 on the native int4 MAC | impossible: no table before the MAC |
//! | Householder or random matrices across blocks | too little mixing at large m, or no bound; see [`Step::Rotate`] |
//! | five-bit stored weights | unpacking is slower than int8 at one row |
//!
//! The layer-local, H-weighted error is a poor guide: it keeps falling after perplexity has turned. And a gain on
//! text that calibration has seen is a hypothesis: 1.7 % of one shrank to 0.33 % held out.
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

mod basis;
mod clip;
mod codebook;
mod error;
mod gptq;
mod group;
mod hadamard;
mod hartley;
mod kernels;
mod linalg;
mod native;
mod o4n1;
mod promotion;
mod real;
mod scalar;
mod scale;
mod scheme;
mod smooth;
mod statistics;
mod stored;
mod stored_product;
mod wide;
mod xorshift;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

pub use basis::{Basis, BasisError, BasisId, STEPS_MAX, Step, StepKind};
pub use clip::{CLIP_FLOOR, Clip, ClipReport, search_clip};
pub use codebook::{Codebook, NF4_INT8, NF4_LEVELS, Rounding};
pub use error::QuantError;
pub use gptq::{CALIBRATION_ROWS, DAMPING, Factor, GptqError, GroupedRows, NativeClip, NativeRows};
pub use group::{GROUP, GROUP_BYTES, Levels, StoredGroup, quantise_grouped_row};
pub use kernels::{Kernels, dequantise_row, dequantise_row_i64, inflate_groups, quantise_row};
pub use native::{
    ACTIVATION_CLIPS, quantise_native_activation, quantise_native_rows, quantise_native_weight,
};
pub use o4n1::{BlobError, O4N1_MAGIC, O4N1_VERSION, StoredWeight};
pub use promotion::{BITS_PER_WEIGHT, Prior, Promotion, TensorSize, promote, transitions};
pub use scale::{CODE_MAX, Scale};
pub use scheme::{ClipRule, Method, Scheme, Tier};
pub use smooth::{SMOOTH_ALPHA, smoothing};
pub use statistics::{Collect, Hessian, Statistics, StatisticsError, TensorStatistics};
pub use stored::{IMPORTANCE_CLIPS, StoredClip, StoredRow, inflate, pack_nibbles, quantise_stored_row};
pub use stored_product::{NibbleRows, StoredKernels, StoredRows};
pub use xorshift::XorShift32;
