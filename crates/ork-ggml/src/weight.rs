// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights that are held, their shapes, and how they come to the accelerator.

use crate::abi;
use crate::accelerator::{AccelError, AccelErrorKind, LoadedWeight, ModelledTime};
use crate::backend::OrkBackend;
use crate::cost;
use crate::error::BackendError;
use crate::experts::cold_bytes;
use crate::host::ElementType;
use crate::options::Route;
use crate::pack::ModelPack;
use crate::routing::Question;
use crate::software::SoftwareWeight;
use ork_quant::StoredRows;
use std::sync::Arc;

/// A weight ready to multiply by, with what is needed to name it.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) type_name: String,
    pub(crate) type_: i32,
    pub(crate) k: usize,
    pub(crate) n: usize,
    pub(crate) held: Held,
    stored: cost::Stored,
    /// The route that had it packed for one product.
    per_call: Option<Route>,
    /// The books to strike the weight from when it goes.
    backend: &'static OrkBackend,
}

/// Who multiplies by a weight.
#[derive(Debug)]
pub(crate) enum Held {
    Accelerator(Box<dyn LoadedWeight>),
    /// The host, by codes of four bits: an expert without room on the accelerator.
    Cold(StoredRows),
    Software(SoftwareWeight),
}

impl Weight {
    /// A weight the accelerator took.
    pub(crate) fn on_accelerator(
        backend: &'static OrkBackend,
        shape: &Shape,
        loaded: Box<dyn LoadedWeight>,
    ) -> Self {
        backend.counters().loaded(loaded.device_bytes());
        Self::new(backend, shape, Held::Accelerator(loaded))
    }

    /// A weight that the accelerator took for one product, which this route wanted there.
    pub(crate) fn for_one_product(
        backend: &'static OrkBackend,
        shape: &Shape,
        loaded: Box<dyn LoadedWeight>,
        route: Route,
    ) -> Self {
        let mut weight = Self::on_accelerator(backend, shape, loaded);
        weight.per_call = Some(route);
        weight
    }

    /// The route that decides about products with it.
    pub(crate) fn route(&self) -> Route {
        self.per_call.unwrap_or_else(|| self.backend.route())
    }

    /// Modelled time of `m` rows, if the accelerator holds it and has a model.
    pub(crate) fn modelled(&self, m: usize) -> Option<ModelledTime> {
        match &self.held {
            Held::Accelerator(loaded) => loaded.modelled(m),
            Held::Cold(_) | Held::Software(_) => None,
        }
    }

    /// Bytes of it where it is multiplied.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.held {
            Held::Accelerator(loaded) => loaded.device_bytes(),
            Held::Cold(codes) => codes.bytes() as u64,
            Held::Software(_) => self.stored.bytes,
        }
    }

    /// Whether it is a matrix of that stack, rather than one with other bounds at the same address.
    pub(crate) fn is_of(&self, stack: &Shape) -> bool {
        (self.type_, self.k, self.n) == (stack.type_, stack.k, stack.n)
    }

    /// Its bytes in ggml's type.
    pub(crate) fn source_bytes(&self) -> usize {
        usize::try_from(self.stored.bytes).unwrap_or(usize::MAX)
    }

    /// A product of `m` rows.
    pub(crate) fn question(&self, m: usize) -> Question {
        Question {
            size: cost::Size { m: m as u64, k: self.k as u64, n: self.n as u64 },
            stored: match self.held {
                Held::Cold(_) => cold_bytes(self.k, self.n),
                Held::Accelerator(_) | Held::Software(_) => self.stored,
            },
            time: self.modelled(m),
            packed_for_it: self.per_call.is_some(),
        }
    }

    pub(crate) fn new(backend: &'static OrkBackend, shape: &Shape, held: Held) -> Self {
        let Shape { name, element, type_, k, n, .. } = shape;
        let (name, type_name) = (name.clone(), element.name.clone());
        Self {
            name,
            type_name,
            type_: *type_,
            k: *k,
            n: *n,
            held,
            stored: shape.stored(),
            per_call: None,
            backend,
        }
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        match &self.held {
            Held::Accelerator(loaded) => self.backend.counters().released(loaded.device_bytes()),
            Held::Cold(codes) => self.backend.counters().dropped_cold(codes.bytes() as u64),
            Held::Software(_) => {}
        }
    }
}

/// Name, type and size of a matrix: a weight, or one of a stack of them.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) element: ElementType,
    pub(crate) type_: i32,
    pub(crate) k: usize,
    pub(crate) n: usize,
    /// Bytes from one row to the next.
    pub(crate) row_stride: usize,
    /// The stack that it is a part of has so many.
    pub(crate) matrices: usize,
}

impl Shape {
    /// Reads a tensor as a weight, or a stack of them; `None` if its rows cannot be dequantised, or one does not lie in
    /// one piece.
    pub(crate) fn of(backend: &OrkBackend, tensor: &abi::Tensor) -> Option<Self> {
        let size = |ne: i64| usize::try_from(ne).ok().filter(|&ne| ne > 0);
        let [k, n, ne2, ne3] = tensor.ne.map(size);
        let (k, n, matrices) = (k?, n?, ne2?.checked_mul(ne3?)?);
        let element = backend.host().element_type(tensor.type_);
        element.decode?;
        element.row_bytes(k)?;
        if tensor.nb[0] != element.block_bytes {
            return None;
        }
        let row_stride = tensor.nb[1];
        Some(Self { name: name_of(tensor), element, type_: tensor.type_, k, n, row_stride, matrices })
    }

