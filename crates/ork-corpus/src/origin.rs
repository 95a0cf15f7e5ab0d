// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a text comes from, and whether two are the same.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Fingerprint, Part, SplitRule};

/// Where the text of a calibration or an evaluation comes from. Kept with statistics, packs and reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Name of the text.
    pub name: String,
    /// BLAKE3 of the whole text, in hex.
    pub document: String,
    /// Which part of it was used.
    pub part: Part,
    /// How it was split; nothing if all of it was used.
    pub rule: Option<SplitRule>,
    /// Bytes used.
    pub bytes: u64,
    /// What is in the part.
    pub fingerprint: Fingerprint,
}

/// How far an evaluated text is the same as a calibrated one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// Whether both are parts of one document under one rule, and which parts.
    pub document: DocumentOverlap,
    /// Share of the first text's passages that the second has; `None` if the first is too short to say.
    pub first_in_second: Option<f64>,
    /// The same from the other side.
    pub second_in_first: Option<f64>,
}

/// What the names of document, rule and part say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DocumentOverlap {
    /// Different parts of one document, split by one rule: no byte is in both.
    OtherPart,
    /// The same part of the same document.
    SamePart,
    /// Different documents, or different rules: only the passages can tell.
    Unknown,
}

/// May a text be evaluated after a calibration with another?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Yes: the texts are different parts of one document, or share few passages.
    Disjoint,
    /// No: they are the same, or share many passages.
    Same,
    /// Nobody can tell: the texts are too short.
    Unknown,
}

impl Overlap {
    /// Largest share of common passages of texts that still count as different. Texts of one kind repeat themselves
    /// (headings, notices, names): parts of one manual have some hundredths in common.
    pub const SHARE_MAX: f64 = 0.1;

    /// What follows.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self.document {
            DocumentOverlap::OtherPart => Verdict::Disjoint,
            DocumentOverlap::SamePart => Verdict::Same,
            DocumentOverlap::Unknown => match (self.first_in_second, self.second_in_first) {
                (Some(a), Some(b)) if a <= Self::SHARE_MAX && b <= Self::SHARE_MAX => Verdict::Disjoint,
                (Some(_), Some(_)) => Verdict::Same,
                _ => Verdict::Unknown,
            },
        }
    }
}

impl Origin {
    /// Compares two texts: `self` is usually the one of an evaluation, `other` the one of a calibration.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> Overlap {
        let one_document = self.document == other.document;
        let document = match (one_document, self.part == other.part, self.rule == other.rule) {
            (true, true, true) => DocumentOverlap::SamePart,
            // `Whole` has no rule, so two parts under one rule are the two sides of one split.
            (true, false, true) => DocumentOverlap::OtherPart,
            _ => DocumentOverlap::Unknown,
        };
        Overlap {
            document,
            first_in_second: self.fingerprint.share_in(&other.fingerprint),
            second_in_first: other.fingerprint.share_in(&self.fingerprint),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} part of {} ({} bytes", self.part.name(), self.name, self.bytes)?;
        if let Some(SplitRule { block_bytes, cycle }) = self.rule {
            write!(f, "; blocks of {block_bytes} bytes, every {cycle}th seen")?;
        }
        write!(f, "; document {})", self.document.get(..12).unwrap_or(&self.document))
    }
}
