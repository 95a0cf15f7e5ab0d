// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a product costs on either side, modelled for an RK3588: the table of constants, and the two sums.
//!
//! The NPU's own time comes from the accelerator; here is what the host does around it, and what llama.cpp's CPU
//! backend would need. docs/routing.md tells the form and what is not known. Nothing here is measured on the machine
//! that runs: the simulated board is routed as the board that it stands for.

use crate::accelerator::ModelledTime;

/// One constant of the CPU's side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuConstant {
    /// What it is.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Its value.
    pub value: f64,
    /// Where it comes from.
    pub source: &'static str,
}

const fn constant(name: &'static str, unit: &'static str, value: f64, source: &'static str) -> CpuConstant {
    CpuConstant { name, unit, value, source }
}

/// Bytes per microsecond of weights that the CPU reads.
const STREAM: CpuConstant = constant(
    "CPU stream",
    "bytes/us",
    21_900.0,
    "the log: decode of a 1.7B Q8_0 model at 73 % of the wall of 30 GB/s; measured elsewhere",
);
/// Operations per microsecond with weights in f32, f16 or bf16.
const FLOAT: CpuConstant = constant(
    "CPU, float weights",
    "flop/us",
    56_000.0,
    "the log: attention over f16 keys and values, about 56 GFLOP/s; measured elsewhere",
);
/// Operations per microsecond with quantised weights.
const QUANTISED: CpuConstant = constant(
    "CPU, quantised weights",
    "flop/us",
    100_000.0,
    "assumed: a sixth of the peak of SDOT on four A76 cores at 2.4 GHz (614 GFLOP/s); docs/assumptions.md",
);
/// Bytes per microsecond that the host quantises, adds up and scales around a product on the NPU.
const HOST: CpuConstant = constant(
    "host around the NPU",
    "bytes/us",
    12_000.0,
    "the log: cached copies at 10 to 12 GB/s; measured elsewhere",
);
/// Bytes per microsecond of a matrix that is quantised and tiled for a single product, or copied into a slot.
const PACK: CpuConstant = constant(
    "packing",
    "bytes/us",
    10_000.0,
    "the log: tiles filled at about 10 GB/s in cacheable memory; measured elsewhere",
);

/// All constants of the CPU's side.
pub const CPU_TABLE: [CpuConstant; 5] = [STREAM, FLOAT, QUANTISED, HOST, PACK];

/// A product as both sides see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Size {
    pub(crate) m: u64,
    pub(crate) k: u64,
    pub(crate) n: u64,
}

/// How the weight is stored for the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Bytes of the whole matrix in ggml's type.
    pub(crate) bytes: u64,
    /// Whether its elements are single numbers.
    pub(crate) float: bool,
}

/// Microseconds that the CPU is modelled to take: it reads the weight once and computes meanwhile.
pub(crate) fn cpu_us(size: Size, stored: Stored) -> f64 {
    let rate = if stored.float { FLOAT.value } else { QUANTISED.value };
    let arithmetic = 2.0 * size.m as f64 * size.k as f64 * size.n as f64 / rate;
    (stored.bytes as f64 / STREAM.value).max(arithmetic)
}

/// Microseconds that a product takes on the NPU with all that the host does for it.
pub(crate) fn npu_us(time: &ModelledTime) -> f64 {
    time.npu_us + time.host_bytes as f64 / HOST.value + time.brought_in_bytes as f64 / PACK.value
}

/// Microseconds to quantise and tile a matrix for one product: read in its type, written as f32, written as int8.
pub(crate) fn pack_us(size: Size, stored: Stored) -> f64 {
    let elements = size.k * size.n;
    (stored.bytes + elements * (4 + 4 + 1)) as f64 / PACK.value
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { m: 1, k: 2048, n: 6144 };

    #[test]
    fn decode_costs_bytes_and_prefill_costs_arithmetic() {
        let q8 = Stored { bytes: 2048 * 6144 * 34 / 32, float: false };
        let q4 = Stored { bytes: 2048 * 6144 * 18 / 32, float: false };
        assert_eq!(cpu_us(SIZE, q8), q8.bytes as f64 / 21_900.0);
        assert!(cpu_us(SIZE, q4) < 0.54 * cpu_us(SIZE, q8));
        let many = Size { m: 512, ..SIZE };
        assert_eq!(cpu_us(many, q8), cpu_us(many, q4));
        assert_eq!(cpu_us(many, q8), 2.0 * 512.0 * 2048.0 * 6144.0 / 100_000.0);
        let f16 = Stored { bytes: 2048 * 6144 * 2, float: true };
        assert!(cpu_us(many, f16) > cpu_us(many, q8));
    }

    #[test]
    fn the_host_and_a_stream_come_on_top() {
        let resident = ModelledTime { npu_us: 400.0, host_bytes: 24_000, brought_in_bytes: 0 };
        assert_eq!(npu_us(&resident), 402.0);
        assert_eq!(npu_us(&ModelledTime { brought_in_bytes: 1_000_000, ..resident }), 502.0);
        assert_eq!(pack_us(Size { m: 1, k: 10, n: 100 }, Stored { bytes: 1000, float: true }), 1.0);
    }

    #[test]
    fn every_constant_has_a_source() {
        assert!(CPU_TABLE.iter().all(|entry| entry.value > 0.0 && entry.source.len() > 10));
    }
}
