// SPDX-License-Identifier: MIT OR Apache-2.0
//! One start of a core: a chain of programs, from the register values to the interrupt.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

use ork_sim::{JobEnd, PcJob};

use crate::board::Inner;
use crate::bus::{JobBus, Space};
use crate::fault::Fault;
use crate::finding::FindingKind;

/// What a driver waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The status, widened to pairs, equals the mask.
    AllOfMask,
    /// Some pair of the mask.
    AnyOfMask,
}

/// Where and for whom a chain runs.
pub(crate) struct Start<'a> {
    pub(crate) board: &'a Inner,
    pub(crate) core: u8,
    pub(crate) job: u64,
    pub(crate) space: &'a Space,
    pub(crate) cancelled: &'a AtomicBool,
    /// Somebody may poll memory instead of waiting for the interrupt.
    pub(crate) polled: bool,
    pub(crate) completion: Completion,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// No interrupt will come.
    Stuck,
    Unmodelled,
}

pub(crate) struct Outcome {
    pub(crate) end: End,
    /// Tasks that the hardware counted.
    pub(crate) counter: u32,
    /// Modelled time.
    pub(crate) elapsed: Duration,
    /// Interrupt status that the driver accepted, widened.
    pub(crate) int_status: u32,
}

/// Each pair of event bits, one per register group, counts as a whole.
fn widen(status: u32) -> u32 {
    const EVEN: u32 = 0x5555_5555;
    status | ((status & EVEN) << 1) | ((status >> 1) & EVEN)
}

impl Start<'_> {
    fn report(&self, kind: FindingKind) {
        if !self.cancelled.load(Relaxed) {
            self.board.report(Some(self.core), self.job, kind);
        }
    }

    fn injects(&self, fault: Fault) -> bool {
        let fires = match fault {
            Fault::DeadCore => self.board.faults.plan.dead_core == Some(self.core),
            _ => self.board.faults.fires(fault),
        };
        if fires {
            self.report(FindingKind::Injected { fault });
        }
        fires
    }

    pub(crate) fn run(&self, pc_job: &PcJob) -> Outcome {
        let stuck = |counter| Outcome { end: End::Stuck, counter, elapsed: Duration::ZERO, int_status: 0 };
        if self.injects(Fault::DeadCore) || self.injects(Fault::Hang) || self.injects(Fault::Dropped) {
            return stuck(0);
        }
        let (board, faults) = (self.board, &self.board.faults);
        let late = faults.fires(Fault::LateWriteBack);
        let bus = JobBus::new(board, (self.core, self.job), self.space, self.cancelled, self.polled || late);
        // These are reported when they happen: not every program reads or writes.
        bus.mishaps.wild_read.store(faults.fires(Fault::WildRead), Relaxed);
        bus.mishaps.wild_write.store(faults.fires(Fault::WildWrite), Relaxed);
        bus.mishaps.overrun.store(faults.fires(Fault::Overrun), Relaxed);

        let slot = &board.cores[usize::from(self.core)];
        let mut engine = slot.engine.lock();
        if slot.reset_due.swap(false, Acquire) {
            engine.reset();
        }
        // The reset may have been the one that gave this job up. On the core it would hang, and no other reset follows. A
        // reset that gives it up from now on is due after this one.
        if self.cancelled.load(Relaxed) {
            return stuck(0);
        }
        let outcome = engine.run(&bus, pc_job);
        drop(engine);
        board.meters.count(&outcome.stats);
        let counter = u32::from(outcome.tasks_done);
        for diagnosis in outcome.diagnoses {
            self.report(FindingKind::Simulator(diagnosis));
        }
        let (end, int_status) = match outcome.end {
            JobEnd::Done => self.judge(pc_job, outcome.int_status),
            JobEnd::Hang(diagnosis) => {
                self.report(FindingKind::Simulator(diagnosis));
                (End::Stuck, 0)
            }
            JobEnd::Unmodelled(diagnosis) => {
                self.report(FindingKind::Simulator(diagnosis));
                (End::Unmodelled, 0)
            }
        };
        if end == End::Done && late {
            self.report(FindingKind::Injected { fault: Fault::LateWriteBack });
            bus.finish_late(Duration::from_millis(faults.plan.late_write_back_ms.into()));
        } else {
            bus.finish();
        }
        match end {
            End::Done => {
                let elapsed = Duration::from_secs_f64(outcome.modelled_us.max(0.0) / 1e6);
                board.spend(elapsed);
                if self.injects(Fault::LostInterrupt) {
                    return stuck(counter);
                }
                Outcome { end, counter, elapsed, int_status }
            }
            End::Stuck => stuck(counter),
            End::Unmodelled => {
                // Nobody knows what state such a program leaves.
                slot.reset_due.store(true, Release);
                Outcome { end, ..stuck(counter) }
            }
        }
    }

    /// Whether the driver takes the interrupt for the end of the job.
    fn judge(&self, pc_job: &PcJob, status: u32) -> (End, u32) {
        let int_mask = pc_job.int_mask;
        let int_status = widen(status & int_mask);
        let complete = match self.completion {
            // With an empty mask no interrupt is ever raised.
            Completion::AllOfMask => int_status == int_mask && int_status != 0,
            Completion::AnyOfMask => int_status != 0,
        };
        if complete {
            return (End::Done, int_status);
        }
        self.report(FindingKind::NeverCompletes { int_mask, int_status });
        (End::Stuck, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ork_drm::Errno;
    use ork_isa::Iova;
    use ork_sim::{Bus, JobOutcome};

    use super::*;
    use crate::domain::{AddressSpace, Placement};
    use crate::lock::{Mutex, RwLock};
    use crate::{Board, EmuOptions, Engine};

    /// Notes what is done with a core.
    struct Noting(Arc<Mutex<Vec<&'static str>>>);

    impl Engine for Noting {
        fn reset(&mut self) {
            self.0.lock().push("reset");
        }

        fn run(&mut self, _: &dyn Bus, job: &PcJob) -> JobOutcome {
            self.0.lock().push("run");
            JobOutcome::done(job)
        }
    }

    #[test]
    fn a_job_that_a_reset_gave_up_does_not_run_behind_it() {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let engine = || Box::new(Noting(Arc::clone(&notes))) as Box<dyn Engine>;
        let board = Board::with_engines(&EmuOptions::default(), [engine(), engine(), engine()]);
        let space = Space::Fixed(Arc::new(RwLock::new(AddressSpace::new(Placement::TopDown, Errno::EFAULT))));
        let job = PcJob {
            base: Iova(0),
            amount: 1,
            tasks: 1,
            dma_base: Iova(0),
            int_mask: 0x300,
            int_clear: 0,
            s_pointer: None,
        };
        for (given_up, end, noted) in [(true, End::Stuck, &["reset"][..]), (false, End::Done, &["run"])] {
            let cancelled = AtomicBool::new(given_up);
            let completion = Completion::AllOfMask;
            let (board, space, cancelled) = (&*board.0, &space, &cancelled);
            let start = Start { board, core: 1, job: 1, space, cancelled, polled: false, completion };
            board.cores[1].reset_due.store(given_up, Release);
            assert_eq!(start.run(&job).end, end);
            assert_eq!(std::mem::take(&mut *notes.lock()), noted);
        }
    }

    #[test]
    fn event_pairs_are_widened() {
        for (status, wide) in [(0x100, 0x300), (0x200, 0x300), (0x300, 0x300), (0x400, 0xC00), (0, 0)] {
            assert_eq!(widen(status), wide);
        }
    }
}
