// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one task asks of the blocks of a core.

use ork_isa::Precision;

/// How a task's features lie, which decides how well they feed the MAC array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureOrder {
    /// The channels of a row follow each other (recipe 2).
    RowMajor,
    /// Surfaces of 16 bytes of channels (recipe 1, the fold, convolutions).
    Cube,
}

/// Multiply-adds of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// Matmul or direct convolution.
    Direct {
        /// Output pixels; the rows of a matmul.
        pixels: u64,
        /// Input channels; K of a matmul.
        channels: u64,
        /// Kernels; N of a matmul.
        kernels: u64,
        /// Kernel width times kernel height; 1 for a matmul.
        taps: u64,
    },
    /// Depthwise convolution.
    Depthwise {
        /// Output pixels.
        pixels: u64,
        /// Channels.
        channels: u64,
        /// Kernel width times kernel height.
        taps: u64,
    },
    /// None: element-wise passes and pooling.
    None,
}

/// One task in the model's terms: counts that a plan knows, and that a simulator reads from registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskWork {
    /// Multiply-adds.
    pub arithmetic: Arithmetic,
    /// Precision of both operands.
    pub precision: Precision,
    /// How the features lie.
    pub order: FeatureOrder,
    /// Weight bytes read from memory; 0 if they are taken from the CBUF as the task before left them.
    pub weight_bytes: u64,
    /// Feature and operand bytes read from memory.
    pub feature_bytes: u64,
    /// Elements written.
    pub output_elements: u64,
    /// Bytes of one written element.
    pub output_element_bytes: u32,
    /// CBUF bytes given to weights.
    pub weight_buffer_bytes: u64,
}

/// Pixels of a cube are computed in groups of so many (`isa.md` §12.7).
const PIXEL_GROUP: u64 = 16;
/// Shorter kernels take as long as one CBUF entry (`isa.md` §12.7).
const KERNEL_BYTES_MIN: u64 = 128;
/// Multiply-adds per cycle of a depthwise int8 convolution (`isa.md` §12.7).
const DEPTHWISE_INT8_RATE: u64 = 64;

/// Multiply-adds per cycle (`isa.md` §1.1).
fn rate(precision: Precision) -> u64 {
    match precision {
        Precision::Int4 => 2048,
        Precision::Int8 => 1024,
        Precision::Int16 | Precision::Fp16 | Precision::Bf16 => 512,
        Precision::Int32 | Precision::Fp32 | Precision::Tf32 => 256,
    }
}

/// Kernels of a group (`isa.md` §1.1, §3; int4: `isa-int4-sdp.md` §1.3).
fn kernel_group(precision: Precision) -> u64 {
    match precision {
        Precision::Int4 => 64,
        Precision::Int8 => 32,
        _ => 16,
    }
}

fn bytes(elements: u64, precision: Precision) -> u64 {
    (elements * u64::from(precision.bits())).div_ceil(8)
}

impl TaskWork {
    /// A task of a matmul with `m` rows, `k` channels and `n` columns.
    #[must_use]
    pub fn matmul(
        (m, k, n): (u32, u32, u32),
        (precision, output): (Precision, Precision),
        order: FeatureOrder,
        weight_buffer_bytes: u64,
    ) -> Self {
        let (m, k, n) = (u64::from(m), u64::from(k), u64::from(n));
        Self {
            arithmetic: Arithmetic::Direct { pixels: m, channels: k, kernels: n, taps: 1 },
            precision,
            order,
            weight_bytes: bytes(k * n, precision),
            feature_bytes: bytes(m * k, precision),
            output_elements: m * n,
            output_element_bytes: output.bits().div_ceil(8),
            weight_buffer_bytes,
        }
    }

    /// The same task with weights that the task before left in the CBUF.
    #[must_use]
    pub const fn weights_kept(mut self) -> Self {
        self.weight_bytes = 0;
        self
    }

    /// MAC cycles as the vendor's profiler prints them (`isa.md` §12.7); a row-major task has no groups of pixels,
    /// for its time is linear in rows (§12.2, normal form).
    #[must_use]
    pub fn mac_cycles(&self) -> f64 {
        let grouped = |pixels: u64| match self.order {
            FeatureOrder::Cube => pixels.next_multiple_of(PIXEL_GROUP),
            FeatureOrder::RowMajor => pixels,
        };
        match self.arithmetic {
            Arithmetic::Direct { pixels, channels, kernels, taps } => {
                let shortest = KERNEL_BYTES_MIN * 8 / u64::from(self.precision.bits());
                let products = grouped(pixels) * (channels * taps).max(shortest) * kernels;
                products as f64 / rate(self.precision) as f64
            }
            Arithmetic::Depthwise { pixels, channels, taps } => {
                let rate = DEPTHWISE_INT8_RATE * rate(self.precision) / rate(Precision::Int8);
                (pixels * channels * taps) as f64 / rate as f64
            }
            Arithmetic::None => 0.0,
        }
    }

