// SPDX-License-Identifier: MIT OR Apache-2.0
//! The backend object: accelerator, options, counters, the stored error, and the tables ggml sees.

use crate::abi;
use crate::accelerator::Accelerator;
use crate::census::{ClaimCensus, Counters};
use crate::device::Tables;
use crate::error::{BackendError, InitError, in_full};
use crate::experts::Experts;
use crate::host::{Host, OpCodes};
use crate::mapping;
use crate::node::GraphHost;
use crate::options::{Attention, BackendOptions, ForeignWeights, Route, Swiglu};
use crate::pack::{Absent, ModelPack, PackUseError};
use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// No code of ggml's.
const UNKNOWN_CODE: c_int = -1;

/// One accelerator as ggml sees it.
///
/// ggml never unregisters a backend and keeps raw pointers into it, so the object is leaked on purpose: `new` keeps
/// one reference for ever. [`OrkBackend::retire`] lets go of the accelerator itself.
pub struct OrkBackend {
    host: Host,
    ops: OpCodes,
    options: BackendOptions,
    route: RwLock<Route>,
    accelerator: RwLock<Option<Arc<dyn Accelerator>>>,
    pack: RwLock<Option<Arc<ModelPack>>>,
    finder: OnceLock<(Box<PackFinder>, Absent)>,
    experts: Option<Experts>,
    /// ggml's code of GLU, once it was met: it lies beyond where codes are looked up by name.
    glu: AtomicI32,
    counters: Counters,
    errors: Mutex<Errors>,
    tables: OnceLock<Tables>,
}

/// Finds the pack of a model file.
pub type PackFinder = dyn Fn(&Path) -> Result<Option<Arc<ModelPack>>, PackUseError> + Send + Sync;

/// The first error since the last fetch, and how many followed it.
#[derive(Debug, Default)]
struct Errors {
    first: Option<BackendError>,
    further: u64,
}

