// SPDX-License-Identifier: MIT OR Apache-2.0
//! SUBMIT of the vendor driver: from the ioctl struct to the cores, and what comes back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ork_drm::Errno;
use ork_isa::Iova;
use ork_rknpu::uapi::{RknpuSubcoreTask, RknpuSubmit, RknpuTask, job};

use crate::board::Inner;
use crate::fault::Fault;
use crate::fd_table::KernelFile;
use crate::fence::SyncFile;
use crate::finding::FindingKind;
use crate::gem_file::GemFile;
use crate::job::{Job, Order, Part, Settled};
use crate::object::Object;
use crate::options::{Coherency, TimePolicy};

const TASK_BYTES: u64 = size_of::<RknpuTask>() as u64;
/// The kernel pauses so long before it aborts a job without the PC flag.
const ABORT_PAUSE: Duration = Duration::from_millis(100);
/// How often the kernel waits the time limit of a job that never started.
const WAIT_ROUNDS: u32 = 3;
/// How often a waiting call looks for what nobody tells it.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Milliseconds of a kernel tick: FENCE_IN takes its milliseconds for ticks.
const TICK_MS: u64 = 4;

/// `RKNPU_SUBMIT`.
pub(crate) fn submit(file: &GemFile, argument: &mut RknpuSubmit) -> Result<(), Errno> {
    let board = &file.board;
    let chip = board.options.soc.chip();
    if argument.task_number == 0 || argument.core_mask > chip.core_mask() {
        return Err(Errno::EINVAL);
    }
    let has = |flag| argument.flags & flag != 0;
    if (has(job::FENCE_IN) || has(job::FENCE_OUT)) && !board.options.fences {
        return Err(Errno::EINVAL);
    }
    if has(job::FENCE_IN) {
        wait_for_fence(board, argument)?;
    }
    let has = |flag| argument.flags & flag != 0;
    if !has(job::PC) {
        board.spend(ABORT_PAUSE);
        return Err(Errno::EINVAL);
    }
    let (nonblock, fenced) = (has(job::NONBLOCK), has(job::FENCE_OUT));
    let number = board.next_job();
    let timeout = Duration::from_millis(argument.timeout.into());
    if nonblock {
        board.reap(argument.core_mask);
    }
    let Some(cores) = choose_cores(board, argument.core_mask) else {
        board.report(None, number, FindingKind::NeverDispatched { core_mask: argument.core_mask });
        if nonblock {
            return Ok(());
        }
        board.spend(timeout * WAIT_ROUNDS);
        return Err(Errno::EINVAL);
    };
    let tasks = task_array(board, argument.task_obj_addr, cores[0], number);
    let tasks = tasks.inspect_err(|_| {
        if !nonblock {
            board.spend(timeout)
        }
    })?;
    let parts: Vec<Part> =
        cores.iter().map(|core| Part::new(*core, range_of(board, argument, *core, cores.len()))).collect();
    check_ranges(board, &parts, &tasks, number)?;

    let domain = board.domain_id(argument.iommu_domain_id as i32)?;
    board.live_domain.enter(domain)?;
    let fence = if fenced { Some(SyncFile::own(board)) } else { None };
    let fence = match fence.transpose().and_then(|fence| install(board, argument, fence)) {
        Ok(fence) => fence,
        Err(errno) => {
            board.live_domain.leave();
            return Err(errno);
        }
    };
    let order = Order {
        file: file.id,
        number,
        tasks,
        domain,
        dma_base: Iova(argument.task_base_addr as u32),
        parts,
        nonblock,
        timeout_ms: argument.timeout,
        fence,
    };
    let job = Arc::new(Job::new(board, order));
    job.queue()?;
    if nonblock {
        if !fenced && board.options.coherency == Coherency::Shared && !job.is_blocked() {
            let limit = Duration::from_millis(board.options.nonblock_wait_ms.into());
            let _ = job.settled(limit);
        }
        return Ok(());
    }
    wait(board, &job, timeout, argument)
}

fn install(
    board: &Inner,
    argument: &mut RknpuSubmit,
    fence: Option<SyncFile>,
) -> Result<Option<SyncFile>, Errno> {
    if let Some(fence) = &fence {
        argument.fence_fd = board.fds.install(KernelFile::SyncFile(fence.clone()), true)?;
    }
    Ok(fence)
}

/// FENCE_IN: inside the call, and not for fences of this driver.
fn wait_for_fence(board: &Inner, argument: &mut RknpuSubmit) -> Result<(), Errno> {
    let Ok(KernelFile::SyncFile(fence)) = board.fds.resolve(argument.fence_fd) else {
        return Err(Errno::EINVAL);
    };
    let limit = Duration::from_millis(u64::from(argument.timeout) * TICK_MS);
    if !fence.is_own() && !fence.wait(limit) {
        return Err(Errno::EINVAL);
    }
    argument.fence_fd = -1;
    Ok(())
}

