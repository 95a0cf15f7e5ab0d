// SPDX-License-Identifier: MIT OR Apache-2.0
//! SUBMIT: from the ioctl struct to the cores and back.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ork_drm::Errno;
use ork_isa::Iova;
use ork_rknpu::uapi::{RknpuSubcoreTask, RknpuSubmit, RknpuTask, job};
use ork_sim::{JobEnd, PcJob};
use zerocopy::{FromZeros, IntoBytes};

use crate::CORES;
use crate::board::Inner;
use crate::domain::DomainBus;
use crate::finding::FindingKind;
use crate::object::Object;

/// Cores of the chip, as a mask.
const CORE_MASK: u32 = (1 << CORES) - 1;
/// Tasks that the hardware counts in one go.
const SLICE_TASKS_MAX: u32 = ork_isa::soc::RK3588.tasks_per_chain_max;
/// Words of the trailer, which `regcfg_amount` leaves out.
const TRAILER_WORDS: u32 = 4;
/// Words that the program controller fetches per unit of its amount.
const WORDS_PER_BEAT: u32 = 2;
const TASK_BYTES: u64 = size_of::<RknpuTask>() as u64;
/// The kernel pauses so long before it aborts a job without the PC flag.
const ABORT_PAUSE: Duration = Duration::from_millis(100);

/// A job that passed validation.
struct Job {
    number: u64,
    tasks: Arc<Object>,
    domain: u8,
    dma_base: Iova,
    timeout: Duration,
}

/// What became of the part of a job that one core ran.
struct CoreReport {
    end: CoreEnd,
    /// Tasks that the hardware counted in the current slice.
    counter: u32,
    elapsed: Duration,
}

enum CoreEnd {
    Done,
    TimedOut,
    Unmodelled,
    /// Somebody else reset the NPU.
    Woken,
    /// The task range is no range.
    Refused,
}

/// Runs a blocking submit. Non-blocking ones would queue `run_on` with a worker per core and return.
pub(crate) fn submit(board: &Arc<Inner>, argument: &mut RknpuSubmit) -> Result<(), Errno> {
    if argument.task_number == 0 || argument.core_mask > CORE_MASK {
        return Err(Errno::EINVAL);
    }
    if argument.flags & (job::FENCE_IN | job::FENCE_OUT) != 0 {
        // As a kernel built without fences.
        return Err(Errno::EINVAL);
    }
    if argument.flags & job::NONBLOCK != 0 {
        board.report(None, 0, FindingKind::NotEmulated { what: "non-blocking submission" });
        return Err(Errno::EINVAL);
    }
    if argument.flags & job::PC == 0 {
        board.spend(ABORT_PAUSE);
        return Err(Errno::EINVAL);
    }
    let number = board.jobs.fetch_add(1, Relaxed) + 1;
    let cores = choose_cores(board, argument.core_mask).ok_or(Errno::EINVAL)?;
    let job = Job {
        number,
        tasks: task_array(board, argument.task_obj_addr, cores[0], number)?,
        domain: board.domain_id(argument.iommu_domain_id as i32)?,
        dma_base: Iova(argument.task_base_addr as u32),
        timeout: Duration::from_millis(argument.timeout.into()),
    };
    let ranges: Vec<_> = cores.iter().map(|core| range_of(argument, *core, cores.len())).collect();

    board.live_domain.enter(job.domain)?;
    let reports = run(board, &job, &cores, &ranges);
    board.live_domain.leave();

    for (core, (report, range)) in cores.iter().zip(reports.iter().zip(&ranges)) {
        if matches!(report.end, CoreEnd::Refused) {
            let capacity = job.tasks.size / TASK_BYTES;
            let kind = FindingKind::TaskRange { start: range.task_start, count: range.task_number, capacity };
            board.report(Some(*core), number, kind);
        }
    }
    conclude(argument, &reports)
}

/// The cores of a mask; `None` for the two masks that the driver accepts but has no case for.
fn choose_cores(board: &Inner, mask: u32) -> Option<Vec<u8>> {
    match mask {
        0 => {
            // The least loaded one; the first among equals.
            let load = |core: &u8| board.cores[usize::from(*core)].queued_tasks.load(Relaxed);
            (0..CORES as u8).min_by_key(load).map(|core| vec![core])
        }
        0b101 | 0b110 => None,
        _ => Some((0..CORES as u8).filter(|core| mask & (1 << core) != 0).collect()),
    }
}

