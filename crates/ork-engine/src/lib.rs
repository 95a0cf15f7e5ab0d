// SPDX-License-Identifier: MIT OR Apache-2.0
//! In-process inference over llama.cpp, with or without the NPU backend of `ork-ggml`.
//!
//! ```no_run
//! # use ork_engine::*;
//! # use std::{ops::ControlFlow, path::Path};
//! # fn main() -> Result<(), EngineError> {
//! let engine = Engine::init(None, LogSink::discard())?;
//! let model = Model::load(&engine, Path::new("model.gguf"), &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//! let mut generation = Generation::new(&model, &ContextOptions::default())?;
//! let mut text = String::new();
//! let stats = generation.run(&Prompt::user("Hello!"), &GenerateOptions::default(), &mut |event| {
//!     if let Event::Text(piece) = event {
//!         text.push_str(piece);
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! # Ok(()) }
//! ```
//!
//! With the NPU: build an accelerator, hand it to [`ork_ggml::OrkBackend::new`] together with [`linked_host`], and pass
//! the backend to [`Engine::init`]. To compare routes, load the same file twice with
//! [`ork_ggml::OrkBackend::set_route`] in between, call [`logits`] on each, and [`Divergence::between`].
//!
//! The library prints nothing and reads no environment. It keeps one piece of process-wide state, llama.cpp's own:
//! its initialisation and its log callback.

mod bench;
mod cache_type;
mod chat;
mod context;
mod error;
mod evaluation;
mod generation;
pub mod gguf;
mod linked;
mod llama;
mod log;
mod model;
mod observation;
pub mod quality;
mod sampling;
mod text;
pub mod tiny;
mod watch;
mod weights;

pub use bench::Stopwatch;
pub use error::{EngineError, FileProblem};
pub use evaluation::{Divergence, LogitTable, logits};
pub use generation::{Event, Generation, GenerationStats, StopReason};
pub use linked::linked_host;
pub use log::{LogLevel, LogSink};
pub use model::{ChatMessage, Engine, Model, ModelInfo, Prompt, inspect, type_bytes};
pub use observation::{Observation, ObservedChoice, ObservedProduct, Observer};
pub use ork_engine_options::{
    CacheNote, CacheType, ContextOptions, GenerateOptions, InvalidOption, LoadOptions, Sampling,
};
pub use weights::{WeightFile, WeightMatrix, claimed_weights};
