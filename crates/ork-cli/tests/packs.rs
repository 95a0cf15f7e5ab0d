// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiny models with packs, end to end: llama.cpp, the backend, the driver, the emulated board. What a pack holds is
//! compared with an accelerator of plain loops that multiplies by the same codes.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ork_device::{Device, DeviceKind, DeviceOptions, DriverKind};
use ork_driver::{Driver, DriverOptions, ResidencyOptions, StreamMode, Tiles};
use ork_engine::tiny::{TinyModel, WeightType};
use ork_engine::{
    ContextOptions, Divergence, Engine, EngineError, LoadOptions, LogSink, LogitTable, Model, linked_host,
    logits,
};
use ork_ggml::{
    Absent, AccelError, Accelerator, BackendError, BackendOptions, Decline, LoadedWeight, MinRows, ModelPack,
    NpuAccelerator, OrkBackend, PackChoice, PackMiss, PackUseError, Route, WeightRows,
};
use ork_isa::soc::RK3588;
use ork_layout::{Format, Int4};
use ork_pack::{
    LAYOUT, NewTensor, Pack, PackError, PackPlan, PackWriter, Request, SourceId, Target, WriteOptions,
    tile_codes, tile_groups,
};
use ork_plan::weight_layout;
use ork_quant::{
    Basis, ClipRule, Codebook, Method, NF4_INT8, Scale, Scheme, Step, StepKind, Tier, pack_nibbles,
    quantise_grouped_row,
};

const TEXT: &str = "Once upon a time there was a matrix that nobody multiplied, because it lay in a drawer.";

/// llama.cpp exists once per process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tiny() -> TinyModel {
    TinyModel { weight_type: WeightType::F16, ..TinyModel::default() }
}

/// Rows of every weight that the accelerator was given, by name, with K.
type Rows = BTreeMap<String, (usize, Vec<f32>)>;

/// Hands everything on, and keeps the rows that it sees.
#[derive(Debug)]
struct Spy {
    inner: NpuAccelerator,
    rows: Arc<Mutex<Rows>>,
}

impl Accelerator for Spy {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn limits(&self, k: usize, n: usize) -> Result<(), Decline> {
        self.inner.limits(k, n)
    }

    fn load(
        &self,
        name: &str,
        k: usize,
        n: usize,
        rows: &WeightRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        let mut all = vec![0.0; k * n];
        all.chunks_exact_mut(k).enumerate().for_each(|(row, out)| rows(row, out));
        self.rows.lock().unwrap().insert(name.to_owned(), (k, all));
        self.inner.load(name, k, n, rows)
    }

    fn load_tiles(&self, name: &str, tiles: Tiles) -> Result<Box<dyn LoadedWeight>, AccelError> {
        self.inner.load_tiles(name, tiles)
    }

    fn matmul_group(
        &self,
        weights: &[&dyn LoadedWeight],
        m: usize,
        x: &[f32],
        outs: &mut [&mut [f32]],
    ) -> Result<(), AccelError> {
        self.inner.matmul_group(weights, m, x, outs)
    }
}

/// A weight in plain numbers.
#[derive(Debug, Clone)]
struct Plain {
    tier: Tier,
    k: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    basis: Basis,
}

/// Takes weights by name, whatever rows come with them.
#[derive(Debug)]
struct PlainLoops(BTreeMap<String, Plain>);

impl Accelerator for PlainLoops {
    fn describe(&self) -> String {
        "plain loops over codes".to_owned()
    }

    fn limits(&self, _k: usize, _n: usize) -> Result<(), Decline> {
        Ok(())
    }

    fn load(
        &self,
        name: &str,
        k: usize,
        n: usize,
        _rows: &WeightRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        let plain = self.0[name].clone();
        assert_eq!((plain.k, plain.scales.len()), (k, n));
        Ok(Box::new(plain))
    }
}

impl LoadedWeight for Plain {
    fn k(&self) -> usize {
        self.k
    }

    fn n(&self) -> usize {
        self.scales.len()
    }

