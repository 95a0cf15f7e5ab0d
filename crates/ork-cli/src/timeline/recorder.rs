// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collects what the driver tells, and adds it up.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ork_driver::{Listener, Phase, Span};
use ork_plan::Plan;

/// A span that is kept.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) phase: Phase,
    pub(super) start: Instant,
    pub(super) end: Instant,
    pub(super) weight: String,
    pub(super) size: (usize, usize, usize),
    pub(super) pass: Option<(Arc<Plan>, usize)>,
}

impl Kept {
    pub(super) fn duration(&self) -> Duration {
        self.end - self.start
    }
}

/// Keeps all spans.
#[derive(Debug, Default)]
pub(super) struct Recorder(Mutex<Vec<Kept>>);

impl Recorder {
    /// What was told so far, in order.
    pub(super) fn take(&self) -> Vec<Kept> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Listener for Recorder {
    fn span(&self, span: &Span<'_>) {
        let &Span { phase, start, end, weight, size, pass } = span;
        let pass = pass.map(|(plan, shape)| (Arc::clone(plan), shape));
        let kept = Kept { phase, start, end, weight: weight.to_owned(), size, pass };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
    }
}

/// A stretch of the run that has a name: a prefill, a decode step.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) name: String,
    pub(super) start: Instant,
    pub(super) end: Instant,
}

/// Host time by what it was spent on: measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sums {
    /// The run.
    pub(super) whole: Duration,
    /// The backend: from each graph that it was given to the results; `None` without one.
    pub(super) backend: Option<Duration>,
    /// Calls of the driver.
    pub(super) calls: Duration,
    /// Phases that contain no other, with the number of their spans.
    pub(super) phases: BTreeMap<Phase, (u64, Duration)>,
    /// Of the submits: the model of the NPU; `None` with a real one.
    pub(super) model: Option<Duration>,
}

impl Sums {
    /// Of these spans, within a run of this length.
    pub(super) fn of(
        spans: &[Kept],
        whole: Duration,
        backend: Option<Duration>,
        model: Option<Duration>,
    ) -> Self {
        let mut sums = Self { whole, backend, calls: Duration::ZERO, phases: BTreeMap::new(), model };
        for span in spans {
            if span.phase == Phase::Call {
                sums.calls += span.duration();
            } else if span.phase.is_leaf() {
                let (count, time) = sums.phases.entry(span.phase).or_default();
                *count += 1;
                *time += span.duration();
            }
        }
        sums
    }

    fn phases(&self) -> Duration {
        self.phases.values().map(|(_, time)| *time).sum()
    }

    /// Time inside calls of the driver that no phase has.
    pub(super) fn unattributed(&self) -> Duration {
        self.calls.saturating_sub(self.phases())
    }

    /// Every part, in the order of a run: they add up to the whole.
    pub(super) fn parts(&self) -> Vec<(&'static str, Option<u64>, Duration)> {
        let inside = self.backend.unwrap_or(self.calls).max(self.calls);
        let outside = if self.backend.is_some() { "llama.cpp" } else { "outside the driver" };
        let mut parts = vec![(outside, None, self.whole.saturating_sub(inside))];
        if self.backend.is_some() {
            parts.push(("backend outside the driver", None, inside.saturating_sub(self.calls)));
        }
        for (phase, (count, time)) in &self.phases {
            match (phase, self.model) {
                (Phase::Submit, Some(model)) => {
                    parts.push(("model of the NPU", None, model.min(*time)));
                    parts.push(("submit without the model", Some(*count), time.saturating_sub(model)));
                }
                _ => parts.push((phase.name(), Some(*count), *time)),
            }
        }
        parts.push(("driver, unattributed", None, self.unattributed()));
        parts
    }

    /// The parts as a table.
    pub(super) fn table(&self) -> String {
        let mut out = String::from("host time, measured                  spans          ms   share\n");
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let share = |time: Duration| 100.0 * time.as_secs_f64() / self.whole.as_secs_f64().max(1e-9);
        // Writing to a string cannot fail.
        for (name, count, time) in self.parts() {
            let count = count.map_or_else(String::new, |count| count.to_string());
            let _ = writeln!(out, "{name:<32} {count:>9} {:>11.3} {:>6.1}%", ms(time), share(time));
        }
        let _ = writeln!(out, "{:<32} {:>9} {:>11.3} {:>6.1}%", "all", "", ms(self.whole), 100.0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        let zero = Instant::now();
        let span = |phase, from: u64, to: u64| Kept {
            phase,
            start: zero + Duration::from_millis(from),
            end: zero + Duration::from_millis(to),
            weight: "w".into(),
            size: (1, 2, 3),
            pass: None,
        };
        let spans = [
            span(Phase::Quantise, 12, 15),
            span(Phase::Submit, 15, 35),
            span(Phase::Dequantise, 35, 39),
            span(Phase::Product, 11, 39),
            span(Phase::Call, 10, 40),
            span(Phase::Submit, 51, 56),
            span(Phase::Product, 51, 58),
            span(Phase::Call, 50, 60),
        ];
        let ms = Duration::from_millis;
        let sums = Sums::of(&spans, ms(100), Some(ms(47)), Some(ms(20)));
        assert_eq!((sums.calls, sums.unattributed()), (ms(40), ms(8)));
        assert_eq!(sums.phases[&Phase::Submit], (2, ms(25)));
        let parts = sums.parts();
        assert_eq!(parts.iter().map(|(_, _, time)| *time).sum::<Duration>(), sums.whole);
        let of = |name: &str| parts.iter().find(|part| part.0 == name).map(|part| part.2);
        assert_eq!(of("llama.cpp"), Some(ms(53)));
        assert_eq!(of("backend outside the driver"), Some(ms(7)));
        assert_eq!((of("model of the NPU"), of("submit without the model")), (Some(ms(20)), Some(ms(5))));
        let bare = Sums::of(&spans, ms(100), None, None);
        assert_eq!(bare.parts().iter().map(|(_, _, time)| *time).sum::<Duration>(), bare.whole);
        assert!(bare.table().lines().last().is_some_and(|line| line.starts_with("all")));
    }
}
