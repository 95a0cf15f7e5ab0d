// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds of the small matmul: a chain for each core, each program with its own features and its own output.

use std::sync::Arc;

use ork_device::{
    Board, Cells, Chain, Completed, Device, DeviceOptions, DmaBuffer, DomainId, DriverKind, EmuOptions,
    EventKind, FaultPlan, Input, Pending, Purpose, RecoveryMode, ResidentBuffer, Round, Seed, Submission,
    SubmitError, SubmitMode, Task, Threads, Witness,
};
use ork_emu::{Bus, Engine, JobOutcome, PcJob};
use ork_isa::{Iova, Link};
use ork_sim::Core;

use super::{C_BYTES, K, M, MATMUL_BLOCKS, N, bytes_of, fill, noise, program, reference, weights, words_of};

const PITCH: usize = 0x380;

/// The kernels that everything must work on.
pub(crate) const KERNELS: [(DriverKind, [u32; 3]); 4] = [
    (DriverKind::Rknpu, [0, 9, 2]),
    (DriverKind::Rknpu, [0, 9, 6]),
    (DriverKind::Rknpu, [0, 9, 8]),
    (DriverKind::Rocket, [0, 0, 0]),
];

/// A device on a board with these faults.
pub(crate) fn device_on(
    kernel: (DriverKind, [u32; 3]),
    faults: FaultPlan,
    change: impl FnOnce(&mut DeviceOptions),
) -> (Device, Board) {
    opened(Board::new(&emu_options(kernel, faults)), kernel.0, change)
}

/// As [`device_on`], where a job has ended when the call returns that gives it: nothing depends on how long the host
/// takes for the model.
pub(crate) fn device_at_once(
    kernel: (DriverKind, [u32; 3]),
    faults: FaultPlan,
    change: impl FnOnce(&mut DeviceOptions),
) -> Device {
    let options = emu_options(kernel, faults);
    let core = |index| Box::new(AtOnce(Core::new(index, &options.sim))) as Box<dyn Engine>;
    opened(Board::with_engines(&options, [core(0), core(1), core(2)]), kernel.0, change).0
}

/// The model of a core, inside the call.
struct AtOnce(Core);

impl Engine for AtOnce {
    fn reset(&mut self) {
        self.0.reset();
    }

    fn run(&mut self, bus: &dyn Bus, job: &PcJob) -> JobOutcome {
        self.0.run(bus, job)
    }

    fn is_instant(&self) -> bool {
        true
    }
}

fn emu_options((driver, version): (DriverKind, [u32; 3]), faults: FaultPlan) -> EmuOptions {
    let driver_version = if driver == DriverKind::Rknpu { version } else { [0, 9, 8] };
    EmuOptions {
        driver_version,
        // What the source of this version does.
        reap_compares_microseconds: driver_version == [0, 9, 8],
        faults,
        ..EmuOptions::default()
    }
}

fn opened(board: Board, driver: DriverKind, change: impl FnOnce(&mut DeviceOptions)) -> (Device, Board) {
    let mut options = DeviceOptions {
        emulated_driver: driver,
        recovery: RecoveryMode::Forbid,
        timeout_ms: 100,
        ..DeviceOptions::default()
    };
    change(&mut options);
    (Device::on_board(&board, &options).unwrap(), board)
}

/// As [`device_on`], and allowed to try again.
pub(crate) fn recovering(
    kernel: (DriverKind, [u32; 3]),
    faults: FaultPlan,
    submit: SubmitMode,
) -> (Device, Board) {
    device_on(kernel, faults, |options| {
        options.recovery = RecoveryMode::Allow;
        options.submit = submit;
    })
}

struct Lane {
    submission: Submission,
    features: DmaBuffer,
    programs: DmaBuffer,
    writes: Arc<[Vec<Cells>]>,
}

/// Buffers of a round.
pub(crate) struct Bench {
    lanes: Vec<Lane>,
    weights: ResidentBuffer,
    pub(crate) output: DmaBuffer,
    expected: Vec<Vec<i32>>,
    pub(crate) seed: Option<Seed>,
}

impl Bench {
    /// `chain` programs on each of the first `cores` cores.
    pub(crate) fn new(device: &Device, domain: DomainId, cores: u8, chain: usize, seed: u64) -> Self {
        let output =
            device.alloc_in(domain, Purpose::Data, C_BYTES * chain as u64 * u64::from(cores)).unwrap();
        Self::with_output(device, output, cores, chain, seed)
    }

