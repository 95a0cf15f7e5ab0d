// SPDX-License-Identifier: MIT OR Apache-2.0
//! Perplexity and divergence over windows, against plain f64 sums.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ork_engine::quality::{
    Quality, ReferenceFile, ReferenceIdentity, ReferenceSource, WindowPlan, Windows, embed, keep_reference,
    likeness, measure,
};
use ork_engine::tiny::{Pooling, TinyModel, WeightType};
use ork_engine::{CacheType, ContextOptions, Engine, EngineError, LoadOptions, LogSink, Model, logits};
use ork_ggml::{OrkBackend, Route};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use support::naive::NaiveAccelerator;
use support::{backend, routed};

struct Shared {
    engine: Engine,
    backend: Arc<OrkBackend>,
    folder: tempfile::TempDir,
}

/// The engine, of which a process has one, and the right to use it.
fn shared() -> (&'static Shared, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    static SHARED: OnceLock<Shared> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = SHARED.get_or_init(|| {
        let backend = backend(NaiveAccelerator::default(), routed(Route::Cpu));
        let engine = Engine::init(Some(Arc::clone(&backend)), LogSink::discard()).unwrap();
        Shared { engine, backend, folder: tempfile::tempdir().unwrap() }
    });
    (shared, turn)
}

impl Shared {
    fn model(&self, name: &str, weight_type: WeightType, route: Route) -> Model {
        self.write(name, TinyModel { weight_type, ..TinyModel::default() }, route)
    }

    /// A model that pools.
    fn encoder(&self, name: &str, weight_type: WeightType, route: Route) -> Model {
        self.write(name, TinyModel { weight_type, pooling: Pooling::Mean, ..TinyModel::default() }, route)
    }