/// The entry that a core uses: its own for one or two cores, the one two further on for three.
fn range_of(argument: &RknpuSubmit, core: u8, cores: usize) -> RknpuSubcoreTask {
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
        Some(object) if object.has_kernel_mapping() => Ok(object),
        Some(_) => Err(refuse(FindingKind::NoKernelMapping { obj_addr: address })),
        None => Err(refuse(FindingKind::UnknownObject { obj_addr: address })),
    }
}

/// Runs the parts of a job, at once if they are several.
fn run(board: &Inner, job: &Job, cores: &[u8], ranges: &[RknpuSubcoreTask]) -> Vec<CoreReport> {
    if let ([core], [range]) = (cores, ranges) {
        return vec![run_on(board, job, *core, *range)];
    }
    std::thread::scope(|scope| {
        let parts: Vec<_> = cores
            .iter()
            .zip(ranges)
            .map(|(core, range)| scope.spawn(move || run_on(board, job, *core, *range)))
            .collect();
        let panicked = "the simulator does not panic";
        parts.into_iter().map(|part| part.join().expect(panicked)).collect()
    })
}

/// Runs one core's part of a job, when the core is free.
fn run_on(board: &Inner, job: &Job, core: u8, range: RknpuSubcoreTask) -> CoreReport {
    let RknpuSubcoreTask { task_start: start, task_number: count } = range;
    let mut report = CoreReport { end: CoreEnd::Refused, counter: 0, elapsed: Duration::ZERO };
    let end = u64::from(start) + u64::from(count);
    if count == 0 || end * TASK_BYTES > job.tasks.size {
        return report;
    }
    let slot = &board.cores[usize::from(core)];
    slot.queued_tasks.fetch_add(count, Relaxed);
    let mut engine = slot.engine.lock();
    let resets = board.resets.load(Relaxed);

    let mut first = u64::from(start);
    while first < end {
        let tasks = (end - first).min(SLICE_TASKS_MAX.into());
        if slot.reset_due.swap(false, Relaxed) {
            engine.reset();
        }
        let last = first + tasks - 1;
        let mut last_task = read_task(&job.tasks, last);
        let pc_job = pc_job(job, &read_task(&job.tasks, first), &last_task, tasks as u16);
        let bus = DomainBus { space: board.space(job.domain) };
        let outcome = engine.run(&bus, &pc_job);

        for diagnosis in outcome.diagnoses {
            board.report(Some(core), job.number, FindingKind::Simulator(diagnosis));
        }
        report.counter = u32::from(outcome.tasks_done);
        report.end = match outcome.end {
            JobEnd::Done => {
                let int_status = widen(outcome.int_status & pc_job.int_mask);
                // With an empty mask no interrupt is ever raised.
                if int_status == pc_job.int_mask && int_status != 0 {
                    last_task.int_status = int_status;
                    write_task(&job.tasks, last, &last_task);
                    CoreEnd::Done
                } else {
                    let int_mask = pc_job.int_mask;
                    let kind = FindingKind::NeverCompletes { int_mask, int_status };
                    board.report(Some(core), job.number, kind);
                    CoreEnd::TimedOut
                }
            }
            JobEnd::Hang(diagnosis) => {
                board.report(Some(core), job.number, FindingKind::Simulator(diagnosis));
                CoreEnd::TimedOut
            }
            JobEnd::Unmodelled(diagnosis) => {
                board.report(Some(core), job.number, FindingKind::Simulator(diagnosis));
                CoreEnd::Unmodelled
            }
        };
        match report.end {
            CoreEnd::Done => {
                let took = Duration::from_secs_f64(outcome.modelled_us.max(0.0) / 1e6);
                board.spend(took);
                report.elapsed += took;
            }
            CoreEnd::TimedOut => {
                board.spend(job.timeout);
                board.pulse_reset_lines();
            }
            // Nobody knows what state such a program leaves.
            _ => slot.reset_due.store(true, Relaxed),
        }
        if board.resets.load(Relaxed) != resets {
            report.end = CoreEnd::Woken;
        }
        if !matches!(report.end, CoreEnd::Done) {
            break;
        }
        first += tasks;
    }
    drop(engine);
    slot.queued_tasks.fetch_sub(count, Relaxed);
    report
}

