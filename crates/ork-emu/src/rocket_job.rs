// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job of the mainline driver: its tasks, and the completion that buffers wait for.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, Release},
};
use std::time::{Duration, Instant};

use ork_isa::Iova;
use ork_rocket::uapi::RocketTask;
use ork_sim::PcJob;

use crate::board::Inner;
use crate::bus::Space;
use crate::chain::{self, End, Start};
use crate::finding::FindingKind;
use crate::lane::{Verdict, Work};
use crate::lock::{Condvar, Mutex};
use crate::object::Object;
use crate::rocket_file::Entity;

/// Done bits of the output stage, which the driver waits for.
const OUTPUT_STAGE: u32 = 0x300;
/// Done bits of the pooling unit.
const POOLING: u32 = 0xC00;

/// Whether a job has ended, well or not.
#[derive(Default)]
pub(crate) struct Completion {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Completion {
    pub(crate) fn is_done(&self) -> bool {
        *self.done.lock()
    }

    pub(crate) fn signal(&self) {
        *self.done.lock() = true;
        self.changed.notify_all();
    }

    /// Waits, at most until the deadline; whether the job has ended.
    pub(crate) fn wait_until(&self, deadline: Option<Instant>) -> bool {
        *self.changed.wait_while(self.done.lock(), deadline, |done| !*done)
    }
}

pub(crate) struct RocketJob {
    pub(crate) board: Arc<Inner>,
    pub(crate) file: u64,
    pub(crate) number: u64,
    pub(crate) space: Space,
    pub(crate) tasks: Vec<RocketTask>,
    /// Ends of the jobs that must have ended before.
    pub(crate) waits_for: Vec<Arc<Completion>>,
    pub(crate) completion: Arc<Completion>,
    /// Counts as done without running.
    pub(crate) hollow: bool,
    /// What it lists; alive until it ends.
    pub(crate) listed: Mutex<Vec<Arc<Object>>>,
    pub(crate) cancelled: AtomicBool,
    pub(crate) entity: Arc<Entity>,
}

impl RocketJob {
    fn run_tasks(&self, core: u8) {
        let options = &self.board.options.rocket;
        let (int_mask, completion) = if options.pooling_completes {
            (OUTPUT_STAGE | POOLING, chain::Completion::AnyOfMask)
        } else {
            (OUTPUT_STAGE, chain::Completion::AllOfMask)
        };
        let start = Start {
            board: &self.board,
            core,
            job: self.number,
            space: &self.space,
            cancelled: &self.cancelled,
            polled: true,
            completion,
        };
        for (done, task) in self.tasks.iter().enumerate() {
            let outcome = start.run(&PcJob {
                base: Iova(task.regcmd),
                // Beats of two words, minus 1; an odd count fetches a word more. The count includes the trailer.
                amount: (task.regcmd_count.div_ceil(2) - 1) as u16,
                // In-stream links are not followed: each task is its own start.
                tasks: 1,
                dma_base: Iova(0),
                int_mask,
                int_clear: int_mask,
                s_pointer: Some(PcJob::s_pointer_of(core)),
            });
            if outcome.end != End::Done {
                self.board.spend(Duration::from_millis(options.timeout_ms.into()));
                self.board.cores[usize::from(core)].reset_due.store(true, Release);
                let tasks_done = done as u32;
                self.board.report(Some(core), self.number, FindingKind::HiddenTimeout { tasks_done });
                return;
            }
        }
    }

    /// The job has ended; nobody learns how.
    fn end(&self) {
        drop(std::mem::take(&mut *self.listed.lock()));
        self.entity.finished();
        self.board.counts.jobs.down();
        self.completion.signal();
    }
}

impl Work for RocketJob {
    fn run(&self, core: u8) -> Verdict {
        for earlier in &self.waits_for {
            earlier.wait_until(None);
        }
        if !self.hollow && !self.cancelled.load(Relaxed) {
            self.run_tasks(core);
        }
        self.end();
        Verdict::Free
    }

    fn panicked(&self, core: u8) {
        self.board.report(Some(core), self.number, FindingKind::ModelPanicked);
        self.end();
    }

    fn load(&self, _core: u8) -> u32 {
        if self.completion.is_done() { 0 } else { self.tasks.len() as u32 }
    }

    fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    fn discard(&self) {
        self.end();
    }

    fn time_limit_ms(&self) -> Option<u32> {
        // The driver ends it by itself.
        None
    }

    fn file(&self) -> u64 {
        self.file
    }

    // It never gets stuck.
    fn orphan(&self) {}

    fn is_orphan(&self) -> bool {
        false
    }
}
