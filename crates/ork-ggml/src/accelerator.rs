// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the backend needs from whoever multiplies: the NPU driver, or a software model in tests.
//!
//! A weight is the matrix of one linear layer: `n` rows (output channels) of `k` elements. An activation is `m`
//! rows of `k`; the result is `m` rows of `n`, `out[i][j] = Σ x[i][·] · w[j][·]`.

use crate::Decline;
use ork_driver::Tiles;
use ork_quant::Scale;
use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Gives rows of a weight as f32: `rows(j, out)` fills `out` (length `k`) with output channel `j < n`.
///
/// Rows may be pulled in any order, repeatedly, and from several threads at once. Only valid during
/// [`Accelerator::load`].
pub type WeightRows<'a> = dyn Fn(usize, &mut [f32]) + Sync + 'a;

/// Gives rows of a weight as int8 codes: `rows(j, out)` fills `out` (length `k`) with output channel `j < n`, and gives its
/// scale. As [`WeightRows`] otherwise.
pub type CodeRows<'a> = dyn Fn(usize, &mut [i8]) -> Scale + Sync + 'a;

/// Whoever holds weights and multiplies by them.
///
/// Implementations are called from several threads (contexts, server slots) and serialise access to the hardware
/// themselves.
pub trait Accelerator: Send + Sync + fmt::Debug {
    /// One line for people: which device, real or simulated.
    fn describe(&self) -> String;

    /// Free and total bytes for weights, or `None` if there is nothing to report.
    fn memory(&self) -> Option<AccelMemory> {
        None
    }

    /// Can a weight of `n` rows × `k` elements be held and multiplied by, at *every* m ≥ 1? Must be a pure function
    /// of the two numbers: ggml asks before the weight exists, and again for every graph.
    ///
    /// # Errors
    /// The reason, with numbers, usually [`Decline::Limit`].
    fn limits(&self, k: usize, n: usize) -> Result<(), Decline>;

    /// Told of every weight that passed [`Accelerator::limits`] and the exclusions, while ggml decides where it will
    /// live; several times for one weight, perhaps. Of a stack, every matrix is told of under the name that it will be loaded
    /// by.
    fn claimed(&self, _name: &str, _k: usize, _n: usize) {}

