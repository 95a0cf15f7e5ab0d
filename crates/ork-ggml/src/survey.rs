// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which weights of a model the NPU would take, found out without one.
//!
//! The rule of what is claimed lives in three places that cannot be asked apart: llama.cpp knows which tensors are
//! multiplied, `claim` which multiplications are ours, the driver which shapes it can do. So whoever needs the list (a
//! packer, a calibration) loads the model with an accelerator that only listens.

use std::sync::{Mutex, PoisonError};

use ork_driver::{DriverOptions, check_shape};

use crate::npu::decline_of;
use crate::{AccelError, AccelErrorKind, Accelerator, Decline, LoadedWeight, WeightRows};

/// An accelerator that claims what an NPU with these options would, and holds nothing.
#[derive(Debug)]
pub struct Survey {
    options: DriverOptions,
    claimed: Mutex<Vec<ClaimedWeight>>,
}

/// A weight that the NPU would take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedWeight {
    /// Its name in the model file.
    pub name: String,
    /// Elements per row.
    pub k: usize,
    /// Rows: output channels.
    pub n: usize,
}

impl Survey {
    /// For the NPU that the driver plans for, with these options.
    #[must_use]
    pub fn new(options: DriverOptions) -> Self {
        Self { options, claimed: Mutex::default() }
    }

    /// What was claimed since the last call, in the order of asking, every weight once.
    pub fn take(&self) -> Vec<ClaimedWeight> {
        std::mem::take(&mut *self.claimed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Accelerator for Survey {
    fn describe(&self) -> String {
        "survey of weights".to_owned()
    }

    fn limits(&self, k: usize, n: usize) -> Result<(), Decline> {
        check_shape(k, n, &self.options.plan).map_err(|error| decline_of(&error))
    }

    fn claimed(&self, name: &str, k: usize, n: usize) {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        if claimed.iter().all(|weight| weight.name != name) {
            claimed.push(ClaimedWeight { name: name.to_owned(), k, n });
        }
    }

    fn load(
        &self,
        name: &str,
        _k: usize,
        _n: usize,
        _rows: &WeightRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        let message = format!("a survey does not load weights, and was given `{name}`");
        Err(AccelError::new(AccelErrorKind::Bug, message))
    }
}
