// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_sim::SimOptions;
use serde::{Deserialize, Serialize};

use crate::chip::Soc;
use crate::fault::FaultPlan;

/// How the emulated board behaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmuOptions {
    /// Whether time passes on the host.
    pub time: TimePolicy,
    /// The chip, as the kernel driver sees it.
    pub soc: Soc,
    /// Version of `rknpu` to answer with, `[major, minor, patch]`. Before 0.9.6 there are no domains and
    /// allocations have 40 bytes; 0.9.6 and 0.9.7 switch domains at once, also under running jobs; 0.9.8 counts
    /// the users of a domain and knows flag 0x400.
    pub driver_version: [u32; 3],
    /// How long (host time, milliseconds) a call waits for jobs of another IOMMU domain before it fails with
    /// `EINVAL`. Silicon waits 6 s; the model runs jobs slower than silicon.
    pub domain_wait_ms: u32,
    /// Whether CPU and NPU see the same bytes without cache maintenance.
    pub coherency: Coherency,
    /// Whether an IOMMU translates addresses; without, device addresses look like physical ones.
    pub iommu: bool,
    /// Whether the kernel was built with fences.
    pub fences: bool,
    /// Memory of the emulated machine, in bytes: buffers of all files and of the heap have room in it, or get
    /// `ENOMEM`. The host provides what is touched.
    pub memory_bytes: u64,
    /// On-chip SRAM that the device tree grants the NPU, in bytes; 956 KiB exist on an RK3588.
    pub sram_bytes: u64,
    /// With shared memory: how long (host time, milliseconds) a non-blocking submit without a fence lets its job end
    /// before it returns. On silicon the call takes up to 170 us, in which a small job is over, and programs rely on
    /// that; the model is slower.
    pub nonblock_wait_ms: u32,
    /// As in 0.9.8: a non-blocking submit compares the age of a running job in microseconds with a time limit in
    /// milliseconds, and so kills it far too early.
    pub reap_compares_microseconds: bool,
    /// Module parameter: soft resets do nothing.
    pub bypass_soft_reset: bool,
    /// Know action 0x100 of a private kernel.
    pub private_actions: bool,
    /// The mainline driver.
    pub rocket: RocketOptions,
    /// What goes wrong on purpose.
    pub faults: FaultPlan,
    /// Options of the NPU model.
    pub sim: SimOptions,
}

impl Default for EmuOptions {
    fn default() -> Self {
        Self {
            time: TimePolicy::Virtual,
            soc: Soc::Rk3588,
            driver_version: [0, 9, 8],
            domain_wait_ms: 60_000,
            coherency: Coherency::Strict,
            iommu: true,
            fences: true,
            memory_bytes: 32 << 30,
            sram_bytes: 0,
            nonblock_wait_ms: 20,
            reap_compares_microseconds: false,
            bypass_soft_reset: false,
            private_actions: false,
            rocket: RocketOptions::default(),
            faults: FaultPlan::default(),
            sim: SimOptions::default(),
        }
    }
}

/// How the emulated `rocket` driver behaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RocketOptions {
    /// Time limit of a job, in milliseconds.
    pub timeout_ms: u32,
    /// Let programs complete that end in the pooling unit, as a public fork does. The mainline driver waits for
    /// the output stage only, so they time out.
    pub pooling_completes: bool,
}

impl Default for RocketOptions {
    fn default() -> Self {
        Self { timeout_ms: 500, pooling_completes: false }
    }
}

/// Whether the emulated kernel spends real time where a real one would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimePolicy {
    /// Nothing sleeps: a job that hangs has timed out at once, a reset takes no time.
    #[default]
    Virtual,
    /// A job that hangs takes its whole timeout, a reset 100 ms.
    Real,
}

/// Whether the CPU's caches are modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Coherency {
    /// A cacheable buffer has two sides; only cache maintenance moves bytes, so that forgotten calls show.
    #[default]
    Strict,
    /// One memory, behind memfds: for unmodified programs, and for programs that poll memory.
    Shared,
}
