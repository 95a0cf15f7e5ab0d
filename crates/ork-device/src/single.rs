// SPDX-License-Identifier: MIT OR Apache-2.0
//! One chain on one core, once: the only place that hands jobs to the kernel.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use ork_drm::{Errno, Files};
use ork_emu::{Finding, FindingKind, When};
use ork_rknpu::uapi::RknpuTask;
use parking_lot::{Mutex, MutexGuard};

use crate::buffer::{DmaBuffer, DomainId, Purpose};
use crate::counters::add;
use crate::device::Device;
use crate::error::{DeviceError, SubmitError};
use crate::gate::InDomain;
use crate::kernel::{DriverKind, Ended, Feature, Fence, Fenced, Job, KernelError, Object};
use crate::submission::{Completed, Elapsed, Submission, TASKS_MAX};

/// Bytes of a task descriptor.
const TASK_BYTES: usize = size_of::<RknpuTask>();
/// `int_clear` of every known program; the kernel does not read it.
const INT_CLEAR_ALL: u32 = 0x1_FFFF;

/// What a core's jobs use. A core runs one job of this device at a time.
pub(crate) type CoreSlot = Mutex<TaskArrays>;

/// The task array of a core, by domain. It grows and is reused.
pub(crate) type TaskArrays = BTreeMap<DomainId, DmaBuffer>;

/// The right to run a job: its core, its domain and its descriptors, until dropped.
pub(crate) struct Taken<'a> {
    slot: MutexGuard<'a, TaskArrays>,
    _domain: InDomain<'a>,
}

/// How a job is started that nobody waits for in the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) output: Option<&'a Object>,
    pub(crate) fenced: Fenced,
    pub(crate) patience: Duration,
    /// So many of the submission's tasks.
    pub(crate) tasks: usize,
}

/// A fence, until dropped.
#[derive(Debug)]
pub(crate) struct OpenFence {
    fd: RawFd,
    files: Arc<dyn Files>,
}

impl OpenFence {
    /// Waits for it, at most so long; whether it was signalled.
    pub(crate) fn wait(&self, limit: Duration) -> Result<bool, Errno> {
        self.files.wait(self.fd, limit)
    }
}

impl Drop for OpenFence {
    fn drop(&mut self) {
        self.files.close(self.fd);
    }
}

/// What the kernel said of a job.
pub(crate) type Said = Result<Ended, KernelError>;

impl Device {
    /// Runs a chain of programs on one core and waits for it, at most the time limit. Several threads may do so at
    /// once; jobs of one core follow each other. Nothing is tried again: see [`run`](Self::run) for that.
    ///
    /// The programs and everything they read must have been flushed. The NPU can reach the device's own buffers
    /// only: a wrong program spoils those, never other memory.
    ///
    /// # Errors
    /// [`SubmitError`]: nothing that the job should have written may be used then. [`SubmitError::Unsupported`] for a
    /// driver whose word about a job is worth nothing: such a job needs a witness.
    pub fn submit(&self, submission: &Submission) -> Result<Completed, SubmitError> {
        let core = submission.core;
        self.check(submission)?;
        if let Err(reason) = self.features().need(Feature::BlockingSubmit) {
            let reason = format!("{reason}; run it as a round with a witness");
            return Err(SubmitError::Unsupported { core, reason });
        }
        let said = {
            let taken = self.take(submission, core)?;
            self.run_taken(&taken, submission, core)
        };
        let findings = self.take_findings(core);
        let done = self.judge(submission, core, said, findings);
        match &done {
            Ok(completed) => self.count_completed(completed),
            Err(error) => self.count_failed(error),
        }
        done
    }

    /// Refuses what no kernel would take.
    pub(crate) fn check(&self, submission: &Submission) -> Result<(), SubmitError> {
        let &Submission { core, ref tasks, .. } = submission;
        if core >= self.cores {
            return Err(SubmitError::Core { core, cores: self.cores });
        }
        if tasks.is_empty() || tasks.len() > TASKS_MAX {
            return Err(SubmitError::Tasks { tasks: tasks.len() });
        }
        Ok(())
    }

