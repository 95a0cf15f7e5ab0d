// SPDX-License-Identifier: MIT OR Apache-2.0

/// Clocks and load of the board that a time is modelled for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Clock of the NPU in MHz. Arithmetic and write-back scale with it, the streams do not (assumed).
    pub npu_mhz: f64,
    /// Clock of the memory in MHz. The streams scale with it (assumed; one row, see docs/timing-model.md).
    pub dram_mhz: f64,
    /// What the CPU does meanwhile.
    pub cpu: CpuLoad,
}

/// Load that the CPU puts on memory and on the submit path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CpuLoad {
    /// Nothing that matters.
    #[default]
    Idle,
    /// A memory-bound load (`isa.md` §12.6).
    Busy,
}

/// Memory clock of nearly all rows.
pub(crate) const REFERENCE_DRAM_MHZ: f64 = 2112.0;

impl Conditions {
    /// The log's board: NPU at 1 GHz, memory at 2112 MHz, CPU idle.
    pub const REFERENCE: Self = Self { npu_mhz: 1000.0, dram_mhz: REFERENCE_DRAM_MHZ, cpu: CpuLoad::Idle };
}

impl Default for Conditions {
    fn default() -> Self {
        Self::REFERENCE
    }
}
