// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled time on silicon, apart from function.
//!
//! - [`TaskWork`]: what a task asks of each block, from a matmul, a convolution or a program's registers;
//! - [`Model`]: constants and clocks; gives a [`TaskCost`] for each block, and adds up chains, cores and submits;
//! - [`constants`]: the one table of constants, with the rows behind each;
//! - `rows`, `fit` (feature `fit`): the rows as data, the least-squares fit, and the error on rows left out.
//!
//! Everything that comes out is [`Modelled`] and says so. docs/timing-model.md tells the form, the errors and what
//! is not covered.
#![forbid(unsafe_code)]

mod conditions;
pub mod constants;
#[cfg(feature = "fit")]
pub mod fit;
mod model;
mod modelled;
#[cfg(feature = "fit")]
pub mod report;
#[cfg(feature = "fit")]
pub mod rows;
mod work;

pub use conditions::{Conditions, CpuLoad};
pub use constants::{Constant, Constants};
pub use model::{ChainClock, CoresCost, Model, SubmitPath, TaskCost};
pub use modelled::Modelled;
pub use work::{Arithmetic, FeatureOrder, TaskWork};
