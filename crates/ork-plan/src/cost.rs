// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled time. Every figure here is a prediction of a fitted model, never a measurement.
//!
//! Form and constants: `isa.md` §12.8, fitted there to 21 measured int8 rows with 3.3 % RMS error. It was not tested
//! for three cores, for fp16, or for K slices that the host adds; it ranks proposals, it does not promise times.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Mul};

use ork_isa::soc::Soc;
use ork_layout::Format;

use crate::BankSplit;

/// Modelled microseconds on silicon.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Modelled {
    /// Microseconds.
    pub us: f64,
}

/// The model's constants, in one place.
struct Constants {
    /// Weight stream of one core alone (§12.8; 12.6 has 10.5 to 11 measured).
    one_core_bytes_per_us: f64,
    /// All cores together (§12.8, §12.6).
    all_cores_bytes_per_us: f64,
    /// One multiply-add of a row-major int8 task (§12.8: 1.8 us per million, 54 % of the peak at 1 GHz).
    int8_us_per_mac: f64,
    /// Each further program of a chain (§12.1).
    next_program_us: f64,
    /// One submit (§12.1, the floor of a blocking submit; 56 in the series with short submits).
    submit_us: f64,
}

const MODEL: Constants = Constants {
    one_core_bytes_per_us: 11_200.0,
    all_cores_bytes_per_us: 30_000.0,
    int8_us_per_mac: 1.8e-6,
    next_program_us: 1.27,
    submit_us: 134.0,
};

/// What the model asks of one task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Precisions.
    pub format: Format,
    /// Rows.
    pub rows: u32,
    /// Channels.
    pub k: u32,
    /// Columns.
    pub n: u32,
    /// Split of the convolution buffer.
    pub split: BankSplit,
    /// Cores that stream weights at the same time.
    pub cores: u8,
}

/// One task, as part of a chain. If two kernel groups fit the weight banks, the next group loads while one is
/// used; otherwise stream and arithmetic take turns.
#[must_use]
pub fn task(work: &Work, soc: &Soc) -> Modelled {
    let element_bytes = f64::from(work.format.input_bytes());
    let weights = f64::from(work.k) * f64::from(work.n);
    let bandwidth =
        MODEL.one_core_bytes_per_us.min(MODEL.all_cores_bytes_per_us / f64::from(work.cores.max(1)));
    let stream = weights * element_bytes / bandwidth;
    // Two-byte types: twice the time per multiply-add (§12.8, inferred, not tested).
    let arithmetic = f64::from(work.rows) * weights * MODEL.int8_us_per_mac * element_bytes;
    let group_bytes = f64::from(work.k) * f64::from(work.format.kernel_group()) * element_bytes;
    let overlapped = 2.0 * group_bytes <= f64::from(work.split.weight) * f64::from(soc.bank_bytes);
    let us = if overlapped {
        let groups = f64::from(work.n) / f64::from(work.format.kernel_group());
        stream.max(arithmetic) + stream.min(arithmetic) / groups.max(1.0)
    } else {
        stream + arithmetic
    };
    Modelled { us: us + MODEL.next_program_us }
}

/// The fixed cost of handing chains to the cores and waiting for them.
#[must_use]
pub fn submit() -> Modelled {
    Modelled { us: MODEL.submit_us - MODEL.next_program_us }
}

impl Add for Modelled {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { us: self.us + other.us }
    }
}

impl Mul<f64> for Modelled {
    type Output = Self;
    fn mul(self, count: f64) -> Self {
        Self { us: self.us * count }
    }
}

impl Sum for Modelled {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for Modelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} us modelled", self.us)
    }
}

#[cfg(test)]
mod tests {
    use ork_isa::soc::RK3588;

    use super::*;
    use crate::schedule;

    /// The tasks of an int8 call on one core with schedule 1.
    fn tasks(rows: u32, k: u32, n: u32, tile: u32) -> f64 {
        let tiles = (0..rows).step_by(tile as usize).map(|m0| tile.min(rows - m0));
        let one = |rows| {
            let split = schedule::schedule_1(Format::INT8_INT32, k, rows, &RK3588).split;
            task(&Work { format: Format::INT8_INT32, rows, k, n, split, cores: 1 }, &RK3588)
        };
        tiles.map(one).sum::<Modelled>().us - MODEL.next_program_us
    }

    #[test]
    fn the_model_meets_the_rows_that_it_was_fitted_to() {
        // M, K, N, rows of a tile, start-up of the series, and the model's own and the measured time (isa.md §12.8).
        for (m, k, n, tile, start, model, measured) in [
            (4, 2048, 2048, 128, 134.0, 509.0, 493.0),
            (31, 2048, 2048, 128, 134.0, 512.0, 516.0),
            (4, 2048, 512, 128, 134.0, 228.0, 228.0),
            (4, 2048, 4096, 128, 134.0, 883.0, 914.0),
            (36, 3584, 1216, 64, 56.0, 728.0, 722.0),
            (72, 3584, 1216, 64, 56.0, 1399.0, 1400.0),
            (100, 3584, 1216, 64, 56.0, 1619.0, 1654.0),
            (128, 3584, 1216, 64, 56.0, 1838.0, 1861.0),
            (512, 2048, 2048, 128, 134.0, 4023.0, 4020.0),
        ] {
            let modelled = start + tasks(m, k, n, tile);
            assert!(
                (modelled / model - 1.0).abs() <= 0.005,
                "{m} x {k} x {n}: {modelled:.0}, and not {model}"
            );
            assert!(
                (modelled / measured - 1.0).abs() <= 0.04,
                "{m} x {k} x {n}: {modelled:.0}, measured {measured}"
            );
        }
    }

    #[test]
    fn overlap_needs_room_for_two_kernel_groups() {
        let at = |weight| {
            let split = BankSplit { data: 12 - weight, weight };
            task(&Work { format: Format::INT8_INT32, rows: 32, k: 3584, n: 1216, split, cores: 1 }, &RK3588)
                .us
        };
        assert_eq!(at(8), at(7));
        assert!(at(6) > 1.2 * at(7));
    }
}
