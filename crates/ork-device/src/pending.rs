// SPDX-License-Identifier: MIT OR Apache-2.0
//! A round that runs while the caller does something else.

use std::fmt;
use std::time::Duration;

use crate::device::Device;
use crate::error::SubmitError;
use crate::events::EventKind;
use crate::flight::Flight;
use crate::kernel::{Feature, Fenced};
use crate::round::Round;
use crate::single::Start;
use crate::submission::Completed;

/// A round in flight. Its buffers stay borrowed until it is dropped; dropping it waits for its end, a bounded time.
pub struct Pending<'a> {
    flight: Flight<'a>,
}

impl fmt::Debug for Pending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({} chains)", self.flight.lanes.len())
    }
}

impl Device {
    /// Starts a round and returns. It is waited for by its seed, or by a fence where the kernel's word is enough.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing runs then.
    pub fn start<'a>(&'a self, round: Round<'a>) -> Result<Pending<'a>, SubmitError> {
        let method = round.check_start(self)?;
        let mut flight = Flight::prepare(self, round, method)?;
        flight.take_cores()?;
        flight.look_around()?;
        Ok(Pending { flight })
    }
}

impl Pending<'_> {
    /// Looks once: how many programs of each chain have written everything, counted from the first without a hole.
    /// Always 0 for rounds without a seed.
    ///
    /// # Errors
    /// [`SubmitError`] when the output cannot be looked at.
    pub fn progress(&mut self) -> Result<Vec<usize>, SubmitError> {
        self.flight.look_around()?;
        Ok((0..self.flight.lanes.len()).map(|lane| self.flight.frontier(lane)).collect())
    }

    /// Waits until the device's clock shows `deadline`; `None` when the round has not landed then.
    ///
    /// # Errors
    /// As [`Device::run`].
    pub fn wait_until(&mut self, deadline: Duration) -> Result<Option<Vec<Completed>>, SubmitError> {
        while !self.flight.look_around()? {
            if self.flight.device.clock().now() >= deadline {
                return Ok(None);
            }
            self.flight.pause();
        }
        self.flight.settle_all()?;
        self.flight.completed().map(Some)
    }

    /// Waits for the end, with everything that [`Device::run`] tries.
    ///
    /// # Errors
    /// As [`Device::run`].
    pub fn wait(mut self) -> Result<Vec<Completed>, SubmitError> {
        while !self.flight.look_around()? {
            self.flight.pause();
        }
        self.flight.settle_all()?;
        self.flight.completed()
    }

    /// Ends each chain as soon as the hardware lets it: after the program that it runs now and the one after that,
    /// which it may have fetched. Gives how many programs of each chain have run; what those wrote is valid.
    ///
    /// The kernel does not learn that a chain is shorter than it was told, and takes the rest for lost: so a chain that
    /// was cut is reaped as soon as it is overdue, which takes the window of its geometry (the device's time limit if it
    /// was never measured; less with driver 0.9.8), and on silicon a reset (100 ms). A chain can be cut, never extended or repeated
    /// (`isa-int4-sdp.md` §6.4).
    ///
    /// # Errors
    /// [`SubmitError::Unsupported`] where programs are not chained; [`SubmitError::Unwritten`] when the chain does not
    /// get as far as it must within its window.
    pub fn halt(mut self) -> Result<Vec<usize>, SubmitError> {
        let lanes = self.flight.lanes.len();
        if let Err(reason) = self.flight.device.features().need(Feature::Chains) {
            let core = self.flight.lanes.first().map_or(0, |lane| lane.core);
            return Err(SubmitError::Unsupported { core, reason: reason.to_string() });
        }
        let ended = self.flight.look_around()?;
        let mut cuts = vec![None; lanes];
        if !ended {
            for (lane, cut) in cuts.iter_mut().enumerate() {
                *cut = self.flight.cut(lane)?;
            }
        }
        let mut ran = vec![None; lanes];
        for (lane, cut) in cuts.into_iter().enumerate() {
            if let Some(cut) = cut {
                self.flight.reach(lane, cut.programs)?;
                ran[lane] = self.flight.mend(lane, cut)?;
            }
        }
        // Chains that were not cut come down by themselves.
        while !self.flight.look_around()? {
            self.flight.pause();
        }
        for lane in (0..lanes).filter(|lane| ran[*lane].is_some()) {
            self.flight.forget(lane);
        }
        self.flight.settle_all()?;
        let all = self.flight.lanes.iter().map(|lane| lane.chain.submission.tasks().len());
        Ok(ran.into_iter().zip(all).map(|(ran, all)| ran.unwrap_or(all)).collect())
    }
}

/// Where a chain was cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Programs that run all the same.
    pub(crate) programs: usize,
    /// Place of the word in the program buffer, and what it was.
    at: usize,
    word: u64,
}

