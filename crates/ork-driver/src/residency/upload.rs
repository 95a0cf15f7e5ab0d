// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory that a weight has, and the bytes that it still lacks.
//!
//! Copying tiles, and making int8 of stored int4, takes longer than all else of loading a pack. So it is done by a thread,
//! weight by weight in the order of loading, while loading goes on; whoever uses a weight before its turn makes it at once, or
//! waits for the thread that does.

use std::sync::{Arc, OnceLock};

use ork_device::{DmaBuffer, ResidentBuffer};
use parking_lot::Mutex;

use super::Result;
use crate::tiles::{TileBytes, Unpack};

/// Device memory of a weight, made of stored bytes once.
#[derive(Debug)]
pub(crate) struct Upload {
    ready: OnceLock<ResidentBuffer>,
    rest: Arc<Rest>,
}

/// What is left to do of an upload, for the thread that does it ahead of time.
#[derive(Debug)]
pub(super) struct Rest(Mutex<State>);

#[derive(Debug)]
enum State {
    /// The bytes are missing.
    Waiting { buffer: DmaBuffer, stored: Arc<dyn TileBytes>, unpack: Unpack },
    /// They are there.
    Made(ResidentBuffer),
    /// And fetched; or nobody wants them any more.
    Gone,
}

impl Rest {
    /// Makes the bytes, if they are missing.
    ///
    /// # Errors
    /// Those of making bytes visible to the NPU; they are made again by the next call.
    pub(super) fn make(&self) -> Result<()> {
        self.0.lock().make()
    }
}

impl State {
    fn make(&mut self) -> Result<()> {
        let Self::Waiting { buffer, stored, unpack } = self else { return Ok(()) };
        // Not by all threads: those may be waiting for the lock of this.
        unpack.write_alone(stored.bytes(), buffer.host_mut());
        buffer.flush(0..buffer.len())?;
        if let Self::Waiting { buffer, .. } = std::mem::replace(self, Self::Gone) {
            *self = Self::Made(buffer.unmap_host());
        }
        Ok(())
    }
}

impl Upload {
    /// Stored bytes for a buffer that holds as many as they make.
    pub(super) fn new(buffer: DmaBuffer, stored: Arc<dyn TileBytes>, unpack: Unpack) -> Self {
        let rest = Rest(Mutex::new(State::Waiting { buffer, stored, unpack }));
        Self { ready: OnceLock::new(), rest: Arc::new(rest) }
    }

    /// What is left to do.
    pub(super) fn rest(&self) -> Arc<Rest> {
        Arc::clone(&self.rest)
    }

    /// The weight, with its bytes.
    ///
    /// # Errors
    /// As for [`Rest::make`].
    pub(super) fn buffer(&self) -> Result<&ResidentBuffer> {
        if let Some(buffer) = self.ready.get() {
            return Ok(buffer);
        }
        let mut state = self.rest.0.lock();
        state.make()?;
        if let State::Made(buffer) = std::mem::replace(&mut *state, State::Gone) {
            // Nobody else sets it: the lock is held.
            let _ = self.ready.set(buffer);
        }
        drop(state);
        Ok(self.ready.get().expect("what was made is fetched here only"))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The thread may know of it for longer; the memory is free from here on.
        *self.rest.0.lock() = State::Gone;
    }
}
