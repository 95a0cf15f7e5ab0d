// SPDX-License-Identifier: MIT OR Apache-2.0
//! Some dozens of calls of one or two threads on a board, and the end of everything.

mod arena;
mod buffers;
mod calls;

use std::sync::Arc;

use ork_drm::{Errno, Mapping, uapi as drm};
use ork_emu::{
    Board, Coherency, EmuOptions, EmulatedFile, FaultPlan, FindingKind, HostFds, RocketOptions, SimOptions,
    Soc, When,
};
use ork_rknpu::uapi::{self as rknpu, job};
use ork_trace::{Header, Reader, RecordedMapping, Recorder, Source, TraceError};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::words::Random;
use super::{MEMORY_BYTES, Tally, all_gone};
use arena::{Arena, Descriptors, Sink, read_memory};

/// Which driver a session talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// The vendor's.
    Rknpu,
    /// The mainline one.
    Rocket,
}

/// Calls of a thread, at most.
const CALLS: usize = 80;
/// Buffers that jobs work on are not larger, so that no job takes long.
const BUFFER_BYTES: [u64; 8] = [1, 64, 440, 4096, 4097, 0x4000, 0x1_0000, 0x4_0000];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Driver,
    Heap,
}

struct Open {
    device: Box<dyn EmulatedFile>,
    node: Node,
    recorded: Option<u32>,
}

/// A buffer that a call has given.
#[derive(Default)]
struct Buffer {
    file: u64,
    handle: u32,
    obj_addr: u64,
    iova: u32,
    offset: u64,
    size: u64,
    mapping: Option<(Mapping, Option<RecordedMapping>)>,
    /// Part of what [`Session::prepare`] made: mostly left alone.
    prepared: bool,
}

/// One thread's part of an execution.
struct Session<'a> {
    driver: Driver,
    random: Random,
    board: &'a Board,
    descriptors: &'a HostFds,
    recorder: Option<&'a Recorder>,
    thread: i32,
    arena: Arena,
    files: Vec<(u64, Open)>,
    next_file: u64,
    buffers: Vec<Buffer>,
    /// Where programs lie, and how many words they have.
    programs: Vec<(u32, u32)>,
    /// Object addresses of task arrays.
    arrays: Vec<u64>,
    fds: Vec<i32>,
    tally: Tally,
}

fn options(random: &mut Random) -> EmuOptions {
    let share = |random: &mut Random| match random.below(4) {
        0 => "one-in:5".parse().unwrap(),
        1 => When::Nth(1 + random.below(4) as u64),
        _ => When::Never,
    };
    let faults = if random.one_in(4) {
        FaultPlan {
            seed: random.value(),
            hang: share(random),
            wild_read: share(random),
            wild_write: share(random),
            overrun: share(random),
            dropped: share(random),
            late_write_back: share(random),
            late_write_back_ms: 1,
            lost_interrupt: share(random),
            stale_line: share(random),
            interrupted: share(random),
            out_of_memory: share(random),
            leaked_domain: share(random),
            dead_core: random.one_in(8).then_some(0),
            window_bytes: random.one_in(8).then_some(0x10_0000),
        }
    } else {
        FaultPlan::default()
    };
    EmuOptions {
        soc: random.pick(&[Soc::Rk3588, Soc::Rk3588, Soc::Rk3576, Soc::Rk3568]),
        driver_version: random.pick(&[[0, 9, 8], [0, 9, 8], [0, 9, 7], [0, 9, 5], [0, 8, 2]]),
        domain_wait_ms: 1,
        coherency: random.pick(&[Coherency::Strict, Coherency::Shared]),
        iommu: !random.one_in(8),
        fences: !random.one_in(8),
        memory_bytes: MEMORY_BYTES,
        sram_bytes: random.pick(&[0, 956 << 10]),
        reap_compares_microseconds: random.one_in(4),
        bypass_soft_reset: random.one_in(8),
        private_actions: random.one_in(2),
        rocket: RocketOptions { pooling_completes: random.one_in(2), ..RocketOptions::default() },
        sim: SimOptions { threads: 1, strict: random.one_in(4), ..SimOptions::default() },
        faults,
        ..EmuOptions::default()
    }
}

