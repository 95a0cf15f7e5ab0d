// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which experts of a mixture are on the accelerator, and how the others are held.

use crate::accelerator::{AccelErrorKind, ModelledTime};
use crate::backend::OrkBackend;
use crate::cost;
use crate::error::BackendError;
use crate::options::{ExpertCache, ExpertOptions};
use crate::pack::{Absent, ModelPack, PackMiss};
use crate::skew::{ExpertSkew, SkewError};
use crate::weight::{Held, Shape, Weight};
use ork_quant::{Codebook, StoredRows};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

/// An expert cache, filled once: its experts are chosen before the model is loaded.
#[derive(Debug)]
pub(crate) struct Experts {
    /// By stack; `None` if no expert is to be on the accelerator.
    hot: Option<HashMap<String, BTreeSet<usize>>>,
    codebook: Codebook,
    /// Stacks whose matrices are chosen by a table, as the host's questions say. Others, such as the heads of an attention,
    /// are weights like any.
    chosen: RwLock<HashSet<String>>,
}

impl Experts {
    /// The cache that the options ask for, if they do.
    pub(crate) fn from_options(options: &ExpertOptions) -> Result<Option<Self>, SkewError> {
        let ExpertCache::Bytes(bytes) = options.cache else { return Ok(None) };
        let skew = options.skew.as_deref().map(ExpertSkew::read).transpose()?;
        let hot = match (skew, bytes) {
            (Some(skew), _) => Some(skew.hot(bytes)),
            (None, 0) => None,
            (None, bytes) => return Err(SkewError::Unknown { bytes }),
        };
        Ok(Some(Self { hot, codebook: options.codes.codebook(), chosen: RwLock::default() }))
    }

    /// The host asks for a product with a stack, with matrices chosen by a table or with all of them.
    pub(crate) fn asked(&self, stack: &Shape, by_choice: bool) {
        let mut chosen = self.chosen.write().unwrap_or_else(PoisonError::into_inner);
        if !by_choice {
            chosen.remove(&stack.name);
        } else if stack.matrices > 1 && !chosen.contains(&stack.name) {
            chosen.insert(stack.name.clone());
        }
    }

    /// Whether the matrices of a stack are experts.
    pub(crate) fn holds(&self, stack: &Shape) -> bool {
        stack.k <= StoredRows::K_MAX
            && self.chosen.read().unwrap_or_else(PoisonError::into_inner).contains(&stack.name)
    }

    /// The experts of a stack that are to be on the accelerator.
    fn of(&self, stack: &str) -> Result<Option<&BTreeSet<usize>>, BackendError> {
        match &self.hot {
            None => Ok(None),
            Some(hot) => match hot.get(stack) {
                Some(experts) => Ok(Some(experts)),
                None => Err(BackendError::UnknownStack { name: stack.to_owned() }),
            },
        }
    }

    /// Whether matrix `index` of a stack is to be on the accelerator.
    pub(crate) fn is_hot(&self, stack: &str, index: usize) -> Result<bool, BackendError> {
        Ok(self.of(stack)?.is_some_and(|hot| hot.contains(&index)))
    }

    /// Modelled time of `m` rows by one matrix of a stack, the mean over those on the accelerator and the others; `hot` is that of
    /// one on the accelerator.
    pub(crate) fn mean_time(
        &self,
        shape: &Shape,
        m: usize,
        hot: &dyn Fn(usize) -> Option<ModelledTime>,
    ) -> Option<ModelledTime> {
        let experts = self.of(&shape.name).ok()?;
        let share = experts.map_or(0.0, |hot| hot.len() as f64 / shape.matrices.max(1) as f64);
        let on_accelerator = match experts.and_then(|hot| hot.first()) {
            Some(index) => share * cost::npu_us(&hot(*index)?),
            None => 0.0,
        };
        let size = cost::Size { m: m as u64, k: shape.k as u64, n: shape.n as u64 };
        let cold = cost::cpu_us(size, cold_bytes(shape.k, shape.n));
        let npu_us = on_accelerator + (1.0 - share) * cold;
        Some(ModelledTime { npu_us, host_bytes: 0, brought_in_bytes: 0 })
    }
}

