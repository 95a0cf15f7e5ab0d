// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is run together: a chain for each core, one output, and how it shows that it was written.

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::{CACHE_LINE_BYTES, DmaBuffer, DomainId, ResidentBuffer};
use crate::device::Device;
use crate::error::SubmitError;
use crate::kernel::{Feature, Fenced};
use crate::options::SubmitMode;
use crate::proof::{Cells, Seed};
use crate::submission::Submission;

/// How the end of a round is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// The kernel says that the job is done, and the output is visible after cache maintenance. Enough for drivers
    /// that report errors and for results of 32 bits (`isa-int4-sdp.md` §1.10, `uapi.md` A.11 row 9).
    KernelWord,
    /// Every cell that is written differs from this seed.
    Seed(Seed),
}

/// The programs of one core in a round.
#[derive(Debug)]
pub struct Chain<'a> {
    /// The programs. The core is a wish: another one may run them when it is given up.
    pub submission: &'a Submission,
    /// What each program writes in the output, in order.
    pub writes: Arc<[Vec<Cells>]>,
    /// Where the programs lie: flushed again before they run again, and changed by a halt.
    pub programs: &'a mut DmaBuffer,
    /// Which of the buffer's bytes are programs.
    pub programs_live: Range<u64>,
    /// What the time of the chain depends on, as one number: jobs with equal numbers take equal times.
    pub geometry: u64,
}

/// Chains that run at the same time, each on its core.
#[derive(Debug)]
pub struct Round<'a> {
    /// The chains, on different cores and in the same domain.
    pub chains: Vec<Chain<'a>>,
    /// What all of them write, in cache lines that no two of them share.
    pub output: &'a mut DmaBuffer,
    /// Which of its bytes the caller will read.
    pub live: Range<u64>,
    /// How the end is known.
    pub witness: Witness,
    /// What they read besides programs.
    pub inputs: Vec<Input<'a>>,
}

/// Something that the programs of a round read: alive until it has landed.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// Bytes that the CPU wrote; flushed again before a chain runs again.
    Host(&'a DmaBuffer, Range<u64>),
    /// Something that only the NPU sees.
    Resident(&'a ResidentBuffer),
}

impl Input<'_> {
    fn domain(&self) -> DomainId {
        match self {
            Self::Host(buffer, _) => buffer.domain(),
            Self::Resident(buffer) => buffer.domain(),
        }
    }
}

/// How a round is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// One call per chain, which returns when it has ended.
    Block,
    /// As [`Self::Block`] for the first chain; as [`Self::Fence`] for the others, or as [`Self::Poll`] without fences.
    BlockFirst(Fenced),
    /// Start, and look at the output; the kernel may know whether the job has ended.
    Poll,
    /// Start, and wait for a fence.
    Fence,
}

