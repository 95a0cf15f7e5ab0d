// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NPU driver as the backend's accelerator.

use std::any::Any;
use std::sync::Arc;

use ork_driver::{Driver, DriverError, MatmulGroup, Weight};

use crate::{AccelError, AccelErrorKind, Accelerator, Decline, LoadedWeight, WeightRows};

/// Multiplies on the NPU of an [`ork_driver::Driver`].
#[derive(Debug)]
pub struct NpuAccelerator {
    driver: Arc<Driver>,
}

impl NpuAccelerator {
    /// An accelerator that shares this driver.
    #[must_use]
    pub fn new(driver: Arc<Driver>) -> Self {
        Self { driver }
    }
}

/// A weight of the driver, as ggml's side holds it.
#[derive(Debug)]
struct NpuWeight {
    // Drop order: the weight frees device memory while the driver still lives.
    weight: Weight,
    driver: Arc<Driver>,
}

impl Accelerator for NpuAccelerator {
    fn describe(&self) -> String {
        self.driver.device().describe().to_owned()
    }

    fn limits(&self, k: usize, n: usize) -> Result<(), Decline> {
        self.driver.check(k, n).map_err(|error| decline_of(&error))
    }

    fn load(
        &self,
        name: &str,
        k: usize,
        n: usize,
        rows: &WeightRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        let weight = self.driver.load(name, k, n, rows).map_err(accel_error)?;
        Ok(Box::new(NpuWeight { weight, driver: Arc::clone(&self.driver) }))
    }

    fn matmul_group(
        &self,
        weights: &[&dyn LoadedWeight],
        m: usize,
        x: &[f32],
        outs: &mut [&mut [f32]],
    ) -> Result<(), AccelError> {
        let foreign = || AccelError::new(AccelErrorKind::Bug, "a weight of another accelerator");
        let mut parts = Vec::with_capacity(weights.len());
        for (weight, out) in weights.iter().zip(outs) {
            let any: &dyn Any = *weight;
            parts.push((&any.downcast_ref::<NpuWeight>().ok_or_else(foreign)?.weight, &mut **out));
        }
        self.driver.matmul(&mut MatmulGroup { m, x, parts }).map_err(accel_error)
    }
}

impl LoadedWeight for NpuWeight {
    fn k(&self) -> usize {
        self.weight.k()
    }

    fn n(&self) -> usize {
        self.weight.n()
    }

    fn device_bytes(&self) -> u64 {
        self.weight.device_bytes()
    }

    fn matmul(&self, m: usize, x: &[f32], out: &mut [f32]) -> Result<(), AccelError> {
        self.driver.matmul(&mut MatmulGroup { m, x, parts: vec![(&self.weight, out)] }).map_err(accel_error)
    }
}

/// What the driver says of a shape, as a reason to leave it to the CPU.
pub(crate) fn decline_of(error: &DriverError) -> Decline {
    let law = match error {
        DriverError::Declined(decline) => decline.law(),
        _ => "layout",
    };
    Decline::Limit { law: law.to_owned(), detail: error.to_string() }
}

fn accel_error(error: DriverError) -> AccelError {
    let kind = match &error {
        DriverError::Hold { .. } => AccelErrorKind::NoRoom,
        DriverError::Declined(_) | DriverError::Layout { .. } => AccelErrorKind::Unsupported,
        DriverError::Synth { .. } | DriverError::Objection { .. } | DriverError::Shape { .. } => {
            AccelErrorKind::Bug
        }
        _ => AccelErrorKind::Device,
    };
    let hint = error.hint();
    let message = error.to_string();
    let accel = AccelError::caused_by(kind, message, error);
    match hint {
        Some(hint) => accel.with_hint(hint),
        None => accel,
    }
}
