// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use ork_device::{Device, DeviceError, DmaBuffer, DomainId, EventKind};
use ork_isa::soc::{RK3588, Soc};
use ork_layout::{FeatureLayout, Format, OutputLayout, WeightLayout};
use ork_plan::{Datapath, Decision, Plan, PlanOptions, Problem, decide};
use ork_quant::{BasisId, Scale};
use ork_synth::{Binding, Bindings, OutputStage, emit_with};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use crate::DriverError;
use crate::accumulate::sum_output_rows;
use crate::check::VerifyMode;
use crate::counters::DriverCounters;
use crate::datapath::DatapathGate;
use crate::execution::{Bound, CompletionMode, Here, KnownCells, Pool};
use crate::residency::{Residency, ResidencyCounters, ResidencyOptions};
use crate::scratch::Scratches;
use crate::timeline::{Listener, Phase, Teller};
use crate::weight::{Weight, check_shape, weight_layout_of};
use crate::work::check_format;

/// The chip whose programs are made.
pub const SOC: Soc = RK3588;

/// Largest K whose int8 products always sum up within 32 bits: `131071 * 128 * 128 < 2^31`.
pub(crate) const NARROW_SUM_K_MAX: usize = 131_071;
/// Computations of a product before a wrong one is an error.
const WRONG_PRODUCTS_MAX: u32 = 3;
/// Plans kept before all are forgotten: every weight at a few row counts, with room to spare.
const PLANS_MAX: usize = 4096;

/// How products are planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DriverOptions {
    /// Tiling.
    pub plan: PlanOptions,
    /// How the end of a product on the NPU is known.
    pub completion: CompletionMode,
    /// Whether products are checked on the CPU.
    pub verify: VerifyMode,
    /// Which weights are brought into device memory when they are used.
    pub residency: ResidencyOptions,
}

/// One activation for several weights with the same K: it is quantised and laid out once.
#[derive(Debug)]
pub struct MatmulGroup<'a> {
    /// Rows of the activation.
    pub m: usize,
    /// `m` x K, contiguous.
    pub x: &'a [f32],
    /// The weights, each with its result: `m` x N, contiguous, every element is written.
    pub parts: Vec<(&'a Weight, &'a mut [f32])>,
}

/// Holds weights and multiplies by them. Threads may share it; products follow each other.
///
/// Operands and results are copied with the help of rayon's global pool while other products wait. Threads of that pool
/// must not multiply while others do: each of them could wait for its product's turn, and none be left to help.
#[derive(Debug)]
pub struct Driver {
    // Drop order: the buffers go before the device that they belong to.
    pub(crate) engine: Mutex<Engine>,
    plans: Mutex<HashMap<Problem, Arc<Plan>>>,
    verdicts: Mutex<HashMap<(usize, usize), Verdict>>,
    /// Layouts of tiles that lay ready and can be multiplied by.
    pub(crate) tiles_known: Mutex<HashSet<WeightLayout>>,
    pub(crate) counters: Mutex<DriverCounters>,
    pub(crate) options: DriverOptions,
    pub(crate) soc: Soc,
    pub(crate) listener: RwLock<Option<Arc<dyn Listener>>>,
    pub(crate) residency: Arc<Residency>,
    pub(crate) device: Arc<Device>,
}

/// Whether a K x N weight can be computed with.
type Verdict = Result<(), Arc<DriverError>>;

/// What one product at a time uses.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) buffers: Scratches,
    pub(crate) datapath: DatapathGate,
    pub(crate) cells: KnownCells,
    /// One thread for each core: a submit blocks its thread.
    pub(crate) submitters: rayon::ThreadPool,
}

/// What the feature buffer holds, and the scale of each of its rows.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) held: Option<(DomainId, FeatureLayout, u32)>,
    /// The basis that its rows are in.
    pub(crate) basis: Option<BasisId>,
    pub(crate) scales: Vec<Scale>,
}

/// One product: rows of an activation with a weight.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) weight: &'a Weight,
    pub(crate) m: usize,
    /// What happens to the sums.
    pub(crate) stage: OutputStage,
}

impl Driver {
    /// Row counts that meet every kind of tile: one row, one odd tile, many tiles.
    pub(crate) const ROWS_ASKED: [u32; 3] = [1, 31, 1025];