/// Times that a chain is tried to be reaped.
const REAPS: u8 = 2;
/// Programs that hardware may be busy with or have fetched when it is told to stop.
const AHEAD: usize = 2;
/// Value field of a command word: bits 47 to 16 (`isa.md` §2.1).
const VALUE: u64 = 0xFFFF_FFFF << 16;
/// Target and register of the trailer's second word: the amount of the next program (`isa.md` §2.3).
const NEXT_AMOUNT: u64 = 0x0101_0000_0000_0014;

impl Flight<'_> {
    /// Takes the link out of the last program that must still run; `None` if it is too late for that.
    fn cut(&mut self, index: usize) -> Result<Option<Cut>, SubmitError> {
        let programs = self.frontier(index) + AHEAD;
        let lane = &mut self.lanes[index];
        let tasks = lane.chain.submission.tasks();
        if programs >= tasks.len() || lane.chain.writes.is_empty() {
            return Ok(None);
        }
        let last = tasks[programs - 1];
        let start = last.regcmd.0.checked_sub(lane.chain.programs.iova().0);
        let at = start.map(|start| start as usize + (last.body_words as usize + 1) * 8);
        let place = at.and_then(|at| Some((at, lane.chain.programs.host_mut().get_mut(at..at + 8)?)));
        let Some((at, place)) = place else {
            return Err(SubmitError::Round(format!("program {} lies outside its buffer", programs - 1)));
        };
        let word = u64::from_le_bytes(std::array::from_fn(|byte| place[byte]));
        if word & !VALUE != NEXT_AMOUNT {
            return Err(SubmitError::Round(format!("{word:#018x} is no link of program {}", programs - 1)));
        }
        place.copy_from_slice(&(word & !VALUE).to_le_bytes());
        self.flush_word(index, at)?;
        self.note(index, EventKind::Halted);
        Ok(Some(Cut { programs, at, word }))
    }

    fn flush_word(&self, index: usize, at: usize) -> Result<(), SubmitError> {
        let range = at as u64..at as u64 + 8;
        self.lanes[index]
            .chain
            .programs
            .flush(range)
            .map_err(|source| SubmitError::Buffer { doing: "flushing a link", source })
    }

    /// Waits until so many programs have run, or all.
    fn reach(&mut self, index: usize, programs: usize) -> Result<(), SubmitError> {
        loop {
            let ended = self.look_around()?;
            if self.frontier(index) >= programs || ended || self.has_ended(index) {
                return Ok(());
            }
            self.pause();
        }
    }

    /// Puts the link back, and lets the kernel throw away what it still waits for. Gives how many programs have run, if
    /// the chain was cut in time.
    ///
    /// The reaping job is the chain's first program, which writes what it wrote before.
    fn mend(&mut self, index: usize, cut: Cut) -> Result<Option<usize>, SubmitError> {
        let place = &mut self.lanes[index].chain.programs.host_mut()[cut.at..cut.at + 8];
        place.copy_from_slice(&cut.word.to_le_bytes());
        self.flush_word(index, cut.at)?;
        let ran = self.frontier(index);
        if ran < cut.programs || ran >= self.lanes[index].chain.submission.tasks().len() {
            // It stopped short, which its attempt says; or it was faster than the cut, and nothing is left over.
            return Ok(None);
        }
        let device = self.device;
        let kept = self.let_go(index);
        let lane = &self.lanes[index];
        let (submission, core, window) = (lane.chain.submission, lane.core, lane.window);
        let timeout_ms = submission.timeout_ms.unwrap_or(device.timeout_ms);
        let overdue = device.shared.kernel.reaps_after(window, timeout_ms) + device.limits.late;
        let due = lane.started + overdue;
        self.note(index, EventKind::Reaped);
        let first = submission.first_task();
        let taken = match kept {
            Some(taken) => taken,
            None => device.take(submission, core)?,
        };
        for attempt in 1..=REAPS {
            while self.now() < due {
                device.shared.clock.pause(due.saturating_sub(self.now()));
            }
            let start = Start { output: None, fenced: Fenced::No, patience: window, tasks: 1 };
            device.start_taken(&taken, submission, core, &start).map_err(|source| SubmitError::Refused {
                core,
                source,
                findings: device.take_findings(core),
            })?;
            // What waits behind it ends after it.
            let said = device.run_taken(&taken, &first, core);
            if said.is_err() && attempt < REAPS {
                // It was queued behind a chain that was not overdue yet, and refused in the end; now the chain is.
                continue;
            }
            device.judge(&first, core, said, device.take_findings(core))?;
            break;
        }
        self.hand_over(index, taken);
        Ok(Some(ran))
    }
}