impl Round<'_> {
    /// Refuses a round that cannot be right, and says how to wait for it.
    pub(crate) fn check(&self, device: &Device) -> Result<Method, SubmitError> {
        let wrong = |what: String| Err(SubmitError::Round(what));
        let Some(first) = self.chains.first() else { return wrong("it has no chain".to_owned()) };
        let mut cores = 0_u32;
        for chain in &self.chains {
            let submission = chain.submission;
            device.check(submission)?;
            if cores & 1 << submission.core != 0 {
                return wrong(format!("core {} has two chains", submission.core));
            }
            cores |= 1 << submission.core;
            if submission.domain != first.submission.domain {
                return wrong("its chains are of different domains".to_owned());
            }
            if chain.programs_live.start > chain.programs_live.end
                || chain.programs_live.end > chain.programs.len()
            {
                return wrong(format!("the programs of core {} leave their buffer", submission.core));
            }
        }
        let domain = first.submission.domain;
        let programs = self.chains.iter().map(|chain| chain.programs.domain());
        let mut domains = self.inputs.iter().map(Input::domain).chain(programs).chain([self.output.domain()]);
        if let Some(other) = domains.find(|other| *other != domain) {
            return wrong(format!("a buffer of domain {other} in a round of domain {domain}"));
        }
        if self.output.object().is_none() {
            return wrong("its output shares a kernel object with others".to_owned());
        }
        if self.live.start > self.live.end || self.live.end > self.output.len() {
            return wrong(format!("bytes {:?} leave an output of {}", self.live, self.output.len()));
        }
        if !self.output.is_of(&device.shared) {
            return wrong("the output belongs to another device".to_owned());
        }
        if matches!(self.witness, Witness::Seed(_)) {
            self.check_cells()?;
        }
        self.method(device, first.submission.core)
    }

    /// As [`check`](Self::check), for a round that nobody waits for in the kernel.
    pub(crate) fn check_start(&self, device: &Device) -> Result<Method, SubmitError> {
        let method = self.check(device)?;
        Ok(match (method, self.witness) {
            (Method::Block, Witness::KernelWord) => Method::Fence,
            (Method::Block, Witness::Seed(_)) => Method::Poll,
            (other, _) => other,
        })
    }

    fn check_cells(&self) -> Result<(), SubmitError> {
        let wrong = |what: String| Err(SubmitError::Round(what));
        let mut lines: Vec<(u64, u64, u8)> = Vec::new();
        for chain in &self.chains {
            let core = chain.submission.core;
            if chain.writes.len() != chain.submission.tasks.len() {
                let (cells, programs) = (chain.writes.len(), chain.submission.tasks.len());
                return wrong(format!(
                    "{cells} descriptions of output for {programs} programs on core {core}"
                ));
            }
            let mut cells = chain.writes.iter().flatten();
            if let Some(cells) = cells.find(|cells| !cells.fits(self.output.len())) {
                return wrong(format!("{cells:?} are no cells of an output of {} bytes", self.output.len()));
            }
            if let Some(program) = chain.writes.iter().position(Vec::is_empty) {
                return wrong(format!("program {program} of core {core} writes nothing that could be seen"));
            }
            lines.extend(chain.writes.iter().flatten().map(|cells| {
                let hull = cells.hull();
                (hull.start / CACHE_LINE_BYTES, hull.end.div_ceil(CACHE_LINE_BYTES), core)
            }));
        }
        lines.sort_unstable();
        // Of what begins before a line, the part that reaches furthest, for each core.
        let mut reach: Vec<(u8, u64)> = Vec::with_capacity(self.chains.len());
        for (start, end, core) in lines {
            if let Some((other, _)) = reach.iter().find(|(other, until)| *other != core && *until > start) {
                return wrong(format!("cores {other} and {core} write to the same cache lines"));
            }
            match reach.iter_mut().find(|(own, _)| *own == core) {
                Some((_, until)) => *until = end.max(*until),
                None => reach.push((core, end)),
            }
        }
        Ok(())
    }

    fn method(&self, device: &Device, core: u8) -> Result<Method, SubmitError> {
        let features = device.features();
        let seeded = matches!(self.witness, Witness::Seed(_));
        let hidden = features.has(Feature::HiddenErrors);
        let method = match device.submit_mode {
            SubmitMode::Blocking => Method::Block,
            SubmitMode::Auto if features.has(Feature::BlockingSubmit) => Method::Block,
            SubmitMode::Auto | SubmitMode::Polled => Method::Poll,
            SubmitMode::Fenced => Method::Fence,
        };
        if !seeded && (hidden || method == Method::Poll) {
            let why = if hidden { "hides errors" } else { "is only polled" };
            let reason = format!("{} {why}, so the round needs a seed as its witness", features.name());
            return Err(SubmitError::Unsupported { core, reason });
        }
        Ok(method)
    }
}

/// From the first cell to the last.
pub(crate) fn hull(writes: &[Vec<Cells>]) -> Range<u64> {
    let start = writes.iter().flatten().map(|cells| cells.offset).min().unwrap_or(0);
    let end = writes.iter().flatten().map(|cells| cells.hull().end).max().unwrap_or(0);
    start..end
}
