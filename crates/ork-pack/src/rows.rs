// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the tiles of a tensor back to its rows, for products on the CPU.

use ork_layout::{Format, WeightLayout};
use ork_quant::{Codebook, Scale, StoredRows, Tier, inflate};

use crate::PackError;
use crate::reader::Tensor;

/// The byte's nibble for every int8 code of a codebook.
fn nibble_of(codebook: Codebook) -> [u8; 256] {
    let mut nibbles = [codebook.zero(); 256];
    for (nibble, code) in (0_u8..).zip(codebook.int8()) {
        nibbles[usize::from(code.cast_unsigned())] = nibble;
    }
    nibbles
}

/// A tensor of stored int4 in the plain basis as rows in the order of the weight; `None` for tensors of another tier or basis.
/// The rows hold the same codes and scales: their products are those of the tiles.
///
/// # Errors
/// [`PackError`] for a tensor that contradicts itself.
pub fn stored_rows(tensor: &Tensor<'_>) -> Result<Option<StoredRows>, PackError> {
    let entry = tensor.entry();
    let Tier::I4A8 { codebook } = entry.scheme.tier else { return Ok(None) };
    let k = entry.k as usize;
    if !tensor.basis()?.steps().is_empty() || k > StoredRows::K_MAX {
        return Ok(None);
    }
    let damaged = |what: String| PackError::Tensor { name: entry.name.clone(), what };
    let layout = WeightLayout::new(Format::INT8_INT32, entry.k, entry.n, &entry.layout.k_slices)
        .map_err(|error| damaged(error.to_string()))?;
    let scales = tensor.scales()?;
    let stored = tensor.data();
    if stored.len() as u64 * 2 != layout.bytes() || scales.len() != entry.n as usize {
        return Err(damaged(format!("{} bytes of {}", stored.len(), entry.scheme.tier)));
    }
    let mut tiles = vec![0_i8; stored.len() * 2];
    inflate(stored, codebook, &mut tiles);
    let tiles: Vec<u8> = tiles.into_iter().map(i8::cast_unsigned).collect();
    let nibbles = nibble_of(codebook);
    let rows = |row: usize, out: &mut [u8]| -> Result<Scale, PackError> {
        let mut codes = vec![0_i8; k];
        layout.unpack_channel(row as u32, &tiles, &mut codes);
        for (out, code) in out.iter_mut().zip(codes) {
            *out = nibbles[usize::from(code.cast_unsigned())];
        }
        Ok(scales[row])
    };
    StoredRows::from_nibbles(k, entry.n as usize, codebook, &rows).map(Some)
}
