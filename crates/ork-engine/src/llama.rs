// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners of llama.cpp's objects. Everything unsafe about llama.cpp is in this module and `watch`; nothing here decides.

use crate::cache_type::code;
use crate::chat::SpecialTexts;
use crate::watch::{WatchHandle, Watcher, on_node};
use llama_cpp_sys_2 as sys;
use ork_engine_options::CacheType;
use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// llama.cpp's per-process state, initialised.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// What ggml's list has of ours.
    registered: Vec<*mut ork_ggml::abi::Reg>,
}

// SAFETY: the pointers are handed back to ggml and not followed; what they name lives for ever and is only read.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

static RUNNING: AtomicBool = AtomicBool::new(false);

impl Runtime {
    /// `None` if it is initialised already.
    pub(crate) fn start() -> Option<Self> {
        if RUNNING.swap(true, Ordering::SeqCst) {
            return None;
        }
        // SAFETY: not initialised, see above.
        unsafe { sys::llama_backend_init() };
        Some(Self { registered: Vec::new() })
    }

    /// Makes a backend known to all models loaded later, as long as the runtime lives.
    pub(crate) fn register(&mut self, registration: *mut ork_ggml::abi::Reg) {
        // SAFETY: the registration and everything behind it live for ever (`OrkBackend` leaks them).
        unsafe { sys::ggml_backend_register(registration.cast()) };
        self.registered.push(registration);
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Every context asks all devices of ggml's list for a stream, and has room for sixteen.
        for registration in self.registered.drain(..) {
            // SAFETY: registered above, and not from a library that this would close; models and contexts hold the
            // engine that holds this, so none is left.
            unsafe { sys::ggml_backend_unload(registration.cast()) };
        }
        // SAFETY: as above.
        unsafe { sys::llama_backend_free() };
        RUNNING.store(false, Ordering::SeqCst);
    }
}

/// Block size of a ggml type code; `None` if the linked ggml does not know it.
pub(crate) fn type_layout(code: u32) -> Option<crate::gguf::TypeLayout> {
    if code >= sys::GGML_TYPE_COUNT {
        return None;
    }
    // SAFETY: inside the table, checked above.
    let traits = unsafe { sys::ggml_get_type_traits(code).as_ref() }?;
    let block_elements = u64::try_from(traits.blck_size).ok().filter(|&n| n > 0)?;
    // SAFETY: a static NUL-terminated string.
    let name = unsafe { CStr::from_ptr::<'static>(traits.type_name) }.to_str().ok()?;
    Some(crate::gguf::TypeLayout { block_elements, block_bytes: traits.type_size as u64, name })
}

/// A loaded model.
#[derive(Debug)]
pub(crate) struct RawModel {
    model: NonNull<sys::llama_model>,
    vocab: NonNull<sys::llama_vocab>,
    /// Creating a context writes to the model.
    creating: Mutex<()>,
}

// SAFETY: a loaded model is only read, except while creating a context, which `creating` serialises.
unsafe impl Send for RawModel {}
// SAFETY: as above.
unsafe impl Sync for RawModel {}

/// Why a load gave no model.
#[derive(Debug)]
pub(crate) enum LoadFailure {
    Cancelled,
    Refused,
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    Mapped,
    Read,
    /// Only the header: weights are placed, and nothing is read into them. Such a model cannot be evaluated.
    Header,
}

struct Progress<'a> {
    callback: &'a mut dyn FnMut(f32) -> ControlFlow<()>,
    stopped: bool,
}