/// What the driver writes into a core's registers to start it.
fn pc_job(job: &Job, first: &RknpuTask, last: &RknpuTask, tasks: u16) -> PcJob {
    let beats = first.regcfg_amount.saturating_add(TRAILER_WORDS).div_ceil(WORDS_PER_BEAT);
    PcJob {
        base: Iova(first.regcmd_addr as u32),
        amount: (beats - 1) as u16,
        tasks,
        dma_base: job.dma_base,
        int_mask: last.int_mask,
        int_clear: first.int_mask,
    }
}

/// Each pair of event bits, one per register group, counts as a whole.
fn widen(status: u32) -> u32 {
    const EVEN: u32 = 0x5555_5555;
    status | ((status & EVEN) << 1) | ((status >> 1) & EVEN)
}

fn read_task(array: &Object, index: u64) -> RknpuTask {
    let mut task = RknpuTask::new_zeroed();
    array.kernel_read((index * TASK_BYTES) as usize, task.as_mut_bytes());
    task
}

fn write_task(array: &Object, index: u64, task: &RknpuTask) {
    array.kernel_write((index * TASK_BYTES) as usize, task.as_bytes());
}

/// Puts the outcome into the caller's struct, which is copied out in any case.
fn conclude(argument: &mut RknpuSubmit, reports: &[CoreReport]) -> Result<(), Errno> {
    let failed = |wanted: fn(&CoreEnd) -> bool| reports.iter().find(|report| wanted(&report.end));
    if failed(|end| matches!(end, CoreEnd::Refused | CoreEnd::Woken)).is_some() {
        return Err(Errno::EINVAL);
    }
    if let Some(report) = failed(|end| matches!(end, CoreEnd::Unmodelled)) {
        argument.task_counter = report.counter;
        return Err(Errno::EOPNOTSUPP);
    }
    if let Some(report) = failed(|end| matches!(end, CoreEnd::TimedOut)) {
        argument.task_counter = report.counter;
        return Err(Errno::ETIMEDOUT);
    }
    argument.task_counter = argument.task_number;
    let longest = reports.iter().map(|report| report.elapsed).max().unwrap_or_default();
    argument.hw_elapse_time = i64::try_from(longest.as_nanos()).unwrap_or(i64::MAX);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_include_the_trailer_and_round_up() {
        let job = |regcfg_amount, regcmd_addr| {
            let task = RknpuTask { regcfg_amount, regcmd_addr, int_mask: 0x300, ..Default::default() };
            let board = crate::Board::new(&crate::EmuOptions::default());
            let request = ork_rknpu::uapi::RknpuMemCreate { size: 1, ..Default::default() };
            let tasks = Object::allocate(&board.0, &request, 0).unwrap();
            let job = Job { number: 1, tasks, domain: 0, dma_base: Iova(0), timeout: Duration::ZERO };
            pc_job(&job, &task, &task, 1)
        };
        for (words, amount) in [(104, 53), (108, 55), (13, 8), (12, 7), (17, 10)] {
            assert_eq!(job(words, 0).amount, amount, "{words} words");
        }
        assert_eq!(job(12, 0x1_8000_0040).base, Iova(0x8000_0040), "the address is cut to 32 bits");
    }

    #[test]
    fn event_pairs_are_widened() {
        for (status, wide) in [(0x100, 0x300), (0x200, 0x300), (0x300, 0x300), (0x400, 0xC00), (0, 0)] {
            assert_eq!(widen(status), wide);
        }
    }

    #[test]
    fn ranges_follow_the_number_of_cores() {
        let subcore_task =
            std::array::from_fn(|i| RknpuSubcoreTask { task_start: i as u32, task_number: 10 + i as u32 });
        let argument = RknpuSubmit { subcore_task, ..Default::default() };
        let starts = |cores: &[u8]| -> Vec<u32> {
            cores.iter().map(|core| range_of(&argument, *core, cores.len()).task_start).collect()
        };
        assert_eq!(starts(&[2]), [2]);
        assert_eq!(starts(&[0, 1]), [0, 1]);
        assert_eq!(starts(&[0, 1, 2]), [2, 3, 4]);
    }
}