    fn matmul(&self, _m: usize, x: &[f32], out: &mut [f32]) -> Result<(), AccelError> {
        let k = self.k;
        for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(self.scales.len())) {
            let mut x = x.to_vec();
            self.basis.activation_row(&mut x);
            let (a, row_scale) = if self.tier == Tier::W4A4 { four_bits(&x) } else { eight_bits(&x) };
            for ((b, column_scale), out) in self.codes.chunks_exact(k).zip(&self.scales).zip(out) {
                let sum: i64 = a.iter().zip(b).map(|(a, b)| a * i64::from(*b)).sum();
                assert!(self.tier != Tier::W4A4 || sum.abs() < 32767, "no saturation");
                *out = (sum as f64 * (f64::from(row_scale) * f64::from(*column_scale))) as f32;
            }
        }
        Ok(())
    }
}

fn largest(row: &[f32]) -> f32 {
    row.iter().fold(0f32, |most, x| most.max(x.abs()))
}

fn eight_bits(row: &[f32]) -> (Vec<i64>, f32) {
    let scale = largest(row) / 127.0;
    (row.iter().map(|x| (x * (1.0 / scale)).round_ties_even() as i64).collect(), scale)
}

fn four_bits(row: &[f32]) -> (Vec<i64>, f32) {
    let code = |x: f32, scale: f32| (x / scale).clamp(-8.0, 7.0).round_ties_even();
    let error = |scale: f32| -> f64 {
        row.iter().map(|x| (f64::from(*x) - f64::from(scale) * f64::from(code(*x, scale))).powi(2)).sum()
    };
    let tried = (0..8).map(|j| largest(row) * (1.0 - j as f32 / 16.0) / 7.0);
    let scale = tried.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap();
    (row.iter().map(|x| code(*x, scale) as i64).collect(), scale)
}

/// Quantises a weight in plain loops, and makes the tensor of it.
fn quantise(tier: Tier, steps: &[StepKind], k: usize, rows: &[f32]) -> (Plain, Vec<u8>, Scheme) {
    let steps_of = steps.iter().map(|kind| match kind {
        // A gentle slope over the channels.
        StepKind::Smooth => Step::Smooth((0..k).map(|channel| 0.5 + channel as f32 / k as f32).collect()),
        StepKind::Signs => Step::Signs,
        StepKind::Rotate => Step::Rotate,
    });
    let basis = Basis::new(k, steps_of.collect()).unwrap();
    let mut rows = rows.to_vec();
    rows.chunks_exact_mut(k).for_each(|row| basis.weight_row(row));
    let nf4 = Tier::I4A8 { codebook: Codebook::Nf4 };
    let (mut codes, mut nibbles, mut scales) = (Vec::new(), Vec::new(), Vec::new());
    let mut groups = Vec::new();
    for row in rows.chunks_exact(k) {
        if tier == Tier::I4A8Group {
            let mut own = vec![[0u8; 18]; k.div_ceil(32)];
            scales.push(quantise_grouped_row(row, None, &mut own).unwrap().get());
            codes.extend((0..k).map(|place| {
                let group = &own[place / 32];
                let nibble = group[2 + place % 32 / 2] >> (4 * (place % 2)) & 15;
                let steps = (f64::from(nibble) * f64::from(group[0]) / 8.0).round_ties_even();
                (f64::from(group[1].cast_signed()) + steps).clamp(-127.0, 127.0) as i8
            }));
            groups.extend(own);
            continue;
        }
        let steps = if tier == Tier::W8A8 || tier == nf4 { 127.0 } else { 7.0 };
        let scale = largest(row) / steps;
        scales.push(scale);
        for x in row {
            if tier == nf4 {
                let near = |level: usize| (f32::from(NF4_INT8[level]) - x / scale).abs();
                let best = (0..16).min_by(|a, b| near(*a).total_cmp(&near(*b))).unwrap();
                codes.push(NF4_INT8[best]);
                // The nibble of zero is 7, and tiles are padded with zero bytes.
                nibbles.push((best as i8) ^ 7);
            } else {
                let code = if tier == Tier::W8A8 { x * (1.0 / scale) } else { x / scale };
                let code = code.round_ties_even() as i8;
                codes.push(code);
                nibbles.push(code & 15);
            }
        }
    }
    let n = scales.len();
    let format = if tier == Tier::W4A4 { Format::INT4_INT16 } else { Format::INT8_INT32 };
    let layout = weight_layout(format, k as u32, n as u32, &RK3588).unwrap();
    let data = match tier {
        Tier::W8A8 => tile_codes(&layout, &codes),
        Tier::W4A4 => {
            let codes: Vec<Int4> = codes.iter().map(|code| Int4::new(*code).unwrap()).collect();
            tile_codes(&layout, &codes)
        }
        Tier::I4A8Group => tile_groups(&layout, &groups),
        Tier::I4A8 { .. } => {
            let zero = if tier == nf4 { 7 } else { 0 };
            let tiles: Vec<u8> = tile_codes(&layout, &nibbles).iter().map(|nibble| nibble ^ zero).collect();
            let mut bytes = vec![0; tiles.len() / 2];
            pack_nibbles(&tiles, &mut bytes);
            bytes
        }
    };
    let scheme = Scheme { tier, method: Method::Nearest, clip: ClipRule::AbsMax, basis: steps.to_vec() };
    (Plain { tier, k, codes, scales, basis }, data, scheme)
}

