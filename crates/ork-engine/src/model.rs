// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of a process, and the models it holds.

use crate::chat;
use crate::error::{EngineError, FileProblem};
use crate::gguf;
use crate::llama::{self, FileAccess, LoadFailure, RawModel, Runtime};
use crate::log::{self, LogSink};
use ork_engine_options::LoadOptions;
use ork_ggml::OrkBackend;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// llama.cpp, ready, with or without the NPU backend. One per process at a time; clones share it.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    backend: Option<Arc<OrkBackend>>,
    _runtime: Runtime,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The runtime takes it out of ggml's list; whoever still has a pointer to it finds that it claims nothing.
        if let Some(backend) = &self.backend {
            backend.retire();
        }
        log::remove();
    }
}

impl Engine {
    /// Initialises llama.cpp and registers the backend before any model exists. Log lines of llama.cpp go to `log`.
    ///
    /// When the last clone and the last model are gone, the backend is retired: a later engine needs a new one.
    ///
    /// # Errors
    /// [`EngineError::AlreadyRunning`].
    pub fn init(backend: Option<Arc<OrkBackend>>, log: LogSink) -> Result<Self, EngineError> {
        let mut runtime = Runtime::start().ok_or(EngineError::AlreadyRunning)?;
        log::install(log);
        if let Some(backend) = &backend {
            runtime.register(backend.registration());
        }
        Ok(Self { inner: Arc::new(Inner { backend, _runtime: runtime }) })
    }

    /// The NPU backend, if there is one.
    pub fn backend(&self) -> Option<&Arc<OrkBackend>> {
        self.inner.backend.as_ref()
    }
}

/// What a model is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// llama.cpp's one-line description: architecture, size, type.
    pub description: String,
    /// `general.architecture` of the file.
    pub architecture: Option<String>,
    /// `general.name` of the file.
    pub name: Option<String>,
    /// Number of tensors by type; what the file really holds, whatever its name says.
    pub tensor_types: BTreeMap<String, u64>,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub embedding: u32,
    /// Tokens of context the model was trained with.
    pub trained_context: u32,
    /// Tokens in the vocabulary.
    pub vocabulary: u32,
    /// Parameters.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// Whether the file brings a chat template.
    pub chat_template: bool,
}

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl ChatMessage {
    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: "user".to_owned(), content: content.into() }
    }

    /// A message of the system.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: "system".to_owned(), content: content.into() }
    }
}

/// What to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text as it is, after the model's start token.
    Raw(String),
    /// Messages, put into the model's chat template, with the assistant's turn opened.
    Chat(Vec<ChatMessage>),
}

impl Prompt {
    /// One message of the user.
    pub fn user(text: impl Into<String>) -> Self {
        Self::Chat(vec![ChatMessage::user(text)])
    }
}

/// A loaded model. Keeps its engine alive.
#[derive(Debug)]
pub struct Model {
    // Freed before the engine it needs.
    raw: RawModel,
    info: ModelInfo,
    path: PathBuf,
    engine: Engine,
}

/// Checks a file without loading it.
///
/// # Errors
/// [`EngineError::File`].
pub fn inspect(path: &Path) -> Result<gguf::Summary, EngineError> {
    gguf::inspect(path, &llama::type_layout)
        .map_err(|problem| EngineError::File { path: path.to_owned(), problem })
}

/// Bytes that `elements` elements take in a tensor type, by the type's name in a census or a summary; `None` for a name
/// that the linked ggml does not know.
#[must_use]
pub fn type_bytes(type_name: &str, elements: u64) -> Option<u64> {
    let layout = (0..256).filter_map(llama::type_layout).find(|layout| layout.name == type_name)?;
    Some(elements.div_ceil(layout.block_elements) * layout.block_bytes)
}

impl Model {
    /// Checks the file, then loads it. `progress` gets the fraction done and may stop the load.
    ///
    /// Where weights go is decided by the backend's route at this moment.
    ///
    /// # Errors
    /// [`EngineError::File`] for a file that cannot be a model, [`EngineError::ModelRejected`] if llama.cpp does not
    /// want it, [`EngineError::Placement`] if the backend could not take a weight, [`EngineError::LoadCancelled`].
    pub fn load(
        engine: &Engine,
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(f32) -> ControlFlow<()>,
    ) -> Result<Self, EngineError> {
        let summary = inspect(path)?;
        let name = path.to_str().and_then(|s| CString::new(s).ok());
        let name =
            name.ok_or_else(|| EngineError::File { path: path.to_owned(), problem: FileProblem::Name })?;
        let access = if options.mmap { FileAccess::Mapped } else { FileAccess::Read };
        // Leftovers of earlier failures are not about this model.
        log::take_complaints();
        if let Some(backend) = engine.backend() {
            backend.take_error();
        }
        let loaded = RawModel::load(&name, access, progress);
        if let Some(source) = engine.backend().and_then(|backend| backend.take_error()) {
            return Err(EngineError::Placement { path: path.to_owned(), source });
        }
        let raw = loaded.map_err(|failure| match failure {
            LoadFailure::Cancelled => EngineError::LoadCancelled,
            LoadFailure::Refused => {
                EngineError::ModelRejected { path: path.to_owned(), log: log::take_complaints() }
            }
        })?;
        let sizes = raw.sizes();
        let info = ModelInfo {
            description: raw.description(),
            architecture: summary.architecture,
            name: summary.name,
            tensor_types: summary.tensor_types,
            layers: sizes.layers,
            embedding: sizes.embedding,
            trained_context: sizes.trained_context,
            vocabulary: sizes.vocabulary,
            parameters: sizes.parameters,
            tensor_bytes: sizes.bytes,
            file_bytes: summary.file_bytes,
            chat_template: raw.chat_template().is_some(),
        };
        Ok(Self { raw, info, path: path.to_owned(), engine: engine.clone() })
    }

    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The file it came from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The engine it lives in.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn raw(&self) -> &RawModel {
        &self.raw
    }

    /// Plain text to tokens, with the model's start token.
    ///
    /// # Errors
    /// [`EngineError::Tokenise`] if the text is beyond llama.cpp's 2 GiB.
    pub fn tokenize(&self, text: &str) -> Result<Vec<i32>, EngineError> {
        self.raw.tokenize(text, true, false).ok_or(EngineError::Tokenise { bytes: text.len() })
    }

    /// A prompt to text, as the model will see it.
    ///
    /// # Errors
    /// [`EngineError::NoChatTemplate`], [`EngineError::ChatTemplate`].
    pub fn render(&self, prompt: &Prompt) -> Result<String, EngineError> {
        let messages = match prompt {
            Prompt::Raw(text) => return Ok(text.clone()),
            Prompt::Chat(messages) => messages,
        };
        let template = self.raw.chat_template().ok_or(EngineError::NoChatTemplate)?;
        chat::render(&template, messages, &self.raw.special_texts())
    }

    /// A prompt to tokens. Text of a template may contain control tokens; raw text may too, it is the user's own.
    ///
    /// # Errors
    /// As [`Self::render`] and [`Self::tokenize`].
    pub fn prompt_tokens(&self, prompt: &Prompt) -> Result<Vec<i32>, EngineError> {
        let text = self.render(prompt)?;
        self.raw.tokenize(&text, true, true).ok_or(EngineError::Tokenise { bytes: text.len() })
    }

    /// Tokens to text; control tokens are left out.
    pub fn detokenize(&self, tokens: &[i32]) -> String {
        let mut bytes = Vec::new();
        for &token in tokens {
            if u32::try_from(token).is_ok_and(|t| t < self.info.vocabulary) {
                self.raw.piece(token, &mut bytes);
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
