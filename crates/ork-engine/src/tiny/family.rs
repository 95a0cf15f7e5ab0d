// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiny models of other families than llama's: what their graphs do with weights that no other one does.

use super::{Header, KIND_I32, Random, Tensor, Token, UNUSED, WeightType, file, vocabulary};
use std::io;
use std::path::Path;

/// A family of models, by llama.cpp's name of its architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Biases of the attention's inputs.
    Qwen2,
    /// Heads whose widths do not add up to the embedding; norms of queries and keys.
    Qwen3,
    /// The same with a mixture of experts.
    Qwen3Moe,
    /// Norms after the blocks, a sliding window, a scaled embedding.
    Gemma3,
    /// One matrix for queries, keys and values, one for gate and up.
    Phi3,
    /// No attention: a recurrent state.
    Mamba2,
    /// Short convolutions, and attention in some layers.
    Lfm2,
}

/// A tiny model of a family, with random weights in Q8_0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TinyFamily {
    /// The family.
    pub family: Family,
    /// Tokens of the vocabulary, if there are to be more than the 370 that are needed.
    pub vocabulary: usize,
    /// Seed of the weights.
    pub seed: u64,
}

// Sizes: rows are whole blocks of Q8_0, and no two are alike.
const D: usize = 128;
const FF: usize = 224;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
/// Width of a head where it is not D / HEADS.
const WIDE_HEAD: usize = 48;
const EXPERTS: usize = 8;
const EXPERTS_USED: usize = 3;
const FF_EXPERT: usize = 96;
const SSM_INNER: usize = 256;
const SSM_STATE: usize = 32;
const SSM_GROUPS: usize = 2;
const SSM_HEADS: usize = 8;
const SSM_KERNEL: usize = 4;
const CONV_TAPS: usize = 3;

impl Family {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Qwen2, Self::Qwen3, Self::Qwen3Moe, Self::Gemma3, Self::Phi3, Self::Mamba2, Self::Lfm2];

    /// llama.cpp's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Gemma3 => "gemma3",
            Self::Phi3 => "phi3",
            Self::Mamba2 => "mamba2",
            Self::Lfm2 => "lfm2",
        }
    }

    const fn layers(self) -> usize {
        match self {
            // Every sixth layer of gemma3 sees everything.
            Self::Gemma3 => 7,
            _ => 2,
        }
    }

    const fn head(self) -> usize {
        match self {
            Self::Qwen3 | Self::Qwen3Moe | Self::Gemma3 => WIDE_HEAD,
            _ => D / HEADS,
        }
    }

    /// Whether a layer has no attention.
    const fn is_recurrent(self, layer: usize) -> bool {
        match self {
            Self::Mamba2 => true,
            Self::Lfm2 => layer == 0,
            _ => false,
        }
    }
}

/// Tensors in the making.
struct Writer {
    random: Random,
    tensors: Vec<Tensor>,
}

impl Writer {
    fn put(&mut self, name: String, sizes: &[usize], type_: WeightType, values: &[f32]) {
        let bytes = type_.encode(values, sizes[0]);
        let sizes = sizes.iter().map(|&size| size as u64).collect();
        self.tensors.push(Tensor { name, sizes, type_: type_.code(), bytes });
    }

    fn random(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.random.normal() * scale).collect()
    }

    /// A matrix, or a stack of them, that keeps the size of what it multiplies.
    fn matrix(&mut self, name: &str, sizes: &[usize]) {
        self.scaled(name, sizes, 1.0);
    }

    fn scaled(&mut self, name: &str, sizes: &[usize], by: f32) {
        let scale = by / (sizes[0] as f32).sqrt();
        let values = self.random(sizes.iter().product(), scale);
        self.put(format!("{name}.weight"), sizes, WeightType::Q8_0, &values);
    }

    /// Plain numbers around `mean`.
    fn plain(&mut self, name: &str, sizes: &[usize], mean: f32, spread: f32) {
        let values: Vec<f32> =
            self.random(sizes.iter().product(), spread).iter().map(|value| mean + value).collect();
        self.put(name.to_owned(), sizes, WeightType::F32, &values);
    }

    fn norm(&mut self, name: &str, size: usize) {
        self.plain(&format!("{name}.weight"), &[size], 1.0, 0.1);
    }
}