    /// Bytes of one matrix whose rows follow each other.
    pub(crate) fn matrix_bytes(&self) -> usize {
        self.element.row_bytes(self.k).unwrap_or(0) * self.n
    }

    /// How the CPU holds one matrix.
    pub(crate) fn stored(&self) -> cost::Stored {
        cost::Stored { bytes: self.matrix_bytes() as u64, float: self.element.block == 1 }
    }

    /// Matrix `index` of the stack, under a name of its own.
    pub(crate) fn matrix(&self, index: usize) -> Self {
        let name = match self.matrices {
            1 => self.name.clone(),
            _ => format!("{}[{index}]", self.name),
        };
        Self { name, matrices: 1, ..self.clone() }
    }

    /// Name of the tensor, without the index of a matrix.
    pub(crate) fn stem(&self) -> &str {
        stem(&self.name)
    }

    /// Hands the matrix at `bytes` to the accelerator.
    ///
    /// # Safety
    /// `bytes` must point to the whole matrix in this shape's type and strides, and stay valid during the call.
    pub(crate) unsafe fn load(
        &self,
        backend: &OrkBackend,
        bytes: *const u8,
    ) -> Result<Box<dyn LoadedWeight>, BackendError> {
        let accelerator = backend.accelerator()?;
        // SAFETY: passed on from the caller.
        let rows = unsafe { self.rows_at(bytes) };
        self.taken(&self.element.name, accelerator.load(&self.name, self.k, self.n, &rows))
    }

    /// The rows of the matrix at `bytes`, as f32.
    ///
    /// # Safety
    /// As [`Self::load`], as long as the value lives.
    pub(crate) unsafe fn rows_at(&self, bytes: *const u8) -> impl Fn(usize, &mut [f32]) + Sync + '_ {
        let source = Bytes(bytes);
        move |row: usize, out: &mut [f32]| {
            let source = &source;
            assert!(row < self.n && out.len() == self.k, "row {row} of {} requested", self.n);
            // SAFETY: the caller of `rows_at` vouches for n rows.
            let at = unsafe { source.0.add(row * self.row_stride) };
            // SAFETY: as above; `out` has k elements.
            unsafe { self.element.decode_row(at, out) };
        }
    }

    /// The pack that the weight is to come from: the buffer's, or else the backend's.
    pub(crate) fn pack_of(
        &self,
        backend: &OrkBackend,
        pack: Option<Arc<ModelPack>>,
    ) -> Result<Option<Arc<ModelPack>>, BackendError> {
        match pack.or_else(|| backend.pack()) {
            None if backend.refuses_unpacked() => Err(BackendError::Unmapped { name: self.name.clone() }),
            pack => Ok(pack),
        }
    }

    /// Gives the accelerator what the buffer's pack, or else the backend's, holds of the weight; `None` if that is nothing and its own bytes are
    /// to be converted.
    pub(crate) fn load_from_pack(
        &self,
        backend: &OrkBackend,
        pack: Option<Arc<ModelPack>>,
    ) -> Result<Option<Box<dyn LoadedWeight>>, BackendError> {
        let Some(pack) = self.pack_of(backend, pack)? else { return Ok(None) };
        match pack.tiles(&self.name, self.k, self.n) {
            Ok((tiles, scheme)) => {
                let loaded = backend.accelerator()?.load_tiles(&self.name, tiles);
                let loaded = self.taken(&scheme, loaded)?;
                backend.counters().loaded_from_pack(&scheme);
                Ok(Some(loaded))
            }
            Err(miss) => self.missed(backend, &pack, miss).map(|()| None),
        }
    }

    /// Checks what an accelerator made of the weight, which it was given as this type or scheme.
    pub(crate) fn taken(
        &self,
        given_as: &str,
        loaded: Result<Box<dyn LoadedWeight>, AccelError>,
    ) -> Result<Box<dyn LoadedWeight>, BackendError> {
        loaded
            .and_then(|loaded| match (loaded.k(), loaded.n()) {
                (k, n) if (k, n) == (self.k, self.n) => Ok(loaded),
                (k, n) => {
                    let message = format!("the accelerator returned a weight of k = {k}, n = {n}");
                    Err(AccelError::new(AccelErrorKind::Bug, message))
                }
            })
            .map_err(|source| BackendError::Load {
                name: self.name.clone(),
                type_name: given_as.to_owned(),
                k: self.k,
                n: self.n,
                source,
            })
    }
}

/// A pointer to bytes that several threads may read during one call.
struct Bytes(*const u8);
// SAFETY: only read through, while the owner of the bytes keeps them alive and unchanged (see `Shape::load`).
unsafe impl Sync for Bytes {}

/// The name of a weight without the index of a matrix in a stack.
fn stem(name: &str) -> &str {
    let index = name.strip_suffix(']').and_then(|rest| rest.rsplit_once('['));
    match index {
        Some((stem, digits)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => stem,
        _ => name,
    }
}

/// The name ggml gave a tensor.
pub(crate) fn name_of(tensor: &abi::Tensor) -> String {
    // C's characters are signed on some processors, and unsigned on the boards'.
    let bytes: Vec<u8> = tensor.name.iter().flat_map(|c| c.to_ne_bytes()).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
