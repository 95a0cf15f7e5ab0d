// SPDX-License-Identifier: MIT OR Apache-2.0
//! How well a model predicts a text, and how far it is from a reference: perplexity, divergence, agreement.
//!
//! The text is cut into windows of one context each, as llama.cpp's tool does it: the context is emptied before each
//! window, the first half of a window only gives context, and every token of the second half is predicted from what
//! stands before it ([`Windows`]). At no time are more logits in memory than those of one window.
//!
//! Models that only encode are judged by the vectors that they make of sentences, and by the results of each of their
//! products ([`embed`], [`likeness`]).
//!
//! The reference is another model computed alongside, or a file in which its distributions were kept
//! ([`ReferenceSource`]).

mod compact;
mod embedding;
mod measure;
mod moments;
mod reference;
mod score;
mod windows;

pub use embedding::{LayerError, Likeness, embed, likeness};
pub use measure::{Pace, Quality, ReferenceSource, keep_reference, measure};
pub use moments::{Estimate, KlPercentiles, Perplexity, Versus};
pub use reference::{ReferenceFile, ReferenceIdentity};
pub use windows::{WindowPlan, Windows};
