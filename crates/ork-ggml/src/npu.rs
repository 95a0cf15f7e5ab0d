// SPDX-License-Identifier: MIT OR Apache-2.0
//! The NPU driver as the backend's accelerator.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use ork_driver::{Driver, DriverError, MatmulGroup, ModelledProduct, Tiles, Weight};

use crate::error::in_full;
use crate::{
    AccelError, AccelErrorKind, Accelerator, CodeRows, Decline, LoadedWeight, ModelledTime, WeightRows,
};

/// Multiplies on the NPU of an [`ork_driver::Driver`].
pub struct NpuAccelerator {
    opened: OnceLock<Result<Arc<Driver>, AccelError>>,
    /// What it will be, until it is open.
    expected: String,
    open: Box<dyn Fn() -> Result<Arc<Driver>, AccelError> + Send + Sync>,
}

impl fmt::Debug for NpuAccelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NpuAccelerator").field("opened", &self.opened).finish_non_exhaustive()
    }
}

impl NpuAccelerator {
    /// An accelerator that shares this driver.
    #[must_use]
    pub fn new(driver: Arc<Driver>) -> Self {
        Self { opened: Ok(driver).into(), expected: String::new(), open: Box::new(|| Err(never_opened())) }
    }

    /// An accelerator that is opened when it is first needed, once: programs that never load a model leave the NPU to
    /// others. `expected` describes it until then. If it cannot be opened, that is logged, and every weight is declined.
    #[must_use]
    pub fn lazy(
        expected: String,
        open: impl Fn() -> Result<Arc<Driver>, AccelError> + Send + Sync + 'static,
    ) -> Self {
        Self { opened: OnceLock::new(), expected, open: Box::new(open) }
    }

    /// Name of the SoC that weights are laid out for; opens the device.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn soc(&self) -> Result<&'static str, AccelError> {
        self.driver().map(|driver| driver.soc()).map_err(AccelError::clone)
    }

    fn driver(&self) -> Result<&Arc<Driver>, &AccelError> {
        let open = || (self.open)().inspect_err(|error| tracing::error!("{}", in_full(error, error.hint())));
        self.opened.get_or_init(open).as_ref()
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
        match self.opened.get() {
            Some(Ok(driver)) => driver.device().describe().to_owned(),
            Some(Err(error)) => error.to_string(),
            None => self.expected.clone(),
        }
    }

    fn limits(&self, k: usize, n: usize) -> Result<(), Decline> {
        let unavailable = |error: &AccelError| Decline::Unavailable { detail: in_full(error, None) };
        self.driver().map_err(unavailable)?.check(k, n).map_err(|error| decline_of(&error))
    }

    fn load(
        &self,
        name: &str,
        k: usize,
        n: usize,
        rows: &WeightRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        let driver = self.driver().map_err(AccelError::clone)?;
        let weight = driver.load(name, k, n, rows).map_err(accel_error)?;
        Ok(Box::new(NpuWeight { weight, driver: Arc::clone(driver) }))
    }

    fn load_tiles(&self, name: &str, tiles: Tiles) -> Result<Box<dyn LoadedWeight>, AccelError> {
        let driver = self.driver().map_err(AccelError::clone)?;
        let weight = driver.load_tiles(name, tiles).map_err(accel_error)?;
        Ok(Box::new(NpuWeight { weight, driver: Arc::clone(driver) }))
    }

    fn load_codes(
        &self,
        name: &str,
        k: usize,
        n: usize,
        rows: &CodeRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        let driver = self.driver().map_err(AccelError::clone)?;
        let weight = driver.load_scaled_codes(name, k, n, rows).map_err(accel_error)?;
        Ok(Box::new(NpuWeight { weight, driver: Arc::clone(driver) }))
    }

    fn matmul_group_then<'a>(
        &self,
        weights: &[&'a dyn LoadedWeight],
        m: usize,
        x: &'a [f32],
        outs: Vec<&'a mut [f32]>,
        finished: &mut dyn FnMut(usize, &'a mut [f32]),
    ) -> Result<(), AccelError> {
        let parts = weights.iter().zip(outs).map(|(weight, out)| Ok((ours(*weight)?, out)));
        let parts = parts.collect::<Result<_, AccelError>>()?;
        let driver = self.driver().map_err(AccelError::clone)?;
        driver.matmul_then(MatmulGroup { m, x, parts }, finished).map_err(accel_error)
    }

    fn matmul_group(
        &self,
        weights: &[&dyn LoadedWeight],
        m: usize,
        x: &[f32],
        outs: &mut [&mut [f32]],
    ) -> Result<(), AccelError> {
        let mut parts = Vec::with_capacity(weights.len());
        for (weight, out) in weights.iter().zip(outs) {
            parts.push((ours(*weight)?, &mut **out));
        }
        let driver = self.driver().map_err(AccelError::clone)?;
        driver.matmul(&mut MatmulGroup { m, x, parts }).map_err(accel_error)
    }

    fn modelled(&self, k: usize, n: usize, m: usize) -> Option<ModelledTime> {
        let product = self.driver().ok()?.modelled_shape(k, n, m).ok()?;
        Some(time_of(&product, 0))
    }
}

/// The driver's weight behind one of ours.
fn ours(weight: &dyn LoadedWeight) -> Result<&Weight, AccelError> {
    let any: &dyn Any = weight;
    let foreign = || AccelError::new(AccelErrorKind::Bug, "a weight of another accelerator");
    any.downcast_ref::<NpuWeight>().map(|weight| &weight.weight).ok_or_else(foreign)
}

fn time_of(product: &ModelledProduct, brought_in_bytes: u64) -> ModelledTime {
    ModelledTime { npu_us: product.npu_us, host_bytes: product.host_bytes, brought_in_bytes }
}

fn never_opened() -> AccelError {
    AccelError::new(AccelErrorKind::Bug, "an open accelerator was opened again")
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

    fn modelled(&self, m: usize) -> Option<ModelledTime> {
        let product = self.driver.modelled(&self.weight, m).ok()?;
        let brought_in = if self.weight.is_streamed() { self.weight.device_bytes() } else { 0 };
        Some(time_of(&product, brought_in))
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
        DriverError::Declined(_) | DriverError::Layout { .. } | DriverError::Tiles { .. } => {
            AccelErrorKind::Unsupported
        }
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
