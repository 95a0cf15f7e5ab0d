// SPDX-License-Identifier: MIT OR Apache-2.0
//! A round in flight: from the seed to the proof, with what is tried when there is none.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ork_drm::Errno;
use ork_emu::Finding;
use parking_lot::Mutex;

use crate::buffer::DmaBuffer;
use crate::device::Device;
use crate::error::{DeviceError, SubmitError};
use crate::events::EventKind;
use crate::kernel::{Ended, Feature, Fenced, KernelError, Word};
use crate::options::SubmitMode;
use crate::proof::{Seed, frontier};
use crate::recovery::Ladder;
use crate::round::{Chain, Input, Method, Round, Witness, hull};
use crate::shared::Shared;
use crate::single::{OpenFence, Said, Start, Taken};
use crate::spread::Spread;
use crate::submission::{Completed, Submission};

/// First and longest pause between two looks at an output.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Longest wait inside the kernel before the clock is asked again.
const KERNEL_WAIT_MAX: Duration = Duration::from_millis(20);

/// What a chain still has to show.
#[derive(Debug)]
pub(crate) enum Missing {
    /// All programs from this one on.
    From(usize),
    /// These atoms, which were given a seed again.
    Atoms(Vec<usize>),
}

/// A chain of the round.
pub(crate) struct Lane<'a> {
    pub(crate) chain: Chain<'a>,
    /// Where it runs.
    pub(crate) core: u8,
    pub(crate) seed: Option<Seed>,
    pub(crate) missing: Missing,
    pub(crate) ladder: Ladder,
    pub(crate) window: Duration,
    /// When it was started last.
    pub(crate) started: Duration,
    /// Started, and neither seen to be complete nor known to have ended.
    pub(crate) airborne: bool,
    pub(crate) fence: Option<OpenFence>,
    pub(crate) findings: Vec<Finding>,
    /// Something went wrong: its time says nothing about the next one's.
    pub(crate) troubled: bool,
    /// Nanoseconds on the NPU, by the kernel.
    pub(crate) ns: Option<u64>,
    pub(crate) landed: Option<Completed>,
}

/// How one attempt ended.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// By the kernel's word, and the word was not that all is well.
    Failed(Said),
    /// All is well: every cell was written, or the kernel's word is enough.
    Proven,
    /// The kernel says that it ended, and the output stays incomplete.
    Incomplete,
    /// The window passed.
    Silent,
}

/// Whether an output was looked at, and found incomplete, since the kernel spoke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    Already,
    NotYet,
}

/// A round on its way.
pub(crate) struct Flight<'a> {
    pub(crate) device: &'a Device,
    pub(crate) output: &'a mut DmaBuffer,
    live: Range<u64>,
    pub(crate) inputs: Vec<Input<'a>>,
    pub(crate) lanes: Vec<Lane<'a>>,
    method: Method,
    pub(crate) began: Duration,
    /// The cores that chains will be started on, as far as they are taken already, by lane.
    pub(crate) held: Vec<Option<Taken<'a>>>,
    /// The cores of chains that were started, by lane.
    pub(crate) taken: Vec<Option<Taken<'a>>>,
    /// How the first attempts ended, by lane.
    pub(crate) attempts: Vec<Option<Attempt>>,
}

pub(crate) fn buffer(doing: &'static str) -> impl Fn(DeviceError) -> SubmitError {
    move |source| SubmitError::Buffer { doing, source }
}

impl Device {
    /// Runs a round and waits for it: all its chains have completed, and what they wrote is readable in the output's
    /// live range. What goes wrong is tried again as far as the options allow, each time counted
    /// ([`event_counts`](Self::event_counts)); the whole takes at most [`longest_round`](Self::longest_round) by the
    /// device's clock.
    ///
    /// # Errors
    /// [`SubmitError`]: nothing of the output may be used then.
    pub fn run(&self, round: Round<'_>, spread: &dyn Spread) -> Result<Vec<Completed>, SubmitError> {
        let method = round.check(self)?;
        let mut flight = Flight::prepare(self, round, method)?;
        if method == Method::Block {
            flight.block(spread)?;
        } else {
            flight.take_cores()?;
            while !flight.look_around()? {
                flight.pause();
            }
            flight.settle_all()?;
        }
        flight.completed()
    }

