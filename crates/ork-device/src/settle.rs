// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a round: each chain landed, or what was tried in vain.

use std::sync::atomic::Ordering::Relaxed;

use ork_drm::Errno;

use crate::error::SubmitError;
use crate::events::EventKind;
use crate::flight::{Attempt, Flight, Looked, Missing, buffer};
use crate::kernel::{Ended, Feature, Fenced, KernelError};
use crate::proof::{Cells, Census, Reach, Verdict};
use crate::recovery::{Means, REFUSED_PAUSE, Step, Trouble};
use crate::round::Input;
use crate::single::Start;
use crate::submission::{Completed, Elapsed};

/// Jobs that must be moved from a core, one after the other, before it is given up.
const STRIKES_MAX: u8 = 2;

impl Flight<'_> {
    /// Brings every chain down, one after the other, whatever it takes.
    pub(crate) fn settle_all(&mut self) -> Result<(), SubmitError> {
        // One failure must not leave another chain in the air.
        let mut first = None;
        for index in 0..self.lanes.len() {
            let Some(attempt) = self.attempts[index].take() else { continue };
            if let Err(error) = self.settle(index, attempt) {
                self.device.count_failed(&error);
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn settle(&mut self, index: usize, mut attempt: Attempt) -> Result<(), SubmitError> {
        let mut fresh = true;
        loop {
            let trouble = match &attempt {
                Attempt::Proven => {
                    self.land(index);
                    return Ok(());
                }
                Attempt::Failed(said) => match said {
                    Ok(Ended::TimedOut { .. }) => Trouble::TimedOut,
                    Ok(Ended::Done { .. }) => Trouble::Incomplete,
                    Err(error) if is_transient(error) => Trouble::Refused,
                    // A program of which a line is stale: silicon would do something, the simulator does not guess.
                    Ok(Ended::Unmodelled) if self.device.injects_stale_lines() => Trouble::Refused,
                    Ok(Ended::Unmodelled) | Err(_) => return Err(self.error(index, attempt)),
                },
                Attempt::Incomplete => self.trouble(index, Trouble::Incomplete),
                Attempt::Silent => self.trouble(index, Trouble::Missed),
            };
            self.collect_findings(index);
            match trouble {
                Trouble::TimedOut => self.note(index, EventKind::TimedOut),
                Trouble::Refused => self.note(index, EventKind::Refused),
                // Reading again is no other attempt.
                Trouble::Missed if fresh => self.note(index, EventKind::Missed),
                Trouble::Missed | Trouble::Incomplete | Trouble::SeedValue => {}
            }
            let device = self.device;
            let lane = &mut self.lanes[index];
            lane.troubled = true;
            if trouble == Trouble::TimedOut && lane.seed.is_some() && device.may_recover {
                let range = self.missing_range(index);
                self.output.reload(range).map_err(buffer("fetching results"))?;
                if self.check(index) {
                    self.note(index, EventKind::LostInterrupt);
                    self.land(index);
                    return Ok(());
                }
            }
            let lane = &mut self.lanes[index];
            let spent = device.shared.clock.now().saturating_sub(self.began) > device.limits.budget();
            let others =
                (0..device.cores).filter(|core| *core != lane.core && !device.is_retired(*core)).count();
            let features = device.features();
            let means = Means {
                reset: features.has(Feature::Reset),
                other_cores: if features.has(Feature::CoreChoice) { others as u8 } else { 0 },
            };
            let step = if spent { Step::GiveUp } else { lane.ladder.step(trouble, means) };
            if step == Step::GiveUp || step.is_recovery() && !device.may_recover {
                if device.may_recover {
                    self.give_up(index);
                }
                return Err(self.error(index, attempt));
            }
            if matches!(attempt, Attempt::Failed(Ok(Ended::Unmodelled))) {
                // They speak of a program that is written again, not of the result to come.
                self.lanes[index].findings.clear();
            }
            fresh = step != Step::Reread;
            attempt = self.climb(index, step, trouble)?;
        }
    }

    /// Takes one step of the ladder.
    fn climb(&mut self, index: usize, step: Step, trouble: Trouble) -> Result<Attempt, SubmitError> {
        let device = self.device;
        match step {
            Step::Reread => {
                self.note(index, EventKind::Reread);
                // Without a seed the output shows nothing: only the kernel's word would, and it did not come.
                let complete =
                    self.lanes[index].seed.is_some() && self.wait_for_late_lines(index, Looked::NotYet)?;
                return Ok(match (complete, self.lanes[index].airborne) {
                    (true, _) => Attempt::Proven,
                    (false, true) => Attempt::Silent,
                    (false, false) => Attempt::Incomplete,
                });
            }
            Step::SecondSeed => {
                self.note(index, EventKind::SecondSeed);
                // Where the kernel did not say that the job ended, it may be stuck behind what it wrote, and a job that
                // is not waited for stays on its core until it is reaped. Without recovery nothing is: the question is
                // asked all the same.
                self.lanes[index].airborne &= device.may_recover;
            }
            Step::Resubmit if trouble == Trouble::Refused => device.shared.clock.pause(REFUSED_PAUSE),
            Step::Reset => {
                self.note(index, EventKind::Reset);
                // What it cannot do, the next attempt will show.
                if let Err(error) = device.reset() {
                    tracing::warn!(%error, "cannot reset the NPU");
                }
            }
            Step::Move => {
                self.note(index, EventKind::Moved);
                self.strike(index);
                let old = self.lanes[index].core;
                let other = (1..device.cores).map(|step| (old + step) % device.cores);
                let healthy = { other }.find(|core| !device.is_retired(*core));
                self.lanes[index].core = healthy.unwrap_or(old);
            }
            Step::Resubmit | Step::GiveUp => {}
        }
        if step.is_recovery() {
            self.note(index, EventKind::Resubmitted);
        }
        self.seed_again(index)?;
        self.again(index)
    }

    /// Puts a seed where nothing shows yet that it was written, and makes everything visible again that the programs
    /// read.
    fn seed_again(&mut self, index: usize) -> Result<(), SubmitError> {
        let lane = &mut self.lanes[index];
        if let Some(seed) = lane.seed {
            let bytes = self.output.host();
            let missing = match &mut lane.missing {
                Missing::From(_) => seed.missing(lane.chain.writes.iter().flatten(), bytes),
                Missing::Atoms(atoms) => seed.still_missing(std::mem::take(atoms).into_iter(), bytes),
            };
            let next = seed.other();
            next.fill_atoms(&missing, self.output.host_mut());
            lane.seed = Some(next);
            lane.missing = Missing::Atoms(missing);
            let range = self.missing_range(index);
            self.output.flush(range).map_err(buffer("flushing the seed"))?;
        }
        let chain = &self.lanes[index].chain;
        chain.programs.flush(chain.programs_live.clone()).map_err(buffer("flushing programs"))?;
        for input in &self.inputs {
            if let Input::Host(input, range) = input {
                input.flush(range.clone()).map_err(buffer("flushing inputs"))?;
            }
        }
        Ok(())
    }

    /// Runs a chain again and waits for it.
    fn again(&mut self, index: usize) -> Result<Attempt, SubmitError> {
        let device = self.device;
        self.lanes[index].started = self.now();
        if device.features().has(Feature::HiddenErrors) {
            self.start(index)?;
            loop {
                if let Some(attempt) = self.attempts[index].take() {
                    return Ok(attempt);
                }
                if let Some(attempt) = self.look(index)? {
                    self.taken[index] = None;
                    return Ok(attempt);
                }
            }
        }
        let lane = &self.lanes[index];
        let (submission, core) = (lane.chain.submission, lane.core);
        let taken = device.take(submission, core)?;
        if lane.airborne {
            // The lost job is still the kernel's: only a submit that does not wait throws it away. That one could
            // outlast its proof and write the output again under its next user, so another one, which does wait,
            // follows it.
            let tasks = submission.tasks().len();
            let start =
                Start { output: self.output.object(), fenced: Fenced::No, patience: lane.window, tasks };
            self.note(index, EventKind::Reaped);
            if let Err(error) = device.start_taken(&taken, submission, core, &start) {
                return Ok(Attempt::Failed(Err(error)));
            }
        }
        let said = device.run_taken(&taken, submission, core);
        drop(taken);
        if said.is_ok() {
            self.lanes[index].airborne = false;
        }
        let attempt = self.after_word(index, said)?;
        if self.lanes[index].seed.is_none() && matches!(attempt, Attempt::Proven) {
            self.fetch_results()?;
        }
        Ok(attempt)
    }

    /// Two jobs after each other that do not end on a core are the core's fault.
    fn strike(&self, index: usize) {
        let core = usize::from(self.lanes[index].core);
        if self.device.strikes[core].fetch_add(1, Relaxed) + 1 >= STRIKES_MAX {
            self.device.retired[core].store(true, Relaxed);
            self.note(index, EventKind::CoreRetired);
            tracing::warn!(core, "core given up: nothing completes on it");
        }
    }

    /// Leaves a chain to the kernel.
    pub(crate) fn give_up(&mut self, index: usize) {
        self.note(index, EventKind::GaveUp);
        let lane = &mut self.lanes[index];
        if std::mem::take(&mut lane.airborne) && self.device.features().has(Feature::CoreChoice) {
            // Whatever is queued behind it waits for ever.
            self.device.retired[usize::from(lane.core)].store(true, Relaxed);
        }
    }

    /// What is wrong with an incomplete output. With a seed that results can have it may be complete: if the kernel says
    /// that the job ended, or some program wrote something, that is asked first.
    fn trouble(&self, index: usize, otherwise: Trouble) -> Trouble {
        let lane = &self.lanes[index];
        let (Some(seed), Missing::From(_)) = (lane.seed, &lane.missing) else { return otherwise };
        let bytes = self.output.host();
        let ran =
            |cells: &Vec<Cells>| Census::of(cells, seed, bytes).verdict(seed.reach()) != Verdict::Untouched;
        let may_be_complete = otherwise == Trouble::Incomplete || lane.chain.writes.iter().any(ran);
        if seed.reach() == Reach::InBand && may_be_complete { Trouble::SeedValue } else { otherwise }
    }

    fn land(&mut self, index: usize) {
        self.collect_findings(index);
        let now = self.now();
        let device = self.device;
        let lane = &mut self.lanes[index];
        let tasks = lane.chain.submission.tasks().len() as u32;
        let elapsed = match (lane.ns, device.board().is_some()) {
            (Some(ns), true) => Elapsed::Modelled { ns },
            (Some(ns), false) => Elapsed::Measured { ns },
            (None, _) => {
                let waited = now.saturating_sub(lane.started);
                Elapsed::Waited { ns: u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX) }
            }
        };
        let findings = device.objections(std::mem::take(&mut lane.findings));
        let completed = Completed { core: lane.core, tasks, elapsed, findings };
        device.count_completed(&completed);
        device.strikes[usize::from(lane.core)].store(0, Relaxed);
        lane.landed = Some(completed);
    }

    /// What an attempt that stays failed is to the caller.
    fn error(&mut self, index: usize, attempt: Attempt) -> SubmitError {
        self.collect_findings(index);
        let waited = self.now().saturating_sub(self.began);
        let lane = &mut self.lanes[index];
        let findings = std::mem::take(&mut lane.findings);
        if let Attempt::Failed(said) = attempt {
            return match self.device.judge(lane.chain.submission, lane.core, said, findings) {
                Err(error) => error,
                Ok(_) => SubmitError::Round("a completed job is no failure".to_owned()),
            };
        }
        let (mut missing, mut elements, mut untouched) = (0, 0, 0);
        if let Some(seed) = lane.seed {
            for cells in lane.chain.writes.iter() {
                let census = Census::of(cells, seed, self.output.host());
                missing += census.survivors;
                elements += census.elements;
                untouched += u32::from(census.verdict(seed.reach()) == Verdict::Untouched);
            }
        }
        let programs = lane.chain.writes.len() as u32;
        SubmitError::Unwritten { core: lane.core, missing, elements, untouched, programs, waited, findings }
    }
}

/// Whether the same call may succeed a moment later: a reset by somebody, a domain in use, memory.
fn is_transient(error: &KernelError) -> bool {
    matches!(error.errno(), Some(Errno::EINVAL | Errno::EBUSY | Errno::ENOMEM))
}
