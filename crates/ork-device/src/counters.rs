// SPDX-License-Identifier: MIT OR Apache-2.0
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Cores of the largest known chip.
pub const CORES_MAX: usize = 3;

/// What a device has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Buffers allocated, the task arrays of the device included.
    pub buffers_allocated: u64,
    /// Buffers freed.
    pub buffers_freed: u64,
    /// Bytes allocated, in whole pages.
    pub bytes_allocated: u64,
    /// Flush calls that reached the kernel.
    pub flushes: u64,
    /// Bytes flushed, as asked for.
    pub bytes_flushed: u64,
    /// Invalidate calls that reached the kernel.
    pub invalidates: u64,
    /// Bytes invalidated, as asked for.
    pub bytes_invalidated: u64,
    /// Bytes that both together covered: more than asked for where a driver knows whole buffers only.
    pub bytes_maintained: u64,
    /// dma-bufs imported.
    pub buffers_imported: u64,
    /// Bytes that allocations got in on-chip memory.
    pub sram_bytes: u64,
    /// Resets on demand: for a change of the datapath's mode, or by a recovery.
    pub resets: u64,
    /// Changes of the live address space.
    pub domain_switches: u64,
    /// Calls that a signal interrupted and that were repeated.
    pub interruptions: u64,
    /// Jobs that were given to the kernel, whatever became of them: calls of a submit, each for one core.
    pub jobs_given: u64,
    /// Jobs that ended by the time limit.
    pub timeouts: u64,
    /// Jobs that failed otherwise.
    pub failures: u64,
    /// Calls that free something and failed: each is a leak.
    pub failed_frees: u64,
    /// Per core.
    pub cores: [CoreCounters; CORES_MAX],
}

/// What one core has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreCounters {
    /// Jobs that completed.
    pub submits: u64,
    /// Tasks of those jobs.
    pub tasks: u64,
    /// Sum of the times that the driver reports for them (modelled ones on the emulated board); jobs that were polled for
    /// or had a fence are not in it, because nobody reports theirs.
    pub busy_ns: u64,
    /// For those: sum of the times of the device's clock from the submit to the moment at which the end was seen. A time of
    /// the host, never modelled.
    pub waited_ns: u64,
}

impl DeviceCounters {
    /// Jobs that completed, on all cores.
    #[must_use]
    pub fn submits(&self) -> u64 {
        self.cores.iter().map(|core| core.submits).sum()
    }

    /// Tasks that completed, on all cores.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.cores.iter().map(|core| core.tasks).sum()
    }
}

impl fmt::Display for DeviceCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} jobs ({} tasks), {} timed out, {} failed; flushed {} bytes in {} calls, invalidated {} bytes in {} \
             calls; {} buffers allocated ({} bytes), {} freed",
            self.submits(),
            self.tasks(),
            self.timeouts,
            self.failures,
            self.bytes_flushed,
            self.flushes,
            self.bytes_invalidated,
            self.invalidates,
            self.buffers_allocated,
            self.bytes_allocated,
            self.buffers_freed,
        )?;
        if self.domain_switches != 0 {
            write!(f, "; {} domain switches", self.domain_switches)?;
        }
        if self.failed_frees != 0 {
            write!(f, " ({} FAILED TO FREE)", self.failed_frees)?;
        }
        for (index, core) in self.cores.iter().enumerate() {
            write!(
                f,
                "; core {index}: {} jobs, {} tasks, {} us",
                core.submits,
                core.tasks,
                core.busy_ns / 1000
            )?;
            if core.waited_ns != 0 {
                write!(f, ", {} us waited for", core.waited_ns / 1000)?;
            }
        }
        Ok(())
    }
}

/// The live form of [`DeviceCounters`].
#[derive(Debug, Default)]
pub(crate) struct Counting {
    pub(crate) buffers_allocated: AtomicU64,
    pub(crate) buffers_freed: AtomicU64,
    pub(crate) bytes_allocated: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) bytes_flushed: AtomicU64,
    pub(crate) invalidates: AtomicU64,
    pub(crate) bytes_invalidated: AtomicU64,
    pub(crate) bytes_maintained: AtomicU64,
    pub(crate) buffers_imported: AtomicU64,
    pub(crate) sram_bytes: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) jobs_given: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) failed_frees: AtomicU64,
    pub(crate) cores: [CoreCounting; CORES_MAX],
}

/// The live form of [`CoreCounters`].
#[derive(Debug, Default)]
pub(crate) struct CoreCounting {
    pub(crate) submits: AtomicU64,
    pub(crate) tasks: AtomicU64,
    pub(crate) busy_ns: AtomicU64,
    pub(crate) waited_ns: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

impl Counting {
    pub(crate) fn read(&self) -> DeviceCounters {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        DeviceCounters {
            buffers_allocated: get(&self.buffers_allocated),
            buffers_freed: get(&self.buffers_freed),
            bytes_allocated: get(&self.bytes_allocated),
            flushes: get(&self.flushes),
            bytes_flushed: get(&self.bytes_flushed),
            invalidates: get(&self.invalidates),
            bytes_invalidated: get(&self.bytes_invalidated),
            bytes_maintained: get(&self.bytes_maintained),
            buffers_imported: get(&self.buffers_imported),
            sram_bytes: get(&self.sram_bytes),
            resets: get(&self.resets),
            // These two are counted elsewhere.
            domain_switches: 0,
            interruptions: 0,
            jobs_given: get(&self.jobs_given),
            timeouts: get(&self.timeouts),
            failures: get(&self.failures),
            failed_frees: get(&self.failed_frees),
            cores: std::array::from_fn(|index| CoreCounters {
                submits: get(&self.cores[index].submits),
                tasks: get(&self.cores[index].tasks),
                busy_ns: get(&self.cores[index].busy_ns),
                waited_ns: get(&self.cores[index].waited_ns),
            }),
        }
    }
}
