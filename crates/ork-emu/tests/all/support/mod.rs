// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of the emulated kernel share: cores that do as told, and calls without wrappers.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ork_drm::{Errno, Mapping, Transport};
use ork_emu::{
    Board, Bus, BusFault, CORES, Diagnosis, EmuOptions, Engine, Fault, FindingKind, JobEnd, JobOutcome,
    JobStats, Live, PcJob, Span,
};
use ork_isa::Iova;
use ork_rknpu::uapi::{RknpuSubcoreTask, RknpuSubmit, RknpuTask, job, mem, sync};
use ork_rknpu::{Buffer, CreateRequest, Rknpu, RknpuError, SubmitReport};
use zerocopy::IntoBytes;

pub(crate) type Npu = Rknpu<ork_emu::VirtualRknpu>;
type Behaviour = dyn Fn(u8, &dyn Bus, &PcJob) -> JobOutcome + Send + Sync;

/// A core that does as it is told, and counts.
pub(crate) struct Puppet {
    index: u8,
    behaviour: Arc<Behaviour>,
    log: Arc<Log>,
}

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) runs: Mutex<Vec<(u8, PcJob)>>,
    pub(crate) resets: [AtomicU32; CORES],
}

impl Engine for Puppet {
    fn reset(&mut self) {
        self.log.resets[usize::from(self.index)].fetch_add(1, SeqCst);
    }

    fn run(&mut self, bus: &dyn Bus, job: &PcJob) -> JobOutcome {
        self.log.runs.lock().unwrap().push((self.index, *job));
        (self.behaviour)(self.index, bus, job)
    }
}

pub(crate) fn board_with(
    options: &EmuOptions,
    behaviour: impl Fn(u8, &dyn Bus, &PcJob) -> JobOutcome + Send + Sync + 'static,
) -> (Board, Arc<Log>) {
    let (behaviour, log) = (Arc::new(behaviour) as Arc<Behaviour>, Arc::new(Log::default()));
    let engine = |index| -> Box<dyn Engine> {
        Box::new(Puppet { index: index as u8, behaviour: Arc::clone(&behaviour), log: Arc::clone(&log) })
    };
    (Board::with_engines(options, std::array::from_fn(engine)), log)
}

pub(crate) fn outcome(tasks_done: u16, int_status: u32, end: JobEnd) -> JobOutcome {
    let stats = JobStats::default();
    JobOutcome { tasks_done, int_status, end, diagnoses: Vec::new(), modelled_us: 2.5, stats }
}

/// All tasks completed, by output-stage group 0.
pub(crate) fn done(job: &PcJob) -> JobOutcome {
    outcome(job.tasks, 0x100, JobEnd::Done)
}

struct NoMemory;

impl Bus for NoMemory {
    fn read(&self, iova: Iova, len: u64) -> Result<Span<'_>, BusFault> {
        Err(BusFault { iova, len, access: ork_emu::Access::Read })
    }

    fn write(&self, iova: Iova, data: &[u8]) -> Result<(), BusFault> {
        Err(BusFault { iova, len: data.len() as u64, access: ork_emu::Access::Write })
    }
}

/// Some real finding of the model: the first program is not mapped.
pub(crate) fn some_diagnosis() -> Diagnosis {
    let job = PcJob {
        base: Iova(0x1000),
        amount: 7,
        tasks: 1,
        dma_base: Iova(0),
        int_mask: 0x300,
        int_clear: 0x300,
        s_pointer: None,
    };
    match ork_sim::Core::new(0, &Default::default()).run(&NoMemory, &job).end {
        JobEnd::Hang(diagnosis) | JobEnd::Unmodelled(diagnosis) => diagnosis,
        JobEnd::Done => panic!("a core without memory completed a job"),
    }
}

pub(crate) fn board() -> Board {
    Board::new(&EmuOptions::default())
}

pub(crate) fn open(board: &Board) -> Npu {
    Rknpu::new(board.open())
}

pub(crate) fn create(npu: &Npu, size: u64, flags: u32) -> Buffer {
    npu.mem_create(&CreateRequest { size, flags, domain: 0 }).unwrap()
}

pub(crate) fn map(npu: &Npu, buffer: &Buffer, len: usize) -> Mapping {
    npu.mmap(npu.mem_map(buffer.handle).unwrap(), len).unwrap()
}

pub(crate) fn get(mapping: &Mapping, at: usize) -> u8 {
    // SAFETY: the tests do nothing else with the buffer meanwhile.
    let bytes = unsafe { mapping.bytes() };
    bytes[at]
}

pub(crate) fn put(mapping: &mut Mapping, at: usize, data: &[u8]) {
    // SAFETY: the tests do nothing else with the buffer meanwhile.
    let bytes = unsafe { mapping.bytes_mut() };
    bytes[at..at + data.len()].copy_from_slice(data);
}

