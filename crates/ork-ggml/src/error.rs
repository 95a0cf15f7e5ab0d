// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures of the backend. ggml's callbacks carry at most a status, so the facts wait in the backend until
//! [`crate::OrkBackend::take_error`] fetches them.

use crate::{AccelError, PackMiss, PackUseError, SkewError};
use ork_quant::QuantError;
use std::path::PathBuf;
use std::sync::Arc;

/// What went wrong inside a callback.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// A weight could not be taken while the model loaded.
    #[error("cannot load weight {name} ({type_name}, k = {k}, n = {n}) onto the accelerator")]
    Load {
        /// Name of the weight.
        name: String,
        /// ggml type in the file.
        type_name: String,
        /// Elements per row.
        k: usize,
        /// Rows.
        n: usize,
        /// The accelerator's reason.
        source: AccelError,
    },
    /// A graph multiplies by a weight that could not be loaded. ggml does not learn of that while a model loads.
    #[error("cannot multiply by {name}, which was not loaded")]
    NotLoaded {
        /// Name of the weight.
        name: String,
        /// Why.
        source: Arc<BackendError>,
    },
    /// The pack gives no tiles for a weight, and its own bytes are not to be converted.
    #[error("cannot load weight {name} (k = {k}, n = {n}) from {pack}: {source}")]
    Pack {
        /// Name of the weight.
        name: String,
        /// Elements per row.
        k: usize,
        /// Rows.
        n: usize,
        /// The pack's file.
        pack: String,
        /// Why.
        source: PackMiss,
    },
    /// The file of measured use does not know a stack of experts.
    #[error("the file of measured use knows no experts {name}; it is of another model")]
    UnknownStack {
        /// Name of the weight.
        name: String,
    },
    /// An expert could not be quantised.
    #[error("cannot quantise expert {name}")]
    Expert {
        /// Name of the weight, with the index of the expert.
        name: String,
        /// Why.
        source: QuantError,
    },
    /// A multiplication failed; its result was discarded.
    #[error("matmul with {name} failed (m = {m}, k = {k}, n = {n})")]
    MatMul {
        /// Name of the weight, or of the group's weights joined by `+`.
        name: String,
        /// Rows of the activation.
        m: usize,
        /// Elements per row.
        k: usize,
        /// Rows of the weight, summed over a group.
        n: usize,
        /// The accelerator's reason.
        source: AccelError,
    },
    /// The host asked for the bytes of a weight that exists only in packed form.
    #[error("the host wants to read {name}, which exists only on the accelerator")]
    Unreadable {
        /// Name of the tensor.
        name: String,
    },
    /// The pack of a model cannot be used, or there is none where one is required.
    #[error("cannot use a pack for {}", model.display())]
    NoPack {
        /// The model.
        model: PathBuf,
        /// Why.
        source: Arc<PackUseError>,
    },
    /// A pack is required, and whose weight it is cannot be known.
    #[error("{name} is not from a mapped file, so its pack cannot be found, and one is required")]
    Unmapped {
        /// Name of the weight.
        name: String,
    },
    /// The host wants to write to a weight that lies in its own, mapped memory.
    #[error("the host wants to write to {name}, which lies in a mapped file")]
    MappedWrite {
        /// Name of the tensor.
        name: String,
    },
    /// A tensor was written in pieces that are not in order.
    #[error("{name} was written at offset {offset}, expected {expected}")]
    WriteOutOfOrder {
        /// Name of the tensor.
        name: String,
        /// Where the host wrote.
        offset: usize,
        /// Where the next piece should have started.
        expected: usize,
    },
    /// A graph holds an operation this backend did not claim.
    #[error("the graph holds {op} ({name}), which this backend cannot run")]
    UnexpectedOperation {
        /// ggml's name of the operation.
        op: String,
        /// Name of the node.
        name: String,
    },
    /// A graph multiplies by a weight this backend does not hold, or reads an operand it cannot see.
    #[error("cannot run {name}: {what}")]
    Operand {
        /// Name of the node.
        name: String,
        /// Which operand, and why.
        what: String,
    },
    /// The accelerator was retired (its engine is gone) while a model still used it.
    #[error("the accelerator is closed")]
    Retired,
    /// The device that takes whole graphs needs the CPU's part of ggml.
    #[error("this program has no CPU backend of ggml to share graphs with")]
    NoCpu,
    /// A callback panicked; the panic was contained.
    #[error("internal error in {callback}: {message}")]
    Panic {
        /// Name of the callback.
        callback: &'static str,
        /// The panic's message.
        message: String,
    },
}

impl BackendError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Load { source, .. } | Self::MatMul { source, .. } => source.hint().map(str::to_owned),
            Self::NotLoaded { source, .. } => source.hint().or_else(|| {
                Some(
                    "offload.exclude names weights that are left to the CPU; load the model again".to_owned(),
                )
            }),
            Self::Pack { .. } => Some("pack the model again, or use `--pack never`".to_owned()),
            Self::Unreadable { .. } => {
                Some("use the route auto, which keeps a copy of the weights the CPU can read".to_owned())
            }
            Self::NoPack { source, .. } => Some(source.hint()),
            Self::Unmapped { .. } => {
                Some("let llama.cpp map the model, or set offload.pack = \"auto\"".to_owned())
            }
            Self::MappedWrite { .. } => {
                Some("load the model without mapping its file (--no-mmap, load.mmap = false)".to_owned())
            }
            Self::NoCpu => Some("put ggml's CPU libraries beside its others".to_owned()),
            Self::UnknownStack { .. } => {
                Some("measure this model: ork moe-skew -m MODEL -f TEXT -o skew.toml".to_owned())
            }
            Self::Expert { .. } => {
                Some("the model file is damaged, or offload.experts.cache = \"all\"".to_owned())
            }
            Self::Retired => Some("free models before the engine".to_owned()),
            Self::WriteOutOfOrder { .. } | Self::UnexpectedOperation { .. } | Self::Operand { .. } => Some(
                "the host does something this backend does not know; please report it with the model's name"
                    .to_owned(),
            ),
            Self::Panic { .. } => Some("this is a defect of ork; please report it".to_owned()),
        }
    }
}

/// Why a backend could not be created.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The host's ggml lacks an operation this backend relies on.
    #[error("this ggml has no operation named {name}")]
    NoSuchOperation {
        /// ggml's name of the operation.
        name: &'static str,
    },
    /// There is no expert cache as it is asked for.
    #[error("{}; {}", in_full(source.as_ref(), None), source.hint())]
    Experts {
        /// Why.
        source: Arc<SkewError>,
    },
}

impl From<SkewError> for InitError {
    fn from(source: SkewError) -> Self {
        Self::Experts { source: Arc::new(source) }
    }
}

/// An error with its causes and what to do, on one line.
pub(crate) fn in_full(error: &dyn std::error::Error, hint: Option<&str>) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some errors quote their cause.
        if !text.ends_with(&next) {
            text += ": ";
            text += &next;
        }
        cause = error.source();
    }
    match hint {
        Some(hint) => format!("{text} ({hint})"),
        None => text,
    }
}
