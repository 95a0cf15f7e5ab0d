// SPDX-License-Identifier: MIT OR Apache-2.0
//! From settings to a registered backend.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use ork_config::{Config, ConfigError, Layers, RouteKind};
use ork_device::{Device, DeviceKind, DeviceOptions, enumerate};
use ork_driver::{Driver, DriverOptions};
use ork_ggml::{
    Absent, AccelError, AccelErrorKind, InitError, ModelPack, NpuAccelerator, OrkBackend, PackChoice, abi,
};

use crate::host::{HostError, find, find_graphs};
use crate::report;

/// Why the library cannot serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("the settings are wrong")]
    Config(#[from] ConfigError),
    #[error("cannot work in this program")]
    Host(#[from] HostError),
    #[error("cannot work with this program's ggml")]
    Init(#[from] InitError),
    #[error("a defect of ork: it panicked while starting; please report it")]
    Panic,
}

/// How well the backend suits the machine; CPU variants of ggml score below this.
const SUITS: i32 = 100;
/// Of no use, but [`registration`] says why.
const WILL_EXPLAIN: i32 = 1;
const OF_NO_USE: i32 = 0;

fn settings() -> Result<Config, ConfigError> {
    Layers::read(None, &[])?.config()
}

/// The answer to `ggml_backend_score`.
pub(crate) fn score() -> i32 {
    let Ok(config) = settings() else { return WILL_EXPLAIN };
    let real = matches!(config.device.kind, DeviceKind::Rknpu | DeviceKind::Rocket);
    if real && !enumerate(&config.device).iter().any(|found| found.verdict.is_ok()) {
        return OF_NO_USE;
    }
    SUITS
}

/// The registration of the one backend of this process.
pub(crate) fn registration() -> Result<*mut abi::Reg, &'static StartError> {
    static BACKEND: OnceLock<Result<Arc<OrkBackend>, StartError>> = OnceLock::new();
    let backend = BACKEND.get_or_init(start).as_ref()?;
    Ok(backend.registration())
}

fn start() -> Result<Arc<OrkBackend>, StartError> {
    let config = settings()?;
    report::log_to_stderr(config.plugin.log);
    let host = find()?;
    let (device, driver) = (config.device.clone(), config.driver.clone());
    let accelerator = NpuAccelerator::lazy(expected(&config), move || open(&device, &driver));
    let accelerator = Arc::new(accelerator);
    let backend = OrkBackend::new(host, Arc::clone(&accelerator) as _, config.offload.backend_options())?;
    if config.plugin.node {
        backend.serve_graphs(find_graphs()?);
    }
    let choice = config.offload.pack.clone();
    if choice != PackChoice::Never {
        let unmapped = match choice {
            PackChoice::Require | PackChoice::Build | PackChoice::Path(_) => Absent::Refuse,
            PackChoice::Auto | PackChoice::Never => Absent::Convert,
        };
        let find = move |model: &Path| match accelerator.soc() {
            Ok(soc) => ModelPack::find(model, &choice, soc),
            // Logged where it was opened; nothing will be taken, packed or not.
            Err(_) => Ok(None),
        };
        backend.find_packs(Box::new(find), unmapped);
    }
    report::at_exit(&backend, config.plugin.report);
    Ok(backend)
}

/// What the device will be, as far as that can be said without opening it.
fn expected(config: &Config) -> String {
    let kind = match config.device.kind {
        DeviceKind::Sim => "simulated",
        DeviceKind::Auto if !enumerate(&config.device).iter().any(|found| found.verdict.is_ok()) => {
            "simulated"
        }
        DeviceKind::Auto | DeviceKind::Rknpu | DeviceKind::Rocket => "real",
    };
    match config.offload.route {
        RouteKind::Cpu => "RK3588 NPU (unused: route cpu)".to_owned(),
        RouteKind::Auto | RouteKind::Npu => format!("RK3588 NPU ({kind})"),
    }
}

fn open(device: &DeviceOptions, driver: &DriverOptions) -> Result<Arc<Driver>, AccelError> {
    let device = Device::open(device).map_err(|error| {
        let hint = error.hint();
        let message = "cannot open the NPU, everything stays on the CPU";
        let refused = AccelError::caused_by(AccelErrorKind::Device, message, error);
        match hint {
            Some(hint) => refused.with_hint(hint),
            None => refused,
        }
    })?;
    tracing::info!("device: {}", device.describe());
    let driver = Driver::new(device, driver.clone())
        .map_err(|error| AccelError::caused_by(AccelErrorKind::Device, "cannot use the NPU", error))?;
    Ok(Arc::new(driver))
}