unsafe extern "C" fn on_progress(fraction: f32, user: *mut c_void) -> bool {
    // SAFETY: `RawModel::load` passes a pointer to a `Progress` that outlives the call.
    let progress = unsafe { &mut *user.cast::<Progress<'_>>() };
    // A panic stops the load instead of unwinding into C++.
    let go_on =
        catch_unwind(AssertUnwindSafe(|| (progress.callback)(fraction).is_continue())).unwrap_or(false);
    progress.stopped |= !go_on;
    go_on
}

impl RawModel {
    pub(crate) fn load(
        path: &CStr,
        access: FileAccess,
        callback: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Self, LoadFailure> {
        let mut progress = Progress { callback, stopped: false };
        // SAFETY: no arguments.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.n_gpu_layers = 0;
        params.load_mode = match access {
            FileAccess::Mapped => sys::LLAMA_LOAD_MODE_MMAP,
            FileAccess::Read | FileAccess::Header => sys::LLAMA_LOAD_MODE_NONE,
        };
        params.no_alloc = access == FileAccess::Header;
        params.progress_callback = Some(on_progress);
        params.progress_callback_user_data = (&raw mut progress).cast();
        // SAFETY: `path` is NUL-terminated, and `progress` outlives the call.
        let model = NonNull::new(unsafe { sys::llama_model_load_from_file(path.as_ptr(), params) });
        let Some(model) = model else {
            return Err(if progress.stopped { LoadFailure::Cancelled } else { LoadFailure::Refused });
        };
        // SAFETY: live model.
        let vocab = NonNull::new(unsafe { sys::llama_model_get_vocab(model.as_ptr()) }.cast_mut());
        let Some(vocab) = vocab else {
            // SAFETY: just created, not used by anyone.
            unsafe { sys::llama_model_free(model.as_ptr()) };
            return Err(LoadFailure::Refused);
        };
        Ok(Self { model, vocab, creating: Mutex::new(()) })
    }

    pub(crate) fn sizes(&self) -> ModelSizes {
        let model = self.model.as_ptr();
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        // SAFETY: live model and vocabulary; plain getters.
        unsafe {
            ModelSizes {
                layers: count(sys::llama_model_n_layer(model)),
                embedding: count(sys::llama_model_n_embd(model)),
                trained_context: count(sys::llama_model_n_ctx_train(model)),
                vocabulary: count(sys::llama_vocab_n_tokens(self.vocab.as_ptr())),
                parameters: sys::llama_model_n_params(model),
                bytes: sys::llama_model_size(model),
            }
        }
    }

    pub(crate) fn description(&self) -> String {
        let mut text = [0u8; 256];
        // SAFETY: the buffer has the stated size; llama.cpp NUL-terminates.
        unsafe { sys::llama_model_desc(self.model.as_ptr(), text.as_mut_ptr().cast(), text.len()) };
        CStr::from_bytes_until_nul(&text).map_or_else(|_| String::new(), |s| s.to_string_lossy().into_owned())
    }

    pub(crate) fn chat_template(&self) -> Option<String> {
        // SAFETY: live model; a null name asks for the default template.
        let text = unsafe { sys::llama_model_chat_template(self.model.as_ptr(), std::ptr::null()) };
        if text.is_null() {
            return None;
        }
        // SAFETY: a NUL-terminated string owned by the model, copied at once.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    pub(crate) fn special_texts(&self) -> SpecialTexts {
        let vocab = self.vocab.as_ptr();
        let text = |token: i32| {
            if token < 0 {
                return String::new();
            }
            // SAFETY: live vocabulary, a token of it; the text is NUL-terminated and copied at once.
            unsafe { CStr::from_ptr(sys::llama_vocab_get_text(vocab, token)) }.to_string_lossy().into_owned()
        };
        // SAFETY: live vocabulary; plain getters.
        let (begin, end, begin_is_added) = unsafe {
            (sys::llama_vocab_bos(vocab), sys::llama_vocab_eos(vocab), sys::llama_vocab_get_add_bos(vocab))
        };
        SpecialTexts { begin: text(begin), end: text(end), begin_is_added }
    }

    /// `None` if the text is too long for llama.cpp.
    pub(crate) fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Option<Vec<i32>> {
        let length = i32::try_from(text.len()).ok()?;
        let mut tokens = vec![0i32; text.len() / 2 + 8];
        loop {
            let room = i32::try_from(tokens.len()).ok()?;
            // SAFETY: the text has `length` bytes, the buffer room for `room` tokens.
            let count = unsafe {
                sys::llama_tokenize(
                    self.vocab.as_ptr(),
                    text.as_ptr().cast(),
                    length,
                    tokens.as_mut_ptr(),
                    room,
                    add_special,
                    parse_special,
                )
            };
            match usize::try_from(count) {
                Ok(count) => {
                    tokens.truncate(count);
                    return Some(tokens);
                }
                // The negated count is the room needed; i32::MIN means "too long".
                Err(_) => tokens.resize(usize::try_from(count.checked_neg()?).ok()?, 0),
            }
        }
    }

    /// Appends the bytes of a token; control tokens have none.
    pub(crate) fn piece(&self, token: i32, out: &mut Vec<u8>) {
        let mut buffer = vec![0u8; 64];
        loop {
            let room = i32::try_from(buffer.len()).unwrap_or(i32::MAX);
            // SAFETY: the buffer has `room` bytes.
            let length = unsafe {
                sys::llama_token_to_piece(
                    self.vocab.as_ptr(),
                    token,
                    buffer.as_mut_ptr().cast::<c_char>(),
                    room,
                    0,
                    false,
                )
            };
            match usize::try_from(length) {
                Ok(length) => return out.extend_from_slice(&buffer[..length.min(buffer.len())]),
                Err(_) => buffer.resize(length.unsigned_abs() as usize, 0),
            }
        }
    }

    /// The token that llama.cpp puts before a text, if it does.
    pub(crate) fn start_token(&self) -> Option<i32> {
        let vocab = self.vocab.as_ptr();
        // SAFETY: live vocabulary; plain getters.
        let (added, token) = unsafe { (sys::llama_vocab_get_add_bos(vocab), sys::llama_vocab_bos(vocab)) };
        (added && token >= 0).then_some(token)
    }

    pub(crate) fn ends_generation(&self, token: i32) -> bool {
        // SAFETY: live vocabulary; llama.cpp checks the id.
        unsafe { sys::llama_vocab_is_eog(self.vocab.as_ptr(), token) }
    }

    pub(crate) fn is_control(&self, token: i32) -> bool {
        // SAFETY: the caller passes an id inside the vocabulary.
        unsafe { sys::llama_vocab_is_control(self.vocab.as_ptr(), token) }
    }
}

impl Drop for RawModel {
    fn drop(&mut self) {
        // SAFETY: contexts borrow the model, so none is left.
        unsafe { sys::llama_model_free(self.model.as_ptr()) };
    }
}

/// Numbers of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelSizes {
    pub(crate) layers: u32,
    pub(crate) embedding: u32,
    pub(crate) trained_context: u32,
    pub(crate) vocabulary: u32,
    pub(crate) parameters: u64,
    pub(crate) bytes: u64,
}

/// Sizes of a context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextSizes {
    pub(crate) context_tokens: u32,
    pub(crate) batch_tokens: u32,
    pub(crate) threads: u32,
    /// Of keys and of values.
    pub(crate) cache_types: (CacheType, CacheType),
    pub(crate) result: ContextResult,
}

