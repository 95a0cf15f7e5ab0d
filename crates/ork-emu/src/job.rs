// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job of the vendor driver, on one or several cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ork_drm::Errno;
use ork_isa::Iova;
use ork_rknpu::uapi::{RknpuSubcoreTask, RknpuTask};
use ork_sim::PcJob;
use zerocopy::{FromZeros, IntoBytes};

use crate::board::Inner;
use crate::bus::Space;
use crate::chain::{Completion, End, Start};
use crate::fence::SyncFile;
use crate::finding::FindingKind;
use crate::lane::{Verdict, Work};
use crate::lock::{Condvar, Mutex};
use crate::object::Object;
use crate::options::{Coherency, TimePolicy};

const TASK_BYTES: u64 = size_of::<RknpuTask>() as u64;

/// What one core has to do.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) core: u8,
    pub(crate) range: RknpuSubcoreTask,
    state: PartState,
}

#[derive(Clone, Copy)]
enum PartState {
    Queued,
    Running,
    Done(Duration),
    Stuck { committed: Instant, counter: u32 },
    Unmodelled { counter: u32 },
    Failed,
}

impl Part {
    pub(crate) fn new(core: u8, range: RknpuSubcoreTask) -> Self {
        Self { core, range, state: PartState::Queued }
    }
}

/// What a submit asks for.
pub(crate) struct Order {
    pub(crate) file: u64,
    pub(crate) number: u64,
    pub(crate) tasks: Arc<Object>,
    pub(crate) domain: u8,
    pub(crate) dma_base: Iova,
    pub(crate) parts: Vec<Part>,
    pub(crate) nonblock: bool,
    pub(crate) timeout_ms: u32,
    pub(crate) fence: Option<SyncFile>,
}

pub(crate) struct Job {
    board: Arc<Inner>,
    file: u64,
    number: u64,
    space: Space,
    dma_base: Iova,
    nonblock: bool,
    timeout_ms: u32,
    cancelled: AtomicBool,
    /// Its file is gone.
    orphan: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    parts: Vec<Part>,
    /// By somebody's reset.
    woken: bool,
    discarded: bool,
    /// What the job holds until it ends.
    held: Option<Held>,
}

/// Let go as soon as a job has ended, whoever still looks at it; so is its use of the domain.
struct Held {
    tasks: Arc<Object>,
    fence: Option<SyncFile>,
}

/// How a job ended for the call that waits for it.
pub(crate) enum Settled {
    Done { elapsed: Duration },
    Stuck { committed: Instant, counter: u32 },
    Unmodelled { counter: u32 },
    Failed,
    Woken,
    Discarded,
    NeverCommitted,
}

impl Job {
    /// A job whose domain is live and counted for it.
    pub(crate) fn new(board: &Arc<Inner>, order: Order) -> Self {
        let Order { file, number, tasks, domain, dma_base, parts, nonblock, timeout_ms, fence } = order;
        let space = if board.counts_domain_users() {
            Space::Fixed(Arc::clone(board.space(domain)))
        } else {
            Space::Live { wanted: domain }
        };
        board.counts.jobs.up();
        Self {
            board: Arc::clone(board),
            file,
            number,
            space,
            dma_base,
            nonblock,
            timeout_ms,
            cancelled: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            state: Mutex::new(State {
                parts,
                woken: false,
                discarded: false,
                held: Some(Held { tasks, fence }),
            }),
            changed: Condvar::new(),
        }
    }

    /// Puts the job into the queues of its cores.
    pub(crate) fn queue(self: &Arc<Self>) -> Result<(), Errno> {
        let cores: Vec<u8> = self.state.lock().parts.iter().map(|part| part.core).collect();
        let order = self.board.order.lock();
        if !self.nonblock {
            self.board.expect_reset(self);
        }
        let queued = cores.into_iter().try_for_each(|core| {
            let work: Arc<dyn Work> = Arc::clone(self) as _;
            self.board.cores[usize::from(core)].lane.push(core, work)
        });
        drop(order);
        queued.inspect_err(|_| {
            self.cancel();
            self.take_off();
        })
    }