/// Writes a pack of these weights, and gives their plain numbers. `shape` may tell lies of a weight.
fn write_pack(
    path: &Path,
    model: &Path,
    target: &Target,
    rows: &Rows,
    recipe: &dyn Fn(&str) -> (Tier, Vec<StepKind>),
) -> BTreeMap<String, Plain> {
    let made: Vec<_> = rows
        .iter()
        .map(|(name, (k, rows))| {
            let (tier, steps) = recipe(name);
            (name.clone(), *k, quantise(tier, &steps, *k, rows))
        })
        .collect();
    let tensors = made.iter().map(|(name, k, (plain, _, scheme))| Request {
        name: name.clone(),
        k: *k as u32,
        n: plain.scales.len() as u32,
        scheme: scheme.clone(),
    });
    let plan = PackPlan {
        calibration: None,
        target: target.clone(),
        source: SourceId::of(model).unwrap(),
        writer: "a test".to_owned(),
        tensors: tensors.collect(),
    };
    let mut writer = PackWriter::open(path, plan, WriteOptions::default()).unwrap();
    let mut plains = BTreeMap::new();
    for (name, k, (plain, data, scheme)) in made {
        let format = if plain.tier == Tier::W4A4 { Format::INT4_INT16 } else { Format::INT8_INT32 };
        let layout = weight_layout(format, k as u32, plain.scales.len() as u32, &RK3588).unwrap();
        let scales: Vec<Scale> = plain.scales.iter().map(|scale| Scale::new(*scale).unwrap()).collect();
        let tensor = NewTensor {
            scheme: &scheme,
            layout: &(&layout).into(),
            basis: &plain.basis,
            data: &data,
            scales: &scales,
        };
        writer.write(&tensor).unwrap();
        plains.insert(name, plain);
    }
    writer.finish().unwrap();
    plains
}

fn target() -> Target {
    Target { soc: RK3588.name.to_owned(), layout: LAYOUT.to_owned() }
}

fn npu(kind: DriverKind, cores: u8, residency: ResidencyOptions) -> NpuAccelerator {
    let device = DeviceOptions { kind: DeviceKind::Sim, cores, emulated_driver: kind, ..Default::default() };
    let options = DriverOptions { residency, ..DriverOptions::default() };
    NpuAccelerator::new(Arc::new(Driver::new(Device::open(&device).unwrap(), options).unwrap()))
}

/// Whoever multiplies at the moment: ggml forgets no backend and has room for few, so there is one for all tests.
#[derive(Debug)]
struct Switch(Mutex<Arc<dyn Accelerator>>);