/// What a context computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContextResult {
    /// Logits.
    Logits,
    /// One vector per sequence, pooled as the model says.
    Embedding,
}

/// Threads for the CPU's share of a graph.
///
/// Without a pool of its own, a context starts and joins its threads for every CPU part of a graph, and a graph with
/// an accelerator in it has hundreds of parts.
#[derive(Debug)]
struct ThreadPool(NonNull<sys::ggml_threadpool>);

impl ThreadPool {
    fn new(threads: u32, poll: u32) -> Option<Self> {
        let threads = i32::try_from(threads).ok()?;
        // SAFETY: plain value.
        let mut params = unsafe { sys::ggml_threadpool_params_default(threads) };
        params.poll = poll;
        // SAFETY: the parameters are only read.
        NonNull::new(unsafe { sys::ggml_threadpool_new(&raw mut params) }).map(Self)
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: the context that used it is gone, see the order of fields in `RawContext`.
        unsafe { sys::ggml_threadpool_free(self.0.as_ptr()) };
    }
}

/// How eagerly pool threads wait for their next part of a graph: 0 sleeps at once, 100 spins.
///
/// Spinning threads take the cores from the accelerator's own host threads. Measured in four interleaved pairs of runs
/// on a 2-core machine with other work on it, SmolLM2-135M Q4_1, every matmul on the plain software accelerator,
/// 2 threads: prefill 140–209 tokens/s with 0 against 80–102 with ggml's default of 50, decode 18–24 against 10–11.
const POOL_POLL: u32 = 0;

