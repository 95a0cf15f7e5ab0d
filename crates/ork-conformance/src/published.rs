// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error that a case's author published for silicon, which recordings give in words.

use serde::Serialize;

/// Largest error that was seen on silicon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Published {
    /// The figure, as a fraction where it is relative.
    pub error: f64,
    /// Whether it is an error relative to the expected value.
    pub relative: bool,
    /// Smallest magnitude of expected values that count.
    pub from: f64,
    /// Only a bound ("within"): a smaller error is no contradiction.
    pub bound: bool,
}

impl Published {
    /// Reads a note such as `published largest error on silicon 5.5e-4`, `published 0.14 % where the value is at
    /// least 0.5` or `published: average within 0.002`. Notes without the word are about something else.
    #[must_use]
    pub fn from_note(note: &str) -> Option<Self> {
        let (_, text) = note.split_once("published")?;
        let words: Vec<&str> = text.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let number = |word: &&str| word.trim_end_matches('%').parse::<f64>().ok().filter(|x| x.is_finite());
        let at = words.iter().position(|word| number(word).is_some())?;
        let value = number(&words[at])?;
        let percent = words[at].ends_with('%') || words.get(at + 1) == Some(&"%");
        // "for abs(value) >= 0.1", "where the value is at least 0.5".
        let from = words[at + 1..]
            .iter()
            .position(|word| *word == ">=" || *word == "least")
            .and_then(|sign| number(words.get(at + 1 + sign + 1)?));
        Some(Self {
            error: if percent { value / 100.0 } else { value },
            relative: percent || words[..at].contains(&"relative"),
            from: from.unwrap_or(0.0),
            bound: words[..at].contains(&"within"),
        })
    }

    /// Whether an error of the model is that of silicon. A model that is much better is as wrong as one that is
    /// much worse; figures were published with two or three digits.
    #[must_use]
    pub fn agrees(&self, error: f64) -> bool {
        let ratio = error / self.error;
        ratio < 1.04 && (self.bound || ratio > 0.96)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_recorded_wordings() {
        let figure = |error, relative, from| Some(Published { error, relative, from, bound: false });
        for (note, expected) in [
            ("published 1e-3", figure(0.001, false, 0.0)),
            ("published largest error on silicon 0.00146", figure(0.00146, false, 0.0)),
            ("published largest error on silicon 5.5e-4", figure(5.5e-4, false, 0.0)),
            ("published largest error 0.0066, mean 0.0007", figure(0.0066, false, 0.0)),
            ("published 1.0 %", figure(0.01, true, 0.0)),
            ("published 0.44%", figure(0.44 / 100.0, true, 0.0)),
            ("published largest relative error on silicon 0.85 %", figure(0.85 / 100.0, true, 0.0)),
            ("published 0.37 % for abs(value) >= 0.1", figure(0.37 / 100.0, true, 0.1)),
            ("published 0.14 % where the value is at least 0.5", figure(0.14 / 100.0, true, 0.5)),
            (
                "published: average within 0.002",
                Some(Published { error: 0.002, relative: false, from: 0.0, bound: true }),
            ),
            ("client accepts atol 0.12", None),
            ("published without a figure", None),
            ("published inf", None),
            ("", None),
        ] {
            assert_eq!(Published::from_note(note), expected, "{note}");
        }
    }

    #[test]
    fn both_sides_count() {
        let figure = Published { error: 0.01, relative: true, from: 0.0, bound: false };
        let bound = Published { bound: true, ..figure };
        for (error, exact, within) in [
            (0.01, true, true),
            (0.0105, false, false),
            (0.0095, false, true),
            (0.0, false, true),
            (f64::NAN, false, false),
        ] {
            assert_eq!(figure.agrees(error), exact, "{error}");
            assert_eq!(bound.agrees(error), within, "{error}");
        }
    }
}
