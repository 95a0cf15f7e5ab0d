// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_device::{Device, DeviceError, DmaBuffer, Purpose};

/// A buffer that grows to the largest size asked for. Callers sync live ranges only, so its size costs memory and
/// never time.
#[derive(Debug)]
pub(crate) struct Scratch {
    purpose: Purpose,
    buffer: Option<DmaBuffer>,
}

impl Scratch {
    const fn new(purpose: Purpose) -> Self {
        Self { purpose, buffer: None }
    }

    /// The buffer, with room for `bytes`.
    pub(crate) fn with_room(&mut self, device: &Device, bytes: u64) -> Result<&mut DmaBuffer, DeviceError> {
        if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < bytes) {
            // Free the old one first: both together may not fit.
            self.buffer = None;
            self.buffer = Some(device.alloc(self.purpose, bytes.max(1).next_power_of_two())?);
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
    pub(crate) fn new(cores: u8) -> Self {
        Self {
            features: Scratch::new(Purpose::Data),
            outputs: Scratch::new(Purpose::Data),
            regcmds: (0..cores).map(|_| Scratch::new(Purpose::Regcmd)).collect(),
        }
    }
}
