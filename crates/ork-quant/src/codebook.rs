// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two meanings of a stored nibble.

use serde::{Deserialize, Serialize};

use crate::real::code_of;
use crate::wide::wide;
use crate::{Scale, XorShift32};

/// What the sixteen nibbles stand for. Both are inflated to int8 before the NPU sees them.
///
/// NF4 exists for the stored form only: the MAC array has no table in front of it, so a native int4 product
/// cannot use one (`isa-int4-sdp.md` §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Codebook {
    /// Two's complement −7…7; −8 is never produced. Scale: absmax / 7.
    Uniform,
    /// The sixteen levels of bitsandbytes' NF4, quantiles of a Gaussian. Scale: absmax / 127.
    Nf4,
}

/// How a value between two levels chooses.
#[derive(Debug)]
pub enum Rounding<'a> {
    /// The nearer one. Uniform: halves to even. NF4: the upper one from the midpoint on.
    Nearest,
    /// By chance, so that the expectation is the value: a larger error of each weight, no bias of a sum. Draws once
    /// per element, zeros included, in the order of the elements.
    Stochastic(&'a mut XorShift32),
}

/// Levels of NF4 (bitsandbytes), ascending.
pub const NF4_LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// [`NF4_LEVELS`] in int8: what the NPU multiplies by.
pub const NF4_INT8: [i8; 16] = [-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127];

const UNIFORM_INT8: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1];

impl Codebook {
    /// The int8 code of every nibble.
    pub const fn int8(self) -> &'static [i8; 16] {
        match self {
            Self::Uniform => &UNIFORM_INT8,
            Self::Nf4 => &NF4_INT8,
        }
    }

    /// The nibble of zero.
    pub const fn zero(self) -> u8 {
        match self {
            Self::Uniform => 0,
            Self::Nf4 => 7,
        }
    }

    /// Largest int8 code: the steps between zero and the clipping point.
    pub const fn steps(self) -> f32 {
        match self {
            Self::Uniform => 7.0,
            Self::Nf4 => 127.0,
        }
    }

    /// The scale of a row that clips at `limit` (finite, not negative).
    pub fn scale(self, limit: f32) -> Scale {
        Scale::for_limit(limit, self.steps())
    }

    /// The nibbles of a row, one per byte. `limit` is the clipping point that `scale` came from.
    ///
    /// # Panics
    /// If `row` and `nibbles` differ in length.
    pub(crate) fn encode(
        self,
        row: &[f32],
        limit: f32,
        scale: Scale,
        rounding: &mut Rounding<'_>,
        nibbles: &mut [u8],
    ) {
        assert_eq!(row.len(), nibbles.len(), "one nibble per element of the row");
        if scale.is_zero() {
            nibbles.fill(self.zero());
            if let Rounding::Stochastic(draws) = rounding {
                row.iter().for_each(|_| _ = draws.next_state());
            }
            return;
        }
        // The scale has a floor; below it the clipping point follows the scale.
        let limit = limit.max(f32::MIN_POSITIVE * self.steps());
        match (self, rounding) {
            (Self::Uniform, Rounding::Nearest) => {
                encode_uniform(row, scale.get(), nibbles);
            }
            (Self::Uniform, Rounding::Stochastic(draws)) => {
                for (nibble, w) in nibbles.iter_mut().zip(row) {
                    let draw = draws.next_unit();
                    *nibble = uniform_nibble((w / scale.get() + draw).floor().clamp(-7.0, 7.0));
                }
            }
            (Self::Nf4, Rounding::Nearest) => {
                encode_nf4(row, limit, nibbles);
            }
            (Self::Nf4, Rounding::Stochastic(draws)) => {
                for (nibble, w) in nibbles.iter_mut().zip(row) {
                    let draw = draws.next_unit();
                    *nibble = nf4_nibble(w / limit, |t| t > draw);
                }
            }
        }
    }
}

wide! {
    fn encode_uniform(row: &[f32], scale: f32, nibbles: &mut [u8]) {
        for (nibble, w) in nibbles.iter_mut().zip(row) {
            *nibble = uniform_nibble((w / scale).clamp(-7.0, 7.0));
        }
    }
}

wide! {
    fn encode_nf4(row: &[f32], limit: f32, nibbles: &mut [u8]) {
        for (nibble, w) in nibbles.iter_mut().zip(row) {
            let relative = (w / limit).clamp(-1.0, 1.0);
            // The place and both neighbours by comparison, without a table, so that lanes do not diverge.
            let (mut hi, mut below, mut above) = (0u32, -1.0, -1.0);
            for pair in NF4_LEVELS.windows(2) {
                let passed = pair[0] < relative;
                hi += u32::from(passed);
                below = if passed { pair[0] } else { below };
                above = if passed { pair[1] } else { above };
            }
            let upper = (relative - below) / (above - below) >= 0.5;
            *nibble = if hi == 0 { 0 } else { (hi - u32::from(!upper)) as u8 };
        }
    }
}

/// The nibble of the nearest integer.
#[inline(always)]
fn uniform_nibble(code: f32) -> u8 {
    code_of(code).cast_unsigned() & 15
}

/// The nibble of a weight relative to the clipping point; `upper` decides from the position between two levels.
#[inline(always)]
fn nf4_nibble(relative: f32, upper: impl FnOnce(f32) -> bool) -> u8 {
    let relative = relative.clamp(-1.0, 1.0);
    let mut hi = 0;
    for level in NF4_LEVELS {
        hi += usize::from(level < relative);
    }
    if hi == 0 {
        return 0;
    }
    let lo = hi - 1;
    let t = (relative - NF4_LEVELS[lo]) / (NF4_LEVELS[hi] - NF4_LEVELS[lo]);
    (if upper(t) { hi } else { lo }) as u8
}