    /// Takes the job off all cores and ends its use of the domain.
    pub(crate) fn take_off(self: &Arc<Self>) {
        let work: Arc<dyn Work> = Arc::clone(self) as _;
        for slot in &self.board.cores {
            slot.lane.remove(&work);
        }
        self.release();
    }

    /// Lets go of all that the job holds, once; gives its fence.
    fn release(&self) -> Option<SyncFile> {
        let held = self.state.lock().held.take()?;
        self.let_go(held)
    }

    fn let_go(&self, held: Held) -> Option<SyncFile> {
        drop(held.tasks);
        self.board.leave_domain(self.number);
        self.board.counts.jobs.down();
        held.fence
    }

    /// A reset wakes whoever waits.
    pub(crate) fn wake(&self) {
        let mut state = self.state.lock();
        let done = |part: &Part| matches!(part.state, PartState::Done(_));
        if !state.parts.iter().all(done) {
            state.woken = true;
            self.cancelled.store(true, Relaxed);
        }
        self.changed.notify_all();
    }

    /// The cores that wait for an interrupt which this job will not raise.
    pub(crate) fn stuck_cores(&self) -> Vec<u8> {
        self.cores_where(|part| matches!(part, PartState::Stuck { .. }))
    }

    /// Whether a part has not begun on one of these cores.
    pub(crate) fn is_queued_on(&self, cores: &[u8]) -> bool {
        let queued = self.cores_where(|part| matches!(part, PartState::Queued));
        queued.iter().any(|core| cores.contains(core))
    }

    fn cores_where(&self, wanted: impl Fn(&PartState) -> bool) -> Vec<u8> {
        let state = self.state.lock();
        state.parts.iter().filter(|part| wanted(&part.state)).map(|part| part.core).collect()
    }

    /// Whether a part waits behind a job that nobody takes away.
    pub(crate) fn is_blocked(&self) -> bool {
        let queued = self.cores_where(|part| matches!(part, PartState::Queued));
        queued.iter().any(|core| self.board.cores[usize::from(*core)].lane.is_blocked())
    }

    /// How the job ended, if it has; waits a little.
    pub(crate) fn settled(&self, wait: Duration) -> Option<Settled> {
        let real = self.board.options.time == TimePolicy::Real;
        let open = |state: &mut State| match state.settled() {
            None => true,
            // It may still be woken before its time is over.
            Some(Settled::Stuck { .. }) => real,
            Some(_) => false,
        };
        self.changed.wait_while(self.state.lock(), Some(Instant::now() + wait), open).settled()
    }

    /// Notes what became of a core's part. When all are done, so is the job: it lets go of what it holds before
    /// anybody can see that.
    fn set(&self, core: u8, new: PartState) {
        let mut state = self.state.lock();
        let done = |part: &Part| part.core == core || matches!(part.state, PartState::Done(_));
        let mut fence = None;
        if matches!(new, PartState::Done(_)) && state.parts.iter().all(done) {
            let held = state.held.take();
            drop(state);
            fence = held.and_then(|held| self.let_go(held));
            state = self.state.lock();
        }
        for part in state.parts.iter_mut().filter(|part| part.core == core) {
            part.state = new;
        }
        drop(state);
        self.changed.notify_all();
        if let Some(fence) = fence {
            fence.signal();
        }
    }