/// The cores of a mask; `None` for masks that the driver accepts but has no case for.
fn choose_cores(board: &Inner, mask: u32) -> Option<Vec<u8>> {
    let all = 0..board.options.soc.cores();
    match mask {
        // The least loaded one; the first among equals.
        0 => all.min_by_key(|core| board.cores[usize::from(*core)].lane.load(*core)).map(|core| vec![core]),
        0b101 | 0b110 => None,
        _ => Some(all.filter(|core| mask & (1 << core) != 0).collect()),
    }
}

/// Chips with one interrupt line use the struct's own range; the others the entry of the core, for one or two
/// cores, or the one two further on, for three.
fn range_of(board: &Inner, argument: &RknpuSubmit, core: u8, cores: usize) -> RknpuSubcoreTask {
    if board.options.soc.cores() == 1 {
        return RknpuSubcoreTask { task_start: argument.task_start, task_number: argument.task_number };
    }
    let shift = if cores == 3 { 2 } else { 0 };
    argument.subcore_task[usize::from(core) + shift]
}

fn task_array(board: &Inner, address: u64, core: u8, number: u64) -> Result<Arc<Object>, Errno> {
    let object = board.objects.lock().at_address(address);
    let refuse = |kind| {
        board.report(Some(core), number, kind);
        Errno::EINVAL
    };
    match object {
        Some(object) if object.is_import() => {
            Err(refuse(FindingKind::ImportedTaskArray { obj_addr: address }))
        }
        Some(object) if object.has_kernel_mapping() => Ok(object),
        Some(_) => Err(refuse(FindingKind::NoKernelMapping { obj_addr: address })),
        None => Err(refuse(FindingKind::UnknownObject { obj_addr: address })),
    }
}

fn check_ranges(board: &Inner, parts: &[Part], tasks: &Object, number: u64) -> Result<(), Errno> {
    let mut result = Ok(());
    for part in parts {
        let RknpuSubcoreTask { task_start: start, task_number: count } = part.range;
        if count == 0 || (u64::from(start) + u64::from(count)) * TASK_BYTES > tasks.size {
            let capacity = tasks.size / TASK_BYTES;
            board.report(Some(part.core), number, FindingKind::TaskRange { start, count, capacity });
            result = Err(Errno::EINVAL);
        }
    }
    result
}

/// When the kernel gives up a job that was committed `committed` after the call: at the end of the first round in
/// which it has had its whole time.
fn expiry(timeout: Duration, committed: Duration) -> Duration {
    let rounds =
        (1..WAIT_ROUNDS).find(|round| timeout * *round >= committed + timeout).unwrap_or(WAIT_ROUNDS);
    timeout * rounds
}

/// What a blocking call waits for.
fn wait(
    board: &Arc<Inner>,
    job: &Arc<Job>,
    timeout: Duration,
    argument: &mut RknpuSubmit,
) -> Result<(), Errno> {
    let real = board.options.time == TimePolicy::Real;
    let called = Instant::now();
    let settled = loop {
        match job.settled(LOOK_EVERY) {
            Some(Settled::Stuck { committed, counter }) => {
                let waited = committed.saturating_duration_since(called);
                let limit = expiry(timeout, if real { waited } else { Duration::ZERO });
                if real && called.elapsed() < limit {
                    continue;
                }
                board.pass(limit);
                break Settled::Stuck { committed, counter };
            }
            Some(other) => break other,
            None if job.is_blocked() => {
                // Behind a job that nobody will ever take away.
                let limit = timeout * WAIT_ROUNDS;
                if !real || called.elapsed() >= limit {
                    board.pass(limit);
                    break Settled::NeverCommitted;
                }
            }
            None => {}
        }
    };
    let result = match settled {
        Settled::Done { elapsed } => {
            argument.task_counter = argument.task_number;
            if board.knows_domains() {
                argument.hw_elapse_time = i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX);
            }
            Ok(())
        }
        Settled::Stuck { counter, .. } => {
            argument.task_counter = counter;
            board.reset_after_timeout(job);
            Err(Errno::ETIMEDOUT)
        }
        Settled::Unmodelled { counter } => {
            argument.task_counter = counter;
            Err(Errno::EOPNOTSUPP)
        }
        Settled::Failed => Err(Errno::EIO),
        Settled::Woken | Settled::Discarded | Settled::NeverCommitted => Err(Errno::EINVAL),
    };
    job.take_off();
    result
}

