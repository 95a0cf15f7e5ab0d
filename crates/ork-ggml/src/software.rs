// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fallback for matrices in a resident buffer that the accelerator cannot hold, such as the skinny matrices of an
//! adapter. No other backend may read that buffer, so the backend multiplies itself: slowly, plainly, and counted.

use crate::accelerator::{AccelError, AccelErrorKind, LoadedWeight};
use crate::host::ElementType;

/// A weight in ggml's bytes.
#[derive(Debug)]
pub(crate) struct SoftwareWeight {
    bytes: *const u8,
    element: ElementType,
    k: usize,
    n: usize,
}

// SAFETY: the bytes are only read, and ggml does not change weights while a graph runs.
unsafe impl Send for SoftwareWeight {}
// SAFETY: as above.
unsafe impl Sync for SoftwareWeight {}

impl SoftwareWeight {
    /// # Safety
    /// `bytes` must hold `n` rows of `k` elements of `element`, valid as long as the value lives.
    pub(crate) unsafe fn new(bytes: *const u8, element: ElementType, k: usize, n: usize) -> Self {
        Self { bytes, element, k, n }
    }
}

impl LoadedWeight for SoftwareWeight {
    fn k(&self) -> usize {
        self.k
    }

    fn n(&self) -> usize {
        self.n
    }

    fn matmul(&self, m: usize, x: &[f32], out: &mut [f32]) -> Result<(), AccelError> {
        let bug = |what: &str| AccelError::new(AccelErrorKind::Bug, what.to_owned());
        if x.len() != m * self.k || out.len() != m * self.n {
            return Err(bug("operand sizes do not match m, k, n"));
        }
        let row_bytes = self.element.row_bytes(self.k).ok_or_else(|| bug("k is not whole blocks"))?;
        let mut row = vec![0.0f32; self.k];
        for j in 0..self.n {
            // SAFETY: `new` promised n rows.
            let at = unsafe { self.bytes.add(j * row_bytes) };
            // SAFETY: as above, k elements.
            if !unsafe { self.element.decode_row(at, &mut row) } {
                return Err(bug("the weight's type has no decoder"));
            }
            for (x, out) in x.chunks_exact(self.k).zip(out.chunks_exact_mut(self.n)) {
                out[j] = x.iter().zip(&row).map(|(a, b)| a * b).sum();
            }
        }
        Ok(())
    }
}
