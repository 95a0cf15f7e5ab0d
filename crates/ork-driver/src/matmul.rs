// SPDX-License-Identifier: MIT OR Apache-2.0
//! Products of floats: into the basis of the weight, quantise, multiply, scale.

use std::time::Instant;

use ork_layout::{FeatureLayout, Format, Int4};
use ork_plan::Datapath;
use ork_quant::{
    Basis, BasisId, QuantError, Scale, dequantise_row_i64, quantise_native_activation, quantise_row,
};
use ork_synth::OutputStage;
use parking_lot::Mutex;
use rayon::prelude::*;
use zerocopy::FromBytes;

use crate::accumulate::{dequantise_output_row, widened_row};
use crate::check::FirstWrong;
use crate::driver::{Driver, Engine, Job, Loaded, MatmulGroup, check_len};
use crate::order::{Node, fewest_resets};
use crate::share::{ROWS, share};
use crate::timeline::{Phase, Teller};
use crate::work::check_format;
use crate::{DriverError, Weight};

impl Driver {
    /// Multiplies one activation by several weights: `out[i][j] = sum over k of x[i][k] * w[j][k]`, with both
    /// operands quantised (the activation per row, the weight per output channel): to int8 with exact sums, or to int4
    /// for weights that are native int4, whose sums saturate at 16 bits in each K slice. Activations are brought into the
    /// basis of each weight first; weights of one basis, domain and cut into K slices share what was made of them.
    ///
    /// Weights of one datapath follow each other, so that the NPU is reset as seldom as can be.
    ///
    /// # Errors
    /// [`DriverError`]; the results are unspecified then.
    pub fn matmul(&self, group: &mut MatmulGroup<'_>) -> Result<(), DriverError> {
        self.matmul_parts(group, None)
    }

    /// The same; `finished` gets each weight's place in the group and its result as soon as it is there, while the NPU
    /// still has others to compute. It is called by this thread, so that what takes longer should go to another one.
    ///
    /// # Errors
    /// As [`Driver::matmul`]; results that were handed over before are right.
    pub fn matmul_then<'a>(
        &self,
        mut group: MatmulGroup<'a>,
        finished: &mut dyn FnMut(usize, &'a mut [f32]),
    ) -> Result<(), DriverError> {
        self.matmul_parts(&mut group, Some(finished))
    }

    fn matmul_parts<'a>(
        &self,
        group: &mut MatmulGroup<'a>,
        mut finished: Option<&mut dyn FnMut(usize, &'a mut [f32])>,
    ) -> Result<(), DriverError> {
        let m = group.m;
        let (first, k) = group.parts.first().map_or(("", 0), |(weight, _)| (weight.name(), weight.k()));
        let columns = group.parts.iter().map(|(weight, _)| weight.n()).sum();
        for (weight, out) in &group.parts {
            if weight.format() != Format::INT4_INT16 {
                check_format(weight, Format::INT8_INT32)?;
            }
            check_len("the activation", group.x.len(), m * weight.k())?;
            check_len("the result", out.len(), m * weight.n())?;
        }
        let listener = self.listener.read().clone();
        let teller = |weight| Teller { listener: listener.as_deref(), weight, size: (m, k, columns) };
        let began = Instant::now();
        let mut engine = self.engine.lock();
        let nodes: Vec<Node> = group
            .parts
            .iter()
            .map(|(weight, _)| Node { datapath: Datapath::of(weight.format()), after: Vec::new() })
            .collect();
        let order = fewest_resets(&nodes, engine.datapath.state()).order;
        let (mut loaded, mut turned) = (Loaded::default(), Turned::default());
        for index in order {
            let (weight, out) = &mut group.parts[index];
            let start = Instant::now();
            let x = turned.of(weight.basis(), group.x).map_err(|at| activation_error(weight, at))?;
            if weight.basis().is_some() {
                let turn = teller(weight.name()).lap(Phase::Turn, start);
                self.counters.lock().turn += turn;
            }
            let basis = weight.basis().map(Basis::id);
            for attempt in 1.. {
                if loaded.basis != basis {
                    loaded = Loaded { basis, ..Loaded::default() };
                }
                let Some(row) = self.part(&mut engine, &mut loaded, weight, m, x, out)? else { break };
                self.wrong_product(weight, m, row, attempt)?;
                // The features are laid out and made visible again, too.
                loaded = Loaded::default();
            }
            if let Some(finished) = &mut finished {
                finished(index, std::mem::take(out));
            }
        }
        teller(first).lap(Phase::Call, began);
        Ok(())
    }