    /// As [`run`](Self::run), for a round that is over sooner than a thread is awake: of its chains only the first is
    /// waited for by a call, and before that the others are started by the same thread, each with a fence; without one
    /// where the kernel has none and the round has a seed. Where none of that can be, this is `run`.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_short(&self, round: Round<'_>, spread: &dyn Spread) -> Result<Vec<Completed>, SubmitError> {
        let needs_fences = round.witness == Witness::KernelWord;
        // Decided once: another thread may learn meanwhile that there are none.
        let fenced = if self.lacks_fences() { Fenced::No } else { Fenced::Yes };
        let plain = self.submit_mode != SubmitMode::Auto
            || round.chains.len() < 2
            || needs_fences && fenced == Fenced::No;
        if plain || round.check(self)? != Method::Block {
            return self.run(round, spread);
        }
        let mut flight = Flight::prepare(self, round, Method::BlockFirst(fenced))?;
        flight.block_first(fenced, spread)?;
        flight.completed()
    }

    /// Whether the kernel is known to have no fences: by its kind, or because it refused one.
    #[must_use]
    pub fn lacks_fences(&self) -> bool {
        self.refused_fence.load(Relaxed) || self.features().need(Feature::Fences).is_err()
    }

    /// A core that is not given up: the wanted one, if it is not.
    fn core_for(&self, wanted: u8) -> u8 {
        let healthy = (0..self.cores).find(|core| !self.is_retired(*core));
        if self.is_retired(wanted) { healthy.unwrap_or(wanted) } else { wanted }
    }
}

impl<'a> Flight<'a> {
    /// Puts the seed where a round will write that was checked.
    pub(crate) fn prepare(device: &'a Device, round: Round<'a>, method: Method) -> Result<Self, SubmitError> {
        let Round { chains, output, live, witness, inputs } = round;
        let seed = match witness {
            Witness::KernelWord => None,
            Witness::Seed(seed) => Some(seed),
        };
        if let Some(seed) = seed {
            for chain in &chains {
                seed.fill(chain.writes.iter().flatten(), output.host_mut());
            }
            for chain in &chains {
                output.flush(hull(&chain.writes)).map_err(buffer("flushing the seed"))?;
            }
        }
        let began = device.shared.clock.now();
        let windows = device.windows.lock();
        let lanes: Vec<Lane<'a>> = chains
            .into_iter()
            .map(|chain| Lane {
                core: device.core_for(chain.submission.core()),
                seed,
                missing: Missing::From(0),
                ladder: Ladder::default(),
                window: windows.of(chain.geometry, &device.limits),
                started: began,
                airborne: false,
                fence: None,
                findings: Vec::new(),
                troubled: false,
                ns: None,
                landed: None,
                chain,
            })
            .collect();
        drop(windows);
        let held = lanes.iter().map(|_| None).collect();
        let taken = lanes.iter().map(|_| None).collect();
        let attempts = lanes.iter().map(|_| None).collect();
        Ok(Self { device, output, live, inputs, lanes, method, began, held, taken, attempts })
    }

    pub(crate) fn now(&self) -> Duration {
        self.device.shared.clock.now()
    }

    pub(crate) fn note(&self, lane: usize, kind: EventKind) {
        self.device.shared.note(Some(self.lanes[lane].core), kind);
    }

    /// All chains at once, each by a call that waits; then what each has to show.
    fn block(&mut self, spread: &dyn Spread) -> Result<(), SubmitError> {
        let device = self.device;
        type Slot = Mutex<Option<Result<Said, SubmitError>>>;
        let said: Vec<Slot> = self.lanes.iter().map(|_| Mutex::new(None)).collect();
        let jobs: Vec<(&Submission, u8)> =
            self.lanes.iter().map(|lane| (lane.chain.submission, lane.core)).collect();
        spread.spread(jobs.len(), &|index| {
            let (submission, core) = jobs[index];
            let result = device.take(submission, core);
            let result = result.map(|taken| device.run_taken(&taken, submission, core));
            *said[index].lock() = Some(result);
        });
        if self.lanes.iter().all(|lane| lane.seed.is_none()) {
            self.fetch_results()?;
        }
        for (index, said) in said.into_iter().enumerate() {
            self.collect_findings(index);
            let attempt = match said.into_inner() {
                Some(Ok(said)) => self.after_word(index, said)?,
                Some(Err(error)) => return Err(error),
                None => return Err(SubmitError::Round("the spread left a chain out".to_owned())),
            };
            self.attempts[index] = Some(attempt);
        }
        self.settle_all()
    }

