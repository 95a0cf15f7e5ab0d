// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interface of the mainline `accel/rocket` kernel driver. Header followed: `rocket_accel.h` of **Linux 6.18**.
//!
//! - [`uapi`]: structs and ioctl numbers, pinned by tests;
//! - [`Rocket`]: one safe call per ioctl over any [`Transport`](ork_drm::Transport). An interrupted call (`EINTR`,
//!   `EAGAIN`) is repeated with its original input; every other error is one [`RocketError`] variant per operation.
//!
//! Two traits of this driver that no wrapper hides:
//!
//! - SUBMIT never reports what became of a job. A job that the kernel does not like vanishes while the call
//!   succeeds, and a job that times out looks finished. Check a [`Job`] before it is submitted
//!   ([`Job::flaw`]), and its output afterwards.
//! - PREP_BO takes an *absolute* `CLOCK_MONOTONIC` time.
//!
//! Not here: policy. Nothing is pooled, retried after a failure or timed out in this crate.

mod calls;
mod error;
pub mod uapi;

pub use calls::{Bo, Flaw, Job, Rocket, Task};
pub use error::RocketError;

/// Name of the driver in `DRM_IOCTL_VERSION`.
pub const DRIVER_NAME: &str = "rocket";