/// Runs one seed.
pub(super) fn execute(driver: Driver, seed: u64) -> Result<Tally, String> {
    run(driver, seed).map(|(tally, _)| tally)
}

/// Runs one seed; the trace, if one was recorded.
pub(super) fn run(driver: Driver, seed: u64) -> Result<(Tally, Option<Vec<u8>>), String> {
    let mut random = Random::new(seed, 0);
    let descriptors = Arc::new(Descriptors::default());
    let board = Board::with_fd_table(&options(&mut random), Arc::clone(&descriptors) as _);
    let sink = Sink::default();
    let recorder = random.one_in(4).then(|| {
        let name = match driver {
            Driver::Rknpu => ork_rknpu::DRIVER_NAME,
            Driver::Rocket => ork_rocket::DRIVER_NAME,
        };
        let header = Header { source: Source::Emulated, driver: name.to_owned(), ..Header::default() };
        Recorder::new(Box::new(sink.clone()), &header, read_memory).unwrap()
    });
    let threads = if random.one_in(4) { 2 } else { 1 };
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..threads)
            .map(|thread| {
                let (board, fds, recorder) = (&board, &descriptors.host, recorder.as_ref());
                scope.spawn(move || Session::new(driver, seed, thread, board, fds, recorder).run())
            })
            .collect();
        for session in sessions {
            match session.join() {
                Ok(other) => tally.add(other),
                Err(payload) => std::panic::resume_unwind(payload),
            }
        }
    });
    descriptors.close_all();
    all_gone(&board)?;
    let findings = board.take_findings();
    if let Some(panic) = findings.iter().find(|finding| finding.kind == FindingKind::ModelPanicked) {
        return Err(panic.to_string());
    }
    if driver == Driver::Rocket {
        // Nobody tells; what went wrong is known.
        let lost = findings.iter().filter(|finding| {
            matches!(
                finding.kind,
                FindingKind::Vanished { .. }
                    | FindingKind::ReadAndWritten { .. }
                    | FindingKind::HiddenTimeout { .. }
            )
        });
        tally.completed = tally.jobs.saturating_sub(lost.count() as u64);
    }
    let Some(recorder) = recorder else { return Ok((tally, None)) };
    match recorder.finish() {
        Ok(()) => {}
        // A submit named more memory than a record can hold, which is said and ends the trace.
        Err(TraceError::Limit { .. }) => return Ok((tally, None)),
        Err(error) => return Err(format!("the recorder: {error}")),
    }
    let trace = sink.take();
    for event in Reader::new(&trace[..]).map_err(|error| format!("its own trace: {error}"))? {
        event.map_err(|error| format!("its own trace: {error}"))?;
    }
    Ok((tally, Some(trace)))
}

