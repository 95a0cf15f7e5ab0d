// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue of one core, and the thread that serves it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use ork_drm::Errno;

use crate::busy::Clocks;
use crate::lock::{Condvar, Mutex};

/// What a core can be given to do.
pub(crate) trait Work: Send + Sync {
    /// Does the part of one core, on the core's thread.
    fn run(&self, core: u8) -> Verdict;
    /// The model failed while it ran.
    fn panicked(&self, core: u8);
    /// Tasks of one core, for the choice of the least loaded.
    fn load(&self, core: u8) -> u32;
    /// Stops touching memory: the core was reset.
    fn cancel(&self);
    /// The job was thrown away.
    fn discard(&self);
    /// Milliseconds after which a later submit may throw the job away; `None` when somebody waits for it.
    fn time_limit_ms(&self) -> Option<u32>;
    /// The file that submitted it.
    fn file(&self) -> u64;
    /// The file is gone.
    fn orphan(&self);
    /// Whether it is.
    fn is_orphan(&self) -> bool;
}

/// How a core is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The core takes the next job.
    Free,
    /// The core waits for an interrupt that never comes.
    Stuck,
}

pub(crate) struct Lane {
    /// Whoever brings work to an idle core does it at once.
    instant: bool,
    clocks: Arc<Clocks>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<dyn Work>>,
    running: Option<Running>,
    has_thread: bool,
    closed: bool,
}

struct Running {
    work: Arc<dyn Work>,
    since: Instant,
    stuck: bool,
    /// Taken off the core while it still computes: its end counts for nothing.
    abandoned: bool,
}

impl State {
    fn begin(&mut self, work: &Arc<dyn Work>) {
        let since = Instant::now();
        self.running = Some(Running { work: Arc::clone(work), since, stuck: false, abandoned: false });
    }
}

fn same(a: &Arc<dyn Work>, b: &Arc<dyn Work>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

impl Lane {
    /// A lane whose work counts on these clocks.
    pub(crate) fn new(instant: bool, clocks: &Arc<Clocks>) -> Self {
        Self { instant, clocks: Arc::clone(clocks), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Queues work; the core's thread starts with the first that waits for it.
    ///
    /// # Errors
    /// `ENOMEM` when there is no thread to be had.
    pub(crate) fn push(self: &Arc<Self>, core: u8, work: Arc<dyn Work>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if self.instant && state.running.is_none() && state.queue.is_empty() && !state.closed {
            state.begin(&work);
            drop(state);
            self.finish(core, work);
            return Ok(());
        }
        if !state.has_thread {
            let lane = Arc::clone(self);
            let thread = std::thread::Builder::new().name(format!("ork-npu{core}"));
            thread.spawn(move || lane.serve(core)).map_err(|_| Errno::ENOMEM)?;
            state.has_thread = true;
        }
        state.queue.push_back(work);
        self.changed.notify_all();
        Ok(())
    }

    fn serve(&self, core: u8) {
        loop {
            let work = {
                let idle =
                    |state: &mut State| !state.closed && (state.running.is_some() || state.queue.is_empty());
                let mut state = self.changed.wait_while(self.state.lock(), None, idle);
                if state.closed {
                    return;
                }
                let Some(work) = state.queue.pop_front() else { continue };
                state.begin(&work);
                work
            };
            self.finish(core, work);
        }
    }

    /// Does work that has begun, and takes it off the core unless it is stuck there.
    fn finish(&self, core: u8, work: Arc<dyn Work>) {
        let computing = self.clocks.compute();
        let verdict = catch_unwind(AssertUnwindSafe(|| work.run(core))).unwrap_or_else(|_| {
            work.panicked(core);
            Verdict::Free
        });
        drop(computing);
        let mut state = self.state.lock();
        let stays = verdict == Verdict::Stuck && !work.is_orphan();
        let done = match &mut state.running {
            Some(running) if stays && !running.abandoned => {
                running.stuck = true;
                None
            }
            _ => state.running.take(),
        };
        if !state.queue.is_empty() {
            // It came while another thread than the core's did this.
            self.changed.notify_all();
        }
        drop(state);
        if verdict == Verdict::Stuck && !stays {
            work.discard();
        }
        // What this frees may close the board, and this lane with it: no lock may be held.
        drop((done, work));
    }

    /// Tasks that run or wait here.
    pub(crate) fn load(&self, core: u8) -> u32 {
        let state = self.state.lock();
        let running = state.running.as_ref().map(|running| &running.work);
        running.into_iter().chain(&state.queue).map(|work| work.load(core)).sum()
    }

    /// Whether the core is stuck with a job that nobody waits for, so that what is queued behind it waits for ever.
    pub(crate) fn is_blocked(&self) -> bool {
        let state = self.state.lock();
        state.running.as_ref().is_some_and(|running| running.stuck && running.work.time_limit_ms().is_some())
    }

    /// Whether the core runs something that will end, or will take something from its queue.
    pub(crate) fn is_computing(&self) -> bool {
        let state = self.state.lock();
        match &state.running {
            Some(running) => !running.stuck,
            None => !state.queue.is_empty(),
        }
    }

    /// Takes work off the core and out of the queue.
    pub(crate) fn remove(&self, work: &Arc<dyn Work>) {
        let mut state = self.state.lock();
        let mut removed = Vec::new();
        while let Some(at) = state.queue.iter().position(|queued| same(queued, work)) {
            removed.extend(state.queue.remove(at));
        }
        let mut done = None;
        match &mut state.running {
            Some(running) if same(&running.work, work) => {
                running.abandoned = true;
                if running.stuck {
                    done = state.running.take();
                }
            }
            _ => {}
        }
        self.changed.notify_all();
        drop(state);
        drop((removed, done));
    }

    /// The core was reset under what runs there.
    pub(crate) fn cancel_running(&self) {
        let running = self.state.lock().running.as_ref().map(|running| Arc::clone(&running.work));
        if let Some(work) = running {
            work.cancel();
        }
    }

    /// What a new non-blocking submit throws away: the running job, if `overdue` says so of its time limit, its age
    /// and whether it is stuck; and all that waits behind it.
    pub(crate) fn overdue(&self, overdue: impl FnOnce(u32, Instant, bool) -> bool) -> Vec<Arc<dyn Work>> {
        let state = self.state.lock();
        let Some(running) = &state.running else { return Vec::new() };
        let Some(limit) = running.work.time_limit_ms() else { return Vec::new() };
        if running.abandoned || !overdue(limit, running.since, running.stuck) {
            return Vec::new();
        }
        std::iter::once(&running.work).chain(&state.queue).cloned().collect()
    }

    /// A file is gone: its jobs will not stay here when they are stuck. Gives the one that is.
    pub(crate) fn orphan(&self, file: u64) -> Option<Arc<dyn Work>> {
        let state = self.state.lock();
        let running = state.running.as_ref();
        let works = running.map(|running| &running.work).into_iter().chain(&state.queue);
        works.filter(|work| work.file() == file).for_each(|work| work.orphan());
        running
            .filter(|running| running.stuck && running.work.is_orphan())
            .map(|running| Arc::clone(&running.work))
    }

    /// Ends the thread when it is idle.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}
