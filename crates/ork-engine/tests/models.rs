// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole models through llama.cpp, with weights generated on the spot: placement, routes, text, errors.
//!
//! llama.cpp exists once per process, so these tests share one engine and take turns.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ork_engine::tiny::{OutputMatrix, TinyModel, WeightType};
use ork_engine::{
    ChatMessage, ContextOptions, Divergence, Engine, EngineError, Event, FileProblem, GenerateOptions,
    Generation, LoadOptions, LogLevel, LogSink, Model, Prompt, Sampling, StopReason, Stopwatch, logits,
};
use ork_ggml::{BackendError, DeclineReason, MinRows, OrkBackend, Route};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use support::naive::{Counts, NaiveAccelerator};
use support::{backend, routed};

struct Shared {
    engine: Engine,
    backend: Arc<OrkBackend>,
    counts: Arc<Counts>,
    log_lines: Arc<AtomicUsize>,
    folder: tempfile::TempDir,
}

static TURN: Mutex<()> = Mutex::new(());

/// The engine, and the right to use it.
fn shared() -> (&'static Shared, MutexGuard<'static, ()>) {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = SHARED.get_or_init(|| {
        let counts = Arc::new(Counts::default());
        let accelerator = NaiveAccelerator { counts: Arc::clone(&counts), ..NaiveAccelerator::default() };
        let backend = backend(accelerator, routed(Route::Npu));
        let log_lines = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&log_lines);
        let sink = LogSink::new(move |level, line| {
            assert!(level >= LogLevel::Debug && !line.contains('\n'));
            count.fetch_add(1, SeqCst);
        });
        let engine = Engine::init(Some(Arc::clone(&backend)), sink).unwrap();
        Shared { engine, backend, counts, log_lines, folder: tempfile::tempdir().unwrap() }
    });
    shared.backend.reset_census();
    shared.backend.take_error();
    (shared, turn)
}

impl Shared {
    fn file(&self, name: &str, tiny: &TinyModel) -> PathBuf {
        let path = self.folder.path().join(name);
        tiny.write(&path).unwrap();
        path
    }

    fn load(&self, route: Route, tiny: &TinyModel) -> Model {
        self.backend.set_route(route);
        let path = self.file("model.gguf", tiny);
        Model::load(&self.engine, &path, &LoadOptions::default(), &mut go_on).unwrap()
    }
}

