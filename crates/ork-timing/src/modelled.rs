// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Mul};

/// Modelled microseconds on silicon: a prediction, never a measurement. Its `Display` says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Modelled {
    /// Microseconds.
    pub us: f64,
}

impl Modelled {
    /// So many modelled microseconds.
    #[must_use]
    pub const fn from_us(us: f64) -> Self {
        Self { us }
    }

    /// The longer of two.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        Self { us: self.us.max(other.us) }
    }

    /// The shorter of two.
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        Self { us: self.us.min(other.us) }
    }
}

impl Add for Modelled {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { us: self.us + other.us }
    }
}

impl Mul<f64> for Modelled {
    type Output = Self;
    fn mul(self, count: f64) -> Self {
        Self { us: self.us * count }
    }
}

impl Sum for Modelled {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for Modelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.us > 0.0 && self.us < 10.0 { 2 } else { 0 };
        f.pad(&format!("{:.digits$} us modelled", self.us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_display_says_modelled() {
        for (us, text) in [(0.0, "0 us modelled"), (1.27, "1.27 us modelled"), (509.4, "509 us modelled")] {
            assert_eq!(Modelled::from_us(us).to_string(), text);
        }
        assert_eq!(format!("{:>16}", Modelled::from_us(20.0)), "  20 us modelled");
    }

    #[test]
    fn adds_and_compares() {
        let (one, two) = (Modelled::from_us(1.0), Modelled::from_us(2.0));
        assert_eq!([one, two].into_iter().sum::<Modelled>(), one * 3.0);
        assert_eq!((one.max(two), one.min(two)), (two, one));
    }
}
