// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tiny model with random weights, as a GGUF file: for tests and demonstrations that must not depend on a download.
//!
//! Architecture `llama`, a SentencePiece-like vocabulary that can spell any text, a ChatML template. It says nothing
//! sensible, but everything a real model exercises is there: grouped attention, SwiGLU, tied or separate output.

mod family;

pub use family::{Family, TinyFamily};

use llama_cpp_sys_2 as sys;
use std::io;
use std::path::{Path, PathBuf};

/// Type of the weight matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "ggml's names")]
pub enum WeightType {
    F32,
    F16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q4K,
    Q6K,
}

impl WeightType {
    fn code(self) -> sys::ggml_type {
        match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
            Self::Q4_0 => sys::GGML_TYPE_Q4_0,
            Self::Q4_1 => sys::GGML_TYPE_Q4_1,
            Self::Q4K => sys::GGML_TYPE_Q4_K,
            Self::Q6K => sys::GGML_TYPE_Q6_K,
        }
    }

    fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => 32,
            Self::Q4K | Self::Q6K => 256,
        }
    }

    /// Rows that are not whole blocks are stored as F16, as llama.cpp's own quantiser does in such a case.
    fn for_rows_of(self, k: usize) -> Self {
        if k.is_multiple_of(self.block()) { self } else { Self::F16 }
    }

    /// Encodes `rows.len() / k` rows of `k` elements.
    pub fn encode(self, rows: &[f32], k: usize) -> Vec<u8> {
        let n = rows.len() / k;
        // SAFETY: a plain lookup of a known type.
        let row_bytes = unsafe { sys::ggml_row_size(self.code(), i64::try_from(k).unwrap_or(0)) };
        let mut bytes = vec![0u8; row_bytes * n];
        let (n, k) = (i64::try_from(n).unwrap_or(0), i64::try_from(k).unwrap_or(0));
        let (from, to) = (rows.as_ptr(), bytes.as_mut_ptr().cast());
        // SAFETY: n rows of k floats in, n rows of row_bytes out; the types used need no importance matrix.
        unsafe { sys::ggml_quantize_chunk(self.code(), from, to, 0, n, k, std::ptr::null()) };
        bytes
    }
}

/// Whether the output matrix is the token embedding or a matrix of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMatrix {
    /// The embedding, used twice.
    Tied,
    /// A matrix of its own.
    Separate,
}

/// Whether the model turns a text into one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// It does not.
    None,
    /// The mean of the vectors of its tokens.
    Mean,
}

/// Shape of a tiny model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TinyModel {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream, a multiple of `heads`, `embedding / heads` even.
    pub embedding: u32,
    /// Width of the feed-forward.
    pub feed_forward: u32,
    /// Attention heads.
    pub heads: u32,
    /// Key/value heads, a divisor of `heads`.
    pub kv_heads: u32,
    /// Tokens of context.
    pub context: u32,
    /// Type of the matrices.
    pub weight_type: WeightType,
    /// The output matrix.
    pub output: OutputMatrix,
    /// The vector of a text.
    pub pooling: Pooling,
    /// Seed of the weights.
    pub seed: u64,
}

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            layers: 2,
            embedding: 96,
            feed_forward: 160,
            heads: 3,
            kv_heads: 1,
            context: 512,
            weight_type: WeightType::Q8_0,
            output: OutputMatrix::Tied,
            pooling: Pooling::None,
            seed: 1,
        }
    }
}

const UNKNOWN: u32 = 0;
const START: u32 = 1;
const END: u32 = 2;