impl TinyFamily {
    /// The smallest vocabulary.
    #[must_use]
    pub const fn new(family: Family, seed: u64) -> Self {
        Self { family, vocabulary: 0, seed }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.bytes())
    }

    /// The file's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut tokens = vocabulary();
        for index in tokens.len()..self.vocabulary {
            tokens.push(Token { text: format!("<unused {index}>"), score: 0.0, kind: UNUSED });
        }
        let mut head = self.head();
        head.tokenizer(&tokens);
        file(&head, &self.tensors(tokens.len()))
    }

    fn head(&self) -> Header {
        let family = self.family;
        let mut head = Header::default();
        head.string("general.architecture", family.name());
        head.string("general.name", "ork tiny test model");
        let key = |rest: &str| format!("{}.{rest}", family.name());
        head.u32(&key("block_count"), family.layers() as u32);
        head.u32(&key("context_length"), 512);
        head.u32(&key("embedding_length"), D as u32);
        head.f32(&key("attention.layer_norm_rms_epsilon"), 1e-5);
        if family == Family::Mamba2 {
            head.u32(&key("feed_forward_length"), 0);
            head.u32(&key("attention.head_count"), 0);
            head.u32(&key("ssm.conv_kernel"), SSM_KERNEL as u32);
            head.u32(&key("ssm.inner_size"), SSM_INNER as u32);
            head.u32(&key("ssm.state_size"), SSM_STATE as u32);
            head.u32(&key("ssm.time_step_rank"), SSM_HEADS as u32);
            head.u32(&key("ssm.group_count"), SSM_GROUPS as u32);
            return head;
        }
        head.u32(&key("feed_forward_length"), FF as u32);
        head.u32(&key("attention.head_count"), HEADS as u32);
        head.u32(&key("attention.key_length"), family.head() as u32);
        head.u32(&key("attention.value_length"), family.head() as u32);
        head.u32(&key("rope.dimension_count"), family.head() as u32);
        match family {
            Family::Lfm2 => {
                let per_layer: Vec<usize> = (0..family.layers())
                    .map(|layer| if family.is_recurrent(layer) { 0 } else { KV_HEADS })
                    .collect();
                head.array(&key("attention.head_count_kv"), KIND_I32, &per_layer, |out, &heads| {
                    out.extend((heads as i32).to_le_bytes());
                });
                head.u32(&key("shortconv.l_cache"), CONV_TAPS as u32);
            }
            _ => head.u32(&key("attention.head_count_kv"), KV_HEADS as u32),
        }
        if family == Family::Gemma3 {
            head.u32(&key("attention.sliding_window"), 16);
        }
        if family == Family::Qwen3Moe {
            head.u32(&key("expert_count"), EXPERTS as u32);
            head.u32(&key("expert_used_count"), EXPERTS_USED as u32);
            head.u32(&key("expert_feed_forward_length"), FF_EXPERT as u32);
        }
        head
    }

    fn tensors(&self, vocabulary: usize) -> Vec<Tensor> {
        let family = self.family;
        let mut out = Writer { random: Random(self.seed), tensors: Vec::new() };
        // Large enough that the output distribution has a shape; gemma3 scales what it looks up.
        out.scaled("token_embd", &[D, vocabulary], 3.0);
        out.norm(if family == Family::Lfm2 { "token_embd_norm" } else { "output_norm" }, D);
        for layer in 0..family.layers() {
            let name = |rest: &str| format!("blk.{layer}.{rest}");
            out.norm(&name("attn_norm"), D);
            match family {
                Family::Mamba2 => {
                    state_space(&mut out, &name);
                    continue;
                }
                _ if family.is_recurrent(layer) => {
                    out.plain(&name("shortconv.conv.weight"), &[CONV_TAPS, D], 0.0, 0.5);
                    out.matrix(&name("shortconv.in_proj"), &[D, 3 * D]);
                    out.matrix(&name("shortconv.out_proj"), &[D, D]);
                }
                _ => attention(&mut out, family, &name),
            }
            out.norm(&name("ffn_norm"), D);
            match family {
                Family::Qwen3Moe => {
                    out.matrix(&name("ffn_gate_inp"), &[D, EXPERTS]);
                    out.matrix(&name("ffn_gate_exps"), &[D, FF_EXPERT, EXPERTS]);
                    out.matrix(&name("ffn_up_exps"), &[D, FF_EXPERT, EXPERTS]);
                    out.matrix(&name("ffn_down_exps"), &[FF_EXPERT, D, EXPERTS]);
                }
                Family::Phi3 => {
                    out.matrix(&name("ffn_up"), &[D, 2 * FF]);
                    out.matrix(&name("ffn_down"), &[FF, D]);
                }
                _ => {
                    out.matrix(&name("ffn_gate"), &[D, FF]);
                    out.matrix(&name("ffn_up"), &[D, FF]);
                    out.matrix(&name("ffn_down"), &[FF, D]);
                }
            }
            if family == Family::Gemma3 {
                out.norm(&name("post_attention_norm"), D);
                out.norm(&name("post_ffw_norm"), D);
            }
        }
        out.tensors
    }
}

fn attention(out: &mut Writer, family: Family, name: &dyn Fn(&str) -> String) {
    let head = family.head();
    let (queries, keys) = (HEADS * head, KV_HEADS * head);
    if family == Family::Phi3 {
        out.matrix(&name("attn_qkv"), &[D, queries + 2 * keys]);
    } else {
        for (part, width) in [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)] {
            out.matrix(&name(part), &[D, width]);
            if family == Family::Qwen2 {
                out.plain(&name(&format!("{part}.bias")), &[width], 0.0, 0.5);
            }
        }
    }
    out.matrix(&name("attn_output"), &[queries, D]);
    if matches!(family, Family::Qwen3 | Family::Qwen3Moe | Family::Gemma3 | Family::Lfm2) {
        out.norm(&name("attn_q_norm"), head);
        out.norm(&name("attn_k_norm"), head);
    }
}

fn state_space(out: &mut Writer, name: &dyn Fn(&str) -> String) {
    let convolved = SSM_INNER + 2 * SSM_GROUPS * SSM_STATE;
    out.matrix(&name("ssm_in"), &[D, SSM_INNER + convolved + SSM_HEADS]);
    out.plain(&name("ssm_conv1d.weight"), &[SSM_KERNEL, convolved], 0.0, 0.5);
    out.plain(&name("ssm_conv1d.bias"), &[convolved], 0.0, 0.1);
    out.plain(&name("ssm_dt.bias"), &[SSM_HEADS], 0.0, 0.5);
    // The state decays.
    out.plain(&name("ssm_a"), &[1, SSM_HEADS], -1.0, 0.2);
    out.plain(&name("ssm_d"), &[1, SSM_HEADS], 1.0, 0.2);
    out.plain(&name("ssm_norm.weight"), &[SSM_INNER / SSM_GROUPS, SSM_GROUPS], 1.0, 0.1);
    out.matrix(&name("ssm_out"), &[SSM_INNER, D]);
}