impl Switch {
    fn now(&self) -> Arc<dyn Accelerator> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Accelerator for Switch {
    fn describe(&self) -> String {
        "one after the other".to_owned()
    }

    fn limits(&self, k: usize, n: usize) -> Result<(), Decline> {
        self.now().limits(k, n)
    }

    fn load(
        &self,
        name: &str,
        k: usize,
        n: usize,
        rows: &WeightRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        self.now().load(name, k, n, rows)
    }

    fn load_tiles(&self, name: &str, tiles: Tiles) -> Result<Box<dyn LoadedWeight>, AccelError> {
        self.now().load_tiles(name, tiles)
    }

    fn matmul_group(
        &self,
        weights: &[&dyn LoadedWeight],
        m: usize,
        x: &[f32],
        outs: &mut [&mut [f32]],
    ) -> Result<(), AccelError> {
        self.now().matmul_group(weights, m, x, outs)
    }
}

/// The engine with this accelerator; models of another one must be gone.
fn engine(
    accelerator: impl Accelerator + 'static,
    route: Route,
) -> (&'static Engine, &'static Arc<OrkBackend>) {
    static SHARED: OnceLock<(Engine, Arc<OrkBackend>, Arc<Switch>)> = OnceLock::new();
    let (engine, backend, switch) = SHARED.get_or_init(|| {
        let switch = Arc::new(Switch(Mutex::new(Arc::new(PlainLoops(BTreeMap::new())))));
        let accelerator: Arc<dyn Accelerator> = Arc::clone(&switch) as _;
        let backend = OrkBackend::new(linked_host(), accelerator, BackendOptions::default()).unwrap();
        (Engine::init(Some(Arc::clone(&backend)), LogSink::discard()).unwrap(), backend, switch)
    });
    *switch.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(accelerator);
    backend.set_route(route);
    backend.reset_census();
    backend.take_error();
    (engine, backend)
}

fn load(engine: &Engine, path: &Path, pack: Option<Arc<ModelPack>>) -> Result<Model, EngineError> {
    let backend = engine.backend().unwrap();
    backend.set_pack(pack);
    let model = Model::load(engine, path, &LoadOptions::default(), &mut |_| ControlFlow::Continue(()));
    backend.set_pack(None);
    model
}

fn evaluate(model: &Model, batch: u32) -> LogitTable {
    let tokens = model.tokenize(TEXT).unwrap();
    let options = ContextOptions { batch_tokens: Some(batch), threads: Some(2), ..ContextOptions::default() };
    logits(model, &tokens[..40], &options).unwrap()
}

fn find(model: &Path, choice: PackChoice) -> Result<Option<Arc<ModelPack>>, PackUseError> {
    ModelPack::find(model, &choice, RK3588.name)
}

/// A model in a folder, the rows that the accelerator sees of it, and its logits on the CPU and without a pack.
struct Known {
    folder: tempfile::TempDir,
    model: PathBuf,
    rows: Rows,
    cpu: LogitTable,
    converted: LogitTable,
}

fn known() -> Known {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    tiny().write(&model).unwrap();
    let rows = Arc::new(Mutex::new(Rows::new()));
    let inner = npu(DriverKind::Rknpu, 3, ResidencyOptions::default());
    let (engine, backend) = engine(Spy { inner, rows: Arc::clone(&rows) }, Route::Npu);
    let converted = evaluate(&load(engine, &model, None).unwrap(), 40);
    backend.set_route(Route::Cpu);
    let cpu = evaluate(&load(engine, &model, None).unwrap(), 40);
    let rows = std::mem::take(&mut *rows.lock().unwrap());
    assert_eq!(rows.len() as u64, tiny().matmuls_per_evaluation());
    Known { folder, model, rows, cpu, converted }
}

impl Known {
    fn pack(&self) -> PathBuf {
        ModelPack::beside(&self.model)
    }