    /// All chains at once, from this thread: the first by a call that waits, the others before it.
    fn block_first(&mut self, fenced: Fenced, spread: &dyn Spread) -> Result<(), SubmitError> {
        self.take_cores()?;
        for index in 1..self.lanes.len() {
            // Two chains may share a core by now, and follow each other.
            if self.lanes[..index].iter().any(|other| other.core == self.lanes[index].core) {
                continue;
            }
            let none_flies = self.taken.iter().all(Option::is_none);
            self.start(index)?;
            let refused = |attempt: &Attempt| matches!(attempt, Attempt::Failed(Err(error)) if error.errno() == Some(Errno::EINVAL));
            if none_flies && fenced == Fenced::Yes && self.attempts[index].as_ref().is_some_and(refused) {
                return self.block_after_refusal(index, spread);
            }
        }
        let (submission, core) = (self.lanes[0].chain.submission, self.lanes[0].core);
        let mut taken = match self.held[0].take() {
            Some(taken) => taken,
            None => return Err(SubmitError::Round("the first chain has no core".to_owned())),
        };
        self.device.write_descriptors(&mut taken, submission, core)?;
        let said = self.device.run_taken(&taken, submission, core);
        self.hand_over(0, taken);
        self.collect_findings(0);
        self.attempts[0] = Some(self.after_word(0, said)?);
        while !self.look_around()? {
            self.pause();
        }
        if self.lanes.iter().all(|lane| lane.seed.is_none()) {
            self.fetch_results()?;
        }
        for index in 1..self.lanes.len() {
            self.collect_findings(index);
        }
        self.settle_all()
    }

    /// The kernel refused the first job with a fence, and nothing runs. It is built without fences, if the round does well
    /// without.
    fn block_after_refusal(&mut self, index: usize, spread: &dyn Spread) -> Result<(), SubmitError> {
        self.note(index, EventKind::Refused);
        self.attempts[index] = None;
        self.held.iter_mut().for_each(|held| *held = None);
        self.method = Method::Block;
        self.block(spread)?;
        self.device.refused_fence.store(true, Relaxed);
        Ok(())
    }

    /// Makes readable what a round has written whose end is known by the kernel's word.
    pub(crate) fn fetch_results(&mut self) -> Result<(), SubmitError> {
        let live = self.live.clone();
        self.output.reload(live).map_err(buffer("fetching results"))
    }

    pub(crate) fn collect_findings(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        lane.findings.extend(self.device.take_findings(lane.core));
    }

    /// The results of a round whose chains have all landed.
    pub(crate) fn completed(&mut self) -> Result<Vec<Completed>, SubmitError> {
        let landed = self.lanes.iter_mut().map(|lane| lane.landed.take());
        landed.collect::<Option<Vec<_>>>().ok_or_else(|| SubmitError::Round("a chain has no end".to_owned()))
    }

    pub(crate) fn start(&mut self, index: usize) -> Result<(), SubmitError> {
        let device = self.device;
        let fenced = match self.method {
            Method::Fence => Fenced::Yes,
            Method::BlockFirst(fenced) => fenced,
            Method::Block | Method::Poll => Fenced::No,
        };
        let lane = &mut self.lanes[index];
        let (submission, core) = (lane.chain.submission, lane.core);
        let taken = match self.held[index].take() {
            Some(mut taken) => {
                device.write_descriptors(&mut taken, submission, core)?;
                taken
            }
            None => device.take(submission, core)?,
        };
        lane.started = device.shared.clock.now();
        let tasks = submission.tasks().len();
        let start = Start { output: self.output.object(), fenced, patience: lane.window, tasks };
        match device.start_taken(&taken, submission, core, &start) {
            Ok(fence) => {
                lane.fence = fence;
                lane.airborne = true;
                self.taken[index] = Some(taken);
            }
            Err(error) => self.attempts[index] = Some(Attempt::Failed(Err(error))),
        }
        Ok(())
    }

