// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interface of the vendor `rknpu` kernel driver, DRM build. Header version followed: **0.9.8** (20240828).
//!
//! - [`uapi`]: structs, ioctl numbers, flags and action codes, pinned by tests;
//! - [`Rknpu`]: one safe call per ioctl over any [`Transport`](ork_drm::Transport). An interrupted call (`EINTR`,
//!   `EAGAIN`) is repeated with its original input; every other error is one [`RknpuError`] variant per operation.
//!
//! Not here: policy. Nothing is pooled, retried after a failure, flushed or timed out in this crate, and no
//! argument is checked that the kernel checks itself.

mod calls;
mod error;
pub mod uapi;

pub use calls::{Buffer, CreateRequest, Rknpu, SubmitReport};
pub use error::RknpuError;

/// Name of the driver in `DRM_IOCTL_VERSION`.
pub const DRIVER_NAME: &str = "rknpu";