struct ContextHandle(NonNull<sys::llama_context>);

impl Drop for ContextHandle {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { sys::llama_free(self.0.as_ptr()) };
    }
}

/// A context: key/value cache and compute buffers.
pub(crate) struct RawContext<'m> {
    // Dropped in this order: the context uses the pool and the watch.
    context: ContextHandle,
    _pool: ThreadPool,
    _watch: Option<WatchHandle>,
    vocabulary: usize,
    model: PhantomData<&'m RawModel>,
}

// SAFETY: the context is used through `&mut self` only, and has no tie to the thread that made it.
unsafe impl Send for RawContext<'_> {}

/// Which tokens of a batch get logits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outputs {
    None,
    Last,
    All,
    /// These, counted from the start of the batch.
    Range(Range<usize>),
}

impl Outputs {
    /// Whether token `index` of `count` gets logits.
    fn wants(&self, index: usize, count: usize) -> bool {
        match self {
            Self::None => false,
            Self::Last => index + 1 == count,
            Self::All => true,
            Self::Range(range) => range.contains(&index),
        }
    }
}

impl<'m> RawContext<'m> {
    /// The watcher gets what it wants of every product with a weight.
    pub(crate) fn new(
        model: &'m RawModel,
        sizes: ContextSizes,
        watcher: Option<Box<dyn Watcher>>,
    ) -> Option<Self> {
        let watch = watcher.map(WatchHandle::new);
        let threads = i32::try_from(sizes.threads).ok()?;
        // SAFETY: no arguments.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = sizes.context_tokens;
        params.n_batch = sizes.batch_tokens;
        params.n_ubatch = sizes.batch_tokens;
        params.n_seq_max = 1;
        params.n_threads = threads;
        params.n_threads_batch = threads;
        params.type_k = code(sizes.cache_types.0);
        params.type_v = code(sizes.cache_types.1);
        params.no_perf = true;
        params.embeddings = sizes.result == ContextResult::Embedding;
        if let Some(watch) = &watch {
            params.cb_eval = Some(on_node);
            params.cb_eval_user_data = watch.user_data();
        }
        let pool = ThreadPool::new(sizes.threads, POOL_POLL)?;
        let context = {
            let _creating = model.creating.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // SAFETY: live model; creation is serialised.
            NonNull::new(unsafe { sys::llama_init_from_model(model.model.as_ptr(), params) })?
        };
        // SAFETY: the pool outlives the context.
        unsafe { sys::llama_attach_threadpool(context.as_ptr(), pool.0.as_ptr(), pool.0.as_ptr()) };
        let vocabulary = model.sizes().vocabulary as usize;
        Some(Self {
            context: ContextHandle(context),
            _pool: pool,
            _watch: watch,
            vocabulary,
            model: PhantomData,
        })
    }

    /// Tokens the context holds; llama.cpp rounds the number asked for up.
    pub(crate) fn context_tokens(&self) -> u32 {
        // SAFETY: live context.
        unsafe { sys::llama_n_ctx(self.context.0.as_ptr()) }
    }

    /// Forgets all tokens.
    pub(crate) fn clear(&mut self) {
        // SAFETY: live context; a context without memory gives null, which llama.cpp ignores.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.context.0.as_ptr()), false) };
    }

