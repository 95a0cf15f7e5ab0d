// SPDX-License-Identifier: MIT OR Apache-2.0
//! A product whose programs are written once and used again and again, with buffers of its own or of the caller.
//!
//! The part of a call that is not the NPU's work is mostly writing programs: 2652 us fell to 440 us for each token when
//! the original kept them (`isa.md` §12.1). What changes from call to call are at most addresses, and where those stand
//! is found by writing the programs for two sets of addresses: a word that differs is an address, and by how much it
//! differs says of which buffer.

use std::ops::Range;
use std::sync::Arc;

use ork_device::{Chain, DmaBuffer, DomainId, Input, Purpose, Reach, Round, Submission, Witness};
use ork_isa::Iova;
use ork_layout::{Element, FeatureLayout, Format, OutputLayout};
use ork_plan::Plan;
use ork_synth::{Binding, Bindings, emit};

use crate::driver::{Driver, Engine};
use crate::execution::{ChainCells, Pool, cells_of, geometry, seed_of, tasks, witness_of};
use crate::residency::Weights;
use crate::work::check_format;
use crate::{DriverError, Weight};

/// Values of command words: bits 47 to 16.
const VALUE_SHIFT: u32 = 16;

/// Products that take less, in modelled microseconds, are over before a thread for each core is worth its wake-up.
const SHORT_US: f64 = 1000.0;

/// A buffer that programs have addresses of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Features,
    Weights,
    Outputs,
}

/// A word of a program that is an address.
#[derive(Clone, Copy, Debug)]
struct Patch {
    operand: Operand,
    /// Where the word lies in the program buffer.
    at: u32,
    /// How far into the operand it points.
    offset: u32,
}

/// The programs of one core.
#[derive(Debug)]
struct Lane {
    regcmd: DmaBuffer,
    submission: Submission,
    patches: Vec<Patch>,
    writes: ChainCells,
    geometry: u64,
    /// Addresses that the words have now, for the NPU too; unknown after a change that failed.
    bound: Option<[Iova; 3]>,
}

impl Lane {
    /// Puts addresses into the programs, if they have others; gives how many words changed. `flush` makes a range of the
    /// programs visible to the NPU.
    fn bind<E>(
        &mut self,
        addresses: [Iova; 3],
        mut flush: impl FnMut(&DmaBuffer, Range<u64>) -> Result<(), E>,
    ) -> Result<u64, E> {
        // Until all words are there the programs have addresses of both.
        let bound = self.bound.take();
        let mut patched = 0;
        for patch in &self.patches {
            let new = addresses[patch.operand as usize];
            if bound.is_some_and(|bound| bound[patch.operand as usize] == new) {
                continue;
            }
            let at = patch.at as usize;
            let place = &mut self.regcmd.host_mut()[at..at + 8];
            let word = u64::from_le_bytes(std::array::from_fn(|byte| place[byte]));
            let keep = word & !(u64::from(u32::MAX) << VALUE_SHIFT);
            let value = u64::from(new.0.wrapping_add(patch.offset)) << VALUE_SHIFT;
            place.copy_from_slice(&(keep | value).to_le_bytes());
            flush(&self.regcmd, at as u64..at as u64 + 8)?;
            patched += 1;
        }
        self.bound = Some(addresses);
        Ok(patched)
    }
}

/// A product with a fixed number of rows and a fixed shape of the weight. It can be used with every weight of that
/// shape.
#[derive(Debug)]
pub struct Precompiled {
    plan: Arc<Plan>,
    domain: DomainId,
    lanes: Vec<Lane>,
    features: DmaBuffer,
    outputs: DmaBuffer,
    depth: u64,
    patched: u64,
}

impl Precompiled {
    /// Rows.
    #[must_use]
    pub fn m(&self) -> usize {
        self.plan.m() as usize
    }

    /// How features lie.
    #[must_use]
    pub fn features(&self) -> &FeatureLayout {
        &self.plan.shapes()[0].features
    }

    /// How results lie.
    #[must_use]
    pub fn outputs(&self) -> &OutputLayout {
        &self.plan.shapes()[0].outputs
    }

    /// Words that were changed since it was made: none as long as the same buffers are used.
    #[must_use]
    pub fn patched_words(&self) -> u64 {
        self.patched
    }