impl Inner {
    /// What a non-blocking submit does first: jobs on its cores that look overdue are thrown away with all that waits
    /// behind them. With an automatic choice of the core nothing is looked at.
    fn reap(self: &Arc<Self>, core_mask: u32) {
        let real = self.options.time == TimePolicy::Real;
        let quirk = self.options.reap_compares_microseconds;
        for (core, slot) in self.cores.iter().enumerate().filter(|(core, _)| core_mask & (1 << core) != 0) {
            let doomed = slot.lane.overdue(|limit_ms, since, stuck| {
                let age = since.elapsed();
                if quirk && age.as_micros() > u128::from(limit_ms) {
                    return true;
                }
                // A job that is being computed is late on the host only.
                stuck && (!real || age.as_millis() >= u128::from(limit_ms))
            });
            if doomed.is_empty() {
                continue;
            }
            // Given up before the reset: a job that begins behind it finds that it is not to run.
            doomed.iter().for_each(|work| work.cancel());
            self.pulse_reset_lines();
            // What waits goes first: once the running job is off the core, the next one in the queue would begin.
            for work in doomed.into_iter().rev() {
                work.discard();
                for slot in &self.cores {
                    slot.lane.remove(&work);
                }
            }
            tracing::debug!(core, "reaped overdue jobs");
        }
    }

    /// A file is gone: jobs that a core is stuck with are its legacy.
    pub(crate) fn abandon_jobs_of(&self, file: u64) {
        for slot in &self.cores {
            if let Some(work) = slot.lane.orphan(file) {
                work.discard();
                for slot in &self.cores {
                    slot.lane.remove(&work);
                }
                self.pulse_reset_lines();
            }
        }
    }

    /// Ends a job's use of its domain.
    pub(crate) fn leave_domain(&self, number: u64) {
        if self.faults.fires(Fault::LeakedDomain) {
            self.report(None, number, FindingKind::Injected { fault: Fault::LeakedDomain });
            return;
        }
        self.live_domain.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::job_on;

    /// `uapi.md` A.10: the reset after a time-out wakes whoever waits, and the call returns `EINVAL`.
    #[test]
    fn a_time_out_wakes_what_waits_behind_it() {
        for bypass_soft_reset in [false, true] {
            let options = crate::EmuOptions { bypass_soft_reset, ..Default::default() };
            let board = crate::Board::new(&options);
            let limit = Duration::from_millis(1);
            // Nothing is mapped, so that the fetch of its program hangs.
            let [hanging, behind, elsewhere] =
                [vec![0], vec![0], vec![1]].map(|cores| job_on(&board, &cores, false));
            hanging.queue().unwrap();
            let mut settled = None;
            while !matches!(settled, Some(Settled::Stuck { .. })) {
                settled = hanging.settled(LOOK_EVERY);
            }
            behind.queue().unwrap();
            board.0.expect_reset(&elsewhere);
            let mut argument = RknpuSubmit::default();
            assert_eq!(wait(&board.0, &hanging, limit, &mut argument), Err(Errno::ETIMEDOUT));
            // Without a reset it comes to the core, and hangs there.
            let expected = if bypass_soft_reset { Errno::ETIMEDOUT } else { Errno::EINVAL };
            assert_eq!(wait(&board.0, &behind, limit, &mut argument), Err(expected));
            assert!(
                elsewhere.settled(Duration::ZERO).is_none(),
                "what runs on another core is not disturbed"
            );
            elsewhere.take_off();
            drop((hanging, behind, elsewhere));
            assert_eq!(board.live(), crate::Live::default());
        }
    }

    #[test]
    fn ranges_follow_the_number_of_cores() {
        let subcore_task =
            std::array::from_fn(|i| RknpuSubcoreTask { task_start: i as u32, task_number: 10 + i as u32 });
        let argument = RknpuSubmit { subcore_task, task_start: 7, ..Default::default() };
        let starts = |soc, cores: &[u8]| -> Vec<u32> {
            let board = crate::Board::new(&crate::EmuOptions { soc, ..Default::default() });
            cores.iter().map(|core| range_of(&board.0, &argument, *core, cores.len()).task_start).collect()
        };
        use crate::Soc::{Rk3568, Rk3576, Rk3588};
        assert_eq!(starts(Rk3588, &[2]), [2]);
        assert_eq!(starts(Rk3588, &[0, 1]), [0, 1]);
        assert_eq!(starts(Rk3588, &[0, 1, 2]), [2, 3, 4]);
        assert_eq!(starts(Rk3576, &[1]), [1]);
        assert_eq!(starts(Rk3568, &[0]), [7]);
    }

    #[test]
    fn a_job_gets_its_whole_time_in_at_most_three_rounds() {
        let ms = Duration::from_millis;
        for (committed, end) in [(0, 100), (1, 200), (100, 200), (101, 300), (250, 300)] {
            assert_eq!(expiry(ms(100), ms(committed)), ms(end), "committed after {committed} ms");
        }
    }
}
