// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where weights come from.

/// A weight that is to be packed.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightInfo {
    /// Its name in the model file: `blk.LAYER.ROLE.weight` for those of layers.
    pub name: String,
    /// Input channels.
    pub k: usize,
    /// Output channels.
    pub n: usize,
    /// Its type in the model file, for messages (`f16`, `q4_1`).
    pub type_name: String,
    /// Bits per weight in the model file.
    pub bits_per_weight: f64,
}

/// The weights of a model.
pub trait WeightSource: Sync {
    /// All that are to be packed.
    fn weights(&self) -> &[WeightInfo];

    /// Writes the K weights of output channel `row` of weight `index` to `out`. Called from several threads.
    fn row(&self, index: usize, row: usize, out: &mut [f32]);

    /// Weight `index` is not needed for now: a source may let go of its memory.
    fn release(&self, _index: usize) {}
}
