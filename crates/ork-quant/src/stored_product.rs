// SPDX-License-Identifier: MIT OR Apache-2.0
//! Products of the CPU with weights that stay in four bits: what an expert without room on the NPU is multiplied by.
//!
//! A row of the weight is inflated once, by a table of sixteen int8 codes, and meets all rows of the activation while it is in
//! the cache; so the four bits cost one table lookup for each weight, however many rows there are. Sums are exact int32 over the same
//! int8 codes that the NPU would multiply by ([`crate::inflate`]), and the way back is that of all products
//! ([`crate::dequantise_row`]): **the result is the NPU's to the last bit**, and who multiplied cannot be told from it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use std::fmt;

use rayon::prelude::*;

use crate::{Codebook, QuantError, Rounding, Scale, StoredClip, dequantise_row, pack_nibbles, quantise_row};

/// Rows of the weight, and of the activation, that one step multiplies.
const BLOCK: usize = 4;
/// Rows of the weight that one thread takes at once.
const ROWS_AT_ONCE: usize = 16;

/// The kernels for one instruction set. All give the same integers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StoredKernels(Isa);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Isa {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl StoredKernels {
    /// The plain loops.
    pub const fn scalar() -> Self {
        Self(Isa::Scalar)
    }

    /// The fastest set this processor has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return Self(Isa::Avx2);
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Self(Isa::Neon);
        }
        Self::scalar()
    }

    /// Every set this processor has, slowest first: for tests.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::scalar()];
        if Self::detect() != Self::scalar() {
            all.push(Self::detect());
        }
        all
    }

    /// Name of the instruction set.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Isa::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
        }
    }

    /// Turns nibbles into the codes of a table, the even element from the low half of a byte. `codes` may have one
    /// element less than two for each byte.
    pub(crate) fn inflate(self, bytes: &[u8], table: &[i8; 16], codes: &mut [i8]) {
        assert_eq!(bytes.len(), codes.len().div_ceil(2), "two codes per byte");
        match self.0 {
            Isa::Scalar => scalar::inflate(bytes, table, codes),
            // SAFETY: `StoredKernels` values with this instruction set are made only where it was detected.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2::inflate(bytes, table, codes) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { neon::inflate(bytes, table, codes) },
        }
    }

    /// `sums[i][j] = Σ x[i][·] · w[j][·]`; all rows have the same length, at most [`StoredRows::K_MAX`].
    fn block(self, w: [&[i8]; BLOCK], x: [&[i8]; BLOCK]) -> [[i32; BLOCK]; BLOCK] {
        match self.0 {
            Isa::Scalar => scalar::block(w, x),
            // SAFETY: `StoredKernels` values with this instruction set are made only where it was detected.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2::block(w, x) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { neon::block(w, x) },
        }
    }
}

impl fmt::Debug for StoredKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredKernels({})", self.name())
    }
}

/// Fills a row with nibbles, one for each byte, and gives its scale.
pub type NibbleRows<'a, E> = &'a (dyn Fn(usize, &mut [u8]) -> Result<Scale, E> + Sync);

/// A weight of N rows with K elements in four bits, in the memory of the host.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRows {
    k: usize,
    n: usize,
    codebook: Codebook,
    /// Row after row, each in whole bytes.
    bytes: Vec<u8>,
    scales: Vec<Scale>,
}

impl StoredRows {
    /// Largest K whose sums always fit 32 bits.
    pub const K_MAX: usize = 131_071;

    /// Quantises rows to nearest, each clipped at its largest magnitude. `rows(j, out)` fills `out` with row `j`; it is
    /// called once for each, from several threads.
    ///
    /// # Errors
    /// [`QuantError::NonFinite`], with its row.
    ///
    /// # Panics
    /// If K is 0 or larger than [`Self::K_MAX`].
    pub fn quantise(
        k: usize,
        n: usize,
        codebook: Codebook,
        rows: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> Result<Self, QuantError> {
        Self::from_nibbles(k, n, codebook, &|row, nibbles| {
            let mut floats = vec![0.0; k];
            rows(row, &mut floats);
            let nearest = &mut Rounding::Nearest;
            let found = crate::quantise_stored_row(&floats, codebook, StoredClip::AbsMax, nearest, nibbles);
            found.map(|found| found.scale).map_err(|error| error.in_row(row))
        })
    }

    /// Takes rows of nibbles, one for each byte, that somebody else has quantised. `rows(j, nibbles)` fills row `j` and gives its scale.
    ///
    /// # Errors
    /// The first error of `rows`.
    ///
    /// # Panics
    /// If K is 0 or larger than [`Self::K_MAX`].
    pub fn from_nibbles<E: Send>(
        k: usize,
        n: usize,
        codebook: Codebook,
        rows: NibbleRows<'_, E>,
    ) -> Result<Self, E> {
        assert!((1..=Self::K_MAX).contains(&k), "k = {k}");
        let row_bytes = k.div_ceil(2);
        let mut bytes = vec![0; row_bytes * n];
        let scales = bytes
            .par_chunks_mut(row_bytes)
            .enumerate()
            .map_init(
                || vec![0; k],
                |nibbles, (row, bytes)| {
                    let scale = rows(row, nibbles)?;
                    pack_nibbles(nibbles, bytes);
                    Ok(scale)
                },
            )
            .collect::<Result<_, E>>()?;
        Ok(Self { k, n, codebook, bytes, scales })
    }

    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Rows: output channels.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + size_of_val(self.scales.as_slice())
    }

