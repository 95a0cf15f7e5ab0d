// SPDX-License-Identifier: MIT OR Apache-2.0
//! Predicted time on silicon (`isa.md` §12.8): *modelled*, fitted to 21 published rows with 3.3 % RMS error.

/// Weight stream of one core alone.
const WEIGHT_BYTES_PER_US: f64 = 11_200.0;
/// Multiply-adds in row-major int8 programs.
const INT8_US_PER_MAC: f64 = 1.8e-6;
/// Hardware cost of one more task of a chain (§12.1).
const CHAINED_TASK_US: f64 = 1.27;

/// Adds up the tasks of one job. The fixed cost of a submit belongs to the kernel, not to the core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    us: f64,
}

/// What the time of a convolution or matmul task depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MacTask {
    pub(crate) macs: u64,
    pub(crate) weight_bytes: u64,
    pub(crate) kernel_groups: u64,
    /// Two kernel groups fit the weight banks, so loading overlaps computing.
    pub(crate) overlapped: bool,
    /// Multiply-adds per cycle, relative to int8.
    pub(crate) rate: f64,
}

impl Clock {
    pub(crate) fn mac_task(&mut self, task: MacTask) {
        let weights = task.weight_bytes as f64 / WEIGHT_BYTES_PER_US;
        let compute = task.macs as f64 * INT8_US_PER_MAC / task.rate;
        self.us += if task.overlapped {
            weights.max(compute) + weights.min(compute) / (task.kernel_groups.max(1)) as f64
        } else {
            weights + compute
        };
    }

    /// A task that only moves bytes: element-wise passes and pooling. One core's bandwidth is assumed to hold for
    /// all of them.
    pub(crate) fn stream_task(&mut self, bytes: u64) {
        self.us += bytes as f64 / WEIGHT_BYTES_PER_US;
    }

    pub(crate) fn micros(&self, tasks: u16) -> f64 {
        self.us + CHAINED_TASK_US * f64::from(tasks.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of §12.8 (us, without the fixed part of the submit): m, k, n, overlapped, T0, published model time.
    #[test]
    fn reproduces_the_published_model() {
        for (m, k, n, overlapped, fixed, published) in [
            (4, 2048, 2048, true, 134.0, 509.0),
            (31, 2048, 2048, true, 134.0, 512.0),
            (36, 3584, 1216, false, 56.0, 728.0),
            (36, 3584, 1216, true, 56.0, 450.0),
        ] {
            let mut clock = Clock::default();
            clock.mac_task(MacTask {
                macs: m * k * n,
                weight_bytes: k * n,
                kernel_groups: n / 32,
                overlapped,
                rate: 1.0,
            });
            let got: f64 = clock.micros(1) + fixed;
            assert!((got - published).abs() < 6.0, "{m} x {k} x {n}: {got} instead of {published}");
        }
    }
}