    fn run_range(&self, core: u8, range: RknpuSubcoreTask, tasks: &Object, committed: Instant) -> PartState {
        let chip = self.board.options.soc.chip();
        let start = Start {
            board: &self.board,
            core,
            job: self.number,
            space: &self.space,
            cancelled: &self.cancelled,
            polled: self.nonblock || self.board.options.coherency == Coherency::Shared,
            completion: Completion::AllOfMask,
        };
        let (mut first, end) =
            (u64::from(range.task_start), u64::from(range.task_start) + u64::from(range.task_number));
        let mut elapsed = Duration::ZERO;
        while first < end {
            let count = (end - first).min(chip.tasks_max().into());
            let last = first + count - 1;
            let (first_task, mut last_task) = (read_task(tasks, first), read_task(tasks, last));
            let outcome = start.run(&PcJob {
                base: Iova(first_task.regcmd_addr as u32),
                amount: chip.beats(first_task.regcfg_amount),
                tasks: count as u16,
                dma_base: self.dma_base,
                int_mask: last_task.int_mask,
                int_clear: first_task.int_mask,
                s_pointer: chip.writes_s_pointer().then(|| PcJob::s_pointer_of(core)),
            });
            match outcome.end {
                End::Done => {}
                End::Stuck => return PartState::Stuck { committed, counter: outcome.counter },
                End::Unmodelled => return PartState::Unmodelled { counter: outcome.counter },
            }
            if !self.nonblock && last + 1 == end {
                last_task.int_status = outcome.int_status;
                tasks.kernel_write((last * TASK_BYTES) as usize, last_task.as_bytes());
            }
            elapsed += outcome.elapsed;
            first += count;
        }
        PartState::Done(elapsed)
    }
}

fn read_task(array: &Object, index: u64) -> RknpuTask {
    let mut task = RknpuTask::new_zeroed();
    array.kernel_read((index * TASK_BYTES) as usize, task.as_mut_bytes());
    task
}

impl State {
    fn settled(&self) -> Option<Settled> {
        if self.woken {
            return Some(Settled::Woken);
        }
        if self.discarded {
            return Some(Settled::Discarded);
        }
        let under_way = |part: &Part| matches!(part.state, PartState::Queued | PartState::Running);
        if self.parts.iter().any(under_way) {
            return None;
        }
        let find = |wanted: fn(&PartState) -> Option<Settled>| {
            self.parts.iter().find_map(|part| wanted(&part.state))
        };
        let failed = find(|part| matches!(part, PartState::Failed).then_some(Settled::Failed));
        let unmodelled = find(|part| match part {
            PartState::Unmodelled { counter } => Some(Settled::Unmodelled { counter: *counter }),
            _ => None,
        });
        let stuck = find(|part| match part {
            PartState::Stuck { committed, counter } => {
                Some(Settled::Stuck { committed: *committed, counter: *counter })
            }
            _ => None,
        });
        let elapsed = |part: &Part| match part.state {
            PartState::Done(elapsed) => elapsed,
            _ => Duration::ZERO,
        };
        let longest = self.parts.iter().map(elapsed).max().unwrap_or_default();
        Some(failed.or(unmodelled).or(stuck).unwrap_or(Settled::Done { elapsed: longest }))
    }
}

impl Work for Job {
    fn run(&self, core: u8) -> Verdict {
        let part = {
            let state = self.state.lock();
            let range = state.parts.iter().find(|part| part.core == core).map(|part| part.range);
            range.zip(state.held.as_ref().map(|held| Arc::clone(&held.tasks)))
        };
        // Nobody waits for it any more.
        let Some((range, tasks)) = part else { return Verdict::Free };
        if self.cancelled.load(Relaxed) {
            // Given up before it began on this core: it will not end. One that nobody waits for stays until it is reaped.
            self.set(core, PartState::Stuck { committed: Instant::now(), counter: 0 });
            return if self.nonblock { Verdict::Stuck } else { Verdict::Free };
        }
        self.set(core, PartState::Running);
        let end = self.run_range(core, range, &tasks, Instant::now());
        // Before anybody learns of the end.
        drop(tasks);
        self.set(core, end);
        match end {
            PartState::Stuck { .. } => Verdict::Stuck,
            // Nobody will be told; for a program it is a job that never ends.
            PartState::Unmodelled { .. } if self.nonblock => Verdict::Stuck,
            _ => Verdict::Free,
        }
    }