    /// The int8 codes of row `row`, and their scale.
    ///
    /// # Panics
    /// If there is no such row, or `codes` does not hold K codes.
    pub fn row(&self, row: usize, codes: &mut [i8]) -> Scale {
        self.inflate(StoredKernels::detect(), row, codes);
        self.scales[row]
    }

    fn inflate(&self, kernels: StoredKernels, row: usize, codes: &mut [i8]) {
        assert_eq!(codes.len(), self.k, "one code per element of the row");
        let row_bytes = self.k.div_ceil(2);
        kernels.inflate(&self.bytes[row * row_bytes..][..row_bytes], self.codebook.int8(), codes);
    }

    /// `out[i][j] = Σ x[i][·] · w[j][·]`, with the rows of `x` quantised to int8. `x` is M x K, `out` M x N.
    ///
    /// # Errors
    /// [`QuantError::NonFinite`] in an activation, with its row; `out` is unspecified then.
    ///
    /// # Panics
    /// If `x` or `out` has another size.
    pub fn product(&self, m: usize, x: &[f32], out: &mut [f32]) -> Result<(), QuantError> {
        self.product_with(StoredKernels::detect(), m, x, out)
    }

    /// [`Self::product`] with the kernels of an instruction set.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn product_with(
        &self,
        kernels: StoredKernels,
        m: usize,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), QuantError> {
        let Self { k, n, .. } = *self;
        assert_eq!((x.len(), out.len()), (m * k, m * n), "m = {m}, k = {k}, n = {n}");
        if m == 0 {
            return Ok(());
        }
        let mut codes = vec![0_i8; m * k];
        let scales: Vec<Scale> = codes
            .par_chunks_mut(k)
            .zip(x.par_chunks(k))
            .enumerate()
            .map(|(row, (codes, x))| quantise_row(x, codes).map_err(|error| error.in_row(row)))
            .collect::<Result<_, _>>()?;
        // By row of the weight, so that each thread has a piece of its own.
        let mut sums = vec![0_i32; n * m];
        sums.par_chunks_mut(ROWS_AT_ONCE * m).enumerate().for_each_init(
            || vec![0_i8; BLOCK * k],
            |inflated, (part, sums)| {
                let first = part * ROWS_AT_ONCE;
                for (at, sums) in sums.chunks_mut(BLOCK * m).enumerate() {
                    self.rows_times(kernels, first + at * BLOCK, &codes, inflated, sums);
                }
            },
        );
        out.par_chunks_mut(n).zip(&scales).enumerate().for_each_init(
            || vec![0_i32; n],
            |row_sums, (row, (out, scale))| {
                for (sum, column) in row_sums.iter_mut().zip(sums.chunks_exact(m)) {
                    *sum = column[row];
                }
                dequantise_row(row_sums, *scale, &self.scales, out);
            },
        );
        Ok(())
    }

    /// Up to [`BLOCK`] rows of the weight from `first` on, times all rows of the activation; `sums` has one piece for each.
    fn rows_times(
        &self,
        kernels: StoredKernels,
        first: usize,
        codes: &[i8],
        inflated: &mut [i8],
        sums: &mut [i32],
    ) {
        let k = self.k;
        let m = codes.len() / k;
        let rows = sums.len() / m;
        for (row, codes) in inflated.chunks_exact_mut(k).take(rows).enumerate() {
            self.inflate(kernels, first + row, codes);
        }
        // Rows beyond the end repeat the last one, and nobody looks at their sums.
        let w = std::array::from_fn(|j| &inflated[j.min(rows - 1) * k..][..k]);
        for m0 in (0..m).step_by(BLOCK) {
            let here = BLOCK.min(m - m0);
            let x = std::array::from_fn(|i| &codes[(m0 + i.min(here - 1)) * k..][..k]);
            let block = kernels.block(w, x);
            for (i, block) in block.iter().take(here).enumerate() {
                for (j, sum) in block.iter().take(rows).enumerate() {
                    sums[j * m + m0 + i] = *sum;
                }
            }
        }
    }
}
