// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures of the engine: what, where, and (as [`EngineError::hint`]) what to do.

use ork_engine_options::InvalidOption;
use ork_ggml::{BackendError, InitError};
use std::io;
use std::path::PathBuf;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An engine exists already in this process.
    #[error("an engine is already running in this process")]
    AlreadyRunning,
    /// The backend cannot work with the linked ggml.
    #[error("cannot create the NPU backend")]
    Init(#[from] InitError),
    /// The model file cannot be used.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: FileProblem,
    },
    /// llama.cpp refused a file that is a well-formed GGUF.
    #[error("{}: llama.cpp cannot load this model{}", path.display(), reason(log))]
    ModelRejected {
        /// The file.
        path: PathBuf,
        /// llama.cpp's last warnings and errors.
        log: Vec<String>,
    },
    /// The progress callback asked to stop.
    #[error("loading was cancelled")]
    LoadCancelled,
    /// The backend failed while the model loaded.
    #[error("{}: cannot place the model on the accelerator", path.display())]
    Placement {
        /// The file.
        path: PathBuf,
        /// The backend's error.
        source: BackendError,
    },
    /// Whoever looked at the activations did not want to go on.
    #[error("the observer of the activations ended the evaluation")]
    ObserverEnded,
    /// An option has a value that makes no sense.
    #[error("{option} = {value}: {why}")]
    InvalidOption {
        /// Name of the option.
        option: &'static str,
        /// The value given.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// llama.cpp could not make a context.
    #[error("cannot create a context of {context_tokens} tokens{}", reason(log))]
    Context {
        /// Size asked for.
        context_tokens: u32,
        /// llama.cpp's last warnings and errors.
        log: Vec<String>,
    },
    /// The prompt does not fit.
    #[error("the prompt has {prompt_tokens} tokens, the context holds {context_tokens}")]
    PromptTooLong {
        /// Tokens of the prompt, template included.
        prompt_tokens: usize,
        /// Tokens of the context.
        context_tokens: u32,
    },
    /// The prompt has no tokens at all.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The text could not be turned into tokens.
    #[error("cannot tokenise {bytes} bytes of text")]
    Tokenise {
        /// Length of the text.
        bytes: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    NoSuchToken {
        /// The id.
        token: i32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoChatTemplate,
    /// The model's chat template is broken, or refuses the messages.
    #[error("the model's chat template cannot be applied: {why}")]
    ChatTemplate {
        /// What is wrong.
        why: String,
    },
    /// Evaluating tokens failed.
    #[error("evaluating {tokens} tokens at position {position} failed: {}", decode_status(*status))]
    Decode {
        /// Tokens in the batch.
        tokens: usize,
        /// Position of the first one.
        position: usize,
        /// llama.cpp's status.
        status: i32,
        /// The backend's error, if it was the backend that failed.
        source: Option<BackendError>,
    },
    /// llama.cpp returned no logits, or could not build a sampler.
    #[error("llama.cpp returned no {what}")]
    Missing {
        /// What was asked for.
        what: &'static str,
    },
    /// The text is too short for the windows.
    #[error("the text has {tokens} tokens, {wanted} are wanted")]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of all windows.
        wanted: usize,
    },
    /// A file of reference distributions cannot be used.
    #[error("the reference file {} {why}", path.display())]
    Reference {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Two evaluations to be compared are not of the same text or vocabulary.
    #[error("cannot compare: {why}")]
    NotComparable {
        /// What differs.
        why: String,
    },
}

/// What is wrong with a model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileProblem {
    /// No such file.
    #[error("no such file")]
    NotFound,
    /// A directory.
    #[error("is a directory")]
    Directory,
    /// Zero bytes.
    #[error("is empty")]
    Empty,
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// A safetensors file.
    #[error("is a safetensors file, not a GGUF")]
    Safetensors,
    /// Something else.
    #[error("is not a GGUF file (starts with {start})")]
    NotGguf {
        /// The first bytes, printable.
        start: String,
    },
    /// A version nobody here can read.
    #[error("is GGUF version {version}; versions 2 and 3 are supported")]
    Version {
        /// The version in the header.
        version: u32,
    },
    /// Written on a big-endian machine.
    #[error("is a big-endian GGUF")]
    BigEndian,
    /// The header contradicts itself or exceeds a bound.
    #[error("has a damaged header at byte {offset}: {what}")]
    Damaged {
        /// Where.
        offset: u64,
        /// What.
        what: String,
    },
    /// The file ends before its data does.
    #[error("is truncated: {missing_bytes} of {expected_bytes} bytes are missing ({what})")]
    Truncated {
        /// Bytes the header calls for (at least, if the header itself is cut).
        expected_bytes: u64,
        /// How many are missing.
        missing_bytes: u64,
        /// What is cut: the header, or the first tensor that is not whole.
        what: String,
    },
    /// A tensor type the linked llama.cpp does not know.
    #[error("tensor {tensor} has type {type_code}, which this llama.cpp does not know")]
    UnknownTensorType {
        /// Name of the tensor.
        tensor: String,
        /// Code in the file.
        type_code: u32,
    },
    /// A tokenizer or projector, not a language model.
    #[error("holds no tensors")]
    NoTensors,
    /// The path cannot be passed to llama.cpp.
    #[error("has a name that is not UTF-8 or contains a NUL byte")]
    Name,
}

impl FileProblem {
    fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::NotFound => "check the path",
            Self::Directory => "name the .gguf file inside it",
            Self::Empty | Self::Truncated { .. } => "the download did not finish; fetch the file again",
            Self::Unreadable(_) => "check the permissions",
            Self::Safetensors => {
                "get the model as GGUF, or convert it with llama.cpp's convert_hf_to_gguf.py"
            }
            Self::NotGguf { .. } => "only GGUF files can be loaded",
            Self::Version { .. } => "convert the model again with a current llama.cpp",
            Self::BigEndian => "convert the model on or for a little-endian machine",
            Self::Damaged { .. } => "the file is damaged; fetch it again",
            Self::UnknownTensorType { .. } => "quantise the model to a common type such as Q8_0 or Q4_K_M",
            Self::NoTensors => "this file describes a vocabulary only; get the model itself",
            Self::Name => "rename the file",
        })
    }
}

impl From<InvalidOption> for EngineError {
    fn from(InvalidOption { option, value, why }: InvalidOption) -> Self {
        Self::InvalidOption { option, value, why }
    }
}

impl EngineError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::File { problem, .. } => return problem.hint().map(str::to_owned),
            Self::Placement { source, .. } | Self::Decode { source: Some(source), .. } => {
                return source.hint();
            }
            Self::ModelRejected { .. } => "the architecture may be newer than the linked llama.cpp",
            Self::Context { .. } => "try a smaller context",
            Self::PromptTooLong { .. } => "shorten the prompt or enlarge the context",
            Self::NoChatTemplate | Self::ChatTemplate { .. } => {
                "use the raw mode and write the prompt in full"
            }
            Self::EmptyPrompt => "give some text",
            Self::TextTooShort { .. } => "give a longer text, or take fewer or shorter windows",
            _ => return None,
        };
        Some(text.to_owned())
    }
}

fn reason(log: &[String]) -> String {
    match log {
        [] => String::new(),
        lines => format!(": {}", lines.join("; ")),
    }
}

fn decode_status(status: i32) -> String {
    match status {
        1 => "no room in the context".to_owned(),
        2 => "aborted".to_owned(),
        -1 => "invalid batch".to_owned(),
        -2 => "out of memory".to_owned(),
        other => format!("a computation failed (status {other})"),
    }
}
