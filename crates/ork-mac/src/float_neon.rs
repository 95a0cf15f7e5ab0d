// SPDX-License-Identifier: MIT OR Apache-2.0
//! NEON tiles of float products: see [`crate::float`].

use std::arch::aarch64::*;

/// Makes the kernels of one number type: a tile of up to 8 rows times two vectors of `$lanes` lanes, repeated over
/// the `$columns` columns of a panel.
macro_rules! tiles {
    (
        $entry:ident, $tile:ident, $number:ty, $lanes:literal, $columns:literal,
        $set:ident, $load:ident, $store:ident, $fma:ident
    ) => {
        /// Adds to `acc[row][column]` the products of `features[depth][row]` and `panel[depth][column]`.
        pub(crate) fn $entry(rows: usize, features: &[$number], panel: &[$number], acc: &mut [$number]) {
            assert_eq!(acc.len(), rows * $columns, "sums");
            assert_eq!(features.len() * $columns, panel.len() * rows, "depth");
            for column in (0..$columns).step_by(2 * $lanes) {
                match rows {
                    1 => $tile::<1>(features, panel, column, acc),
                    2 => $tile::<2>(features, panel, column, acc),
                    3 => $tile::<3>(features, panel, column, acc),
                    4 => $tile::<4>(features, panel, column, acc),
                    5 => $tile::<5>(features, panel, column, acc),
                    6 => $tile::<6>(features, panel, column, acc),
                    7 => $tile::<7>(features, panel, column, acc),
                    8 => $tile::<8>(features, panel, column, acc),
                    _ => unreachable!("the engine cuts rows into tiles"),
                }
            }
        }

        fn $tile<const R: usize>(
            features: &[$number],
            panel: &[$number],
            column: usize,
            acc: &mut [$number],
        ) {
            assert!(column + 2 * $lanes <= $columns && acc.len() == R * $columns);
            // SAFETY: NEON is part of every aarch64; row r of `acc` and each line of the panel have $columns
            // numbers, of which two vectors start at `column`.
            unsafe {
                let mut sums = [[$set(0.0); 2]; R];
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = $load(acc.as_ptr().add(r * $columns + column + v * $lanes));
                    }
                }
                let steps = panel.as_chunks::<$columns>().0.iter().zip(features.as_chunks::<R>().0);
                for (weights, features) in steps {
                    let at = weights.as_ptr().add(column);
                    let (a, b) = ($load(at), $load(at.add($lanes)));
                    for (sums, feature) in sums.iter_mut().zip(features) {
                        let feature = $set(*feature);
                        sums[0] = $fma(sums[0], feature, a);
                        sums[1] = $fma(sums[1], feature, b);
                    }
                }
                for (r, sums) in sums.iter().enumerate() {
                    for (v, sum) in sums.iter().enumerate() {
                        $store(acc.as_mut_ptr().add(r * $columns + column + v * $lanes), *sum);
                    }
                }
            }
        }
    };
}

tiles!(tile_f32, f32_neon, f32, 4, 32, vdupq_n_f32, vld1q_f32, vst1q_f32, vfmaq_f32);
tiles!(tile_f64, f64_neon, f64, 2, 16, vdupq_n_f64, vld1q_f64, vst1q_f64, vfmaq_f64);