    /// Starts what can be started and looks once at what flies; whether all first attempts have ended.
    pub(crate) fn look_around(&mut self) -> Result<bool, SubmitError> {
        let mut waiting = false;
        for index in 0..self.lanes.len() {
            if self.attempts[index].is_some() {
                continue;
            }
            if !self.lanes[index].airborne {
                // Cores were given up: two chains share one, and follow each other.
                let core = self.lanes[index].core;
                let busy = (0..self.lanes.len())
                    .any(|other| self.taken[other].is_some() && self.lanes[other].core == core);
                if !busy {
                    self.start(index)?;
                }
                waiting = true;
                continue;
            }
            match self.look(index)? {
                Some(attempt) => {
                    self.attempts[index] = Some(attempt);
                    if let Some(taken) = self.taken[index].take() {
                        self.hand_over(index, taken);
                    }
                }
                None => waiting = true,
            }
        }
        Ok(!waiting)
    }

    /// Lets some time pass before the next look; not where the kernel waited already.
    pub(crate) fn pause(&self) {
        if self.device.features().has(Feature::HiddenErrors)
            || self.lanes.iter().any(|lane| lane.fence.is_some())
        {
            return;
        }
        // A tenth of what has passed is a tenth of delay at most.
        let now = self.now();
        let flown =
            self.lanes.iter().filter(|lane| lane.airborne).map(|lane| now.saturating_sub(lane.started));
        let pause = flown.min().unwrap_or(PAUSE_MAX) / 10;
        self.device.shared.clock.pause(pause.clamp(PAUSE_MIN, PAUSE_MAX));
    }

    /// Looks at one chain that flies.
    pub(crate) fn look(&mut self, index: usize) -> Result<Option<Attempt>, SubmitError> {
        // Before the look: what happens during it is seen by it or by the next one.
        let stands = self.device.shared.clock.stands();
        let flown = self.now().saturating_sub(self.lanes[index].started);
        let word = self.ask_kernel(index, self.lanes[index].window.saturating_sub(flown))?;
        if self.lanes[index].seed.is_none() {
            // Only with a fence, whose word is enough here.
            if word == Word::Ended {
                if !matches!(self.method, Method::BlockFirst(_)) {
                    self.fetch_results()?;
                }
                return Ok(Some(self.arrived(index)));
            }
        } else {
            if self.check(index) {
                return Ok(Some(self.arrived(index)));
            }
            if word == Word::Ended {
                let complete = self.wait_for_late_lines(index, Looked::Already)?;
                let attempt = if complete { self.arrived(index) } else { Attempt::Incomplete };
                self.lanes[index].airborne = false;
                return Ok(Some(attempt));
            }
        }
        let over = !stands && flown > self.lanes[index].window;
        Ok(over.then_some(Attempt::Silent))
    }

    fn arrived(&mut self, index: usize) -> Attempt {
        let lane = &mut self.lanes[index];
        lane.airborne = false;
        let Shared { clock, kernel, .. } = &*self.device.shared;
        let took = clock.now().saturating_sub(lane.started);
        let timeout_ms = lane.chain.submission.timeout_ms.unwrap_or(self.device.timeout_ms);
        let lingers = kernel.lingers(took, lane.window, timeout_ms);
        if !lingers.is_zero() {
            clock.pause(lingers);
        }
        if !lane.troubled {
            self.device.windows.lock().learn(lane.chain.geometry, took);
        }
        Attempt::Proven
    }

    /// What the kernel knows of a chain, after making its output readable.
    fn ask_kernel(&mut self, index: usize, limit: Duration) -> Result<Word, SubmitError> {
        let device = self.device;
        let called = Instant::now();
        let (word, bytes) = self.wait_in_kernel(index, limit.min(KERNEL_WAIT_MAX))?;
        if word == Word::Busy {
            device.shared.clock.waited(called.elapsed());
        }
        if bytes != 0 {
            self.output.count_reload(self.live.end - self.live.start, bytes);
        } else if self.lanes[index].seed.is_some() {
            let range = self.missing_range(index);
            self.output.reload(range).map_err(buffer("fetching results"))?;
        }
        Ok(word)
    }

    /// Waits where the kernel can; gives the bytes that became readable by that.
    fn wait_in_kernel(&mut self, index: usize, limit: Duration) -> Result<(Word, u64), SubmitError> {
        let device = self.device;
        let Some(fence) = &self.lanes[index].fence else {
            let Some(object) = self.output.object() else {
                return Err(buffer("waiting for its writers")(DeviceError::Pooled));
            };
            // SAFETY: the output keeps its object alive.
            let waited = unsafe { device.shared.kernel.wait(object, limit) };
            return waited.map_err(|source| self.refused(index, source));
        };
        match fence.wait(limit) {
            Ok(true) => {
                self.lanes[index].fence = None;
                Ok((Word::Ended, 0))
            }
            Ok(false) | Err(Errno::EINTR | Errno::EAGAIN) => Ok((Word::Busy, 0)),
            Err(source) => {
                Err(self.refused(index, KernelError::File { doing: "cannot wait for a fence", source }))
            }
        }
    }