    fn fits(&self, weight: &Weight) -> bool {
        let (plan, layout) = (&self.plan, weight.layout());
        (plan.format(), plan.k(), plan.n()) == (layout.format(), layout.k(), layout.n())
    }
}

/// Buffers of the caller, instead of the product's own.
#[derive(Debug)]
pub struct InPlace<'a> {
    /// Rows as [`Precompiled::features`] says, flushed.
    pub features: &'a DmaBuffer,
    /// Where results come as [`Precompiled::outputs`] says.
    pub outputs: &'a mut DmaBuffer,
}

impl Driver {
    /// Writes the programs of `m` rows with a weight, for use with every weight of its shape.
    ///
    /// # Errors
    /// [`DriverError::NotOnePass`] for products that one pass does not compute; else as for a product.
    pub fn precompile(&self, weight: &Weight, m: usize) -> Result<Precompiled, DriverError> {
        // No fold: its programs must not be the first ones behind a reset, and these may be.
        let plan = self.plan(weight, m, false)?;
        if plan.pass_count() != 1 {
            return Err(DriverError::NotOnePass { passes: plan.pass_count() });
        }
        let failed = |doing| move |source| DriverError::Batch { doing, source };
        let extents = plan.extents();
        let pinned = weight.pin()?;
        let weights = pinned.open();
        let domain = weights.domain();
        let device = &self.device;
        let features = device.alloc_scratch(domain, extents.a_bytes).map_err(failed("allocating"))?;
        let outputs = device.alloc_scratch(domain, extents.c_bytes).map_err(failed("allocating"))?;
        let shape = &plan.shapes()[0];
        let mut lanes = Vec::with_capacity(shape.chains.len());
        for chain in &shape.chains {
            let bytes = extents.regcmd_bytes[usize::from(chain.core)];
            let mut regcmd = device.alloc_in(domain, Purpose::Regcmd, bytes).map_err(failed("allocating"))?;
            let bound = [features.iova(), weights.iova(), outputs.iova()];
            let write = |addresses: [Iova; 3]| {
                let [a, b, c] = addresses;
                let bindings = Bindings {
                    a: Binding { iova: a, len: extents.a_bytes },
                    b: Binding { iova: b, len: extents.b_bytes },
                    c: Binding { iova: c, len: extents.c_bytes },
                    regcmd: Binding { iova: regcmd.iova(), len: bytes },
                };
                emit(shape, chain.core, &bindings)
                    .map_err(|source| DriverError::Synth { name: weight.name().to_owned(), source })
            };
            let programs = write(bound)?;
            let patches = patches(&write, programs.bytes(), bound)?;
            let submission = Submission::new(chain.core, tasks(&programs).collect()).in_domain(domain);
            let len = programs.bytes().len();
            let words = programs.bytes().to_vec();
            drop(programs);
            regcmd.host_mut()[..len].copy_from_slice(&words);
            regcmd.flush(0..len as u64).map_err(failed("flushing programs"))?;
            let writes = chain.programs.iter().map(|tile| cells_of(&shape.outputs, tile)).collect();
            let geometry = geometry(shape, chain.core);
            lanes.push(Lane { regcmd, submission, patches, writes, geometry, bound: Some(bound) });
        }
        let tiles = shape.chains.iter().flat_map(|chain| &chain.programs);
        let depth = tiles.map(|tile| u64::from(tile.k)).max().unwrap_or(0);
        drop(weights);
        drop(pinned);
        Ok(Precompiled { plan, domain, lanes, features, outputs, depth, patched: 0 })
    }

    /// A product with programs that are there: rows `a` (M x K) with a weight. `read_row` turns row `m` of the surfaces
    /// into results, as [`OutputLayout`] describes them.
    ///
    /// # Errors
    /// As for a product; [`DriverError::Misfit`] for a weight of another shape or another address space.
    pub fn run_precompiled<T: Element, R>(
        &self,
        product: &mut Precompiled,
        weight: &Weight,
        a: &[T],
        out: &mut [R],
        read_row: impl Fn(&OutputLayout, &[u8], u32, &mut [R]),
    ) -> Result<(), DriverError> {
        let (m, k, n) = (product.m(), weight.k(), weight.n());
        crate::product::check_precision::<T>(weight.name(), weight.format())?;
        crate::driver::check_len("the activation", a.len(), m * k)?;
        crate::driver::check_len("the result", out.len(), m * n)?;
        let Precompiled { plan, features, .. } = product;
        let layout = &plan.shapes()[0].features;
        layout.write_rows(a, features.host_mut());
        features
            .flush(0..layout.bytes())
            .map_err(|source| DriverError::Batch { doing: "flushing features", source })?;
        self.execute(product, weight, None)?;
        let layout = product.outputs();
        let surfaces = &product.outputs.host()[..layout.bytes() as usize];
        for (row, target) in out.chunks_exact_mut(n).enumerate() {
            read_row(layout, surfaces, row as u32, target);
        }
        Ok(())
    }