    /// Evaluates tokens at positions `position..`. `Err` is llama.cpp's status.
    pub(crate) fn decode(&mut self, tokens: &[i32], position: usize, outputs: &Outputs) -> Result<(), i32> {
        const INVALID: i32 = -1;
        let count = i32::try_from(tokens.len()).map_err(|_| INVALID)?;
        let first = i32::try_from(position).map_err(|_| INVALID)?;
        let mut tokens = tokens.to_vec();
        let mut positions: Vec<i32> = (0..count).map(|i| first.saturating_add(i)).collect();
        let mut wanted: Vec<i8> =
            (0..tokens.len()).map(|index| i8::from(outputs.wants(index, tokens.len()))).collect();
        let mut sequence = 0i32;
        let mut sequence_counts = vec![1i32; tokens.len()];
        let mut sequences = vec![&raw mut sequence; tokens.len()];
        let batch = sys::llama_batch {
            n_tokens: count,
            token: tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: positions.as_mut_ptr(),
            n_seq_id: sequence_counts.as_mut_ptr(),
            seq_id: sequences.as_mut_ptr(),
            logits: wanted.as_mut_ptr(),
        };
        // SAFETY: every array has `count` entries and outlives the call.
        match unsafe { sys::llama_decode(self.context.0.as_ptr(), batch) } {
            0 => Ok(()),
            status => Err(status),
        }
    }

    /// The pooled vector of the last batch, `None` if the model does not pool.
    pub(crate) fn embedding(&mut self) -> Option<&[f32]> {
        let context = self.context.0.as_ptr();
        // SAFETY: live context; llama.cpp returns null without pooling or before a batch.
        let vector = NonNull::new(unsafe { sys::llama_get_embeddings_seq(context, 0) })?;
        // SAFETY: live context and model, a plain getter.
        let length = unsafe { sys::llama_model_n_embd(sys::llama_get_model(context)) };
        // SAFETY: one vector of the model's width (no model with a ranking head is pooled here), valid until the next
        // batch, which needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(vector.as_ptr(), usize::try_from(length).ok()?) })
    }

    /// Logits of the `index`-th token of the last batch (negative: from the end).
    pub(crate) fn logits(&mut self, index: i32) -> Option<&[f32]> {
        // SAFETY: live context; llama.cpp checks the index and returns null for tokens without logits.
        let logits = NonNull::new(unsafe { sys::llama_get_logits_ith(self.context.0.as_ptr(), index) })?;
        // SAFETY: one row of the vocabulary, valid until the next decode, which needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(logits.as_ptr(), self.vocabulary) })
    }
}

/// A chain of samplers.
pub(crate) struct RawSampler(NonNull<sys::llama_sampler>);

// SAFETY: used through `&mut self` only, no tie to a thread.
unsafe impl Send for RawSampler {}

/// One link of the chain.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SamplerStep {
    TopK(i32),
    TopP(f32),
    MinP(f32),
    Temperature(f32),
    Draw { seed: u32 },
    Greedy,
}

impl RawSampler {
    pub(crate) fn chain(steps: &[SamplerStep]) -> Option<Self> {
        // SAFETY: plain values.
        let chain =
            unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_params { no_perf: true }) };
        let chain = Self(NonNull::new(chain)?);
        for step in steps {
            // SAFETY: plain values.
            let link = unsafe {
                match *step {
                    SamplerStep::TopK(k) => sys::llama_sampler_init_top_k(k),
                    SamplerStep::TopP(p) => sys::llama_sampler_init_top_p(p, 1),
                    SamplerStep::MinP(p) => sys::llama_sampler_init_min_p(p, 1),
                    SamplerStep::Temperature(t) => sys::llama_sampler_init_temp(t),
                    SamplerStep::Draw { seed } => sys::llama_sampler_init_dist(seed),
                    SamplerStep::Greedy => sys::llama_sampler_init_greedy(),
                }
            };
            let link = NonNull::new(link)?;
            // SAFETY: the chain takes ownership of the link.
            unsafe { sys::llama_sampler_chain_add(chain.0.as_ptr(), link.as_ptr()) };
        }
        Some(chain)
    }

    /// Picks the next token from the last logits of the context.
    pub(crate) fn sample(&mut self, context: &mut RawContext<'_>) -> i32 {
        // SAFETY: live sampler and context; the caller decoded with logits for the last token.
        unsafe { sys::llama_sampler_sample(self.0.as_ptr(), context.context.0.as_ptr(), -1) }
    }
}

impl Drop for RawSampler {
    fn drop(&mut self) {
        // SAFETY: owned, freed once; frees the links too.
        unsafe { sys::llama_sampler_free(self.0.as_ptr()) };
    }
}
