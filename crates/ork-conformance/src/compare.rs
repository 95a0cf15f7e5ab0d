// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is in memory against what must be there.

use half::f16;
use serde::Serialize;

use crate::{Array, Case, CaseError, Dtype, Post, Published, Tolerance};

/// What became of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It computes what it must.
    Pass,
    /// Values are off.
    Wrong,
    /// The values are right, but the simulator says that silicon would not get them so.
    Findings,
    /// A job did not complete.
    Stopped,
}

/// One element that is off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    /// Its place in the output buffer.
    pub element: usize,
    /// What is there.
    pub got: f64,
    /// What must be there.
    pub expected: f64,
}

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the case.
    pub name: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Elements compared; 0 if a job did not complete.
    pub compared: usize,
    /// Elements beyond the tolerance.
    pub wrong: usize,
    /// The first of them.
    pub first_wrong: Option<Mismatch>,
    /// Largest difference.
    pub largest_error: f64,
    /// Largest difference relative to the expected value, where that is not 0.
    pub largest_relative_error: f64,
    /// What the author saw on silicon.
    pub published: Option<Published>,
    /// The model's error that goes with it: absolute or relative as published, over the values that count.
    pub against_published: Option<f64>,
    /// What the simulator has to say.
    pub findings: Vec<String>,
}

impl Report {
    pub(crate) fn stopped(name: &str, findings: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            verdict: Verdict::Stopped,
            compared: 0,
            wrong: 0,
            first_wrong: None,
            largest_error: 0.0,
            largest_relative_error: 0.0,
            published: None,
            against_published: None,
            findings,
        }
    }

    /// Whether the model errs as silicon does; `None` where nothing was published.
    #[must_use]
    pub fn like_silicon(&self) -> Option<bool> {
        Some(self.published?.agrees(self.against_published?))
    }
}

/// Compares the output buffer with what the case expects.
pub(crate) fn compare(case: &Case, memory: &[u8], findings: Vec<String>) -> Result<Report, CaseError> {
    let output = &case.output;
    let dtype = Dtype::named(&output.dtype).ok_or_else(|| case.unsupported("the output's type"))?;
    let (index, expected) = (case.array(&output.index_key)?, case.array(&output.expected_key)?);
    let element = |array: &Array, i| array.dtype.number(&array.bytes, i);
    let published = Published::from_note(case.tolerance.note());
    let mut report = Report { compared: index.len(), published, ..Report::stopped(&case.name, findings) };
    // Against the expected value, and against its nearest fp16 number: authors compared with either.
    let (mut counted, mut rounded) = (0f64, 0f64);
    for i in 0..index.len() {
        let (place, expected) = element(index, i)
            .zip(element(expected, i))
            .ok_or_else(|| case.inconsistent("an array is too short"))?;
        let place = place as usize;
        let stored = match output.post {
            Post::None => dtype.number(memory, place),
            Post::FlipSign if dtype.size() == 1 => memory.get(place).map(|byte| f64::from(byte ^ 0x80)),
            Post::FlipSign => return Err(case.unsupported("turning the sign of wide elements")),
        };
        let got = stored.ok_or_else(|| case.inconsistent("the output buffer is too short"))?;
        let error = difference(got, expected);
        report.largest_error = report.largest_error.max(error);
        if expected != 0.0 {
            report.largest_relative_error = report.largest_relative_error.max(error / expected.abs());
        }
        if let Some(published) = &published
            && expected.abs() >= published.from
        {
            if !published.relative {
                counted = counted.max(error);
                rounded = rounded.max(difference(got, f16::from_f64(expected).to_f64()));
            } else if expected != 0.0 {
                counted = counted.max(error / expected.abs());
            }
        }
        if !within(&case.tolerance, got, expected) {
            report.wrong += 1;
            report.first_wrong.get_or_insert(Mismatch { element: place, got, expected });
        }
    }
    report.against_published = published.map(|published| {
        let off = |error: f64| (error / published.error).ln().abs();
        let fp16 = dtype == Dtype::F16 && !published.relative;
        if fp16 && off(rounded) < off(counted) { rounded } else { counted }
    });
    report.verdict = match (report.wrong, report.findings.is_empty()) {
        (0, true) => Verdict::Pass,
        (0, false) => Verdict::Findings,
        _ => Verdict::Wrong,
    };
    Ok(report)
}

/// Distance of two numbers; one NaN against a number is infinitely far.
fn difference(got: f64, expected: f64) -> f64 {
    if got == expected || (got.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    let error = (got - expected).abs();
    if error.is_nan() { f64::INFINITY } else { error }
}

fn within(tolerance: &Tolerance, got: f64, expected: f64) -> bool {
    let error = difference(got, expected);
    match tolerance {
        Tolerance::Exact { .. } => error == 0.0,
        Tolerance::Ulp { atol, .. } => {
            got.is_nan() == expected.is_nan() && f64::from((rank(got) - rank(expected)).abs()) <= *atol
        }
        Tolerance::Close { atol, rtol, .. } => error == 0.0 || error <= atol + rtol * expected.abs(),
    }
}

/// Place of an fp16 number among the representable ones.
fn rank(value: f64) -> i32 {
    let bits = i32::from(f16::from_f64(value).to_bits());
    if bits & 0x8000 == 0 { bits } else { -(bits & 0x7FFF) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances() {
        let note = String::new;
        let exact = Tolerance::Exact { note: note() };
        let ulp = Tolerance::Ulp { atol: 1.0, note: note() };
        let close = Tolerance::Close { atol: 0.5, rtol: 0.25, note: note() };
        let (next, after) = (1.0 + 1.0 / 1024.0, 1.0 + 2.0 / 1024.0);
        let smallest = 2f64.powi(-24);
        for (tolerance, got, expected, good) in [
            (&exact, 1.0, 1.0, true),
            (&exact, next, 1.0, false),
            (&exact, -0.0, 0.0, true),
            (&exact, f64::NAN, 1.0, false),
            (&exact, f64::INFINITY, f64::INFINITY, true),
            (&exact, f64::INFINITY, f64::NEG_INFINITY, false),
            (&ulp, next, 1.0, true),
            (&ulp, after, 1.0, false),
            (&ulp, -smallest, 0.0, true),
            (&ulp, -smallest, smallest, false),
            (&ulp, f64::NAN, 0.0, false),
            (&close, 5.5, 4.0, true),
            (&close, 5.6, 4.0, false),
            (&close, -4.0, -5.0, true),
            (&close, f64::NAN, 4.0, false),
            (&close, f64::INFINITY, f64::INFINITY, true),
            (&close, 4.0, f64::NAN, false),
        ] {
            assert_eq!(within(tolerance, got, expected), good, "{tolerance:?}: {got} for {expected}");
        }
    }
}
