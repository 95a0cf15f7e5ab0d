// SPDX-License-Identifier: MIT OR Apache-2.0
//! An NPU that takes no time, for measurements of the host.

use std::os::fd::{IntoRawFd, RawFd};
use std::sync::Arc;

use ork_device::{Board, EmuOptions, Errno};
use ork_emu::{Bus, Engine, FdTable, JobOutcome, KernelFile, PcJob};

/// A board with such an NPU: jobs run inside the call that gives them, and a fence costs the emulated kernel the calls
/// for its descriptor and no search for what became of others.
pub(crate) fn board(options: &EmuOptions) -> Board {
    let engines: [Box<dyn Engine>; 3] = [Box::new(Idle), Box::new(Idle), Box::new(Idle)];
    Board::with_engines_and_fd_table(options, engines, Arc::new(OneWay))
}

/// A core that is done at once.
struct Idle;

impl Engine for Idle {
    fn reset(&mut self) {}

    fn run(&mut self, _: &dyn Bus, job: &PcJob) -> JobOutcome {
        JobOutcome::done(job)
    }

    fn is_instant(&self) -> bool {
        true
    }
}

/// Descriptors that are given out and never taken back.
#[derive(Debug)]
struct OneWay;

impl FdTable for OneWay {
    fn install(&self, file: KernelFile, _cloexec: bool) -> Result<RawFd, Errno> {
        file.as_fd().try_clone_to_owned().map(IntoRawFd::into_raw_fd).map_err(|error| Errno::from_io(&error))
    }

    fn resolve(&self, _: RawFd) -> Result<KernelFile, Errno> {
        Err(Errno::EINVAL)
    }
}