    fn write(&self, name: &str, tiny: TinyModel, route: Route) -> Model {
        self.backend.set_route(route);
        let path = self.path(name);
        tiny.write(&path).unwrap();
        Model::load(&self.engine, &path, &LoadOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

const CONTEXT: u32 = 37;

fn text() -> String {
    let mut state = 7u32;
    let words = ["the", "moon", "and", "rain", "held", "in", "a", "quiet", "net", "of", "stone"];
    let word = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        words[(state >> 20) as usize % words.len()]
    };
    (0..140).map(word).collect::<Vec<_>>().join(" ")
}

fn windows(model: &Model) -> Windows {
    Windows::of(model, &text(), &WindowPlan { context_tokens: CONTEXT, windows: Some(6) }).unwrap()
}

/// The batch is smaller than the window, and divides neither it nor its half.
fn options() -> ContextOptions {
    ContextOptions { batch_tokens: Some(11), ..one_thread() }
}

/// Models this small only lose by a second one.
fn one_thread() -> ContextOptions {
    ContextOptions { threads: Some(1), ..ContextOptions::default() }
}

/// Log-probabilities after each token of each window, by plain sums; the windows cut here once more.
fn plainly(model: &Model) -> Vec<(Vec<Vec<f64>>, Vec<i32>)> {
    let tokens = model.tokenize(&text()).unwrap();
    let start = tokens[0];
    let mut found = Vec::new();
    for window in tokens.chunks_exact(CONTEXT as usize).take(6) {
        let mut input = window.to_vec();
        // The tiny model wants its start token before every text.
        input[0] = start;
        let table = logits(model, &input, &one_thread()).unwrap();
        let rows = (0..window.len()).map(|position| {
            let row: Vec<f64> = table.row(position).unwrap().iter().map(|&l| f64::from(l)).collect();
            let sum: f64 = row.iter().map(|l| l.exp()).sum();
            row.iter().map(|l| l - sum.ln()).collect()
        });
        found.push((rows.collect(), window.to_vec()));
    }
    found
}

/// Scored positions: llama.cpp's tool predicts tokens n/2 + 1 to n − 1 of a window of n.
fn scored(window: &[i32]) -> std::ops::Range<usize> {
    window.len() / 2..window.len() - 1
}

fn close(a: f64, b: f64, tolerance: f64) {
    assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{a} instead of {b}");
}

#[test]
fn perplexity_is_that_of_plain_sums() {
    let (shared, _turn) = shared();
    let model = shared.model("plain.gguf", WeightType::F32, Route::Cpu);
    let mut seen = Vec::new();
    let quality = measure(&model, &windows(&model), &options(), None, &mut |pace| seen.push(pace)).unwrap();

    let mut nlls = Vec::new();
    for (rows, window) in plainly(&model) {
        nlls.extend(scored(&window).map(|i| -rows[i][window[i + 1] as usize]));
    }
    let n = nlls.len() as f64;
    let mean = nlls.iter().sum::<f64>() / n;
    let variance = nlls.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    assert_eq!((quality.scored as usize, quality.tokens, quality.windows), (nlls.len(), 6 * 37, 6));
    assert_eq!(nlls.len(), 6 * 18);
    close(quality.perplexity.nll.value, mean, 1e-5);
    close(quality.perplexity.nll.error, (variance / n).sqrt(), 1e-5);
    close(quality.perplexity.perplexity.value, mean.exp(), 1e-4);
    close(quality.perplexity.perplexity.error, mean.exp() * (variance / n).sqrt(), 1e-4);
    assert!(quality.versus.is_none() && quality.host_seconds > 0.0);
    assert_eq!(
        seen.iter().map(|pace| (pace.done, pace.total)).collect::<Vec<_>>(),
        [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]
    );
    close(seen[5].perplexity.unwrap(), mean.exp(), 1e-4);
}

#[test]
fn divergence_is_that_of_plain_sums_from_a_model_and_from_a_file() {
    let (shared, _turn) = shared();
    let reference = shared.model("reference.gguf", WeightType::F32, Route::Cpu);
    let model = shared.model("coarse.gguf", WeightType::Q4_0, Route::Cpu);
    let (its, own) = (windows(&reference), windows(&model));
    assert_eq!(its, own);
    let source = ReferenceSource::Model { model: &reference, windows: &its, options: &options() };
    let direct = measure(&model, &own, &options(), Some(source), &mut |_| ()).unwrap();

    let (mut kls, mut agreed, mut ps, mut differences) = (Vec::new(), 0, Vec::new(), Vec::new());
    for ((p, window), (q, _)) in plainly(&reference).into_iter().zip(plainly(&model)) {
        for i in scored(&window) {
            kls.push(p[i].iter().zip(&q[i]).map(|(p, q)| p.exp() * (p - q)).sum::<f64>());
            let top = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            agreed += usize::from(top(&p[i]) == top(&q[i]));
            let next = window[i + 1] as usize;
            ps.push(-p[i][next]);
            differences.push(p[i][next] - q[i][next]);
        }
    }
    let n = kls.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / n;
    let versus = direct.versus.unwrap();
    close(versus.kl.value, mean(&kls), 1e-5);
    assert!(versus.kl.value > 1e-3, "four bits differ: {versus:?}");
    close(versus.top1_agreement.value, agreed as f64 / n, 1e-9);
    assert!(versus.top1_agreement.value < 1.0);
    close(versus.reference.nll.value, mean(&ps), 1e-5);
    close(versus.ratio.value, mean(&differences).exp(), 1e-5);
    close(versus.ratio.value, direct.perplexity.perplexity.value / versus.reference.perplexity.value, 1e-9);
    let deviation = differences.iter().map(|d| (d - mean(&differences)).powi(2)).sum::<f64>() / (n - 1.0);
    close(versus.ratio.error, versus.ratio.value * (deviation / n).sqrt(), 1e-4);
    kls.sort_by(f64::total_cmp);
    close(versus.percentiles.max, kls[kls.len() - 1], 1e-4);
    close(versus.percentiles.p50, kls[kls.len().div_ceil(2) - 1], 1e-4);

    // The same from a file, which adds next to nothing.
    let path = shared.path("reference.orkref");
    let identity = ReferenceIdentity::of("reference", "f32 cpu", &its);
    let mut file = keep_reference(&reference, &its, &options(), &path, &identity, &mut |_| ()).unwrap();
    let head = std::fs::metadata(&path).unwrap().len() - identity.data_bytes();
    assert!((16..600).contains(&head), "{head}");
    close(file.perplexity().unwrap().perplexity.value, versus.reference.perplexity.value, 1e-9);
    let kept =
        measure(&model, &own, &options(), Some(ReferenceSource::File(&mut file)), &mut |_| ()).unwrap();
    let kept = kept.versus.unwrap();
    close(kept.kl.value, versus.kl.value, 1e-5);
    close(kept.ratio.value, versus.ratio.value, 1e-9);
    assert_eq!(kept.top1_agreement, versus.top1_agreement);
    // And of the reference itself: nothing.
    let own = measure(&reference, &its, &options(), Some(ReferenceSource::File(&mut file)), &mut |_| ());
    let own = own.unwrap().versus.unwrap();
    assert!((0.0..1e-8).contains(&own.kl.value), "{own:?}");
    assert_eq!((own.top1_agreement.value, own.ratio.value), (1.0, 1.0));
}

#[test]
fn a_reference_keeps_its_own_cache() {
    let (shared, _turn) = shared();
    let model = shared.model("cache.gguf", WeightType::F32, Route::Cpu);
    let windows = windows(&model);
    let coarse = ContextOptions { cache_type_k: CacheType::Q8_0, ..options() };
    let measured = |options, reference| {
        let source = ReferenceSource::Model { model: &model, windows: &windows, options: reference };
        let quality = measure(&model, &windows, options, Some(source), &mut |_| ()).unwrap();
        quality.versus.unwrap().kl.value
    };
    assert_eq!(measured(&coarse, &coarse), 0.0);
    assert!(measured(&coarse, &options()) > 1e-9, "the cache's type shows");
}

#[test]
fn the_accelerators_route_is_seen() {
    let (shared, _turn) = shared();
    let cpu = shared.model("cpu.gguf", WeightType::F32, Route::Cpu);
    let npu = shared.model("npu.gguf", WeightType::F32, Route::Npu);
    let windows = windows(&cpu);
    let source = ReferenceSource::Model { model: &cpu, windows: &windows, options: &options() };
    let quality = measure(&npu, &windows, &options(), Some(source), &mut |_| ()).unwrap();
    let kl = quality.versus.unwrap().kl.value;
    assert!((1e-12..1e-2).contains(&kl), "{kl}");
    assert!(shared.backend.census().executed.matmuls > 0);
}

#[test]
fn an_interrupted_file_is_continued_and_a_wrong_one_refused() {
    let (shared, _turn) = shared();
    let model = shared.model("kept.gguf", WeightType::Q8_0, Route::Cpu);
    let windows = windows(&model);
    let identity = ReferenceIdentity::of("kept", "digest", &windows);
    let (whole, again) = (shared.path("whole.orkref"), shared.path("again.orkref"));
    let keep = |path: &PathBuf, identity: &ReferenceIdentity| {
        let mut done = Vec::new();
        let file =
            keep_reference(&model, &windows, &options(), path, identity, &mut |pace| done.push(pace.done));
        file.map(|_| done)
    };
    assert_eq!(keep(&whole, &identity).unwrap(), [1, 2, 3, 4, 5, 6]);
    let bytes = std::fs::read(&whole).unwrap();
    // Killed in the fourth window.
    let window = (bytes.len() as u64 - (bytes.len() as u64 - identity.data_bytes())) as usize / 6;
    let cut = bytes.len() - 2 * window - window / 2;
    std::fs::write(shared.path("again.orkref.part"), &bytes[..cut]).unwrap();
    assert!(matches!(ReferenceFile::open(&again, &identity), Err(EngineError::Reference { .. })));
    assert_eq!(keep(&again, &identity).unwrap(), [4, 5, 6]);
    assert_eq!(std::fs::read(&again).unwrap(), bytes);
    assert!(!shared.path("again.orkref.part").exists());
    // What is left of another reference is not continued.
    let other = ReferenceIdentity { model_digest: "another".to_owned(), ..identity.clone() };
    std::fs::write(shared.path("again.orkref.part"), &bytes[..cut]).unwrap();
    assert_eq!(keep(&again, &other).unwrap().len(), 6);

    let refused = |path: &PathBuf, identity: &ReferenceIdentity, word: &str| {
        let error = ReferenceFile::open(path, identity).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(&whole, &other, "another model");
    let text = ReferenceIdentity { windows_digest: "another".to_owned(), ..identity.clone() };
    refused(&whole, &text, "another text");
    let damaged = shared.path("damaged.orkref");
    for (at, word) in [(0, "no reference file"), (8, "version"), (16, "cannot be read")] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x40;
        std::fs::write(&damaged, bytes).unwrap();
        refused(&damaged, &identity, word);
    }
    std::fs::write(&damaged, &bytes[..bytes.len() - 1]).unwrap();
    refused(&damaged, &identity, "bytes instead of");
    for length in 0..64 {
        std::fs::write(&damaged, &bytes[..length]).unwrap();
        assert!(ReferenceFile::open(&damaged, &identity).is_err());
    }
    let mut flipped = bytes.clone();
    let last = flipped.len() - 100;
    flipped[last] ^= 1;
    std::fs::write(&damaged, flipped).unwrap();
    let mut file = ReferenceFile::open(&damaged, &identity).unwrap();
    let source = ReferenceSource::File(&mut file);
    let error = measure(&model, &windows, &options(), Some(source), &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("window 5 is damaged"), "{error}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let (shared, _turn) = shared();
    let model = shared.model("refused.gguf", WeightType::Q8_0, Route::Cpu);
    let of = |context_tokens, windows| Windows::of(&model, &text(), &WindowPlan { context_tokens, windows });
    assert!(matches!(of(3, None), Err(EngineError::InvalidOption { .. })));
    assert!(matches!(of(64, Some(0)), Err(EngineError::InvalidOption { .. })));
    assert!(matches!(of(64, Some(1000)), Err(EngineError::TextTooShort { wanted: 64_000, .. })));
    assert!(matches!(of(1 << 30, None), Err(EngineError::TextTooShort { .. })));
    let all = of(64, None).unwrap();
    assert_eq!(all.count(), model.tokenize(&text()).unwrap().len() / 64);
    // Another cut of the same text is no reference.
    let windows = windows(&model);
    let source = ReferenceSource::Model { model: &model, windows: &all, options: &options() };
    let refused: Result<Quality, _> = measure(&model, &windows, &options(), Some(source), &mut |_| ());
    assert!(matches!(refused, Err(EngineError::NotComparable { .. })));
}

#[test]
fn vectors_and_products_of_sentences() {
    let (shared, _turn) = shared();
    let exact = shared.encoder("e32.gguf", WeightType::F32, Route::Cpu);
    let sentences = ["the moon held a net", "stone and rain", "a quiet, quiet net in the rain of the moon"];
    let options = one_thread();
    let vectors = embed(&exact, &sentences, &options).unwrap();
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    for vector in &vectors {
        assert_eq!(vector.len(), 96);
        close(cosine(vector, vector), 1.0, 1e-5);
    }
    assert!(cosine(&vectors[0], &vectors[1]) < 0.99, "different sentences have different vectors");

    let of = |model: &Model| likeness(model, &exact, &sentences, &options, &mut |_| ()).unwrap();
    let same = of(&exact);
    close(same.min_cosine, 1.0, 1e-6);
    assert_eq!(same.sentences, 3);
    assert!(same.tokens > 20);
    // Seven products in each of two layers, and the output's.
    assert_eq!(same.layers.len(), 15, "{same:?}");
    assert!(same.layers.iter().all(|layer| layer.relative < 1e-6), "{same:?}");
    // Weights of eight bits are wrong by half a hundredth, of four bits by a tenth; nothing came before the first product.
    let first = |type_| {
        let quantised = shared.encoder("quantised.gguf", type_, Route::Cpu);
        let likeness = of(&quantised);
        let layer = likeness.layers.iter().find(|layer| layer.weight == "blk.0.attn_q.weight").unwrap();
        (likeness.mean_cosine, layer.relative)
    };
    let ((close_cosine, eight), (far_cosine, four)) = (first(WeightType::Q8_0), first(WeightType::Q4_0));
    assert!((1e-3..2e-2).contains(&eight), "{eight}");
    assert!((3e-2..3e-1).contains(&four), "{four}");
    assert!(far_cosine < close_cosine && close_cosine < 1.0, "{far_cosine} {close_cosine}");
    // The accelerator's results are seen as well.
    let npu = shared.encoder("npu.gguf", WeightType::F32, Route::Npu);
    shared.backend.reset_census();
    let through = of(&npu);
    assert_eq!(shared.backend.census().executed.matmuls, 3 * 15);
    assert!(through.min_cosine > 0.999 && through.layers.iter().all(|layer| layer.relative < 1e-2));
    // A model that does not pool has no vector.
    let decoder = shared.model("decoder.gguf", WeightType::F32, Route::Cpu);
    assert!(matches!(embed(&decoder, &sentences, &options), Err(EngineError::Missing { .. })));
    assert!(likeness(&exact, &exact, &[], &options, &mut |_| ()).is_err());
}
