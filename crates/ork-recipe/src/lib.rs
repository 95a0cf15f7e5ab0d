// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the weights of a model to a pack: pure, over a [`WeightSource`], so that generated weights do for tests.
//!
//! 1. A [`Recipe`] (`w4a4+rotate+gptq+clip+promote`) says what is to be done to weights.
//! 2. [`Collector`] gathers what a recipe must know of activations, within a stated bound of memory.
//! 3. [`ModelPlan::new`] decides for every weight: tier, steps, layout. Promotion and allocation guides act here.
//! 4. [`pack_model`] carries the plan out, weight by weight, into a [`ork_pack::PackWriter`], and compares what is in the
//!    file with the plan.
//! 5. [`measure`] reads a pack back and says how far each weight is from the model's.
//!
//! # Memory
//! One weight is held at a time: its codes (1 byte each while they are made) and its tiles. GPTQ adds
//! [`gptq_bytes_max`] of the largest K. The source's rows are decoded as they are needed.
#![forbid(unsafe_code)]

mod collect;
mod error;
mod knowledge;
mod measure;
mod options;
mod pack;
mod plan;
mod recipe;
mod source;
mod tensor;

pub use collect::{CalibrationInput, Collector, rows_bytes_max};
pub use error::RecipeError;
pub use knowledge::Knowledge;
pub use measure::{TensorError, measure};
pub use options::{CalibrateOptions, PackOptions};
pub use pack::{PackProgress, PackReport, SchemeCount, pack_model};
pub use plan::{Choice, Guide, ModelPlan, Why};
pub use recipe::{Promote, Recipe, RecipeParseError};
pub use source::{WeightInfo, WeightSource};
pub use tensor::gptq_bytes_max;
