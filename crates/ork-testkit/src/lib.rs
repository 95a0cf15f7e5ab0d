// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of every crate share: inputs, shapes, references, expected failures.
//!
//! A dev-dependency only. It knows none of our crates, so that a reference cannot agree
//! with the code under test by sharing it.
//!
//! - [`Stream`]: seeded data, full range, of a period no test can reach; [`period`] says why that matters.
//! - [`cases`]: random shapes with odd, prime and boundary sizes, within a cost [`Budget`].
//! - [`mod@reference`]: plain-loop matmuls, and a fast exact one for large shapes.
//! - [`compare`]: equality that says where and how often two results differ.
//! - [`Expectations`]: the checked-in list of known failures; an unexpected pass fails too.
//! - [`mutate`]: flips single bits to show that a checker fires.
//!
//! Everything is reproducible from the seed, on every machine: shapes and integers are drawn with
//! integer arithmetic only.

pub mod cases;
pub mod compare;
pub mod expectations;
pub mod mutate;
pub mod period;
pub mod reference;
mod shape;
mod stream;

pub use cases::{Boundaries, Budget, Case};
pub use expectations::Expectations;
pub use shape::Shape;
pub use stream::Stream;