    fn refused(&self, index: usize, source: KernelError) -> SubmitError {
        let core = self.lanes[index].core;
        SubmitError::Refused { core, source, findings: self.device.take_findings(core) }
    }

    /// From the first to the last byte that a chain still has to show.
    pub(crate) fn missing_range(&self, index: usize) -> Range<u64> {
        let lane = &self.lanes[index];
        match &lane.missing {
            Missing::From(program) => hull(&lane.chain.writes[*program..]),
            Missing::Atoms(atoms) => match (atoms.first(), atoms.last()) {
                (Some(first), Some(last)) => *first as u64..*last as u64 + 16,
                _ => 0..0,
            },
        }
    }

    /// Whether every cell of a chain was seen to be written.
    pub(crate) fn check(&mut self, index: usize) -> bool {
        let lane = &mut self.lanes[index];
        let Some(seed) = lane.seed else { return true };
        let bytes = self.output.host();
        match &mut lane.missing {
            Missing::From(program) => {
                *program = frontier(&lane.chain.writes, seed, *program, bytes);
                *program == lane.chain.writes.len()
            }
            Missing::Atoms(atoms) => {
                *atoms = seed.still_missing(atoms.drain(..), bytes);
                atoms.is_empty()
            }
        }
    }

    /// Programs of a chain that were seen to have written everything, from the first.
    pub(crate) fn frontier(&self, index: usize) -> usize {
        match &self.lanes[index].missing {
            Missing::From(program) => *program,
            Missing::Atoms(_) => 0,
        }
    }

    /// Whether the first attempt of a chain has ended.
    pub(crate) fn has_ended(&self, index: usize) -> bool {
        self.attempts[index].is_some()
    }

    /// Takes a chain out of the round: the caller sees to its end, with the core that it had.
    pub(crate) fn let_go(&mut self, index: usize) -> Option<Taken<'a>> {
        self.lanes[index].airborne = false;
        self.attempts[index] = Some(Attempt::Proven);
        self.taken[index].take()
    }

    /// Forgets the end of a chain that somebody else has seen to.
    pub(crate) fn forget(&mut self, index: usize) {
        self.attempts[index] = None;
    }

    /// Looks until all is there, a bounded time.
    pub(crate) fn wait_for_late_lines(&mut self, index: usize, looked: Looked) -> Result<bool, SubmitError> {
        let deadline = self.now() + self.device.limits.late;
        let mut pause = PAUSE_MIN;
        let mut late = looked == Looked::Already;
        loop {
            let over = self.now() >= deadline;
            let range = self.missing_range(index);
            self.output.reload(range).map_err(buffer("fetching results"))?;
            if self.check(index) {
                if late {
                    self.note(index, EventKind::LateLines);
                }
                return Ok(true);
            }
            if over {
                return Ok(false);
            }
            late = true;
            self.device.shared.clock.pause(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// What the kernel's answer to a call that waited comes to.
    pub(crate) fn after_word(&mut self, index: usize, said: Said) -> Result<Attempt, SubmitError> {
        let tasks = self.lanes[index].chain.submission.tasks().len() as u32;
        match said {
            Ok(Ended::Done { tasks: done, ns }) if done == tasks => {
                self.lanes[index].ns = Some(ns);
                let proven =
                    self.lanes[index].seed.is_none() || self.wait_for_late_lines(index, Looked::NotYet)?;
                Ok(if proven { Attempt::Proven } else { Attempt::Incomplete })
            }
            other => Ok(Attempt::Failed(other)),
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // What flies writes buffers that are about to be somebody else's: give it its time.
        for index in 0..self.lanes.len() {
            if !self.lanes[index].airborne {
                continue;
            }
            let ended = loop {
                match self.look(index) {
                    Ok(None) => self.device.shared.clock.pause(PAUSE_MAX),
                    Ok(Some(Attempt::Silent)) | Err(_) => break false,
                    Ok(Some(_)) => break true,
                }
            };
            if !ended {
                self.give_up(index);
            }
        }
    }
}