    /// The exact product of int8 rows with programs that are there.
    ///
    /// # Errors
    /// As [`Driver::run_precompiled`], and [`DriverError::Format`] for other weights.
    pub fn run_precompiled_codes(
        &self,
        product: &mut Precompiled,
        weight: &Weight,
        a: &[i8],
        out: &mut [i32],
    ) -> Result<(), DriverError> {
        check_format(weight, Format::INT8_INT32)?;
        self.checked(weight, product.m(), a, out, |a, out| {
            self.run_precompiled(product, weight, a, out, crate::accumulate::sum_output_row)
        })
    }

    /// A product on buffers of the caller, without a copy: the programs are pointed at them. Results are readable in the
    /// output buffer when this returns.
    ///
    /// # Errors
    /// As [`Driver::run_precompiled`]; [`DriverError::Misfit`] for buffers that are too short or lie elsewhere.
    pub fn run_in_place(
        &self,
        product: &mut Precompiled,
        weight: &Weight,
        buffers: InPlace<'_>,
    ) -> Result<(), DriverError> {
        self.execute(product, weight, Some(buffers))
    }

    fn execute(
        &self,
        product: &mut Precompiled,
        weight: &Weight,
        buffers: Option<InPlace<'_>>,
    ) -> Result<(), DriverError> {
        let misfit = |what: String| DriverError::Misfit { name: weight.name().to_owned(), what };
        if !product.fits(weight) {
            let plan = &product.plan;
            return Err(misfit(format!(
                "its shape is not the {} {}x{} of the programs",
                plan.format(),
                plan.k(),
                plan.n()
            )));
        }
        let failed = |doing| move |source| DriverError::Batch { doing, source };
        // As everywhere the engine comes first, then the slot of a streamed weight.
        let mut engine = self.engine.lock();
        let Engine { datapath, submitters, .. } = &mut *engine;
        let pinned = weight.pin()?;
        let weights: Weights<'_> = pinned.open();
        if weights.domain() != product.domain {
            return Err(misfit(format!(
                "it lies in address space {}, the programs in {}",
                weights.domain(),
                product.domain
            )));
        }
        let Precompiled { plan, domain, lanes, features, outputs, depth, patched } = product;
        let shape = &plan.shapes()[0];
        let (features, outputs) = match buffers {
            None => (&*features, outputs),
            Some(InPlace { features, outputs }) => (features, outputs),
        };
        for (what, domain_of, len, needed) in [
            ("the features", features.domain(), features.len(), shape.features.bytes()),
            ("the output", outputs.domain(), outputs.len(), shape.outputs.bytes()),
        ] {
            if domain_of != *domain || len < needed {
                return Err(misfit(format!(
                    "{what} of {len} bytes in address space {domain_of}, where {needed} in {domain} are needed"
                )));
            }
        }
        // Words hold addresses of whole atoms.
        if features.iova().0 % 16 != 0 || outputs.iova().0 % 16 != 0 {
            return Err(misfit("a buffer does not begin at a multiple of 16 bytes".to_owned()));
        }
        let addresses = [features.iova(), weights.iova(), outputs.iova()];
        for lane in &mut *lanes {
            *patched += lane.bind(addresses, DmaBuffer::flush).map_err(failed("flushing programs"))?;
        }
        let is_short = plan.modelled().us < SHORT_US;
        let mut witness = witness_of(&self.device, plan.format(), *depth, self.options.completion);
        let seed = seed_of(plan.format(), *depth);
        if is_short && self.device.lacks_fences() && seed.reach() == Reach::Unreachable {
            // Results of a short product are few, and to look at them needs no thread either.
            witness = Witness::Seed(seed);
        }
        let (name, m, k, n) = (weight.name(), plan.m() as usize, weight.k(), weight.n());
        datapath.run((&self.device, &self.counters), (plan.datapath(), name), || {
            let chains = lanes
                .iter_mut()
                .map(|lane| Chain {
                    submission: &lane.submission,
                    writes: Arc::clone(&lane.writes),
                    programs_live: 0..lane.regcmd.len(),
                    programs: &mut lane.regcmd,
                    geometry: lane.geometry,
                })
                .collect();
            let inputs = std::iter::once(Input::Host(features, 0..shape.features.bytes()))
                .chain(weights.input(weight.device_bytes()))
                .collect();
            let round =
                Round { chains, output: &mut *outputs, live: 0..shape.outputs.bytes(), witness, inputs };
            let pool = Pool(submitters);
            let completed =
                if is_short { self.device.run_short(round, &pool) } else { self.device.run(round, &pool) };
            let completed = completed.map_err(|source| DriverError::Submit {
                name: name.to_owned(),
                m,
                k,
                n,
                source: Box::new(source),
            })?;
            match completed.iter().flat_map(|done| done.findings()).next() {
                Some(finding) => Err(DriverError::Objection {
                    name: name.to_owned(),
                    m,
                    k,
                    n,
                    finding: Box::new(finding.clone()),
                }),
                None => Ok(()),
            }
        })?;
        let mut counters = self.counters.lock();
        counters.matmuls += 1;
        counters.rows += u64::from(plan.m());
        counters.macs += u64::from(plan.m()) * (weight.k() * weight.n()) as u64;
        counters.programs += lanes.iter().map(|lane| lane.submission.tasks().len() as u64).sum::<u64>();
        Ok(())
    }
}