    fn write(&self, recipe: &dyn Fn(&str) -> (Tier, Vec<StepKind>)) -> BTreeMap<String, Plain> {
        let _ = fs::remove_file(self.pack());
        write_pack(&self.pack(), &self.model, &target(), &self.rows, recipe)
    }
}

fn plain_w8a8(_: &str) -> (Tier, Vec<StepKind>) {
    (Tier::W8A8, Vec::new())
}

fn native(_: &str) -> (Tier, Vec<StepKind>) {
    (Tier::W4A4, vec![StepKind::Smooth, StepKind::Signs, StepKind::Rotate])
}

const DEVICES: [(DriverKind, u8); 4] =
    [(DriverKind::Rknpu, 1), (DriverKind::Rknpu, 3), (DriverKind::Rocket, 1), (DriverKind::Rocket, 3)];

#[test]
fn a_w8a8_pack_gives_the_bits_that_converting_gives() {
    let _turn = turn();
    let known = known();
    known.write(&plain_w8a8);
    for (kind, cores) in DEVICES {
        let (engine, backend) = engine(npu(kind, cores, ResidencyOptions::default()), Route::Npu);
        let pack = find(&known.model, PackChoice::Auto).unwrap().expect("it lies beside the model");
        assert_eq!(pack.schemes(), "15 x w8a8");
        let model = load(engine, &known.model, Some(pack)).unwrap();
        assert!(evaluate(&model, 40) == known.converted, "{kind:?}, {cores} cores");
        // Single rows, as in decoding.
        let single = evaluate(&model, 1);
        let divergence = Divergence::between(&known.converted, &single, 0).unwrap();
        assert!(divergence.max_kl < 1e-6, "{divergence:?}");
        let packs = backend.census().packs;
        assert_eq!((packs.loaded["w8a8"], packs.missed.len()), (15, 0));
        assert_eq!(backend.census().executed.software, 0);
    }
}

#[test]
fn every_scheme_is_what_plain_loops_make_of_its_codes() {
    let _turn = turn();
    let known = known();
    let rotate = vec![StepKind::Rotate];
    let nf4 = Tier::I4A8 { codebook: Codebook::Nf4 };
    let uniform = Tier::I4A8 { codebook: Codebook::Uniform };
    type Recipe = Box<dyn Fn(&str) -> (Tier, Vec<StepKind>)>;
    let all = |tier: Tier, steps: &[StepKind]| -> Recipe {
        let steps = steps.to_vec();
        Box::new(move |_| (tier, steps.clone()))
    };
    let mixed: Recipe = {
        let rotate = rotate.clone();
        // A promoted layer, members of groups with bases of their own, and the output in eight bits.
        Box::new(move |name| match name {
            "blk.0.attn_q.weight" => (Tier::W8A8, rotate.clone()),
            "blk.0.attn_k.weight" => (Tier::W8A8, vec![StepKind::Signs]),
            "blk.0.ffn_gate.weight" => (nf4, vec![]),
            name if name.starts_with("blk.1.") => (Tier::W4A4, rotate.clone()),
            _ => (Tier::W8A8, vec![]),
        })
    };
    let recipes: [(&str, Recipe, f64); 8] = [
        ("i4a8+group", all(Tier::I4A8Group, &rotate), 1.0),
        ("w8a8+rotate", all(Tier::W8A8, &rotate), 0.01),
        ("w8a8+all", all(Tier::W8A8, &[StepKind::Smooth, StepKind::Signs, StepKind::Rotate]), 0.01),
        ("i4a8", all(uniform, &[]), 2.0),
        ("i4a8-nf4+rotate", all(nf4, &rotate), 2.0),
        ("w4a4+rotate", all(Tier::W4A4, &rotate), 4.0),
        ("w4a4+all", Box::new(native), 4.0),
        ("mixed", mixed, 4.0),
    ];
    for (label, recipe, kl_max) in recipes {
        let plains = known.write(&recipe);
        let reference = {
            let (engine, _) = engine(PlainLoops(plains), Route::Npu);
            evaluate(&load(engine, &known.model, None).unwrap(), 40)
        };
        assert!(reference != known.converted, "{label}: codes of another scheme");
        for (kind, cores) in DEVICES {
            let (engine, _) = engine(npu(kind, cores, ResidencyOptions::default()), Route::Npu);
            let pack = find(&known.model, PackChoice::Require).unwrap();
            let table = evaluate(&load(engine, &known.model, pack).unwrap(), 40);
            assert!(table == reference, "{label} on {kind:?} with {cores} cores differs from plain loops");
        }
        // Codes of the wrong basis would be noise: the model is random, and its distributions are far from flat.
        let divergence = Divergence::between(&known.cpu, &reference, 0).unwrap();
        assert!(divergence.mean_kl < kl_max, "{label}: {divergence:?}");
    }
}

#[test]
fn streamed_weights_come_from_the_pack_again_and_again() {
    let _turn = turn();
    let known = known();
    let plains = known.write(&|name| {
        if name.ends_with("ffn_up.weight") {
            native(name)
        } else {
            (Tier::I4A8 { codebook: Codebook::Nf4 }, vec![])
        }
    });
    let (engine_plain, _) = engine(PlainLoops(plains), Route::Npu);
    let reference = evaluate(&load(engine_plain, &known.model, None).unwrap(), 40);
    let residency =
        ResidencyOptions { stream: StreamMode::All, window_bytes: 160 << 10, ..ResidencyOptions::default() };
    let (engine, _) = engine(npu(DriverKind::Rknpu, 3, residency), Route::Npu);
    let model = load(engine, &known.model, find(&known.model, PackChoice::Auto).unwrap()).unwrap();
    // The mapping stays as long as somebody needs it, whatever happens to the name.
    fs::remove_file(known.pack()).unwrap();
    for _ in 0..2 {
        assert!(evaluate(&model, 40) == reference);
    }
}

#[test]
fn route_auto_multiplies_many_rows_by_the_pack_and_few_by_the_models_bytes() {
    let _turn = turn();
    let known = known();
    known.write(&native);
    let pack = || find(&known.model, PackChoice::Auto).unwrap();
    let npu_only = {
        let (engine, _) = engine(npu(DriverKind::Rknpu, 3, ResidencyOptions::default()), Route::Npu);
        evaluate(&load(engine, &known.model, pack()).unwrap(), 40)
    };
    let route = Route::Auto { min_rows: MinRows::Rows(8) };
    let (engine, backend) = engine(npu(DriverKind::Rknpu, 3, ResidencyOptions::default()), route);
    let model = load(engine, &known.model, pack()).unwrap();
    assert!(evaluate(&model, 40) == npu_only, "prefill: the pack's scheme");
    assert!(backend.census().executed.matmuls > 0);
    backend.reset_census();
    let single = evaluate(&model, 1);
    assert_eq!(backend.census().executed.matmuls, 0, "single rows: the CPU");
    let own = Divergence::between(&known.cpu, &single, 0).unwrap();
    assert!(own.max_kl < 1e-4, "in the model's own type: {own:?}");
    assert!(Divergence::between(&known.cpu, &npu_only, 0).unwrap().mean_kl > 100.0 * own.mean_kl);
}

#[test]
fn what_a_pack_lacks_is_converted_and_counted_or_refused() {
    let _turn = turn();
    let mut known = known();
    let lost = "blk.1.ffn_down.weight";
    let rows = known.rows.remove(lost).unwrap();
    known.write(&plain_w8a8);
    let (engine, backend) = engine(npu(DriverKind::Rknpu, 3, ResidencyOptions::default()), Route::Npu);
    let pack = find(&known.model, PackChoice::Auto).unwrap();
    let model = load(engine, &known.model, pack).unwrap();
    assert!(evaluate(&model, 40) == known.converted, "the same quantiser made the missing one");
    let packs = backend.census().packs;
    assert_eq!(packs.loaded["w8a8"], 14);
    assert_eq!(packs.missed.keys().collect::<Vec<_>>(), [lost]);
    assert!(backend.census().to_string().contains("converted blk.1.ffn_down.weight: the pack does not hold"));
    drop(model);
    let required = find(&known.model, PackChoice::Require).unwrap();
    assert_eq!(required.as_ref().unwrap().absent(), Absent::Refuse);
    match load(engine, &known.model, required).unwrap_err() {
        EngineError::Placement {
            source: BackendError::Pack { name, source: PackMiss::Absent, .. }, ..
        } => {
            assert_eq!(name, lost);
        }
        other => panic!("{other:?}"),
    }
    // Another shape is no missing weight, but another model.
    known.rows.insert(lost.to_owned(), (2 * rows.0, rows.1));
    known.write(&plain_w8a8);
    let pack = find(&known.model, PackChoice::Auto).unwrap();
    match load(engine, &known.model, pack).unwrap_err() {
        EngineError::Placement {
            source: BackendError::Pack { source: PackMiss::Shape { .. }, .. }, ..
        } => {}
        other => panic!("{other:?}"),
    }
    // After refusals a model loads as ever.
    assert!(evaluate(&load(engine, &known.model, None).unwrap(), 40) == known.converted);
}

#[test]
fn a_basis_that_is_not_the_one_of_the_weights_is_refused() {
    let _turn = turn();
    let known = known();
    known.write(&native);
    let smoothing = {
        let pack = Pack::open_any(&known.pack()).unwrap();
        let tensor = pack.tensor("blk.0.ffn_up.weight").unwrap();
        tensor.entry().smoothing.unwrap().offset
    };
    let mut bytes = fs::read(known.pack()).unwrap();
    bytes[smoothing as usize] ^= 1;
    fs::write(known.pack(), bytes).unwrap();
    let (engine, _) = engine(npu(DriverKind::Rknpu, 3, ResidencyOptions::default()), Route::Npu);
    let pack = find(&known.model, PackChoice::Auto).unwrap();
    match load(engine, &known.model, pack).unwrap_err() {
        EngineError::Placement {
            source: BackendError::Pack { name, source: PackMiss::Damaged(error), .. },
            ..
        } => {
            assert_eq!(name, "blk.0.ffn_up.weight");
            assert!(error.to_string().contains("basis"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pack_for_another_use_is_refused_by_every_choice_but_never() {
    let _turn = turn();
    let known = known();
    let kind_of = |choice: PackChoice| match find(&known.model, choice) {
        Err(PackUseError::Pack(PackError::Mismatch { kind, .. })) => kind,
        Err(PackUseError::Pack(PackError::Version { .. })) => "version",
        Err(PackUseError::Pack(PackError::Io { .. })) => "io",
        Err(PackUseError::Missing { .. }) => "missing",
        Err(other) => panic!("{other:?}"),
        Ok(pack) => {
            if pack.is_some() {
                "found"
            } else {
                "none"
            }
        }
    };
    let kinds = || {
        [PackChoice::Auto, PackChoice::Require, PackChoice::Path(known.pack()), PackChoice::Never]
            .map(kind_of)
    };
    assert_eq!(kinds(), ["none", "missing", "io", "none"]);
    let other = known.folder.path().join("other.gguf");
    TinyModel { seed: 2, ..tiny() }.write(&other).unwrap();
    write_pack(&known.pack(), &other, &target(), &known.rows, &plain_w8a8);
    assert_eq!(kinds(), ["model", "model", "model", "none"]);
    fs::remove_file(known.pack()).unwrap();
    let target = Target { soc: "RK3576".to_owned(), ..target() };
    write_pack(&known.pack(), &known.model, &target, &known.rows, &plain_w8a8);
    assert_eq!(kinds(), ["SoC", "SoC", "SoC", "none"]);
    let mut bytes = fs::read(known.pack()).unwrap();
    bytes[8] += 1;
    fs::write(known.pack(), bytes).unwrap();
    assert_eq!(kinds(), ["version", "version", "version", "none"]);
    known.write(&plain_w8a8);
    assert_eq!(kinds(), ["found", "found", "found", "none"]);
    fs::remove_file(known.pack()).unwrap();
    std::os::unix::fs::symlink("nowhere", known.pack()).unwrap();
    assert_eq!(kinds(), ["io", "io", "io", "none"], "a link that leads nowhere is not absent");
}

#[test]
fn the_command_says_which_pack_it_uses_and_refuses_in_one_line() {
    let _turn = turn();
    let known = known();
    let ork = |more: &[&str]| {
        let model = known.model.to_str().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ork"));
        command.env_clear().stdin(Stdio::null()).args(["run", "-m", model, "-p", "hi", "-n", "3"]);
        let output = command.args(["--device", "sim"]).args(more).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains("panicked"), "{said}");
        (output.status.code(), said)
    };
    let refused = |more: &[&str], code: i32, words: &[&str]| {
        let (status, said) = ork(more);
        assert_eq!(status, Some(code), "{said}");
        let error = said.lines().find(|line| line.starts_with("error: ")).expect("one line says why");
        assert!(words.iter().all(|word| error.contains(word)), "{words:?} in {error}");
    };
    refused(&["--pack", "require"], 1, &["tiny.orkpack", "ork pack -m"]);
    refused(&["--pack", "nowhere.orkpack"], 1, &["nowhere.orkpack"]);
    refused(&["--pack", "require", "--route", "cpu"], 2, &["--pack require", "route cpu"]);
    let (status, said) = ork(&["--route", "npu"]);
    assert!(status == Some(0) && !said.contains("pack:"), "{said}");

    known.write(&native);
    for pack in [&[][..], &["--pack", "require"], &["--pack", known.pack().to_str().unwrap()]] {
        let (status, said) = ork(&[&["--route", "npu", "--stats", "--explain"], pack].concat());
        assert_eq!(status, Some(0), "{said}");
        for words in [
            "tiny.orkpack (15 x w4a4+smooth+signs+rotate)",
            "weights from a pack: 15 x w4a4+smooth+signs+rotate; 0 converted",
        ] {
            assert!(said.contains(words), "{words} in {said}");
        }
    }
    let (_, said) = ork(&["--pack", "never", "--stats", "--route", "npu"]);
    assert!(!said.contains("orkpack") && !said.contains("from a pack"), "{said}");

    // Made once, then used.
    fs::remove_file(known.pack()).unwrap();
    let (status, said) = ork(&["--pack", "build", "--route", "npu"]);
    assert!(status == Some(0) && said.contains("15 tensors") && said.contains("(15 x w8a8)"), "{said}");
    let made = fs::read(known.pack()).unwrap();
    let (status, said) = ork(&["--pack", "build", "--route", "npu"]);
    assert!(status == Some(0) && !said.contains("15 tensors") && said.contains("(15 x w8a8)"), "{said}");
    assert!(fs::read(known.pack()).unwrap() == made);

    // Another model of the same shape.
    TinyModel { seed: 2, ..tiny() }.write(&known.model).unwrap();
    refused(&[], 1, &["tiny.orkpack", "is of model", "--pack never"]);
}

#[test]
fn cache_types_reach_llama_and_mixed_pairs_are_told() {
    let _turn = turn();
    let known = known();
    let ork = |k: &str, v: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ork"));
        let output = command
            .env_clear()
            .stdin(Stdio::null())
            .args(["run", "-m", known.model.to_str().unwrap(), "-p", "hi", "-n", "3", "--route", "cpu"])
            .args(["--verbose", "--cache-type-k", k, "--cache-type-v", v])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{k}/{v}: {said}");
        said
    };
    for (k, v, notes) in [("f16", "f16", 0), ("q8_0", "q8_0", 1), ("f16", "q8_0", 2), ("q4_0", "q4_0", 1)] {
        let said = ork(k, v);
        assert!(said.contains(&format!("K ({k})")) && said.contains(&format!("V ({v})")), "{said}");
        assert_eq!(said.matches("note: key/value cache").count(), notes, "{said}");
    }
}

#[test]
fn plain_codes_are_what_they_should_be() {
    let (plain, ..) = quantise(Tier::W8A8, &[], 4, &[1.0, -2.0, 3.0, 4.0]);
    assert_eq!(plain.codes, [32, -64, 95, 127]);
}