    pub(crate) fn with_output(
        device: &Device,
        output: DmaBuffer,
        cores: u8,
        chain: usize,
        seed: u64,
    ) -> Self {
        let domain = output.domain();
        let alloc = |len: usize| device.alloc_in(domain, Purpose::Data, len as u64).unwrap();
        let b_values = noise(seed + 1000, K * N);
        let mut b = alloc(K * N);
        fill(&mut b, 0, &weights(&b_values));
        b.flush(0..b.len()).unwrap();
        let mut expected = Vec::new();
        let mut lanes = Vec::new();
        for core in 0..cores {
            let mut features = alloc(M * K * chain);
            let mut programs = alloc(PITCH * chain);
            let mut tasks = Vec::new();
            let mut writes = Vec::new();
            for index in 0..chain {
                let values = noise(seed + 7 * expected.len() as u64, M * K);
                fill(&mut features, index * M * K, &bytes_of(&values));
                let offset = expected.len() as u64 * C_BYTES;
                let place = |buffer: &DmaBuffer, at: u64| Iova(buffer.iova().0 + at as u32);
                let link = match index + 1 == chain {
                    true => Link::Last,
                    false => Link::Next { at: place(&programs, ((index + 1) * PITCH) as u64), amount: 55 },
                };
                let a = place(&features, (index * M * K) as u64);
                let program = program(a, b.iova(), place(&output, offset), link);
                tasks.push(Task::dpu(
                    place(&programs, (index * PITCH) as u64),
                    program.body_words() as u32,
                    MATMUL_BLOCKS,
                ));
                program.write_to(&mut programs.host_mut()[index * PITCH..]);
                writes.push(vec![Cells {
                    offset,
                    rows: M as u32,
                    row_bytes: (N * 4) as u32,
                    pitch_bytes: (N * 4) as u64,
                }]);
                expected.push(reference(&values, &b_values));
            }
            features.flush(0..features.len()).unwrap();
            programs.flush(0..programs.len()).unwrap();
            let submission = Submission::new(core, tasks).in_domain(domain);
            lanes.push(Lane { submission, features, programs, writes: writes.into() });
        }
        let seed = Some(Seed::int32_sum(K as u64, 16384).unwrap());
        Self { lanes, weights: b.unmap_host(), output, expected, seed }
    }

    pub(crate) fn round(&mut self) -> Round<'_> {
        let live = 0..self.output.len();
        let mut inputs = vec![Input::Resident(&self.weights)];
        let mut chains = Vec::new();
        for lane in &mut self.lanes {
            inputs.push(Input::Host(&lane.features, 0..lane.features.len()));
            let programs_live = 0..lane.programs.len();
            chains.push(Chain {
                submission: &lane.submission,
                writes: lane.writes.clone(),
                programs: &mut lane.programs,
                programs_live,
                geometry: lane.writes.len() as u64,
            });
        }
        let witness = self.seed.map_or(Witness::KernelWord, Witness::Seed);
        Round { chains, output: &mut self.output, live, witness, inputs }
    }

    pub(crate) fn run(&mut self, device: &Device) -> Result<Vec<Completed>, SubmitError> {
        device.run(self.round(), &Threads)
    }

    pub(crate) fn start<'a>(&'a mut self, device: &'a Device) -> Result<Pending<'a>, SubmitError> {
        device.start(self.round())
    }

    /// Which programs have the right result.
    pub(crate) fn right(&self) -> Vec<bool> {
        let results = words_of(self.output.host());
        results.chunks(M * N).zip(&self.expected).map(|(got, want)| got == want).collect()
    }

    pub(crate) fn assert_right(&self) {
        assert!(self.right().iter().all(|right| *right), "{:?}", self.right());
    }

    /// Makes the first row of the first product zero.
    pub(crate) fn zero_first_row(&mut self) {
        fill(&mut self.lanes[0].features, 0, &[0; K]);
        self.lanes[0].features.flush(0..K as u64).unwrap();
        self.expected[0][..N].fill(0);
    }

    /// Spoils the results, so that those of the next run cannot be those of this one.
    pub(crate) fn spoil(&mut self) {
        self.output.host_mut().fill(0x55);
        self.output.flush(0..self.output.len()).unwrap();
    }
}

/// How often each of these kinds happened.
pub(crate) fn events<const KINDS: usize>(device: &Device, kinds: [EventKind; KINDS]) -> [u64; KINDS] {
    kinds.map(|kind| device.event_counts().of(kind))
}
