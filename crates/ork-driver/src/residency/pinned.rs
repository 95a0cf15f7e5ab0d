// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights in use: their memory stays as it is.

use std::sync::Arc;

use ork_device::{DmaBuffer, DomainId, Input, ResidentBuffer};
use ork_isa::Iova;
use parking_lot::{Mutex, MutexGuard};

use super::{Inside, Memory};

/// A streamed weight in use.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    pub(super) inside: &'a Inside,
    pub(super) slot: usize,
    pub(super) memory: Arc<Mutex<Memory>>,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.inside.state.lock().slots[self.slot].users -= 1;
        self.inside.changed.notify_all();
    }
}

/// A weight that stays where it is.
#[derive(Debug)]
pub(crate) enum Pinned<'a> {
    Resident(&'a ResidentBuffer),
    Streamed(Pin<'a>),
}

impl Pinned<'_> {
    /// Its memory.
    pub(crate) fn open(&self) -> Weights<'_> {
        match self {
            Self::Resident(buffer) => Weights::Resident(buffer),
            Self::Streamed(pin) => Weights::Slot(pin.memory.lock()),
        }
    }
}

/// The memory of a weight in use.
#[derive(Debug)]
pub(crate) enum Weights<'a> {
    Resident(&'a ResidentBuffer),
    Slot(MutexGuard<'a, Memory>),
}

impl Weights<'_> {
    fn resident(&self) -> Option<&ResidentBuffer> {
        match self {
            Self::Resident(buffer) => Some(buffer),
            Self::Slot(memory) => match &**memory {
                Memory::Mapped(buffer) => buffer.as_ref(),
                Memory::Copied(_) => None,
            },
        }
    }

    fn copied(&self) -> Option<&DmaBuffer> {
        match self {
            Self::Slot(memory) => match &**memory {
                Memory::Copied(buffer) => buffer.as_ref(),
                Memory::Mapped(_) => None,
            },
            Self::Resident(_) => None,
        }
    }

    /// Where it begins for the NPU.
    pub(crate) fn iova(&self) -> Iova {
        let copied = self.copied().map(DmaBuffer::iova);
        copied.or_else(|| self.resident().map(ResidentBuffer::iova)).unwrap_or_default()
    }

    /// Bytes from there on that belong to it, or to nobody else.
    pub(crate) fn len(&self) -> u64 {
        let copied = self.copied().map(DmaBuffer::len);
        copied.or_else(|| self.resident().map(ResidentBuffer::len)).unwrap_or_default()
    }

    /// Its address space.
    pub(crate) fn domain(&self) -> DomainId {
        let copied = self.copied().map(DmaBuffer::domain);
        copied.or_else(|| self.resident().map(ResidentBuffer::domain)).unwrap_or_default()
    }

    /// As something that a round reads: `bytes` of it, which are made visible again if the round has to be repeated.
    pub(crate) fn input(&self, bytes: u64) -> Option<Input<'_>> {
        let copied = self.copied().map(|buffer| Input::Host(buffer, 0..bytes));
        copied.or_else(|| self.resident().map(Input::Resident))
    }
}