const CHAT_TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                             {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// Codes of the format.
const KIND_U16: u32 = 2;
const KIND_U32: u32 = 4;
const KIND_I32: u32 = 5;
const KIND_F32: u32 = 6;
const KIND_STRING: u32 = 8;
const KIND_ARRAY: u32 = 9;
const ALIGNMENT: usize = 32;

// Codes of token kinds.
const NORMAL: i32 = 1;
const UNKNOWN_KIND: i32 = 2;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

struct Token {
    text: String,
    score: f32,
    kind: i32,
}

/// Three special tokens, 256 bytes, two chat markers, then printable characters and a few common pairs.
fn vocabulary() -> Vec<Token> {
    let control = |text: &str| Token { text: text.to_owned(), score: 0.0, kind: CONTROL };
    let mut tokens = vec![Token { text: "<unk>".to_owned(), score: 0.0, kind: UNKNOWN_KIND }];
    tokens.extend(["<s>", "</s>"].map(control));
    tokens.extend((0..=255u8).map(|b| Token { text: format!("<0x{b:02X}>"), score: 0.0, kind: BYTE }));
    tokens.extend(["<|im_start|>", "<|im_end|>"].map(control));
    let characters = std::iter::once('\u{2581}').chain(' '..='~').filter(|&c| c != ' ').map(String::from);
    let pairs = ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "\u{2581}t", "\u{2581}a"];
    for (rank, text) in pairs.into_iter().map(str::to_owned).chain(characters).enumerate() {
        tokens.push(Token { text, score: -(rank as f32), kind: NORMAL });
    }
    tokens
}

/// A small generator with a long period: SplitMix64's mixing of a counter.
struct Random(u64);

impl Random {
    /// Roughly normal: mean 0, variance 1.
    fn normal(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..4 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^= z >> 31;
            sum += (z >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        }
        sum * 3f32.sqrt()
    }
}

/// A tensor ready to be written.
struct Tensor {
    name: String,
    sizes: Vec<u64>,
    type_: sys::ggml_type,
    bytes: Vec<u8>,
}

impl TinyModel {
    /// Matmuls with a weight in one evaluation of the graph: seven per layer, and the output.
    pub fn matmuls_per_evaluation(&self) -> u64 {
        u64::from(self.layers) * 7 + 1
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.bytes())
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let tokens = vocabulary();
        file(&self.head(&tokens), &self.tensors(tokens.len()))
    }

    /// Writes the model as several files, as `gguf-split` does, and gives their paths; the first is the one to load.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write_split(&self, folder: &Path, stem: &str, files: u16) -> io::Result<Vec<PathBuf>> {
        let tokens = vocabulary();
        let tensors = self.tensors(tokens.len());
        let share = tensors.len().div_ceil(usize::from(files.max(1)));
        let parts: Vec<&[Tensor]> = tensors.chunks(share.max(1)).collect();
        let mut paths = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            // The first file describes the model.
            let mut head = if index == 0 { self.head(&tokens) } else { Header::default() };
            head.u16("split.no", index as u16);
            head.u16("split.count", parts.len() as u16);
            head.i32("split.tensors.count", tensors.len() as i32);
            let path = folder.join(format!("{stem}-{:05}-of-{:05}.gguf", index + 1, parts.len()));
            std::fs::write(&path, file(&head, part))?;
            paths.push(path);
        }
        Ok(paths)
    }

    fn head(&self, tokens: &[Token]) -> Header {
        let mut head = Header::default();
        head.string("general.architecture", "llama");
        head.string("general.name", "ork tiny test model");
        head.u32("llama.block_count", self.layers);
        head.u32("llama.context_length", self.context);
        head.u32("llama.embedding_length", self.embedding);
        head.u32("llama.feed_forward_length", self.feed_forward);
        head.u32("llama.attention.head_count", self.heads);
        head.u32("llama.attention.head_count_kv", self.kv_heads);
        head.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
        head.u32("llama.rope.dimension_count", self.embedding / self.heads);
        if self.pooling == Pooling::Mean {
            head.u32("llama.pooling_type", 1);
        }
        head.tokenizer(tokens);
        head
    }

    fn tensors(&self, vocabulary: usize) -> Vec<Tensor> {
        let mut random = Random(self.seed);
        let [d, ff, heads, kv] =
            [self.embedding, self.feed_forward, self.heads, self.kv_heads].map(|size| size as usize);
        let kv_width = d / heads * kv;
        let mut tensors = Vec::new();
        let mut matrix = |name: String, k: usize, n: usize, scale: f32| {
            let rows: Vec<f32> = (0..n * k).map(|_| random.normal() * scale).collect();
            let type_ = self.weight_type.for_rows_of(k);
            tensors.push(Tensor {
                name,
                sizes: vec![k as u64, n as u64],
                type_: type_.code(),
                bytes: type_.encode(&rows, k),
            });
        };
        let scale = |k: usize| 1.0 / (k as f32).sqrt();
        // Large enough that the output distribution has a shape.
        matrix("token_embd.weight".to_owned(), d, vocabulary, 3.0 * scale(d));
        if self.output == OutputMatrix::Separate {
            matrix("output.weight".to_owned(), d, vocabulary, 3.0 * scale(d));
        }
        for layer in 0..self.layers {
            let mut named = |part: &str, k, n| matrix(format!("blk.{layer}.{part}.weight"), k, n, scale(k));
            named("attn_q", d, d);
            named("attn_k", d, kv_width);
            named("attn_v", d, kv_width);
            named("attn_output", d, d);
            named("ffn_gate", d, ff);
            named("ffn_up", d, ff);
            named("ffn_down", ff, d);
        }
        let norms =
            (0..self.layers).flat_map(|l| [format!("blk.{l}.attn_norm"), format!("blk.{l}.ffn_norm")]);
        for name in norms.chain(["output_norm".to_owned()]) {
            let ones = vec![1.0; d];
            let bytes = WeightType::F32.encode(&ones, d);
            let name = format!("{name}.weight");
            tensors.push(Tensor { name, sizes: vec![d as u64], type_: WeightType::F32.code(), bytes });
        }
        tensors
    }
}