impl std::fmt::Debug for OrkBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrkBackend")
            .field("accelerator", &*read(&self.accelerator))
            .field("route", &self.route())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl OrkBackend {
    /// Builds the backend and its tables. `host` must come from a ggml of interface version
    /// [`abi::API_VERSION`]; ggml does not check that for backends registered in-process.
    ///
    /// # Errors
    /// If the host's ggml does not know an operation this backend relies on, or there is no expert cache as it is asked for.
    pub fn new(
        host: Host,
        accelerator: Arc<dyn Accelerator>,
        options: BackendOptions,
    ) -> Result<Arc<Self>, InitError> {
        let ops = host.op_codes().map_err(|name| InitError::NoSuchOperation { name })?;
        let description = accelerator.describe();
        let experts = Experts::from_options(&options.experts)?;
        let backend = Arc::new(Self {
            host,
            ops,
            route: RwLock::new(options.route),
            options,
            accelerator: RwLock::new(Some(accelerator)),
            pack: RwLock::default(),
            finder: OnceLock::new(),
            experts,
            glu: AtomicI32::new(UNKNOWN_CODE),
            counters: Counters::default(),
            errors: Mutex::default(),
            tables: OnceLock::new(),
        });
        // SAFETY: the reference given away here is never taken back, so the value lives for ever.
        let forever: &'static Self = unsafe { &*Arc::into_raw(Arc::clone(&backend)) };
        backend.tables.get_or_init(|| Tables::leak(forever, &description));
        Ok(backend)
    }

    /// For `ggml_backend_register` (or as the result of a plug-in's `ggml_backend_init`).
    pub fn registration(&self) -> *mut abi::Reg {
        self.tables().registration()
    }

    /// The device, for use without the registry.
    pub fn device(&self) -> *mut abi::Device {
        self.tables().device()
    }

    /// Registers a second device, `ORK_NODE`, that takes whole graphs: what it cannot multiply, the host's CPU
    /// computes. For RPC servers, which give a graph to one device. To be called before the registration is handed over.
    pub fn serve_graphs(&self, host: GraphHost) {
        let description =
            self.accelerator().map_or_else(|_| String::new(), |accelerator| accelerator.describe());
        // SAFETY: a backend lives for ever, see `new`.
        let forever: &'static Self = unsafe { &*std::ptr::from_ref(self) };
        self.tables().add_node(forever, host, &format!("{description} and the CPU"));
    }

    pub(crate) fn tables(&self) -> &Tables {
        self.tables.get().expect("`new` fills the tables before anyone else sees the backend")
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn ops(&self) -> &OpCodes {
        &self.ops
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn exclusion(&self, name: &str) -> Option<&str> {
        self.options.exclusion(name)
    }

    pub(crate) fn foreign_weights(&self) -> ForeignWeights {
        self.options.foreign_weights
    }

    pub(crate) fn experts(&self) -> Option<&Experts> {
        self.experts.as_ref()
    }

    pub(crate) fn swiglu(&self) -> Swiglu {
        self.options.swiglu
    }

    pub(crate) fn attention(&self) -> Attention {
        self.options.attention
    }

    /// Whether a matrix in plain memory may be packed for one product.
    pub(crate) fn packs_per_call(&self, weight: &abi::Tensor) -> bool {
        self.foreign_weights() == ForeignWeights::PackPerCall
            || (self.attention() != Attention::Off && weight.op != self.ops.none)
    }

    /// Whether a code, which must be that of a live tensor, is ggml's GLU.
    pub(crate) fn is_glu(&self, code: c_int) -> bool {
        match self.glu.load(Ordering::Relaxed) {
            UNKNOWN_CODE => {
                let found = self.host.op_name(code) == "GLU";
                if found {
                    self.glu.store(code, Ordering::Relaxed);
                }
                found
            }
            glu => code == glu,
        }
    }

    /// The accelerator, unless retired.
    ///
    /// # Errors
    /// [`BackendError::Retired`].
    pub(crate) fn accelerator(&self) -> Result<Arc<dyn Accelerator>, BackendError> {
        read(&self.accelerator).clone().ok_or(BackendError::Retired)
    }

    /// Who multiplies, for models loaded from now on.
    pub fn route(&self) -> Route {
        *read(&self.route)
    }

    /// Changes the route.
    ///
    /// A model keeps the kind of buffer it was loaded into:
    /// * change *before loading* a model: always allowed, models of different routes can live side by side;
    /// * a model loaded under `auto` follows later changes, from its next context on: `cpu` takes its matmuls back to
    ///   the CPU, `npu` sends them to the accelerator whatever their rows;
    /// * a model loaded under `npu` stays on the accelerator whatever the route says: nobody else can read its
    ///   weights;
    /// * a model loaded under `cpu` stays on the CPU.
    ///
    /// Do not change it while another thread loads a model or runs a decode.
    pub fn set_route(&self, route: Route) {
        *self.route.write().unwrap_or_else(PoisonError::into_inner) = route;
    }

    /// Where the accelerator's weights come from, for models loaded from now on. The caller has found the pack that
    /// belongs to the model ([`ModelPack::find`]), and takes it away when the model is loaded; [`ClaimCensus::packs`]
    /// counts from here on.
    ///
    /// A weight that the CPU has to read too (route `auto`) also gets the model's bytes: then many rows are multiplied
    /// in the pack's scheme and few rows in the model's type.
    pub fn set_pack(&self, pack: Option<Arc<ModelPack>>) {
        if pack.is_some() {
            self.counters.new_pack();
        }
        *self.pack.write().unwrap_or_else(PoisonError::into_inner) = pack;
    }

    /// Looks for a pack whenever the host maps a model file, which is how a plug-in comes by the model's name. With
    /// [`Absent::Refuse`], weights of models that are not mapped are an error. Only the first call counts.
    pub fn find_packs(&self, finder: Box<PackFinder>, unmapped: Absent) {
        // A second finder is ignored, as is said.
        let _ = self.finder.set((finder, unmapped));
    }

    /// The pack of the model that is mapped at an address, if it is to be looked for.
    pub(crate) fn pack_at(&self, address: usize) -> Result<Option<Arc<ModelPack>>, BackendError> {
        let Some((finder, _)) = self.finder.get() else { return Ok(None) };
        let Some(model) = mapping::file_at(address) else { return Ok(None) };
        let pack = finder(&model)
            .map_err(|source| BackendError::NoPack { model: model.clone(), source: Arc::new(source) })?;
        match &pack {
            Some(pack) => tracing::info!("{}: pack {pack}", model.display()),
            None => tracing::info!("{}: no pack, weights are converted", model.display()),
        }
        Ok(pack)
    }

    /// Whether weights must not be converted where no pack is known.
    pub(crate) fn refuses_unpacked(&self) -> bool {
        self.finder.get().is_some_and(|(_, unmapped)| *unmapped == Absent::Refuse)
    }

    pub(crate) fn pack(&self) -> Option<Arc<ModelPack>> {
        read(&self.pack).clone()
    }

    /// What was asked, claimed, declined and executed since the start or the last reset.
    pub fn census(&self) -> ClaimCensus {
        self.counters.snapshot()
    }

    /// Starts the counts of planning and execution anew.
    pub fn reset_census(&self) {
        self.counters.reset();
    }

    /// The first error since the last call, if any. ggml callbacks can only report "failed"; this says what. Callers
    /// check it after loading a model (loading has no status at all) and after a failed decode.
    pub fn take_error(&self) -> Option<BackendError> {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.further = 0;
        errors.first.take()
    }

    /// Lets go of the accelerator: nothing is claimed any more, and work on weights still alive fails with
    /// [`BackendError::Retired`]. Counters stay readable.
    pub fn retire(&self) {
        self.set_route(Route::Cpu);
        self.set_pack(None);
        *self.accelerator.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Stores an error for [`Self::take_error`]; the first one wins, being the likely cause of the others.
    pub(crate) fn report(&self, error: BackendError) {
        tracing::error!("{}", in_full(&error, error.hint().as_deref()));
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.first.is_some() {
            errors.further += 1;
        } else {
            errors.first = Some(error);
        }
    }

    /// Runs the body of a callback; a panic becomes a stored error and the fallback value.
    pub(crate) fn guard<R>(&self, callback: &'static str, fallback: R, body: impl FnOnce() -> R) -> R {
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
            self.report(BackendError::Panic { callback, message: panic_message(payload.as_ref()) });
            fallback
        })
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}