    fn panicked(&self, core: u8) {
        self.board.report(Some(core), self.number, FindingKind::ModelPanicked);
        self.set(core, PartState::Failed);
        if self.nonblock {
            self.release();
        }
    }

    fn load(&self, core: u8) -> u32 {
        let state = self.state.lock();
        if state.held.is_none() {
            return 0;
        }
        state.parts.iter().filter(|part| part.core == core).map(|part| part.range.task_number).sum()
    }

    fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    fn discard(&self) {
        self.state.lock().discarded = true;
        let kind = if self.is_orphan() { FindingKind::ClosedWhileStuck } else { FindingKind::Reaped };
        self.board.report(None, self.number, kind);
        self.changed.notify_all();
        self.release();
    }

    fn time_limit_ms(&self) -> Option<u32> {
        self.nonblock.then_some(self.timeout_ms)
    }

    fn file(&self) -> u64 {
        self.file
    }

    fn orphan(&self) {
        self.orphan.store(true, Relaxed);
    }

    fn is_orphan(&self) -> bool {
        self.orphan.load(Relaxed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::board::Driver;
    use crate::domain::Alignment;
    use crate::object::Allocation;
    use crate::{Board, EmuOptions};

    fn job(board: &Board, nonblock: bool) -> Arc<Job> {
        job_on(board, &[0, 2], nonblock)
    }

    /// A job of one task on each of these cores, in domain 0.
    pub(crate) fn job_on(board: &Board, cores: &[u8], nonblock: bool) -> Arc<Job> {
        let array = Allocation {
            driver: Driver::Rknpu,
            size: 4096,
            alignment: Alignment::Page,
            cacheable: false,
            kernel_mapping: true,
            sram: 0,
            domain: 0,
            space: Arc::clone(board.0.space(0)),
        };
        let range = RknpuSubcoreTask { task_start: 0, task_number: 1 };
        let order = Order {
            file: 1,
            number: 1,
            tasks: Object::allocate(&board.0, &array).unwrap(),
            domain: 0,
            dma_base: Iova(0),
            parts: cores.iter().map(|core| Part::new(*core, range)).collect(),
            nonblock,
            timeout_ms: 1,
            fence: None,
        };
        board.0.live_domain.enter(0).unwrap();
        Arc::new(Job::new(&board.0, order))
    }

    /// A core may be reset under a job that has not begun on its other cores: whoever waits for it must learn that it
    /// has ended.
    #[test]
    fn a_job_that_is_given_up_before_it_begins_has_ended() {
        let board = Board::new(&EmuOptions::default());
        let job = job(&board, false);
        job.cancel();
        assert_eq!((job.run(0), job.settled(Duration::ZERO).is_none()), (Verdict::Free, true));
        assert_eq!(job.run(2), Verdict::Free);
        assert!(matches!(job.settled(Duration::ZERO), Some(Settled::Stuck { counter: 0, .. })));
        job.take_off();
        drop(job);
        assert_eq!(board.live(), crate::Live::default());
    }

    /// One that nobody waits for must stay on a core, or nothing would ever end its use of the domain.
    #[test]
    fn a_job_that_is_given_up_and_not_waited_for_stays_until_it_is_reaped() {
        let board = Board::new(&EmuOptions::default());
        let job = job(&board, true);
        job.set(0, PartState::Done(Duration::ZERO));
        job.cancel();
        assert_eq!((job.run(2), board.live().jobs), (Verdict::Stuck, 1));
        job.discard();
        // After that there is nothing to stay for.
        assert_eq!((job.run(0), board.live().jobs), (Verdict::Free, 0));
        drop(job);
        assert_eq!(board.live(), crate::Live::default());
    }
}