pub(crate) fn flush(npu: &Npu, buffer: &Buffer, offset: u64, size: u64) {
    // SAFETY: the object is alive, and no slice of its mapping is.
    unsafe { npu.mem_sync(buffer.obj_addr, offset, size, sync::TO_DEVICE) }.unwrap();
}

pub(crate) fn invalidate(npu: &Npu, buffer: &Buffer, offset: u64, size: u64) {
    // SAFETY: the object is alive, and no slice of its mapping is.
    unsafe { npu.mem_sync(buffer.obj_addr, offset, size, sync::FROM_DEVICE) }.unwrap();
}

pub(crate) fn submit(npu: &Npu, request: &RknpuSubmit) -> Result<SubmitReport, RknpuError> {
    // SAFETY: the emulated kernel checks object addresses; no mapping is borrowed.
    unsafe { npu.submit(request) }
}

/// Issues an ioctl with the struct's bytes.
pub(crate) fn raw(npu: &Npu, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: used with structs that hold no addresses.
    unsafe { npu.transport().ioctl(request, argument) }
}

/// A task array with `count` descriptors, whose programs would lie at 0x1000 * (index + 1).
pub(crate) struct Tasks {
    pub(crate) buffer: Buffer,
    pub(crate) mapping: Mapping,
}

pub(crate) fn tasks(npu: &Npu, count: u32, int_mask: u32) -> Tasks {
    let buffer = create(npu, u64::from(count) * 40, mem::TASKS);
    let mut mapping = map(npu, &buffer, count as usize * 40);
    for index in 0..count {
        let task = RknpuTask {
            int_mask,
            regcfg_amount: 108,
            regcmd_addr: u64::from(index + 1) * 0x1000,
            ..Default::default()
        };
        put(&mut mapping, index as usize * 40, task.as_bytes());
    }
    Tasks { buffer, mapping }
}

/// A submit of the first `count` tasks on the cores of `core_mask`.
pub(crate) fn request(tasks: &Tasks, core_mask: u32, count: u32) -> RknpuSubmit {
    let range = RknpuSubcoreTask { task_start: 0, task_number: count };
    RknpuSubmit {
        flags: job::PC | job::PINGPONG,
        timeout: 6000,
        task_number: count,
        task_obj_addr: tasks.buffer.obj_addr,
        core_mask,
        subcore_task: [range; 5],
        ..Default::default()
    }
}

/// Reads a byte of a mapping that somebody else may write at the same time.
pub(crate) fn peek(mapping: &Mapping, at: usize) -> u8 {
    assert!(at < mapping.len());
    // SAFETY: inside the mapping; a volatile read of one byte needs no exclusive access.
    unsafe { mapping.as_ptr().add(at).read_volatile() }
}

/// Waits for something that another thread does.
pub(crate) fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed().as_secs() < 20, "{what} never happened");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// All counts are zero, soon.
pub(crate) fn all_gone(board: &Board) {
    eventually(&format!("the end of {:?}", board.live()), || board.live() == Live::default());
}

/// The findings that nobody has taken.
pub(crate) fn kinds(board: &Board) -> Vec<FindingKind> {
    board.take_findings().into_iter().map(|finding| finding.kind).collect()
}

/// The faults that happened, in order.
pub(crate) fn injected(board: &Board) -> Vec<Fault> {
    let fault = |finding: ork_emu::Finding| match finding.kind {
        FindingKind::Injected { fault } => Some(fault),
        _ => None,
    };
    board.take_findings().into_iter().filter_map(fault).collect()
}

/// A core that takes the byte at the job's base, adds 1 and stores it there and 64 bytes further on.
pub(crate) fn adding(_core: u8, bus: &dyn Bus, job: &PcJob) -> JobOutcome {
    let Ok(byte) = bus.read(job.base, 1).map(|span| span[0]) else {
        return outcome(0, 0, JobEnd::Hang(some_diagnosis()));
    };
    for at in [job.base, job.base.checked_add(64).unwrap()] {
        if bus.write(at, &[byte.wrapping_add(1)]).is_err() {
            return outcome(0, 0, JobEnd::Hang(some_diagnosis()));
        }
    }
    done(job)
}

/// Whether a descriptor polls readable.
pub(crate) fn polls(fd: i32) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry.
    unsafe { libc::poll(&mut entry, 1, 0) == 1 && entry.revents & libc::POLLIN != 0 }
}

/// Points a task at a buffer.
pub(crate) fn point_task_at(tasks: &mut Tasks, address: u64) {
    put(&mut tasks.mapping, 32, &address.to_le_bytes());
}