/// A file of one piece.
fn file(head: &Header, tensors: &[Tensor]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(head.entries.to_le_bytes());
    file.extend(&head.bytes);
    let mut offset = 0;
    for tensor in tensors {
        put_string(&mut file, &tensor.name);
        file.extend((tensor.sizes.len() as u32).to_le_bytes());
        tensor.sizes.iter().for_each(|size| file.extend(size.to_le_bytes()));
        file.extend(tensor.type_.to_le_bytes());
        file.extend((offset as u64).to_le_bytes());
        offset = (offset + tensor.bytes.len()).next_multiple_of(ALIGNMENT);
    }
    for tensor in tensors {
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(&tensor.bytes);
    }
    file
}

/// Metadata entries in the making.
#[derive(Default)]
struct Header {
    entries: u64,
    bytes: Vec<u8>,
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Header {
    fn key(&mut self, key: &str, kind: u32) {
        self.entries += 1;
        put_string(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key, KIND_STRING);
        put_string(&mut self.bytes, value);
    }

    fn u16(&mut self, key: &str, value: u16) {
        self.key(key, KIND_U16);
        self.bytes.extend(value.to_le_bytes());
    }

    fn i32(&mut self, key: &str, value: i32) {
        self.key(key, KIND_I32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn u32(&mut self, key: &str, value: u32) {
        self.key(key, KIND_U32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn f32(&mut self, key: &str, value: f32) {
        self.key(key, KIND_F32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn tokenizer(&mut self, tokens: &[Token]) {
        self.string("tokenizer.ggml.model", "llama");
        self.array("tokenizer.ggml.tokens", KIND_STRING, tokens, |out, t| put_string(out, &t.text));
        self.array("tokenizer.ggml.scores", KIND_F32, tokens, |out, t| out.extend(t.score.to_le_bytes()));
        self.array("tokenizer.ggml.token_type", KIND_I32, tokens, |out, t| out.extend(t.kind.to_le_bytes()));
        self.u32("tokenizer.ggml.unknown_token_id", UNKNOWN);
        self.u32("tokenizer.ggml.bos_token_id", START);
        self.u32("tokenizer.ggml.eos_token_id", END);
        self.string("tokenizer.chat_template", CHAT_TEMPLATE);
    }

    fn array<T>(&mut self, key: &str, kind: u32, values: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        self.key(key, KIND_ARRAY);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| put(&mut self.bytes, value));
    }
}
