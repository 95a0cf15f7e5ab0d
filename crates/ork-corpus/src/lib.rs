// SPDX-License-Identifier: MIT OR Apache-2.0
//! Texts for calibration and evaluation.
//!
//! Numbers of quality mean something only on text that the calibration did not see. This crate makes that a matter of
//! construction: a [`Corpus`] is split by a stated [`SplitRule`] into a *seen* and a *held-out* part, calibration takes
//! the first, evaluation the second, and each writes the [`Origin`] of its text into what it produces. Two origins tell
//! how far their texts are the same ([`Origin::overlap`]), also when they come from different files.
//!
//! ```
//! # use ork_corpus::{Corpus, Part, SplitRule, Verdict};
//! let lines: String = (0..9000).map(|i| format!("line {i}, {}\n", i * i % 977)).collect();
//! let corpus = Corpus::from_text("numbers", lines)?;
//! let split = corpus.split(SplitRule::default())?;
//! let (seen, held_out) = (split.part(Part::Seen), split.part(Part::HeldOut));
//! assert_eq!(seen.origin().overlap(&held_out.origin()).verdict(), Verdict::Disjoint);
//! assert_eq!(seen.origin().overlap(&seen.origin()).verdict(), Verdict::Same);
//! # Ok::<(), ork_corpus::CorpusError>(())
//! ```

mod corpus;
mod error;
mod fingerprint;
mod origin;

pub use corpus::{Corpus, Excerpt, Part, Split, SplitRule};
pub use error::CorpusError;
pub use fingerprint::Fingerprint;
pub use origin::{DocumentOverlap, Origin, Overlap, Verdict};