    /// A driver for this device.
    ///
    /// # Errors
    /// [`DriverError::Threads`] when the threads that wait for the cores cannot be started.
    pub fn new(device: Device, options: DriverOptions) -> Result<Self, DriverError> {
        let cores = device.cores();
        let submitters = rayon::ThreadPoolBuilder::new()
            .num_threads(usize::from(cores))
            .thread_name(|core| format!("npu-core-{core}"))
            .build()
            .map_err(|error| DriverError::Threads(error.to_string()))?;
        let mut options = options;
        // The device may have fewer cores than the chip; a plan for more could not run.
        options.plan.cores = if options.plan.cores == 0 { cores } else { options.plan.cores.min(cores) };
        let device = Arc::new(device);
        let residency = Residency::new(&device, &options.residency)
            .map_err(|source| DriverError::Residency { source })?
            .with_prefetch();
        Ok(Self {
            engine: Mutex::new(Engine {
                buffers: Scratches::new(cores),
                datapath: DatapathGate::default(),
                cells: KnownCells::default(),
                submitters,
            }),
            plans: Mutex::default(),
            verdicts: Mutex::default(),
            tiles_known: Mutex::default(),
            counters: Mutex::default(),
            options,
            soc: SOC,
            listener: RwLock::default(),
            residency: Arc::new(residency),
            device,
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Name of the SoC that weights are laid out for.
    #[must_use]
    pub fn soc(&self) -> &'static str {
        self.soc.name
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> DriverCounters {
        *self.counters.lock()
    }

    /// Tells this listener of every product from now on, or nobody. Products that a [`Queue`](crate::Queue) puts into one
    /// chain with others and [`Precompiled`](crate::Precompiled) programs are not told. Nothing is done for a listener
    /// that is not there.
    pub fn listen(&self, listener: Option<Arc<dyn Listener>>) {
        *self.listener.write() = listener;
    }

    /// What streaming did.
    #[must_use]
    pub fn residency(&self) -> ResidencyCounters {
        self.residency.counters()
    }

    /// Can a K x N weight be held and multiplied by one row as well as by many? The answer is kept.
    ///
    /// # Errors
    /// The reason: a law with its numbers, or a size that no layout can have.
    pub fn check(&self, k: usize, n: usize) -> Result<(), Arc<DriverError>> {
        self.verdicts
            .lock()
            .entry((k, n))
            .or_insert_with(|| check_shape(k, n, &self.options.plan).map_err(Arc::new))
            .clone()
    }

    /// Quantises and uploads a weight of `n` rows (output channels) with `k` elements each. `rows(j, out)` fills
    /// `out` with row `j`; it is called once for each row, from several threads.
    ///
    /// # Errors
    /// [`DriverError`]; nothing stays allocated then.
    pub fn load(
        &self,
        name: &str,
        k: usize,
        n: usize,
        rows: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Result<Weight, DriverError> {
        let layout = self.layout(name, Format::INT8_INT32, k, n)?;
        self.count_weight(Weight::from_f32((&self.residency, self.options.verify), layout, name, rows)?)
    }

    /// Uploads a weight whose rows are int8 already; all scales are 1.
    ///
    /// # Errors
    /// As [`Driver::load`].
    pub fn load_codes(
        &self,
        name: &str,
        k: usize,
        n: usize,
        rows: &(dyn Fn(usize, &mut [i8]) + Sync),
    ) -> Result<Weight, DriverError> {
        self.load_elements(name, Format::INT8_INT32, k, n, rows)
    }

    /// How a weight lies.
    pub(crate) fn layout(
        &self,
        name: &str,
        format: Format,
        k: usize,
        n: usize,
    ) -> Result<WeightLayout, DriverError> {
        weight_layout_of(name, format, k, n, &self.soc, &self.options.plan)
    }

    pub(crate) fn count_weight(&self, weight: Weight) -> Result<Weight, DriverError> {
        let mut counters = self.counters.lock();
        counters.weights += 1;
        counters.weight_bytes += weight.device_bytes();
        Ok(weight)
    }

    /// The exact int32 product of int8 rows `a` (`m` x K) with a weight, without any scale.
    ///
    /// # Errors
    /// [`DriverError`], [`DriverError::WideSum`] among them.
    pub fn matmul_codes(
        &self,
        weight: &Weight,
        m: usize,
        a: &[i8],
        out: &mut [i32],
    ) -> Result<(), DriverError> {
        check_format(weight, Format::INT8_INT32)?;
        if weight.k() > NARROW_SUM_K_MAX {
            return Err(DriverError::WideSum { k: weight.k() });
        }
        self.checked(weight, m, a, out, |a, out| {
            self.multiply(weight, m, a, out, OutputStage::Plain, sum_output_rows)
        })
    }

    /// Computes an int8 product until it passes the weight's check, if it has one and as often as that is allowed.
    pub(crate) fn checked(
        &self,
        weight: &Weight,
        m: usize,
        a: &[i8],
        out: &mut [i32],
        mut compute: impl FnMut(&[i8], &mut [i32]) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        for attempt in 1.. {
            compute(a, out)?;
            let Some(check) = weight.check() else { break };
            let (rows, results) = (a.chunks_exact(weight.k()), out.chunks_exact(weight.n()));
            let Some(row) = rows.zip(results).position(|(a, c)| !check.holds(a, c)) else { break };
            self.wrong_product(weight, m, row, attempt)?;
        }
        Ok(())
    }

    /// Counts a product that came out wrong; an error unless it may be computed again.
    pub(crate) fn wrong_product(
        &self,
        weight: &Weight,
        m: usize,
        row: usize,
        attempt: u32,
    ) -> Result<(), DriverError> {
        if self.device.may_recover() && attempt < WRONG_PRODUCTS_MAX {
            self.device.note(None, EventKind::WrongProduct);
            return Ok(());
        }
        let (name, k, n) = (weight.name().to_owned(), weight.k(), weight.n());
        Err(DriverError::WrongProduct { name, m, k, n, row, attempt })
    }

    /// The plan for `m` rows; one that does not fold if it must not.
    pub(crate) fn plan(&self, weight: &Weight, m: usize, may_fold: bool) -> Result<Arc<Plan>, DriverError> {
        let m = u32::try_from(m).unwrap_or(u32::MAX);
        let problem = Problem { m, weight: weight.layout().clone() };
        let decide = |options: &PlanOptions| match decide(&problem, &self.soc, options) {
            Decision::Accept(plan) => Ok(Arc::new(plan)),
            Decision::Decline(decline) => Err(DriverError::Declined(decline)),
        };
        let usable = |plan: &Plan| may_fold || !plan.folds();
        let mut plans = self.plans.lock();
        if let Some(plan) = plans.get(&problem) {
            // Behind a reset, once: not worth keeping.
            return if usable(plan) {
                Ok(Arc::clone(plan))
            } else {
                decide(&self.options.plan.without_fold())
            };
        }
        let plan = decide(&self.options.plan)?;
        if !usable(&plan) {
            return decide(&self.options.plan.without_fold());
        }
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        plans.insert(problem, Arc::clone(&plan));
        self.counters.lock().plans += 1;
        Ok(plan)
    }

    /// Runs all passes of a product. `fill` writes the rows of a pass into the feature buffer, unless `loaded` says
    /// that they are there; `read` takes the surfaces of a pass.
    pub(crate) fn run(
        &self,
        engine: &mut Engine,
        Job { weight, m, stage }: Job<'_>,
        loaded: &mut Loaded,
        mut fill: impl FnMut(&FeatureLayout, usize, &mut [u8], &mut Vec<Scale>) -> Result<(), DriverError>,
        mut read: impl FnMut(&OutputLayout, usize, &[u8], &[Scale]),
    ) -> Result<(), DriverError> {
        if m == 0 {
            return Ok(());
        }
        let mut spent = DriverCounters::default();
        let listener = self.listener.read().clone();
        let teller = Teller {
            listener: listener.as_deref(),
            weight: weight.name(),
            size: (m, weight.k(), weight.n()),
        };
        let began = Instant::now();
        let start = Instant::now();
        let Engine { buffers, datapath, cells, submitters } = engine;
        let may_fold = datapath.may_fold(Datapath::of(weight.format()));
        let plan = self.plan(weight, m, may_fold)?;
        spent.synthesise += teller.lap(Phase::Plan, start);

        let buffer_error = |doing| {
            move |source: DeviceError| DriverError::Buffer {
                name: weight.name().to_owned(),
                m,
                k: weight.k(),
                n: weight.n(),
                doing,
                source,
            }
        };
        let extents = plan.extents();
        let pinned = weight.pin()?;
        let weights = pinned.open();
        let domain = weights.domain();
        let buffers = buffers.of(domain);
        let features =
            buffers.features.with_room(&self.device, extents.a_bytes).map_err(buffer_error("allocating"))?;
        let outputs =
            buffers.outputs.with_room(&self.device, extents.c_bytes).map_err(buffer_error("allocating"))?;
        let mut regcmds = Vec::with_capacity(extents.regcmd_bytes.len());
        for (scratch, bytes) in buffers.regcmds.iter_mut().zip(&extents.regcmd_bytes) {
            regcmds.push(scratch.with_room(&self.device, *bytes).map_err(buffer_error("allocating"))?);
        }

        let mut modelled_us = 0.0;
        for pass in plan.passes() {
            let shape = pass.shape;
            let here = (domain, shape.features.clone(), pass.m0);
            if loaded.held.as_ref() != Some(&here) {
                let start = Instant::now();
                loaded.held = None;
                fill(&shape.features, pass.m0 as usize, features.host_mut(), &mut loaded.scales)?;
                loaded.held = Some(here);
                spent.quantise += teller.lap(Phase::Quantise, start);
                let start = Instant::now();
                features.flush(0..shape.features.bytes()).map_err(buffer_error("flushing features"))?;
                spent.sync += teller.lap(Phase::Flush, start);
            }

            let start = Instant::now();
            let mut chains = Vec::with_capacity(shape.chains.len());
            for chain in &shape.chains {
                let regcmd = &mut *regcmds[usize::from(chain.core)];
                let bindings = Bindings {
                    a: bind(features),
                    b: Binding { iova: weights.iova(), len: weights.len() },
                    c: bind(outputs),
                    regcmd: bind(regcmd),
                };
                let programs = emit_with(shape, chain.core, &bindings, stage)
                    .map_err(|source| DriverError::Synth { name: weight.name().to_owned(), source })?;
                regcmd.host_mut()[..programs.bytes().len()].copy_from_slice(programs.bytes());
                spent.programs += programs.len() as u64;
                chains.push(programs);
            }
            spent.synthesise += teller.lap(Phase::Synthesise, start);

            let start = Instant::now();
            for programs in &chains {
                let bytes = 0..programs.bytes().len() as u64;
                regcmds[usize::from(programs.core())]
                    .flush(bytes)
                    .map_err(buffer_error("flushing programs"))?;
            }
            spent.sync += teller.lap(Phase::Flush, start);

            let start = Instant::now();
            let mode = (plan.datapath(), weight.name());
            let completed = datapath.run((&self.device, &self.counters), mode, || {
                modelled_us += shape.modelled.us;
                let bound = Bound {
                    features: &*features,
                    features_live: 0..shape.features.bytes(),
                    weights: weights.input(weight.device_bytes()),
                    outputs: &mut *outputs,
                    regcmds: &mut regcmds,
                    programs: &chains,
                };
                let here =
                    Here { plan: &plan, shape_index: pass.shape_index, completion: self.options.completion };
                here.run(&self.device, cells, &Pool(submitters), bound).map_err(|source| {
                    DriverError::Submit {
                        name: weight.name().to_owned(),
                        m,
                        k: weight.k(),
                        n: weight.n(),
                        source: Box::new(source),
                    }
                })
            })?;
            spent.submit += teller.lap_of(Phase::Submit, start, Some((&plan, pass.shape_index)));
            if let Some(finding) = completed.iter().flat_map(|done| done.findings()).next() {
                return Err(DriverError::Objection {
                    name: weight.name().to_owned(),
                    m,
                    k: weight.k(),
                    n: weight.n(),
                    finding: Box::new(finding.clone()),
                });
            }

            let start = Instant::now();
            let live = shape.outputs.bytes() as usize;
            read(&shape.outputs, pass.m0 as usize, &outputs.host()[..live], &loaded.scales);
            spent.dequantise += teller.lap(Phase::Dequantise, start);
        }
        teller.lap(Phase::Product, began);

        let mut counters = self.counters.lock();
        counters.matmuls += 1;
        counters.rows += m as u64;
        counters.macs += (m * weight.k() * weight.n()) as u64;
        counters.sliced += u64::from(plan.k_slices() > 1);
        counters.programs += spent.programs;
        counters.modelled_ns += (modelled_us * 1e3).round() as u64;
        counters.quantise += spent.quantise;
        counters.synthesise += spent.synthesise;
        counters.sync += spent.sync;
        counters.submit += spent.submit;
        counters.dequantise += spent.dequantise;
        Ok(())
    }
}

fn bind(buffer: &DmaBuffer) -> Binding {
    Binding { iova: buffer.iova(), len: buffer.len() }
}

pub(crate) fn check_len(what: &'static str, found: usize, needed: usize) -> Result<(), DriverError> {
    if found == needed { Ok(()) } else { Err(DriverError::Shape { what, found, needed }) }
}
