// SPDX-License-Identifier: MIT OR Apache-2.0
//! More work, less buffer, slower clocks and more company never make a task faster.

use ork_isa::Precision;
use ork_timing::{Conditions, FeatureOrder, Model, TaskWork};
use proptest::prelude::*;

const PRECISIONS: [(Precision, Precision); 3] = [
    (Precision::Int8, Precision::Int32),
    (Precision::Fp16, Precision::Fp32),
    (Precision::Int4, Precision::Int16),
];

fn work(m: u32, k: u32, n: u32, precision: usize, cube: bool, banks: u64) -> TaskWork {
    let order = if cube { FeatureOrder::Cube } else { FeatureOrder::RowMajor };
    TaskWork::matmul((m, k, n), PRECISIONS[precision], order, banks * 32_768)
}

proptest! {
    #[test]
    fn tasks_are_monotone(
        m in 1_u32..600, k in 1_u32..130, n in 1_u32..130, precision in 0..3_usize, cube: bool, banks in 2_u64..12,
    ) {
        // Whole channel blocks and kernel groups, as every program has them.
        let (k, n) = (k * 32, n * 64);
        let us = |work: TaskWork| Model::default().task(&work).total.us;
        let base = us(work(m, k, n, precision, cube, banks));
        prop_assert!(base > 0.0 && base.is_finite());
        prop_assert!(us(work(m + 1, k, n, precision, cube, banks)) >= base);
        prop_assert!(us(work(m, k + 32, n, precision, cube, banks)) >= base);
        prop_assert!(us(work(m, k, n + 64, precision, cube, banks)) >= base);
        prop_assert!(us(work(m, k, n, precision, cube, banks - 1)) >= base);
        prop_assert!(us(work(m, k, n, precision, cube, banks).weights_kept()) <= base);
    }

    #[test]
    fn clocks_and_cores_are_monotone(
        m in 1_u32..300, k in 1_u32..130, n in 1_u32..130, precision in 0..3_usize, cube: bool,
        npu_mhz in 200.0..1000.0_f64, dram_mhz in 528.0..2112.0_f64,
    ) {
        let work = work(m, k * 32, n * 64, precision, cube, 8);
        let at = |npu_mhz, dram_mhz, cores| {
            let conditions = Conditions { npu_mhz, dram_mhz, ..Conditions::REFERENCE };
            Model::under(conditions).task_on_cores(&work, cores).total.us
        };
        let base = at(npu_mhz, dram_mhz, 1);
        prop_assert!(at(npu_mhz * 0.9, dram_mhz, 1) >= base);
        prop_assert!(at(npu_mhz, dram_mhz * 0.9, 1) >= base);
        prop_assert!(at(npu_mhz, dram_mhz, 2) >= base);
        prop_assert!(at(npu_mhz, dram_mhz, 3) >= at(npu_mhz, dram_mhz, 2));
        // Three cores are never slower than one after the other.
        prop_assert!(at(npu_mhz, dram_mhz, 3) <= 3.0 * base);
    }
}
