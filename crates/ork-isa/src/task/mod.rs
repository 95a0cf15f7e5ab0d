// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs ask of the hardware, read from their words alone: the registers that hold when op-enable comes,
//! the operation that they describe, and the memory that it reads and writes.
//!
//! Nothing is executed and nothing is judged here; [`crate::lint`] judges, [`crate::explain`] tells.

mod chain;
mod extent;
mod mac;
mod output;
mod pool;
mod registers;

pub use chain::{Links, Next, Trailer};
pub use extent::{Access, Extent, extents};
pub use mac::{FeatureLayout, Mac};
pub use output::{Feed, Output, OutputLayout};
pub use pool::{Pool, PoolMethod};
pub use registers::{Place, Registers, Task, tasks};