    /// Bytes read from memory.
    #[must_use]
    pub fn read_bytes(&self) -> f64 {
        (self.weight_bytes + self.feature_bytes) as f64
    }

    /// Kernel groups: kernels that the array computes at once; at least 1.
    #[must_use]
    pub fn kernel_groups(&self) -> u64 {
        let kernels = match self.arithmetic {
            Arithmetic::Direct { kernels, .. } => kernels,
            Arithmetic::Depthwise { channels, .. } => channels,
            Arithmetic::None => 0,
        };
        kernels.div_ceil(kernel_group(self.precision)).max(1)
    }

    /// Whether two kernel groups fit the weight banks, so that the next one loads while one is in use
    /// (`isa.md` §12.8).
    #[must_use]
    pub fn overlaps(&self) -> bool {
        2 * self.weight_bytes.div_ceil(self.kernel_groups()) <= self.weight_buffer_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(precision: Precision, arithmetic: Arithmetic) -> f64 {
        TaskWork {
            arithmetic,
            precision,
            order: FeatureOrder::Cube,
            weight_bytes: 0,
            feature_bytes: 0,
            output_elements: 0,
            output_element_bytes: 1,
            weight_buffer_bytes: 0,
        }
        .mac_cycles()
    }

    #[test]
    fn mac_cycles_are_the_profilers() {
        use Precision::{Fp16, Int8};
        // isa.md §12.7: channels, kernels, taps, output pixels, printed cycles.
        for (precision, channels, kernels, taps, pixels, printed) in [
            (Int8, 64, 64, 1, 40 * 40, 12_800.0),
            (Int8, 256, 128, 1, 40 * 40, 51_200.0),
            (Int8, 256, 512, 1, 20 * 20, 51_200.0),
            (Int8, 384, 256, 1, 40 * 40, 153_600.0),
            (Int8, 128, 64, 9, 80 * 80, 460_800.0),
            (Int8, 64, 64, 9, 80 * 80, 230_400.0),
            (Int8, 64, 64, 1, 80 * 80, 51_200.0),
            (Fp16, 160, 320, 9, 5 * 5, 28_800.0),
            (Fp16, 160, 320, 9, 6 * 6, 43_200.0),
            (Fp16, 160, 320, 9, 12 * 12, 129_600.0),
            (Fp16, 32, 128, 9, 12 * 12, 10_368.0),
            (Fp16, 256, 512, 1, 14 * 14, 53_248.0),
            (Fp16, 64, 128, 1, 56 * 56, 50_176.0),
            (Fp16, 32, 64, 1, 112 * 112, 100_352.0),
        ] {
            let found = cycles(precision, Arithmetic::Direct { pixels, channels, kernels, taps });
            assert_eq!(found, printed, "{channels} to {kernels}, {taps} taps, {pixels} pixels");
        }
        for (channels, pixels, printed) in
            [(256, 20 * 20, 14_400.0), (128, 40 * 40, 28_800.0), (128, 80 * 80, 115_200.0)]
        {
            assert_eq!(cycles(Int8, Arithmetic::Depthwise { pixels, channels, taps: 9 }), printed);
        }
    }

    #[test]
    fn row_major_pixels_have_no_groups() {
        let at = |order| TaskWork::matmul((4, 2048, 32), (Precision::Int8, Precision::Int32), order, 0);
        assert_eq!(at(FeatureOrder::Cube).mac_cycles(), 4.0 * at(FeatureOrder::RowMajor).mac_cycles());
    }

    #[test]
    fn kernel_groups_follow_the_precision() {
        let groups = |precision| {
            TaskWork::matmul((1, 64, 128), (precision, Precision::Int32), FeatureOrder::Cube, 0)
                .kernel_groups()
        };
        assert_eq!(
            [Precision::Int4, Precision::Int8, Precision::Fp16, Precision::Tf32].map(groups),
            [2, 4, 8, 8]
        );
    }

    #[test]
    fn overlap_needs_room_for_two_kernel_groups() {
        let at = |banks: u64| {
            TaskWork::matmul(
                (32, 3584, 1216),
                (Precision::Int8, Precision::Int32),
                FeatureOrder::RowMajor,
                banks * 32_768,
            )
            .overlaps()
        };
        assert_eq!([6, 7, 8].map(at), [false, true, true]);
        assert!(
            !TaskWork {
                weight_buffer_bytes: 0,
                ..TaskWork::matmul((1, 32, 32), (Precision::Int8, Precision::Int32), FeatureOrder::Cube, 1)
            }
            .overlaps()
        );
    }
}
