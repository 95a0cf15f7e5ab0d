// SPDX-License-Identifier: MIT OR Apache-2.0
//! AVX-512 and AVX2 tiles of float products: see [`crate::float`].

use std::arch::x86_64::*;

/// Makes the kernels of one instruction set and number type: a tile of up to `$rows` rows times two vectors of
/// `$lanes` lanes, repeated over the `$columns` columns of a panel.
macro_rules! tiles {
    (
        $entry:ident, $tile:ident, $feature:literal, $number:ty, $lanes:literal, $columns:literal,
        $zero:ident, $load:ident, $store:ident, $set:ident, $fma:ident, [$($rows:literal)*]
    ) => {
        /// Adds to `acc[row][column]` the products of `features[depth][row]` and `panel[depth][column]`.
        pub(crate) fn $entry(rows: usize, features: &[$number], panel: &[$number], acc: &mut [$number]) {
            assert_eq!(acc.len(), rows * $columns, "sums");
            assert_eq!(features.len() * $columns, panel.len() * rows, "depth");
            for column in (0..$columns).step_by(2 * $lanes) {
                match rows {
                    // SAFETY: the engine selects these kernels only where the features were detected; the sizes
                    // were checked above.
                    $($rows => unsafe { $tile::<$rows>(features, panel, column, acc) },)*
                    _ => unreachable!("the engine cuts rows into tiles"),
                }
            }
        }

        #[target_feature(enable = $feature)]
        fn $tile<const R: usize>(features: &[$number], panel: &[$number], column: usize, acc: &mut [$number]) {
            assert!(column + 2 * $lanes <= $columns && acc.len() == R * $columns);
            let mut sums = [[$zero(); 2]; R];
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: row r of `acc` has $columns numbers, of which two vectors start at `column`.
                    *sum = unsafe { $load(acc.as_ptr().add(r * $columns + column + v * $lanes)) };
                }
            }
            let steps = panel.as_chunks::<$columns>().0.iter().zip(features.as_chunks::<R>().0);
            for (weights, features) in steps {
                // SAFETY: a line of the panel has $columns numbers, of which two vectors start at `column`.
                let (a, b) = unsafe {
                    let at = weights.as_ptr().add(column);
                    ($load(at), $load(at.add($lanes)))
                };
                for (sums, feature) in sums.iter_mut().zip(features) {
                    let feature = $set(*feature);
                    sums[0] = $fma(feature, a, sums[0]);
                    sums[1] = $fma(feature, b, sums[1]);
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    // SAFETY: as for the loads.
                    unsafe { $store(acc.as_mut_ptr().add(r * $columns + column + v * $lanes), *sum) };
                }
            }
        }
    };
}

tiles!(
    tile_f32_avx512, f32_avx512, "avx512f", f32, 16, 32,
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps,
    [1 2 3 4 5 6 7 8 9 10 11 12]
);
tiles!(
    tile_f64_avx512, f64_avx512, "avx512f", f64, 8, 16,
    _mm512_setzero_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_set1_pd, _mm512_fmadd_pd,
    [1 2 3 4 5 6 7 8 9 10 11 12]
);
tiles!(
    tile_f32_avx2, f32_avx2, "avx2,fma", f32, 8, 32,
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps,
    [1 2 3 4 5 6]
);
tiles!(
    tile_f64_avx2, f64_avx2, "avx2,fma", f64, 4, 16,
    _mm256_setzero_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_set1_pd, _mm256_fmadd_pd,
    [1 2 3 4 5 6]
);