    /// One weight of a group, with rows in its basis; gives the first row that is wrong, if products are checked.
    fn part(
        &self,
        engine: &mut Engine,
        loaded: &mut Loaded,
        weight: &Weight,
        m: usize,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<Option<usize>, DriverError> {
        let (k, n) = (weight.k(), weight.n());
        let native = weight.format() == Format::INT4_INT16;
        let wrong = FirstWrong::none();
        self.run(
            engine,
            Job { weight, m, stage: OutputStage::Plain },
            loaded,
            |features, m0, host, scales| {
                let rows = &x[m0 * k..][..features.rows() as usize * k];
                let quantised = if native {
                    quantise_native_rows(features, rows, host, scales)
                } else {
                    quantise_rows(features, rows, host, scales)
                };
                quantised.map_err(|(row, source)| activation_error(weight, (m0 + row, source)))
            },
            |outputs, m0, surfaces, scales| {
                let rows = outputs.rows() as usize;
                if let Some(check) = weight.check() {
                    x[m0 * k..][..rows * k].par_chunks(k).enumerate().for_each_init(
                        || vec![0_i8; k],
                        |codes, (row, x)| {
                            let sums = widened_row::<i32, i64>(outputs, surfaces, row as u32);
                            // What could be quantised once can be again.
                            if quantise_row(x, codes).is_err() || !check.holds(codes, &sums) {
                                wrong.note(m0 + row);
                            }
                        },
                    );
                }
                let (out, columns) = (&mut out[m0 * n..][..rows * n], weight.scales());
                share(
                    out.chunks_mut(ROWS * n).zip(scales.chunks(ROWS)).enumerate(),
                    |(piece, (out, scales))| {
                        let mut sums = Vec::new();
                        let rows = (piece * ROWS..).zip(out.chunks_exact_mut(n).zip(scales));
                        for (row, (target, scale)) in rows {
                            let row = row as u32;
                            if native {
                                let sums = widened_row::<i16, i64>(outputs, surfaces, row);
                                dequantise_row_i64(&sums, *scale, columns, target);
                            } else {
                                dequantise_output_row(
                                    outputs, surfaces, row, *scale, columns, &mut sums, target,
                                );
                            }
                        }
                    },
                );
            },
        )?;
        Ok(wrong.row())
    }
}

fn activation_error(weight: &Weight, (row, source): (usize, QuantError)) -> DriverError {
    DriverError::Activation { name: weight.name().to_owned(), source: source.in_row(row) }
}

/// Rows of an activation in the basis of some weights.
#[derive(Debug, Default)]
pub(crate) struct Turned {
    id: Option<BasisId>,
    rows: Vec<f32>,
}

impl Turned {
    /// The rows as a weight of this basis wants them: as they are without one, else turned, once for all weights in a
    /// row that have the same.
    ///
    /// # Errors
    /// The row and the element that is not finite: after the turn it would be all of the row.
    pub(crate) fn of<'a>(
        &'a mut self,
        basis: Option<&Basis>,
        x: &'a [f32],
    ) -> Result<&'a [f32], (usize, QuantError)> {
        let Some(basis) = basis else { return Ok(x) };
        if self.id == Some(basis.id()) {
            return Ok(&self.rows);
        }
        self.id = None;
        self.rows.resize(x.len(), 0.0);
        let k = basis.k();
        self.rows.par_chunks_mut(k).zip(x.par_chunks(k)).enumerate().try_for_each(|(row, (turned, x))| {
            if let Some(index) = x.iter().position(|x| !x.is_finite()) {
                return Err((row, QuantError::NonFinite { row: None, index, value: x[index] }));
            }
            turned.copy_from_slice(x);
            basis.activation_row(turned);
            Ok(())
        })?;
        self.id = Some(basis.id());
        Ok(&self.rows)
    }
}

