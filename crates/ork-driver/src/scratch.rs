// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeMap;

use ork_device::{Device, DeviceError, DmaBuffer, DomainId, Purpose};

/// A buffer that grows to the largest size asked for. Callers sync live ranges only, so its size costs memory and
/// never time.
#[derive(Debug)]
pub(crate) struct Scratch {
    domain: DomainId,
    content: Content,
    buffer: Option<DmaBuffer>,
}

/// What a scratch buffer is for.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// Features or results.
    Data,
    /// Register programs.
    Programs,
}

impl Scratch {
    const fn new(domain: DomainId, content: Content) -> Self {
        Self { domain, content, buffer: None }
    }

    /// The buffer, with room for `bytes`.
    pub(crate) fn with_room(&mut self, device: &Device, bytes: u64) -> Result<&mut DmaBuffer, DeviceError> {
        if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < bytes) {
            // Free the old one first: both together may not fit.
            self.buffer = None;
            let bytes = bytes.max(1).next_power_of_two();
            self.buffer = Some(match self.content {
                Content::Data => device.alloc_scratch(self.domain, bytes)?,
                Content::Programs => device.alloc_in(self.domain, Purpose::Regcmd, bytes)?,
            });
        }
        Ok(self.buffer.as_mut().expect("it was just made"))
    }
}

/// Everything that one product at a time needs besides its weight.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) features: Scratch,
    pub(crate) outputs: Scratch,
    /// One per core, so that no two cores' programs share a cache line.
    pub(crate) regcmds: Vec<Scratch>,
}

impl Buffers {
    fn new(domain: DomainId, cores: u8) -> Self {
        Self {
            features: Scratch::new(domain, Content::Data),
            outputs: Scratch::new(domain, Content::Data),
            regcmds: (0..cores).map(|_| Scratch::new(domain, Content::Programs)).collect(),
        }
    }
}

/// The buffers of each address space: a job sees its own only.
#[derive(Debug)]
pub(crate) struct Scratches {
    cores: u8,
    by_domain: BTreeMap<DomainId, Buffers>,
}

impl Scratches {
    pub(crate) fn new(cores: u8) -> Self {
        Self { cores, by_domain: BTreeMap::new() }
    }

    /// The buffers of a domain.
    pub(crate) fn of(&mut self, domain: DomainId) -> &mut Buffers {
        let cores = self.cores;
        self.by_domain.entry(domain).or_insert_with(|| Buffers::new(domain, cores))
    }
}
