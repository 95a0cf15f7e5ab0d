// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far the weights of a pack are from those of the model.
//!
//! Reads what a run would read: tiles from the file, inflated, in the basis that the file rebuilds. So it also finds
//! tiles in the wrong order, scales of another tensor and a basis that went one way only.

use ork_isa::soc::Soc;
use ork_layout::{Int4, WeightLayout};
use ork_pack::{Pack, PackError, Tensor};
use ork_plan::PlanOptions;
use ork_quant::{Basis, GROUP, GROUP_BYTES, Scheme, Step, Tier, inflate, inflate_groups};
use rayon::prelude::*;

use crate::plan::layout_of;
use crate::{RecipeError, WeightSource};

/// How far one weight is from the model's.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorError {
    /// Its name.
    pub name: String,
    /// Input channels.
    pub k: usize,
    /// Output channels.
    pub n: usize,
    /// What was done to it.
    pub scheme: Scheme,
    /// Sum of squared differences.
    pub error: f64,
    /// Sum of squared weights.
    pub total: f64,
}

impl TensorError {
    /// Root of the mean squared difference over that of the weights.
    pub fn relative(&self) -> f64 {
        if self.total == 0.0 { self.error.sqrt() } else { (self.error / self.total).sqrt() }
    }
}

/// Compares every weight of a pack with the model's, brought back from its basis.
///
/// # Errors
/// [`RecipeError::Knowledge`] for a weight that the source does not have in this shape, [`RecipeError::Pack`].
pub fn measure(
    pack: &Pack,
    source: &dyn WeightSource,
    (soc, options): (&Soc, &PlanOptions),
) -> Result<Vec<TensorError>, RecipeError> {
    let weights = source.weights();
    let mut found = Vec::new();
    for tensor in pack.tensors() {
        let entry = tensor.entry();
        let shape = (entry.k as usize, entry.n as usize);
        let index =
            weights.iter().position(|weight| weight.name == entry.name && (weight.k, weight.n) == shape);
        let Some(index) = index else {
            let what = format!("the model has none of {} x {}", entry.k, entry.n);
            return Err(RecipeError::Knowledge { weight: entry.name.clone(), what });
        };
        let layout = layout_of(&weights[index], entry.scheme.tier, soc, options)?;
        if entry.layout != (&layout).into() {
            let what = "it is cut in another way than these settings of driver.plan do".to_owned();
            return Err(RecipeError::Knowledge { weight: entry.name.clone(), what });
        }
        found.push(measure_one(&tensor, &layout, &|row, out| source.row(index, row, out))?);
        source.release(index);
    }
    Ok(found)
}

fn measure_one(
    tensor: &Tensor<'_>,
    layout: &WeightLayout,
    rows: &(dyn Fn(usize, &mut [f32]) + Sync),
) -> Result<TensorError, PackError> {
    let entry = tensor.entry();
    let (k, n) = (entry.k as usize, entry.n as usize);
    let scales = tensor.scales()?;
    let basis = tensor.basis()?;
    let back = way_back(&basis);
    let inflated = inflated(entry.scheme.tier, tensor.data());
    let tiles = inflated.as_deref().unwrap_or(tensor.data());
    let row_error = |row: usize, wanted: &mut [f32], found: &mut [f32], codes: &mut Codes| {
        rows(row, wanted);
        codes.read(layout, row as u32, tiles, scales[row].get(), found);
        back.weight_row(found);
        let difference = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).powi(2);
        let error: f64 = wanted.iter().zip(found.iter()).map(difference).sum();
        (error, wanted.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>())
    };
    let sums: Vec<(f64, f64)> = (0..n)
        .into_par_iter()
        .map_init(
            || (vec![0f32; k], vec![0f32; k], Codes::new(entry.scheme.tier, k)),
            |(wanted, found, codes), row| row_error(row, wanted, found, codes),
        )
        .collect();
    let (error, total) = sums.into_iter().fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
    Ok(TensorError { name: entry.name.clone(), k, n, scheme: entry.scheme.clone(), error, total })
}

/// The int8 tiles of stored int4.
fn inflated(tier: Tier, stored: &[u8]) -> Option<Vec<u8>> {
    /// Groups for one thread at a time.
    const GROUPS: usize = 1 << 11;
    let mut codes = match tier {
        Tier::W8A8 | Tier::W4A4 => return None,
        Tier::I4A8 { .. } => vec![0i8; stored.len() * 2],
        Tier::I4A8Group => vec![0i8; stored.len() / GROUP_BYTES * GROUP],
    };
    match tier {
        Tier::W8A8 | Tier::W4A4 => {}
        Tier::I4A8 { codebook } => codes
            .par_chunks_mut(GROUPS * GROUP)
            .zip(stored.par_chunks(GROUPS * GROUP / 2))
            .for_each(|(codes, stored)| inflate(stored, codebook, codes)),
        Tier::I4A8Group => codes
            .par_chunks_mut(GROUPS * GROUP)
            .zip(stored.par_chunks(GROUPS * GROUP_BYTES))
            .for_each(|(codes, stored)| inflate_groups(stored, codes)),
    }
    Some(codes.into_iter().map(i8::cast_unsigned).collect())
}

/// The codes of one output channel.
enum Codes {
    Int8(Vec<i8>),
    Int4(Vec<Int4>),
}

impl Codes {
    fn new(tier: Tier, k: usize) -> Self {
        match tier {
            Tier::W8A8 | Tier::I4A8 { .. } | Tier::I4A8Group => Self::Int8(vec![0; k]),
            Tier::W4A4 => Self::Int4(vec![Int4::default(); k]),
        }
    }

    fn read(&mut self, layout: &WeightLayout, row: u32, tiles: &[u8], scale: f32, out: &mut [f32]) {
        match self {
            Self::Int8(codes) => {
                layout.unpack_channel(row, tiles, codes);
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(*code) * scale);
            }
            Self::Int4(codes) => {
                layout.unpack_channel(row, tiles, codes);
                out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(code.get()) * scale);
            }
        }
    }
}

/// The basis whose weight side undoes the weight side of another: rotation and signs are their own inverses, factors
/// become their reciprocals, and the order turns around.
fn way_back(basis: &Basis) -> Basis {
    let steps = basis.steps().iter().rev().map(|step| match step {
        Step::Smooth(factors) => Step::Smooth(factors.iter().map(|s| 1.0 / s).collect()),
        step @ (Step::Signs | Step::Rotate) => step.clone(),
    });
    // Reciprocals of positive normal numbers of ordinary size are such numbers; factors beyond are nobody's.
    Basis::new(basis.k(), steps.collect()).unwrap_or_else(|_| basis.clone())
}