    /// Takes a weight: quantises, packs and uploads. Called once per weight while a model loads.
    ///
    /// # Errors
    /// [`AccelErrorKind::NoRoom`] leaves the weight to the CPU where the route allows that; any other kind fails the
    /// load of the model, or products with the weight in hosts that are not told.
    fn load(
        &self,
        name: &str,
        k: usize,
        n: usize,
        rows: &WeightRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError>;

    /// Takes a weight whose tiles lie ready.
    ///
    /// # Errors
    /// As [`Accelerator::load`]; [`AccelErrorKind::Unsupported`] if it takes no tiles.
    fn load_tiles(&self, _name: &str, _tiles: Tiles) -> Result<Box<dyn LoadedWeight>, AccelError> {
        Err(AccelError::new(AccelErrorKind::Unsupported, "this accelerator takes no packs"))
    }

    /// Takes a weight whose int8 codes are there; products are those with exactly these codes and activations in int8.
    ///
    /// # Errors
    /// As [`Accelerator::load`]; [`AccelErrorKind::Unsupported`] if it takes no codes.
    fn load_codes(
        &self,
        _name: &str,
        _k: usize,
        _n: usize,
        _rows: &CodeRows<'_>,
    ) -> Result<Box<dyn LoadedWeight>, AccelError> {
        Err(AccelError::new(AccelErrorKind::Unsupported, "this accelerator takes no codes"))
    }

    /// Several weights of this accelerator, one shared activation `x` (`m` × `k`, contiguous). `outs[i]` is `m` ×
    /// `weights[i].n()`. Meant for K+V and gate+up: the activation need be quantised and laid out only once.
    ///
    /// # Errors
    /// Any failure; the contents of all `outs` are then unspecified.
    fn matmul_group(
        &self,
        weights: &[&dyn LoadedWeight],
        m: usize,
        x: &[f32],
        outs: &mut [&mut [f32]],
    ) -> Result<(), AccelError> {
        for (weight, out) in weights.iter().zip(outs.iter_mut()) {
            weight.matmul(m, x, out)?;
        }
        Ok(())
    }

    /// [`Accelerator::matmul_group`]; `finished` gets each weight's place in the group and its result as soon as it is there, while
    /// others are still to come. The caller's thread calls it, so that what takes longer should go to another one.
    ///
    /// # Errors
    /// As [`Accelerator::matmul_group`]; results that were handed over before are right.
    fn matmul_group_then<'a>(
        &self,
        weights: &[&'a dyn LoadedWeight],
        m: usize,
        x: &'a [f32],
        outs: Vec<&'a mut [f32]>,
        finished: &mut dyn FnMut(usize, &'a mut [f32]),
    ) -> Result<(), AccelError> {
        for (index, (weight, out)) in weights.iter().zip(outs).enumerate() {
            weight.matmul(m, x, out)?;
            finished(index, out);
        }
        Ok(())
    }

    /// Modelled time of `m` rows by a weight that would be taken for this one product; `None` without a model, or for
    /// shapes that cannot be computed.
    fn modelled(&self, _k: usize, _n: usize, _m: usize) -> Option<ModelledTime> {
        None
    }
}

/// A weight an [`Accelerator`] holds; dropping it frees the device memory.
///
/// `Any` is a supertrait so that `matmul_group` can get its own type back:
/// `let any: &dyn Any = weight; any.downcast_ref::<MyWeight>()`.
pub trait LoadedWeight: Any + Send + Sync + fmt::Debug {
    /// Elements per row.
    fn k(&self) -> usize;

    /// Rows (output channels).
    fn n(&self) -> usize;

    /// Bytes held on the device, for the books.
    fn device_bytes(&self) -> u64 {
        0
    }

    /// Modelled time of `m` rows; `None` if the accelerator has no model of its time.
    fn modelled(&self, _m: usize) -> Option<ModelledTime> {
        None
    }

    /// `x`: `m` × `k` contiguous; `out`: `m` × `n` contiguous, every element is to be written.
    ///
    /// # Errors
    /// Any failure; the contents of `out` are then unspecified and the caller must not use them.
    fn matmul(&self, m: usize, x: &[f32], out: &mut [f32]) -> Result<(), AccelError>;
}

/// Modelled time of a product: what an accelerator says of itself, to be weighed against the CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelledTime {
    /// Microseconds on the accelerator, from the call to its return, without the host's work on operands.
    pub npu_us: f64,
    /// Bytes that the host reads and writes around it.
    pub host_bytes: u64,
    /// Bytes of the weight that must be brought in first; 0 for one that stays.
    pub brought_in_bytes: u64,
}

/// Memory of an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AccelMemory {
    /// Bytes still free for weights.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// What the caller can do about an [`AccelError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum AccelErrorKind {
    /// No room for the weight; others may still fit.
    NoRoom,
    /// The request breaks a limit that [`Accelerator::limits`] should have declined.
    Unsupported,
    /// errno, timeout, lost device.
    Device,
    /// A defect of the implementation.
    Bug,
}

/// Failure of an accelerator: what happened, what to do, and the chain below it.
#[derive(Debug, Clone)]
pub struct AccelError(Box<Failure>);

#[derive(Debug, Clone)]
struct Failure {
    kind: AccelErrorKind,
    message: String,
    hint: Option<String>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl AccelError {
    /// A failure without a cause below it.
    pub fn new(kind: AccelErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Failure { kind, message: message.into(), hint: None, source: None }))
    }

    /// Wraps the implementor's own error; its text becomes the message of the next link in the chain.
    pub fn caused_by(
        kind: AccelErrorKind,
        message: impl Into<String>,
        source: impl Error + Send + Sync + 'static,
    ) -> Self {
        let mut error = Self::new(kind, message);
        error.0.source = Some(Arc::new(source));
        error
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> AccelErrorKind {
        self.0.kind
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for AccelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl Error for AccelError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
