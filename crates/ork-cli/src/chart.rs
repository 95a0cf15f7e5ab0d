// SPDX-License-Identifier: MIT OR Apache-2.0
//! Axes and strokes that the plots share.

use svg::node::element::{Line as Stroke, Text};

/// An axis: from value to place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    Logarithmic,
}

impl Axis {
    /// Around these values, with some room.
    pub(crate) fn around(values: impl Iterator<Item = f64>, scale: Scale) -> Option<Self> {
        let (mut from, mut to) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            (from, to) = (from.min(value), to.max(value));
        }
        if from > to {
            return None;
        }
        Some(match scale {
            Scale::Linear => {
                let room = ((to - from) * 0.08).max(1e-3 * to.abs()).max(1e-9);
                Self { from: from - room, to: to + room, scale }
            }
            Scale::Logarithmic => Self { from: from / 1.6, to: to * 1.6, scale },
        })
    }

    /// 0 to 1.
    pub(crate) fn place(self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Logarithmic => (value / self.from).ln() / (self.to / self.from).ln(),
        }
    }

    /// Round values inside.
    pub(crate) fn ticks(self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let rough = (self.to - self.from) / 6.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough);
                let step = step.unwrap_or(power * 10.0);
                let first = (self.from / step).ceil() as i64;
                let last = (self.to / step).floor() as i64;
                (first..=last).map(|i| i as f64 * step).collect()
            }
            Scale::Logarithmic => {
                let first = self.from.log10().floor() as i32;
                let last = self.to.log10().ceil() as i32;
                let all = (first..=last).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)));
                all.filter(|tick| (self.from..=self.to).contains(tick)).collect()
            }
        }
    }
}

pub(crate) fn text(content: &str, x: f64, y: f64, anchor: &str) -> Text {
    Text::new(content).set("x", round(x)).set("y", round(y)).set("text-anchor", anchor)
}

pub(crate) fn stroke(from: (f64, f64), to: (f64, f64), colour: &str) -> Stroke {
    Stroke::new()
        .set("x1", round(from.0))
        .set("y1", round(from.1))
        .set("x2", round(to.0))
        .set("y2", round(to.1))
        .set("stroke", colour)
}

pub(crate) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A tick's number without needless digits.
pub(crate) fn short(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { (2.0 - value.abs().log10().floor()).clamp(0.0, 9.0) as usize };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let linear = Axis { from: 3.7, to: 17.2, scale: Scale::Linear };
        assert_eq!(linear.ticks(), [5.0, 10.0, 15.0]);
        let log = Axis { from: 3e-4, to: 0.06, scale: Scale::Logarithmic };
        assert_eq!(
            log.ticks().iter().map(|t| short(*t)).collect::<Vec<_>>(),
            ["0.0005", "0.001", "0.002", "0.005", "0.01", "0.02", "0.05"]
        );
        assert!((log.place(0.06) - 1.0).abs() < 1e-12 && log.place(3e-4).abs() < 1e-12);
        assert!(Axis::around([f64::NAN].into_iter(), Scale::Linear).is_none());
        let one = Axis::around([5.0].into_iter(), Scale::Linear).unwrap();
        assert!((one.place(5.0) - 0.5).abs() < 1e-9);
    }
}
