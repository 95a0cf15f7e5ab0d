// SPDX-License-Identifier: MIT OR Apache-2.0
#![forbid(unsafe_code)]

use crate::QuantError;

/// Largest magnitude of an int8 code. −128 stays unused, so that negation never leaves the range.
pub const CODE_MAX: i8 = 127;

/// What one code step of a row is worth: finite, never negative, zero only for a row of zero codes.
///
/// Laid out as one `f32`, so a slice of scales can be stored and loaded as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
#[repr(transparent)]
pub struct Scale(f32);

impl Scale {
    /// The scale of a row whose codes are all zero.
    pub const ZERO: Self = Self(0.0);

    /// A scale read from somewhere else, a pack file for example.
    ///
    /// # Errors
    /// [`QuantError::BadScale`] if the value is negative, NaN or infinite.
    pub fn new(value: f32) -> Result<Self, QuantError> {
        if value.is_finite() && value >= 0.0 {
            // −0.0 passes the comparison; `abs` gives zero one representation.
            Ok(Self(value.abs()))
        } else {
            Err(QuantError::BadScale { value })
        }
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> f32 {
        self.0
    }

    /// True for a row of zero codes.
    pub fn is_zero(self) -> bool {
        self.0 == 0.0
    }

    /// Steps 2 and 4 of the rule: the scale of a row with this largest magnitude (finite, not negative).
    pub(crate) fn for_abs_max(abs_max: f32) -> Self {
        // Half a step of the smallest scale rounds to code 0 (a tie, and 0 is even), so does all below.
        if abs_max <= f32::MIN_POSITIVE / 2.0 {
            return Self::ZERO;
        }
        Self((abs_max / f32::from(CODE_MAX)).max(f32::MIN_POSITIVE))
    }

    /// The scale that maps `limit` (finite, not negative) to code `steps`, with the same floor.
    pub(crate) fn for_limit(limit: f32, steps: f32) -> Self {
        if limit <= f32::MIN_POSITIVE / 2.0 {
            return Self::ZERO;
        }
        Self((limit / steps).max(f32::MIN_POSITIVE))
    }
}