/// How the CPU holds a cold expert.
pub(crate) fn cold_bytes(k: usize, n: usize) -> cost::Stored {
    cost::Stored { bytes: (k.div_ceil(2) * n) as u64, float: false }
}

impl Shape {
    /// Takes one expert: its codes go to the accelerator, or stay.
    ///
    /// # Safety
    /// `source` must hold the bytes of the matrix in this shape's type and strides.
    pub(crate) unsafe fn take_expert(
        &self,
        backend: &'static OrkBackend,
        experts: &Experts,
        pack: Option<Arc<ModelPack>>,
        source: *const u8,
        hot: bool,
    ) -> Result<Weight, BackendError> {
        let from_pack = self.codes_from_pack(backend, pack)?;
        let codes = match from_pack {
            Some(codes) => codes,
            // SAFETY: passed on from the caller.
            None => unsafe { self.codes_from_bytes(experts.codebook, source) }?,
        };
        if hot {
            let rows = |row: usize, out: &mut [i8]| codes.row(row, out);
            let loaded = backend.accelerator()?.load_codes(&self.name, self.k, self.n, &rows);
            match self.taken(&self.element.name, loaded) {
                Ok(loaded) => return Ok(Weight::on_accelerator(backend, self, loaded)),
                Err(BackendError::Load { source, name, .. }) if source.kind() == AccelErrorKind::NoRoom => {
                    backend.counters().no_room();
                    tracing::warn!(expert = %name, reason = %source, "no room on the accelerator, kept cold");
                }
                Err(error) => return Err(error),
            }
        }
        backend.counters().kept_cold(codes.bytes() as u64);
        Ok(Weight::new(backend, self, Held::Cold(codes)))
    }

    /// What the pack holds of an expert; `None` if it is not in it and may be converted.
    fn codes_from_pack(
        &self,
        backend: &OrkBackend,
        pack: Option<Arc<ModelPack>>,
    ) -> Result<Option<StoredRows>, BackendError> {
        let Some(pack) = self.pack_of(backend, pack)? else { return Ok(None) };
        match pack.codes(&self.name, self.k, self.n) {
            Ok((codes, scheme)) => {
                backend.counters().loaded_from_pack(&scheme);
                Ok(Some(codes))
            }
            Err(miss) => self.missed(backend, &pack, miss).map(|()| None),
        }
    }

    /// # Safety
    /// As [`Self::take_expert`].
    unsafe fn codes_from_bytes(
        &self,
        codebook: Codebook,
        source: *const u8,
    ) -> Result<StoredRows, BackendError> {
        // SAFETY: passed on from the caller.
        let rows = unsafe { self.rows_at(source) };
        StoredRows::quantise(self.k, self.n, codebook, &rows)
            .map_err(|source| BackendError::Expert { name: self.name.clone(), source })
    }

    /// Notes that a pack gives nothing for the weight; an error unless its own bytes may be converted.
    pub(crate) fn missed(
        &self,
        backend: &OrkBackend,
        pack: &ModelPack,
        miss: PackMiss,
    ) -> Result<(), BackendError> {
        backend.counters().missed_in_pack(&self.name, &miss);
        if matches!(miss, PackMiss::Absent) && pack.absent() == Absent::Convert {
            tracing::warn!(weight = %self.name, reason = %miss, "converted from the model's bytes");
            return Ok(());
        }
        let (name, pack) = (self.name.clone(), pack.path().display().to_string());
        Err(BackendError::Pack { name, k: self.k, n: self.n, pack, source: miss })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_needs_to_know_what_is_used() {
        let options = |cache| ExpertOptions { cache, ..ExpertOptions::default() };
        assert!(Experts::from_options(&options(ExpertCache::All)).unwrap().is_none());
        let none = Experts::from_options(&options(ExpertCache::Bytes(0))).unwrap().unwrap();
        assert!(!none.is_hot("any", 0).unwrap());
        let unknown = Experts::from_options(&options(ExpertCache::Bytes(1)));
        assert!(matches!(unknown, Err(SkewError::Unknown { bytes: 1 })));
        let missing =
            ExpertOptions { skew: Some("/nowhere/skew.toml".into()), ..options(ExpertCache::Bytes(1)) };
        assert!(matches!(Experts::from_options(&missing), Err(SkewError::Read { .. })));
    }
}