fn go_on(_: f32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn ignore(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn greedy(max_tokens: u32) -> GenerateOptions {
    GenerateOptions { max_tokens, sampling: Sampling::greedy() }
}

fn small() -> ContextOptions {
    ContextOptions {
        context_tokens: Some(256),
        batch_tokens: Some(64),
        threads: Some(2),
        ..ContextOptions::default()
    }
}

/// Every type, both kinds of output matrix: under `npu` all weights are held and every matmul of every evaluation
/// runs on the accelerator. Fails loudly if llama.cpp changes how it places weights.
#[test]
fn every_weight_matmul_runs_on_the_accelerator() {
    let (shared, _turn) = shared();
    for weight_type in
        [WeightType::F16, WeightType::Q8_0, WeightType::Q4_0, WeightType::Q4_1, WeightType::Q4K]
    {
        for output in [OutputMatrix::Tied, OutputMatrix::Separate] {
            shared.backend.reset_census();
            let (embedding, feed_forward) =
                if weight_type == WeightType::Q4K { (256, 512) } else { (96, 160) };
            let heads = if embedding == 256 { 4 } else { 3 };
            let tiny =
                TinyModel { weight_type, output, embedding, feed_forward, heads, ..TinyModel::default() };
            let model = shared.load(Route::Npu, &tiny);
            let label = format!("{weight_type:?} {output:?}");
            assert_eq!(shared.backend.census().holding.live, tiny.matmuls_per_evaluation(), "{label}");
            let tokens = model.tokenize("the end of the line").unwrap();
            let mut generation = Generation::new(&model, &small()).unwrap();
            let stats = generation.run_tokens(&tokens, &greedy(6), &mut ignore).unwrap();
            let executed = shared.backend.census().executed;
            let evaluations = 1 + u64::from(stats.decode_steps);
            assert_eq!(executed.matmuls, evaluations * tiny.matmuls_per_evaluation(), "{label}");
            assert_eq!(executed.weights.len() as u64, tiny.matmuls_per_evaluation(), "{label}");
            assert!(executed.weights.values().all(|w| w.matmuls == evaluations), "{label}");
            assert_eq!((executed.software, executed.failed), (0, 0), "{label}");
            // K+V and gate+up share an activation.
            assert!(executed.submissions <= evaluations * (u64::from(tiny.layers) * 5 + 1), "{label}");
            // The attention's own matmuls stay on the CPU; so does the embedding lookup.
            let weights_left: u64 =
                [DeclineReason::Limit, DeclineReason::ForeignBuffer, DeclineReason::NotLoaded]
                    .map(|reason| shared.backend.census().declined("MUL_MAT", reason))
                    .iter()
                    .sum();
            assert_eq!(weights_left, 0, "{label}\n{}", shared.backend.census());
            drop(generation);
            drop(model);
            assert_eq!(shared.counts.live.load(SeqCst), 0, "{label}");
        }
    }
}

/// The same file under each route, in one process. F16 weights, so that nothing is lost on either side but rounding.
#[test]
fn routes_agree_and_send_work_where_they_say() {
    let (shared, _turn) = shared();
    let tiny = TinyModel { weight_type: WeightType::F16, ..TinyModel::default() };
    let per_evaluation = tiny.matmuls_per_evaluation();
    let text: String = "Once upon a time there was a matrix that nobody multiplied. ".repeat(3);
    let mut tables = Vec::new();
    for (route, matmuls) in [
        (Route::Cpu, 0),
        (Route::Npu, 4 * per_evaluation),
        // Chunks of 40: the last one, with fewer rows, goes to the CPU.
        (Route::Auto { min_rows: MinRows::Rows(40) }, 3 * per_evaluation),
    ] {
        let model = shared.load(route, &tiny);
        shared.backend.reset_census();
        let tokens = model.tokenize(&text).unwrap();
        let tokens = &tokens[..150];
        let options = ContextOptions { batch_tokens: Some(40), ..small() };
        let table = logits(&model, tokens, &options).unwrap();
        assert_eq!(table.tokens().len(), 150);
        assert_eq!(shared.backend.census().executed.matmuls, matmuls, "{route}");
        tables.push(table);
    }
    for candidate in &tables[1..] {
        let divergence = Divergence::between(&tables[0], candidate, 0).unwrap();
        assert!(divergence.mean_kl < 1e-4 && divergence.max_kl < 1e-3, "{divergence:?}");
        assert!(divergence.top1_agreement > 0.97, "{divergence:?}");
        let ratio = divergence.candidate_perplexity / divergence.reference_perplexity;
        assert!((ratio - 1.0).abs() < 1e-2, "{divergence:?}");
    }
    assert_ne!(tables[0], tables[1], "the accelerator rounds differently; equal bits mean it was not used");
}

#[test]
fn a_model_loaded_under_auto_follows_the_route() {
    let (shared, _turn) = shared();
    let tiny = TinyModel::default();
    let model = shared.load(Route::Auto { min_rows: MinRows::Rows(8) }, &tiny);
    let tokens = model.tokenize("aaaaaaaaaaaaaaaaaaaa").unwrap();
    let run = |route, count: usize| {
        shared.backend.set_route(route);
        shared.backend.reset_census();
        let mut generation = Generation::new(&model, &small()).unwrap();
        generation.run_tokens(&tokens[..count], &greedy(3), &mut ignore).unwrap();
        shared.backend.census().executed.matmuls
    };
    let all = tiny.matmuls_per_evaluation();
    // Only the last token of the prompt has logits, so the last feed-forward (three matrices) and the output matrix
    // see m = 1 and go to the CPU, as do the decode steps.
    assert_eq!(run(Route::Auto { min_rows: MinRows::Rows(8) }, 10), all - 4);
    assert_eq!(run(Route::Auto { min_rows: MinRows::Rows(8) }, 5), 0);
    assert_eq!(run(Route::Cpu, 10), 0);
    let npu = run(Route::Npu, 10);
    assert!(npu >= all && npu.is_multiple_of(all), "{npu}");
}

#[test]
fn generation_streams_counts_and_stops() {
    let (shared, _turn) = shared();
    let model = shared.load(Route::Npu, &TinyModel::default());
    let mut generation = Generation::new(&model, &small()).unwrap();
    let prompt = Prompt::Raw("hello ".to_owned());
    let prompt_tokens = model.prompt_tokens(&prompt).unwrap();

    let mut texts = Vec::new();
    for _ in 0..2 {
        let mut text = String::new();
        let mut prefill = Vec::new();
        let stats = generation
            .run(&prompt, &greedy(12), &mut |event| {
                match event {
                    Event::Text(piece) => text.push_str(piece),
                    Event::Prefill { done, total } => prefill.push((done, total)),
                    _ => {}
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(stats.prompt_tokens as usize, prompt_tokens.len());
        assert_eq!(prefill, [(prompt_tokens.len(), prompt_tokens.len())]);
        assert_eq!(
            (stats.generated_tokens, stats.decode_steps, stats.stop),
            (12, 11, StopReason::TokenLimit)
        );
        assert!(stats.prefill_per_second().unwrap() > 0.0 && stats.decode_per_second().unwrap() > 0.0);
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1], "a second prompt must not see the first");
    assert!(!texts[0].is_empty());

    let nothing = generation.run(&prompt, &greedy(0), &mut ignore).unwrap();
    assert_eq!(
        (nothing.generated_tokens, nothing.decode_steps, nothing.stop),
        (0, 0, StopReason::TokenLimit)
    );
    assert_eq!(nothing.decode_per_second(), None);

    let mut pieces = 0;
    let stopped = generation.run(&prompt, &greedy(50), &mut |event| {
        pieces += u32::from(matches!(event, Event::Text(_)));
        if pieces == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(stopped.unwrap().stop, StopReason::Stopped);
    let at_once = generation.run(&prompt, &greedy(50), &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!((at_once.stop, at_once.generated_tokens), (StopReason::Stopped, 0));
}

#[test]
fn seeds_decide_sampled_text() {
    let (shared, _turn) = shared();
    let model = shared.load(Route::Npu, &TinyModel::default());
    let mut generation = Generation::new(&model, &small()).unwrap();
    let mut text_of = |seed| {
        let sampling = Sampling { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.0, seed };
        let mut text = String::new();
        let options = GenerateOptions { max_tokens: 24, sampling };
        generation
            .run(&Prompt::Raw("x".to_owned()), &options, &mut |event| {
                if let Event::Text(piece) = event {
                    text.push_str(piece);
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        text
    };
    let (one, again, two) = (text_of(1), text_of(1), text_of(2));
    assert_eq!(one, again);
    assert_ne!(one, two);
}

#[test]
fn the_context_is_a_limit_that_is_named() {
    let (shared, _turn) = shared();
    let model = shared.load(Route::Cpu, &TinyModel::default());
    // llama.cpp would round 40 up to 256.
    let options = ContextOptions {
        context_tokens: Some(40),
        batch_tokens: Some(16),
        threads: Some(1),
        ..ContextOptions::default()
    };
    let mut generation = Generation::new(&model, &options).unwrap();
    assert_eq!(generation.context_tokens(), 40);
    let tokens = model.tokenize(&"a".repeat(60)).unwrap();
    match generation.run_tokens(&tokens[..41], &greedy(1), &mut ignore) {
        Err(EngineError::PromptTooLong { prompt_tokens: 41, context_tokens: 40 }) => {}
        other => panic!("{other:?}"),
    }
    let mut steps = Vec::new();
    let full = generation
        .run_tokens(&tokens[..38], &greedy(100), &mut |event| {
            if let Event::Prefill { done, .. } = event {
                steps.push(done);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(steps, [16, 32, 38]);
    assert_eq!((full.generated_tokens, full.decode_steps, full.stop), (3, 2, StopReason::ContextFull));

    assert!(matches!(generation.run_tokens(&[], &greedy(1), &mut ignore), Err(EngineError::EmptyPrompt)));
    let bad_token = generation.run_tokens(&[1, 99_999], &greedy(1), &mut ignore);
    assert!(matches!(bad_token, Err(EngineError::NoSuchToken { token: 99_999, .. })));
    let zero = ContextOptions { context_tokens: Some(0), ..ContextOptions::default() };
    assert!(matches!(
        Generation::new(&model, &zero),
        Err(EngineError::InvalidOption { option: "context_tokens", .. })
    ));
}

#[test]
fn prompts_go_through_the_models_template() {
    let (shared, _turn) = shared();
    let model = shared.load(Route::Cpu, &TinyModel::default());
    let chat = Prompt::Chat(vec![ChatMessage::system("be brief"), ChatMessage::user("hi")]);
    let rendered = model.render(&chat).unwrap();
    let expected =
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered, expected);
    // Markers become single control tokens, after the start token.
    let tokens = model.prompt_tokens(&chat).unwrap();
    assert_eq!(tokens[0], 1);
    assert_eq!(tokens.iter().filter(|&&t| t == 259).count(), 3, "{tokens:?}");
    assert!(!model.detokenize(&tokens).contains("im_start"));
    // As plain text they are just characters.
    assert!(!model.tokenize(&rendered).unwrap().contains(&259));
    assert_eq!(model.render(&Prompt::Raw("x".to_owned())).unwrap(), "x");
}

#[test]
fn the_model_is_described_from_its_file() {
    let (shared, _turn) = shared();
    let before = shared.log_lines.load(SeqCst);
    let mut fractions = Vec::new();
    shared.backend.set_route(Route::Npu);
    let path = shared.file("described.gguf", &TinyModel::default());
    let mut progress = |fraction| {
        fractions.push(fraction);
        ControlFlow::Continue(())
    };
    let model = Model::load(&shared.engine, &path, &LoadOptions { mmap: false }, &mut progress).unwrap();
    let info = model.info();
    assert_eq!((info.layers, info.embedding, info.trained_context, info.vocabulary), (2, 96, 512, 368));
    assert_eq!(info.architecture.as_deref(), Some("llama"));
    assert!(info.chat_template && info.parameters > 100_000 && info.description.contains("llama"));
    assert_eq!(info.file_bytes, std::fs::metadata(&path).unwrap().len());
    assert_eq!((fractions.first(), fractions.last()), (Some(&0.0), Some(&1.0)));
    assert!(shared.log_lines.load(SeqCst) > before, "llama.cpp's lines go to the sink");
}

#[test]
fn a_load_can_be_cancelled() {
    let (shared, _turn) = shared();
    shared.backend.set_route(Route::Npu);
    let path = shared.file("cancelled.gguf", &TinyModel::default());
    let stop = &mut |_| ControlFlow::Break(());
    let result = Model::load(&shared.engine, &path, &LoadOptions::default(), stop);
    assert!(matches!(result, Err(EngineError::LoadCancelled)));
    assert_eq!(shared.counts.live.load(SeqCst), 0);
}

#[test]
fn bad_files_are_refused_with_a_reason() {
    let (shared, _turn) = shared();
    let folder = shared.folder.path();
    let good = TinyModel::default().bytes();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let mut safetensors = 32u64.to_le_bytes().to_vec();
    safetensors.extend(br#"{"__metadata__":{"format":"pt"}}"#);
    type Check = fn(&FileProblem) -> bool;
    let table: Vec<(PathBuf, Check)> = vec![
        (folder.join("none.gguf"), |p| matches!(p, FileProblem::NotFound)),
        (folder.to_owned(), |p| matches!(p, FileProblem::Directory)),
        (write("empty.gguf", b""), |p| matches!(p, FileProblem::Empty)),
        (write("cut.gguf", &good[..good.len() / 2]), |p| matches!(p, FileProblem::Truncated { .. })),
        (write("st.gguf", &safetensors), |p| matches!(p, FileProblem::Safetensors)),
        (write("text.gguf", b"this is not a model"), |p| matches!(p, FileProblem::NotGguf { .. })),
    ];
    for (path, check) in table {
        match Model::load(&shared.engine, &path, &LoadOptions::default(), &mut go_on) {
            Err(error @ EngineError::File { .. }) => {
                let EngineError::File { problem, .. } = &error else { unreachable!() };
                assert!(check(problem), "{}: {problem:?}", path.display());
                assert!(error.to_string().starts_with(&path.display().to_string()));
                assert!(error.hint().is_some());
            }
            other => panic!("{}: {other:?}", path.display()),
        }
    }
    // Well-formed, but of an architecture nobody knows: llama.cpp's own words are in the error.
    let at = good.windows(5).position(|w| w == b"llama").unwrap();
    let mut unknown = good.clone();
    unknown[at..at + 5].copy_from_slice(b"lamma");
    let path = write("unknown.gguf", &unknown);
    match Model::load(&shared.engine, &path, &LoadOptions::default(), &mut go_on) {
        Err(EngineError::ModelRejected { log, .. }) => {
            assert!(log.iter().any(|l| l.contains("lamma")), "{log:?}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bench_measures_what_it_is_asked_for() {
    let (shared, _turn) = shared();
    let model = shared.load(Route::Npu, &TinyModel::default());
    shared.backend.reset_census();
    let context = ContextOptions { batch_tokens: Some(64), threads: Some(1), ..ContextOptions::default() };
    let mut stopwatch = Stopwatch::open(&model, 100, &context).unwrap();
    let started = Instant::now();
    let mut measured = Duration::ZERO;
    for _ in 0..3 {
        for time in [stopwatch.prefill(100).unwrap(), stopwatch.decode(5).unwrap()] {
            assert!(time > Duration::ZERO);
            measured += time;
        }
    }
    assert!(measured <= started.elapsed());
    // Three rounds of two chunks and five single tokens.
    let evaluations = 3 * (2 + 5);
    let per_evaluation = TinyModel::default().matmuls_per_evaluation();
    assert_eq!(shared.backend.census().executed.matmuls, evaluations * per_evaluation);
    let inside = shared.backend.census().executed.time;
    assert!(inside > Duration::ZERO && inside <= measured, "{inside:?} of {measured:?}");
    assert!(matches!(stopwatch.prefill(101), Err(EngineError::PromptTooLong { prompt_tokens: 101, .. })));
    assert!(matches!(Stopwatch::open(&model, 0, &context), Err(EngineError::InvalidOption { .. })));
}

#[test]
fn one_engine_per_process() {
    let (_shared, _turn) = shared();
    assert!(matches!(Engine::init(None, LogSink::discard()), Err(EngineError::AlreadyRunning)));
}

#[test]
fn a_backend_error_reaches_the_caller() {
    let (shared, _turn) = shared();
    let model = shared.load(Route::Npu, &TinyModel::default());
    let mut generation = Generation::new(&model, &small()).unwrap();
    let prompt = Prompt::Raw("x".to_owned());
    shared.counts.fail_next.store(true, SeqCst);
    let failed = generation.run(&prompt, &greedy(3), &mut ignore);
    match failed {
        Err(EngineError::Decode { source: Some(BackendError::MatMul { name, .. }), position: 0, .. }) => {
            assert!(name.starts_with("blk.0.attn_q"), "{name}");
        }
        other => panic!("{other:?}"),
    }
    // The engine recovers: the next prompt starts from nothing.
    assert!(generation.run(&prompt, &greedy(3), &mut ignore).is_ok());
}
