// SPDX-License-Identifier: MIT OR Apache-2.0
//! Known failures, as a checked-in list: `tests/expectations/<target>.toml`.
//!
//! ```toml
//! [[failure]]
//! test = "matmul/1×16384×32"
//! reason = "the channel field has 13 bits"
//! issue = "#12"
//! message = "elements differ"   # optional: the failure must say this
//! ```
//!
//! The list is kept honest from both sides: a listed test that passes is an error, so is one that fails
//! with another message than the listed one, and so is an entry that names no test at all.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;

/// One known failure.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// Full name of the test.
    pub test: String,
    /// Why it fails.
    pub reason: String,
    /// Where the repair is tracked.
    pub issue: String,
    /// Text that the failure must contain, so that a new failure does not hide behind an old one.
    pub message: Option<String>,
}

/// The known failures of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectations {
    #[serde(default, rename = "failure")]
    failures: Vec<Failure>,
}

/// A list that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The file cannot be read.
    #[error("cannot read the expectations in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The text is not such a list.
    #[error("these expectations are no list of failures with test, reason and issue")]
    Parse(#[from] toml::de::Error),
    /// Two entries for one test.
    #[error("`{test}` is listed twice")]
    Duplicate {
        /// The test.
        test: String,
    },
    /// An entry without a reason or an issue.
    #[error("`{test}` is listed without its {field}")]
    Empty {
        /// The test.
        test: String,
        /// What is missing.
        field: &'static str,
    },
}

/// A test whose outcome is not the expected one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Surprise {
    /// It failed and is not listed.
    #[error("`{test}` failed: {message}")]
    Failed {
        /// The test.
        test: String,
        /// What it said.
        message: String,
    },
    /// It is listed and passed.
    #[error(
        "`{test}` passed, although it is expected to fail ({reason}): remove it from the list, see {issue}"
    )]
    Passed {
        /// The test.
        test: String,
        /// The listed reason.
        reason: String,
        /// The listed issue.
        issue: String,
    },
    /// It is listed and failed, but in another way.
    #[error("`{test}` failed in a new way: {message}; expected: {expected}, see {issue}")]
    FailedOtherwise {
        /// The test.
        test: String,
        /// What it said.
        message: String,
        /// What it should have said.
        expected: String,
        /// The listed issue.
        issue: String,
    },
}

impl Expectations {
    /// Reads a list from a file.
    ///
    /// # Errors
    /// [`ListError`]; a missing file is an error too, an empty one is an empty list.
    pub fn read(path: &Path) -> Result<Self, ListError> {
        let text =
            fs::read_to_string(path).map_err(|source| ListError::Read { path: path.to_owned(), source })?;
        Self::parse(&text)
    }

    /// Reads a list from text.
    ///
    /// # Errors
    /// [`ListError`], except for `Read`.
    pub fn parse(text: &str) -> Result<Self, ListError> {
        let list: Self = toml::from_str(text)?;
        for (i, Failure { test, reason, issue, .. }) in list.failures.iter().enumerate() {
            for (field, text) in [("reason", reason), ("issue", issue)] {
                if text.trim().is_empty() {
                    return Err(ListError::Empty { test: test.clone(), field });
                }
            }
            if list.failures[..i].iter().any(|earlier| earlier.test == *test) {
                return Err(ListError::Duplicate { test: test.clone() });
            }
        }
        Ok(list)
    }

    /// The entry for a test.
    pub fn find(&self, test: &str) -> Option<&Failure> {
        self.failures.iter().find(|failure| failure.test == test)
    }

    /// Compares what a test did with what is expected of it.
    ///
    /// # Errors
    /// [`Surprise`], which is what should fail the run.
    pub fn judge(&self, test: &str, outcome: Result<(), String>) -> Result<(), Surprise> {
        let test_name = || test.to_owned();
        match (self.find(test), outcome) {
            (None, Ok(())) => Ok(()),
            (None, Err(message)) => Err(Surprise::Failed { test: test_name(), message }),
            (Some(Failure { reason, issue, .. }), Ok(())) => {
                Err(Surprise::Passed { test: test_name(), reason: reason.clone(), issue: issue.clone() })
            }
            (Some(Failure { message: Some(expected), issue, .. }), Err(message))
                if !message.contains(expected) =>
            {
                let (expected, issue) = (expected.clone(), issue.clone());
                Err(Surprise::FailedOtherwise { test: test_name(), message, expected, issue })
            }
            (Some(_), Err(_)) => Ok(()),
        }
    }

    /// Listed tests that do not exist: renamed, or misspelt. A run that knows all its tests should
    /// insist that there are none.
    pub fn strays<'a>(&'a self, is_test: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = &'a Failure> {
        self.failures.iter().filter(move |failure| !is_test(&failure.test))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r##"
        [[failure]]
        test = "a"
        reason = "known"
        issue = "#1"

        [[failure]]
        test = "b"
        reason = "known too"
        issue = "#2"
        message = "elements differ"
    "##;

    fn failed(message: &str) -> Result<(), String> {
        Err(message.to_owned())
    }

    #[test]
    fn outcomes_are_judged_by_the_list() {
        let list = Expectations::parse(LIST).unwrap();
        assert_eq!(list.judge("a", failed("anything")), Ok(()));
        assert_eq!(list.judge("b", failed("3 elements differ")), Ok(()));
        assert_eq!(list.judge("c", Ok(())), Ok(()));

        let surprise = list.judge("c", failed("boom")).unwrap_err();
        assert_eq!(surprise.to_string(), "`c` failed: boom");
        let surprise = list.judge("a", Ok(())).unwrap_err();
        assert_eq!(
            surprise.to_string(),
            "`a` passed, although it is expected to fail (known): remove it from the list, see #1"
        );
        let surprise = list.judge("b", failed("timeout")).unwrap_err();
        assert_eq!(
            surprise.to_string(),
            "`b` failed in a new way: timeout; expected: elements differ, see #2"
        );
    }

    #[test]
    fn strays_are_found() {
        let list = Expectations::parse(LIST).unwrap();
        let strays: Vec<_> = list.strays(|test| test == "a").map(|failure| &failure.test).collect();
        assert_eq!(strays, ["b"]);
    }

    #[test]
    fn careless_lists_are_refused() {
        let entry = |test, reason, issue| {
            format!("[[failure]]\ntest = '{test}'\nreason = '{reason}'\nissue = '{issue}'\n")
        };
        let error = |text: &str| Expectations::parse(text).unwrap_err().to_string();
        assert_eq!(error(&entry("a", " ", "#1")), "`a` is listed without its reason");
        assert_eq!(error(&entry("a", "x", "")), "`a` is listed without its issue");
        assert_eq!(error(&entry("a", "x", "#1").repeat(2)), "`a` is listed twice");
        assert!(matches!(Expectations::parse("[[failure]]\ntest = 'a'"), Err(ListError::Parse(_))));
        assert!(matches!(Expectations::parse("[[failures]]"), Err(ListError::Parse(_))));
        assert_eq!(Expectations::parse("").unwrap(), Expectations::default());
    }

    #[test]
    fn files_are_read_and_missing_ones_named() {
        let path = std::env::temp_dir().join(format!("ork-testkit-{}.toml", std::process::id()));
        fs::write(&path, LIST).unwrap();
        let list = Expectations::read(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(list.unwrap(), Expectations::parse(LIST).unwrap());
        let error = Expectations::read(&path).unwrap_err();
        assert!(error.to_string().contains("ork-testkit-"), "{error}");
    }
}