impl<'a> Session<'a> {
    fn new(
        driver: Driver,
        seed: u64,
        thread: u32,
        board: &'a Board,
        descriptors: &'a HostFds,
        recorder: Option<&'a Recorder>,
    ) -> Self {
        Self {
            driver,
            random: Random::new(seed, 1 + thread),
            board,
            descriptors,
            recorder,
            thread: thread as i32,
            arena: Arena::new(),
            files: Vec::new(),
            next_file: 0,
            buffers: Vec::new(),
            programs: Vec::new(),
            arrays: Vec::new(),
            fds: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn run(mut self) -> Tally {
        self.open();
        if !self.random.one_in(8) {
            self.prepare();
        }
        for _ in 0..10 + self.random.below(CALLS) {
            match self.random.below(32) {
                0 => self.open(),
                1 if self.files.len() > 1 => self.close_file(),
                2..=4 => self.anything(),
                5..=8 => self.create(),
                9 | 10 => self.map(),
                11..=15 => self.fill(),
                16 => self.unmap(),
                17 => self.free(),
                18 => self.share(),
                19 => self.heap(),
                20 | 21 => self.use_descriptor(),
                22 | 23 => self.maintain(),
                24 if self.driver == Driver::Rknpu => self.action(),
                25 => self.core_call(),
                _ => self.submit(),
            }
            let live = self.board.live();
            assert!(live.dram_bytes <= MEMORY_BYTES, "{live:?}");
            assert!(live.view_bytes <= 2 * MEMORY_BYTES, "{live:?}");
        }
        while !self.buffers.is_empty() {
            self.forget_buffer(0);
        }
        while !self.files.is_empty() {
            self.close_file();
        }
        self.tally
    }

    fn open(&mut self) {
        let render = self.random.one_in(4);
        let device: Box<dyn EmulatedFile> = match self.driver {
            Driver::Rknpu if render => Box::new(self.board.open_render()),
            Driver::Rknpu => Box::new(self.board.open()),
            Driver::Rocket => Box::new(self.board.open_rocket()),
        };
        let name = match self.driver {
            Driver::Rknpu => ork_rknpu::DRIVER_NAME,
            Driver::Rocket => ork_rocket::DRIVER_NAME,
        };
        let recorded = self.recorder.and_then(|recorder| recorder.open("node", name));
        self.enter(Open { device, node: Node::Driver, recorded });
    }

    fn enter(&mut self, open: Open) {
        self.files.push((self.next_file, open));
        self.next_file += 1;
    }

    fn close_file(&mut self) {
        let Some(index) = self.random.index(self.files.len()) else { return };
        let (_, open) = self.files.remove(index);
        if let (Some(recorder), Some(number)) = (self.recorder, open.recorded) {
            recorder.close(number);
        }
    }

    /// Some open file of the driver.
    fn file(&mut self) -> usize {
        let drivers: Vec<usize> =
            (0..self.files.len()).filter(|index| self.files[*index].1.node == Node::Driver).collect();
        match self.random.index(drivers.len()) {
            Some(index) => drivers[index],
            None => {
                self.open();
                self.files.len() - 1
            }
        }
    }

    fn issue(&mut self, file: usize, request: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.soften(request, bytes);
        let open = &self.files[file].1;
        // SAFETY: addresses inside are the arena's, or of nothing; the host checks them.
        let mut perform = |bytes: &mut [u8]| unsafe { open.device.ioctl(request, bytes) };
        let result = match (self.recorder, open.recorded) {
            (Some(recorder), Some(number)) => {
                recorder.call(number, self.thread, request, bytes, &mut perform)
            }
            _ => perform(bytes),
        };
        self.tally.calls += 1;
        self.tally.successes += u64::from(result.is_ok());
        result
    }

    /// Takes long waits for fences out of a submit: they are waited for in the host's time, as asked.
    fn soften(&self, request: u32, bytes: &mut [u8]) {
        let (flags, timeout) = (0..4, 4..8);
        if self.driver == Driver::Rknpu
            && drm::number(request) == rknpu::number::SUBMIT
            && bytes.len() >= timeout.end
            && bytes[flags.start] & job::FENCE_IN as u8 != 0
        {
            bytes[timeout].copy_from_slice(&2_u32.to_le_bytes());
        }
    }

    fn call<A>(&mut self, file: usize, request: u32, argument: &mut A) -> Result<(), Errno>
    where
        A: FromBytes + IntoBytes + Immutable,
    {
        if self.random.one_in(2) {
            self.random.disturb(argument.as_mut_bytes());
        }
        self.issue(file, request, argument.as_mut_bytes())
    }

    /// Notes a number if it is a descriptor that this board gave out to this thread.
    fn keep_descriptor(&mut self, fd: i32) {
        if fd > 2 && !self.fds.contains(&fd) && self.board.fds().resolve(fd).is_ok() {
            self.random.remember(fd as u64);
            self.fds.push(fd);
        }
    }
}