/// Finds the address words: each operand is moved by itself, and what differs then is its address.
fn patches<E>(
    write: &impl Fn([Iova; 3]) -> Result<ork_synth::ProgramSet, E>,
    words: &[u8],
    bound: [Iova; 3],
) -> Result<Vec<Patch>, E> {
    const MOVE: u32 = 0x1000;
    let mut patches = Vec::new();
    for operand in [Operand::Features, Operand::Weights, Operand::Outputs] {
        let mut moved = bound;
        let own = &mut moved[operand as usize];
        // Wherever it lies, there is a page on one side of it.
        *own = if own.0 >= MOVE { Iova(own.0 - MOVE) } else { Iova(own.0 + MOVE) };
        let other = write(moved)?;
        let pairs = words.chunks_exact(8).zip(other.bytes().chunks_exact(8));
        for (index, (word, _)) in pairs.enumerate().filter(|(_, (word, other))| word != other) {
            let word = u64::from_le_bytes(std::array::from_fn(|byte| word[byte]));
            let address = (word >> VALUE_SHIFT) as u32;
            let offset = address.wrapping_sub(bound[operand as usize].0);
            patches.push(Patch { operand, at: index as u32 * 8, offset });
        }
    }
    Ok(patches)
}

#[cfg(test)]
mod tests {
    use ork_device::{Board, Device, DeviceOptions, EmuOptions};

    use super::*;
    use crate::DriverOptions;

    #[test]
    fn addresses_that_were_half_changed_are_all_written_again() {
        let device =
            Device::on_board(&Board::new(&EmuOptions::default()), &DeviceOptions::default()).unwrap();
        let driver = Driver::new(device, DriverOptions::default()).unwrap();
        let weight = driver.load_codes("w", 512, 320, &|_, out| out.fill(1)).unwrap();
        let mut product = driver.precompile(&weight, 2).unwrap();
        let lane = &mut product.lanes[0];
        let (words, old) = (lane.regcmd.host().to_vec(), lane.bound.unwrap());
        let all = lane.patches.len() as u64;
        assert!(all > 1);
        let other = old.map(|address| Iova(address.0 + 4096));
        let mut calls = 0;
        lane.bind(other, |_, _| {
            calls += 1;
            if calls == 2 { Err(()) } else { Ok(()) }
        })
        .unwrap_err();
        assert_ne!(lane.regcmd.host(), words, "half changed");
        assert_eq!(lane.bind(old, DmaBuffer::flush).unwrap(), all);
        assert_eq!(lane.regcmd.host(), words);
        assert_eq!(lane.bind(old, DmaBuffer::flush).unwrap(), 0);
    }
}
