// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every command that runs a model needs: the device, the backend, the engine.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ork_config::{Config, RouteKind};
use ork_device::Device;
use ork_driver::Driver;
use ork_engine::{Engine, LogLevel, LogSink, Model, linked_host};
use ork_ggml::{ModelPack, NpuAccelerator, OrkBackend, PackChoice, Route};

use crate::failure::Failure;
use crate::progress;

/// Device, backend and engine.
pub(crate) struct Session {
    pub(crate) engine: Engine,
    /// `None` when nothing is to run on the NPU.
    pub(crate) npu: Option<Npu>,
}

/// The NPU's side of a session.
pub(crate) struct Npu {
    pub(crate) driver: Arc<Driver>,
    pub(crate) backend: Arc<OrkBackend>,
}

/// How much of llama.cpp's log is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Log {
    /// Nothing; failures carry their causes.
    Quiet,
    /// Everything from the level "info".
    Verbose,
}

impl Session {
    /// Opens the device (unless the route is cpu), says which one it is, and starts the engine.
    pub(crate) fn start(config: &Config, log: Log) -> Result<Self, Failure> {
        let sink = match log {
            Log::Quiet => LogSink::discard(),
            Log::Verbose => LogSink::new(|level, line| {
                if level >= LogLevel::Info {
                    eprintln!("llama: {line}");
                }
            }),
        };
        for note in config.context.cache_notes() {
            eprintln!("note: {note}");
        }
        if config.offload.route == RouteKind::Cpu {
            if matches!(config.offload.pack, PackChoice::Require | PackChoice::Build | PackChoice::Path(_)) {
                let text = format!("--pack {}: route cpu uses no pack", config.offload.pack);
                return Err(Failure::usage(text));
            }
            eprintln!("device: CPU only (route cpu)");
            return Ok(Self { engine: Engine::init(None, sink)?, npu: None });
        }
        let device = Device::open(&config.device)?;
        eprintln!("device: {}", device.describe());
        let driver = Arc::new(Driver::new(device, config.driver.clone())?);
        let accelerator = Arc::new(NpuAccelerator::new(Arc::clone(&driver)));
        let backend = OrkBackend::new(linked_host(), accelerator, config.offload.backend_options())?;
        let engine = Engine::init(Some(Arc::clone(&backend)), sink)?;
        Ok(Self { engine, npu: Some(Npu { driver, backend }) })
    }

    /// Loads a model with a progress bar: reading, and packing weights for the NPU unless a pack has them. Says which
    /// pack is used, and which weights it lacks.
    pub(crate) fn load(&self, path: &Path, config: &Config) -> Result<Model, Failure> {
        const STEPS: u64 = 1000;
        // A model whose weights stay with the CPU has no use for a pack.
        let npu = self.npu.as_ref().filter(|npu| npu.backend.route() != Route::Cpu);
        let pack = match npu {
            Some(npu) => ModelPack::find(path, &config.offload.pack, npu.driver.soc())?,
            None => None,
        };
        let label = match (&npu, &pack) {
            (None, _) | (_, Some(_)) => "loading",
            (Some(_), None) => "loading, packing",
        };
        if let (Some(npu), Some(pack)) = (npu, &pack) {
            eprintln!("pack: {pack}");
            npu.backend.set_pack(Some(Arc::clone(pack)));
        }
        let bar = progress::bar(label, STEPS);
        let model = Model::load(&self.engine, path, &config.load, &mut |done| {
            bar.set_position((f64::from(done) * STEPS as f64) as u64);
            ControlFlow::Continue(())
        });
        bar.finish_and_clear();
        if let Some(npu) = npu {
            npu.backend.set_pack(None);
            let missed = npu.backend.census().packs.missed;
            if pack.is_some() && model.is_ok() && !missed.is_empty() {
                let names: Vec<&str> = missed.keys().take(4).map(String::as_str).collect();
                eprintln!(
                    "note: the pack lacks {} weights, which were converted from the model's bytes: {}{}",
                    missed.len(),
                    names.join(", "),
                    if missed.len() > names.len() { ", ..." } else { "" }
                );
            }
        }
        Ok(model?)
    }
}