/// Quantises rows into the feature buffer; the error names the row.
fn quantise_rows(
    layout: &FeatureLayout,
    x: &[f32],
    host: &mut [u8],
    scales: &mut Vec<Scale>,
) -> Result<(), (usize, QuantError)> {
    let k = layout.k() as usize;
    let quantised: Result<Vec<Scale>, (usize, QuantError)> =
        if let Some((slice, stored)) = layout.dense_rows() {
            // Rows lie behind each other: each is quantised in its place.
            let start = slice.offset as usize;
            let places = &mut host[start..start + layout.rows() as usize * stored];
            quantise_in_place((x, k), (places, stored))
        } else {
            let mut codes = vec![0i8; k];
            x.chunks_exact(k)
                .enumerate()
                .map(|(index, row)| {
                    let scale = quantise_row(row, &mut codes).map_err(|error| (index, error))?;
                    layout.write_row(index as u32, &codes, host);
                    Ok(scale)
                })
                .collect()
        };
    *scales = quantised?;
    Ok(())
}

/// Quantises rows of `k` elements, each into a place of `stored` bytes, zeros behind it.
fn quantise_in_place(
    (x, k): (&[f32], usize),
    (places, stored): (&mut [u8], usize),
) -> Result<Vec<Scale>, (usize, QuantError)> {
    let mut scales = vec![None; places.len() / stored];
    let first = Mutex::new(None::<(usize, QuantError)>);
    let pieces = places.chunks_mut(ROWS * stored).zip(x.chunks(ROWS * k)).zip(scales.chunks_mut(ROWS));
    share(pieces.enumerate(), |(piece, ((places, x), scales))| {
        let rows = places.chunks_exact_mut(stored).zip(x.chunks_exact(k)).zip(scales);
        for (index, ((place, row), scale)) in (piece * ROWS..).zip(rows) {
            let (data, padding) = place.split_at_mut(k);
            padding.fill(0);
            let codes = <[i8]>::mut_from_bytes(data).expect("bytes are bytes");
            match quantise_row(row, codes) {
                Ok(own) => *scale = Some(own),
                Err(error) => {
                    let mut first = first.lock();
                    if first.as_ref().is_none_or(|(other, _)| index < *other) {
                        *first = Some((index, error));
                    }
                }
            }
        }
    });
    match first.into_inner() {
        Some(error) => Err(error),
        None => Ok(scales.into_iter().flatten().collect()),
    }
}

/// Quantises rows to native int4 into the feature buffer; the error names the row.
fn quantise_native_rows(
    layout: &FeatureLayout,
    x: &[f32],
    host: &mut [u8],
    scales: &mut Vec<Scale>,
) -> Result<(), (usize, QuantError)> {
    let k = layout.k() as usize;
    // The search for the best clipping point is the work; laying nibbles out is not.
    let mut codes = vec![Int4::default(); x.len()];
    *scales = codes
        .par_chunks_mut(k)
        .zip(x.par_chunks(k))
        .enumerate()
        .map_init(
            || vec![0_i8; k],
            |wide, (index, (codes, row))| {
                let scale = quantise_native_activation(row, wide).map_err(|error| (index, error))?;
                for (code, wide) in codes.iter_mut().zip(wide) {
                    // The quantiser's codes have four bits.
                    *code = Int4::from_low_nibble(wide.cast_unsigned());
                }
                Ok(scale)
            },
        )
        .collect::<Result<_, _>>()?;
    layout.write_rows(&codes, host);
    Ok(())
}