    /// Takes a core and the submission's domain, and writes the descriptors.
    pub(crate) fn take(&self, submission: &Submission, core: u8) -> Result<Taken<'_>, SubmitError> {
        let mut taken = self.hold(core, submission.domain)?;
        self.write_descriptors(&mut taken, submission, core)?;
        Ok(taken)
    }

    /// Takes a core, and then the domain: who waits for a core holds no domain. Who holds a core takes no smaller one.
    fn hold(&self, core: u8, domain: DomainId) -> Result<Taken<'_>, SubmitError> {
        let slot = self.slots[usize::from(core)].lock();
        self.join_domain(slot, domain)
    }

    pub(crate) fn join_domain<'a>(
        &'a self,
        slot: MutexGuard<'a, TaskArrays>,
        domain: DomainId,
    ) -> Result<Taken<'a>, SubmitError> {
        let doing = "making the domain live";
        let _domain = self.shared.enter(domain).map_err(|source| SubmitError::Buffer { doing, source })?;
        Ok(Taken { slot, _domain })
    }

    /// Writes the descriptors of a submission for a core that was taken in its domain.
    pub(crate) fn write_descriptors(
        &self,
        taken: &mut Taken<'_>,
        submission: &Submission,
        core: u8,
    ) -> Result<(), SubmitError> {
        if !self.shared.kernel.wants_task_array() {
            return Ok(());
        }
        self.write_tasks(&mut taken.slot, submission)
            .map_err(|source| SubmitError::TaskArray { core, source })
    }

    fn job<'a>(&self, taken: &'a Taken<'_>, submission: &'a Submission, core: u8) -> Job<'a> {
        Job {
            core,
            tasks: &submission.tasks,
            domain: submission.domain,
            timeout_ms: submission.timeout_ms.unwrap_or(self.timeout_ms),
            patience: Duration::ZERO,
            ping_pong: submission.ping_pong,
            task_array: taken.slot.get(&submission.domain).and_then(DmaBuffer::object),
            output: None,
        }
    }

    pub(crate) fn run_taken(&self, taken: &Taken<'_>, submission: &Submission, core: u8) -> Said {
        let job = self.job(taken, submission, core);
        add(&self.shared.counters.jobs_given, 1);
        // SAFETY: the array has a kernel mapping, holds the tasks and stays locked; the NPU's writes go to buffers of
        // this device, behind the CPU's caches (see `DmaBuffer`).
        unsafe { self.shared.kernel.run(&job) }
    }

    /// Starts a job that is given up after `patience`: then the next one on its core may throw it away.
    pub(crate) fn start_taken(
        &self,
        taken: &Taken<'_>,
        submission: &Submission,
        core: u8,
        start: &Start<'_>,
    ) -> Result<Option<OpenFence>, KernelError> {
        let &Start { output, fenced, patience, tasks } = start;
        let own = self.job(taken, submission, core);
        let tasks = &own.tasks[..tasks.min(own.tasks.len())];
        let job = Job { patience, output, tasks, ..own };
        add(&self.shared.counters.jobs_given, 1);
        // SAFETY: as for `run_taken`; who starts a job keeps `taken` until it has ended.
        let fence = unsafe { self.shared.kernel.start(&job, fenced) }?;
        Ok(fence.map(|Fence(fd)| OpenFence { fd, files: Arc::clone(&self.shared.files) }))
    }

    /// What the emulated board noticed about jobs of a core. Where the driver chooses the core, that of all of them.
    pub(crate) fn take_findings(&self, core: u8) -> Vec<Finding> {
        let Some(board) = self.board() else { return Vec::new() };
        let findings = match self.info().driver {
            DriverKind::Rknpu => board.take_findings_of(core),
            DriverKind::Rocket => board.take_findings(),
        };
        self.count_injected(&findings);
        findings
    }

    pub(crate) fn count_injected(&self, findings: &[Finding]) {
        let faults = findings.iter().filter_map(|finding| match finding.kind {
            FindingKind::Injected { fault } => Some(fault),
            _ => None,
        });
        let mut injected = None;
        for fault in faults {
            *injected.get_or_insert_with(|| self.injected.lock()).entry(fault).or_insert(0) += 1;
        }
    }

    /// Turns the kernel's answer into a result.
    pub(crate) fn judge(
        &self,
        submission: &Submission,
        core: u8,
        said: Said,
        findings: Vec<Finding>,
    ) -> Result<Completed, SubmitError> {
        let tasks = submission.tasks.len() as u32;
        match said {
            Ok(Ended::Done { tasks: done, ns }) if done == tasks => {
                let elapsed = self.elapsed(ns);
                Ok(Completed { core, tasks, elapsed, findings: self.objections(findings) })
            }
            Ok(Ended::Done { tasks: tasks_done, .. }) => {
                Err(SubmitError::Dropped { core, tasks_done, tasks })
            }
            Ok(Ended::TimedOut { tasks: tasks_done }) => {
                let timeout_ms = submission.timeout_ms.unwrap_or(self.timeout_ms);
                Err(SubmitError::TimedOut { core, tasks_done, tasks, timeout_ms, findings })
            }
            Ok(Ended::Unmodelled) => Err(SubmitError::Unmodelled { core, findings }),
            Err(source) => Err(SubmitError::Refused { core, source, findings }),
        }
    }

    fn elapsed(&self, ns: u64) -> Elapsed {
        if self.board().is_some() { Elapsed::Modelled { ns } } else { Elapsed::Measured { ns } }
    }

    pub(crate) fn count_completed(&self, completed: &Completed) {
        let of_core = &self.shared.counters.cores[usize::from(completed.core)];
        add(&of_core.submits, 1);
        add(&of_core.tasks, completed.tasks.into());
        let time = match completed.elapsed {
            Elapsed::Measured { .. } | Elapsed::Modelled { .. } => &of_core.busy_ns,
            Elapsed::Waited { .. } => &of_core.waited_ns,
        };
        add(time, completed.elapsed.ns());
    }

    pub(crate) fn count_failed(&self, error: &SubmitError) {
        let counters = &self.shared.counters;
        let counter = match error {
            SubmitError::TimedOut { .. } => &counters.timeouts,
            _ => &counters.failures,
        };
        add(counter, 1);
    }

    /// Writes the descriptors of a submission into the core's task array of its domain.
    fn write_tasks(&self, arrays: &mut TaskArrays, submission: &Submission) -> Result<(), DeviceError> {
        let bytes = (submission.tasks.len() * TASK_BYTES) as u64;
        let room = bytes.next_power_of_two().max(4096);
        let array = match arrays.entry(submission.domain) {
            Entry::Vacant(entry) => entry.insert(self.alloc_in(submission.domain, Purpose::Tasks, room)?),
            Entry::Occupied(mut entry) => {
                if entry.get().len() < bytes {
                    entry.insert(self.alloc_in(submission.domain, Purpose::Tasks, room)?);
                }
                entry.into_mut()
            }
        };
        let tasks = submission.tasks.iter().map(|task| RknpuTask {
            enable_mask: task.enable_mask,
            int_mask: task.int_mask,
            int_clear: INT_CLEAR_ALL,
            regcfg_amount: task.body_words,
            regcmd_addr: u64::from(task.regcmd.0),
            ..RknpuTask::default()
        });
        // The same programs again and again need no other descriptors.
        if array.write_tasks(tasks) { array.flush(0..bytes) } else { Ok(()) }
    }
}

impl Device {
    /// Whether the emulated board leaves cache lines stale on purpose.
    pub(crate) fn injects_stale_lines(&self) -> bool {
        self.board().is_some_and(|board| board.options().faults.stale_line != When::Never)
    }

    /// What speaks against the values of a job that completed. That a fault was injected does not, nor what follows from
    /// one: on silicon nobody would say so, and whether it did harm must show in what the job did.
    pub(crate) fn objections(&self, findings: Vec<Finding>) -> Vec<Finding> {
        let stale_lines = self.injects_stale_lines();
        let harmless = |kind: &FindingKind| match kind {
            FindingKind::Injected { .. } | FindingKind::Reaped | FindingKind::HiddenTimeout { .. } => true,
            FindingKind::NotFlushed { .. } => stale_lines,
            _ => false,
        };
        findings.into_iter().filter(|finding| !harmless(&finding.kind)).collect()
    }
}
