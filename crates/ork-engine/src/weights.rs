// SPDX-License-Identifier: MIT OR Apache-2.0
//! The weights of a model file as rows of `f32`, without loading the model; and which of them the NPU takes.

use crate::error::{EngineError, FileProblem};
use crate::gguf::TensorInfo;
use crate::linked::linked_host;
use crate::llama::{self, FileAccess, RawModel};
use crate::log::{self, LogSink};
use crate::model::{Engine, inspect};
use llama_cpp_sys_2 as sys;
use memmap2::{Mmap, UncheckedAdvice};
use ork_ggml::{BackendOptions, ClaimedWeight, OrkBackend, Route, Survey};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Lists the weights that would go to the NPU under route `npu`, in the order in which llama.cpp makes them. Reads the
/// header of the file only. No other engine may be running.
///
/// # Errors
/// As [`crate::Model::load`], [`EngineError::AlreadyRunning`], [`EngineError::Init`].
pub fn claimed_weights(
    path: &Path,
    survey: Survey,
    exclude: &[String],
) -> Result<Vec<ClaimedWeight>, EngineError> {
    inspect(path)?;
    let name = path.to_str().and_then(|s| CString::new(s).ok());
    let name = name.ok_or_else(|| EngineError::File { path: path.to_owned(), problem: FileProblem::Name })?;
    let survey = Arc::new(survey);
    let options =
        BackendOptions { route: Route::Npu, exclude: exclude.to_vec(), ..BackendOptions::default() };
    let backend = OrkBackend::new(linked_host(), Arc::clone(&survey) as _, options)?;
    let engine = Engine::init(Some(Arc::clone(&backend)), LogSink::discard())?;
    log::take_complaints();
    let loaded = RawModel::load(&name, FileAccess::Header, &mut |_| ControlFlow::Continue(()));
    if let Some(source) = backend.take_error() {
        return Err(EngineError::Placement { path: path.to_owned(), source });
    }
    let rejected = |_| EngineError::ModelRejected { path: path.to_owned(), log: log::take_complaints() };
    let model = loaded.map_err(rejected)?;
    // The model before the engine it needs.
    drop(model);
    drop(engine);
    Ok(survey.take())
}

/// The tensors of a model file, mapped.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    map: Mmap,
    tensors: Vec<TensorInfo>,
    places: HashMap<String, usize>,
}

/// A matrix of a [`WeightFile`].
#[derive(Clone, Copy)]
pub struct WeightMatrix<'a> {
    bytes: &'a [u8],
    info: &'a TensorInfo,
    k: usize,
    n: usize,
    row_bytes: usize,
    decode: Decode,
}

#[derive(Clone, Copy)]
enum Decode {
    Copy,
    Function(unsafe extern "C" fn(*const std::ffi::c_void, *mut f32, i64)),
}

impl std::fmt::Debug for WeightMatrix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightMatrix").field("info", &self.info).finish_non_exhaustive()
    }
}

impl WeightFile {
    /// Maps a file and checks that every tensor lies in it.
    ///
    /// # Errors
    /// [`EngineError::File`].
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let tensors = inspect(path)?.directory;
        let unreadable =
            |error| EngineError::File { path: path.to_owned(), problem: FileProblem::Unreadable(error) };
        let file = File::open(path).map_err(unreadable)?;
        // SAFETY: read-only. Another program that shortens the file meanwhile could end this process with SIGBUS, as with
        // every mapped file.
        let map = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
        let end = tensors.iter().map(|tensor| tensor.offset.saturating_add(tensor.bytes)).max();
        if end.is_some_and(|end| end > map.len() as u64) {
            let what = "it became shorter while it was read".to_owned();
            let problem = FileProblem::Damaged { offset: map.len() as u64, what };
            return Err(EngineError::File { path: path.to_owned(), problem });
        }
        let places = tensors.iter().enumerate().map(|(place, tensor)| (tensor.name.clone(), place)).collect();
        Ok(Self { path: path.to_owned(), map, tensors, places })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tensors, in the order of its header.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.places.get(name).map(|place| &self.tensors[*place])
    }

    /// A tensor as a matrix, or `NAME[INDEX]` as one matrix of a stack: `None` if there is none of this name, it has more
    /// dimensions, or ggml cannot turn its type into `f32`.
    pub fn matrix(&self, name: &str) -> Option<WeightMatrix<'_>> {
        let (info, index) = match (self.tensor(name), of_a_stack(name)) {
            (Some(info), _) => (info, None),
            (None, Some((stack, index))) => (self.tensor(stack)?, Some(index)),
            (None, None) => return None,
        };
        let ([k, n], matrices) = match (&info.sizes[..], index) {
            (&[k], None) => ([k, 1], 1),
            (&[k, n] | &[k, n, 1] | &[k, n, 1, 1], None) => ([k, n], 1),
            (&[k, n, matrices] | &[k, n, matrices, 1], Some(index)) if index < matrices => ([k, n], matrices),
            _ => return None,
        };
        let layout = llama::type_layout(info.type_code)?;
        let decode = match info.type_code {
            sys::GGML_TYPE_F32 => Decode::Copy,
            // SAFETY: the code is in ggml's table: `type_layout` has found it there.
            code => Decode::Function(unsafe { sys::ggml_get_type_traits(code).as_ref() }?.to_float?),
        };
        let size = |value: u64| usize::try_from(value).ok();
        let bytes = size(info.bytes / matrices)?;
        let start = size(info.offset)?.checked_add(bytes.checked_mul(size(index.unwrap_or(0))?)?)?;
        Some(WeightMatrix {
            bytes: self.map.get(start..start.checked_add(bytes)?)?,
            info,
            k: size(k)?,
            n: size(n)?,
            row_bytes: size(k / layout.block_elements * layout.block_bytes)?,
            decode,
        })
    }

    /// Says that a tensor is not needed for now, so that its pages leave this process.
    pub fn release(&self, name: &str) {
        const PAGE: usize = 4096;
        let Some(info) = self.tensor(name) else { return };
        let start = (info.offset as usize).next_multiple_of(PAGE);
        let end = (info.offset + info.bytes) as usize / PAGE * PAGE;
        if start < end {
            // SAFETY: the mapping is read-only and of a file: dropped pages come back with the same bytes. A refusal only
            // means that they stay.
            _ = unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        }
    }
}

/// `NAME[INDEX]` taken apart.
fn of_a_stack(name: &str) -> Option<(&str, u64)> {
    let (stack, index) = name.strip_suffix(']')?.rsplit_once('[')?;
    Some((stack, index.parse().ok()?))
}

impl WeightMatrix<'_> {
    /// What the file says of it.
    pub fn info(&self) -> &TensorInfo {
        self.info
    }

    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Turns row `row` into `f32`. Rows may be asked for from several threads.
    ///
    /// # Panics
    /// If there is no such row, or `out` does not hold K values.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k, "row {row} of {}", self.n);
        let bytes = &self.bytes[row * self.row_bytes..][..self.row_bytes];
        match self.decode {
            Decode::Copy => {
                for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Decode::Function(to_float) => {
                // SAFETY: a whole row of this type in, K floats out; K is whole blocks, which the header's check has seen.
                unsafe { to_float(bytes.as_ptr().cast(), out.as_mut_ptr(), self.k as i64) };
            }
        }
    }
}
