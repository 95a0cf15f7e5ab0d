// SPDX-License-Identifier: MIT OR Apache-2.0
//! From work to time: tasks, chains, cores that share memory, submits.

use crate::conditions::REFERENCE_DRAM_MHZ;
use crate::{Conditions, Constant, Constants, CpuLoad, FeatureOrder, Modelled, TaskWork};

/// Constants and clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Model {
    /// Constants; those of the table unless a fit or a test asks for others.
    pub constants: Constants,
    /// Clocks and load.
    pub conditions: Conditions,
}

/// How a chain reaches the hardware. The fixed cost is a property of this path, not of the NPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubmitPath {
    /// No fixed cost: time that hardware counters would show.
    Bare,
    /// Vendor kernel, blocking.
    Blocking,
    /// Vendor kernel, the series with short submits.
    Short,
    /// Vendor kernel, blocking call on three cores with one host thread each.
    ThreeCores,
    /// A layer as the vendor's profiler times it.
    Profiler,
    /// Mainline kernel.
    Mainline,
    /// Mainline kernel, interrupt and thread on fast CPU cores.
    MainlineTuned,
}

/// Modelled time of one task by block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskCost {
    /// Reading weights.
    pub weight_stream: Modelled,
    /// Reading features and operands.
    pub feature_stream: Modelled,
    /// Multiplying.
    pub mac: Modelled,
    /// Giving out results.
    pub write_back: Modelled,
    /// Cost of having the task behind another in a chain.
    pub next_program: Modelled,
    /// The task without [`Self::next_program`].
    pub total: Modelled,
    /// Whether the weight stream overlaps the arithmetic.
    pub overlapped: bool,
}

/// Modelled time of chains that run at the same time.
#[derive(Clone, Debug, PartialEq)]
pub struct CoresCost {
    /// Each chain.
    pub chains: Vec<Modelled>,
    /// The slowest.
    pub total: Modelled,
    /// Bytes per microsecond that each core got.
    pub stream_bytes_per_us: f64,
}

impl Model {
    /// The table's constants under these conditions.
    #[must_use]
    pub fn under(conditions: Conditions) -> Self {
        Self { conditions, ..Self::default() }
    }

    /// A task on one core with the memory to itself.
    #[must_use]
    pub fn task(&self, work: &TaskWork) -> TaskCost {
        self.task_at(work, self.stream(Constant::StreamOneCore))
    }

    /// A task while so many cores do the same: each streams at the rate that [`Self::cores`] finds.
    #[must_use]
    pub fn task_on_cores(&self, work: &TaskWork, cores: u8) -> TaskCost {
        let cores = f64::from(cores.max(1));
        let bytes = work.read_bytes();
        self.task_at(work, self.shared_rate(cores, |rate| cores * bytes / self.task_at(work, rate).total.us))
    }

    /// Tasks in a chain, without the submit.
    #[must_use]
    pub fn chain(&self, tasks: &[TaskWork]) -> Modelled {
        self.chain_at(tasks, self.stream(Constant::StreamOneCore))
    }

    /// One chain for each core, at the same time, without the submit. Each core streams as fast as it could alone,
    /// unless all together would take more than memory gives; then all get the same lower rate. A core that computes
    /// while nothing loads leaves its share to the others.
    #[must_use]
    pub fn cores<Chain: AsRef<[TaskWork]>>(&self, chains: &[Chain]) -> CoresCost {
        let demand = |rate: f64| -> f64 {
            let of_chain = |chain: &Chain| {
                let tasks = chain.as_ref();
                let bytes: f64 = tasks.iter().map(TaskWork::read_bytes).sum();
                if bytes == 0.0 { 0.0 } else { bytes / self.chain_at(tasks, rate).us }
            };
            chains.iter().map(of_chain).sum()
        };
        let rate = self.shared_rate(chains.len() as f64, demand);
        let chains: Vec<_> = chains.iter().map(|chain| self.chain_at(chain.as_ref(), rate)).collect();
        let total = chains.iter().copied().fold(Modelled::default(), Modelled::max);
        CoresCost { chains, total, stream_bytes_per_us: rate }
    }

    /// The fixed cost of handing over chains and waiting for them.
    #[must_use]
    pub fn submit(&self, path: SubmitPath) -> Modelled {
        let constant = match path {
            SubmitPath::Bare => return Modelled::default(),
            SubmitPath::Blocking => Constant::SubmitBlocking,
            SubmitPath::Short => Constant::SubmitShort,
            SubmitPath::ThreeCores => Constant::SubmitThreeCores,
            SubmitPath::Profiler => Constant::SubmitProfiler,
            SubmitPath::Mainline => Constant::SubmitMainline,
            SubmitPath::MainlineTuned => Constant::SubmitMainlineTuned,
        };
        let factor = match self.conditions.cpu {
            CpuLoad::Idle => 1.0,
            CpuLoad::Busy => self.constants.get(Constant::BusyCpuSubmit),
        };
        Modelled::from_us(self.constants.get(constant) * factor)
    }

    /// The rate of each core, where `demand` is what all of them would then take from memory. It never falls below
    /// an even share, at which the demand is within bounds by itself.
    fn shared_rate(&self, cores: f64, demand: impl Fn(f64) -> f64) -> f64 {
        let alone = self.stream(Constant::StreamOneCore);
        let all = self.stream(Constant::StreamAllCores);
        if demand(alone) <= all {
            return alone;
        }
        let (mut within, mut beyond) = ((all / cores).min(alone), alone);
        // Far below the model's own error.
        while beyond - within > 1e-6 * within {
            let middle = 0.5 * (within + beyond);
            *(if demand(middle) <= all { &mut within } else { &mut beyond }) = middle;
        }
        within
    }

    fn stream(&self, constant: Constant) -> f64 {
        let slower = match self.conditions.cpu {
            CpuLoad::Idle => 1.0,
            CpuLoad::Busy => self.constants.get(Constant::BusyCpuStream),
        };
        self.constants.get(constant) * self.conditions.dram_mhz / REFERENCE_DRAM_MHZ / slower
    }

    fn chain_at(&self, tasks: &[TaskWork], rate: f64) -> Modelled {
        let cost = |(index, task): (usize, &TaskWork)| {
            let cost = self.task_at(task, rate);
            if index == 0 { cost.total } else { cost.next_program + cost.total }
        };
        tasks.iter().enumerate().map(cost).sum()
    }

    fn task_at(&self, work: &TaskWork, rate: f64) -> TaskCost {
        let constant = |constant| self.constants.get(constant);
        let mhz = self.conditions.npu_mhz;
        let mac_rate = constant(match work.order {
            FeatureOrder::Cube => Constant::MacRateCube,
            FeatureOrder::RowMajor => Constant::MacRateRowMajor,
        });
        let write_cycles = (work.output_elements as f64 / constant(Constant::WriteElements)).max(
            work.output_elements as f64 * f64::from(work.output_element_bytes)
                / constant(Constant::WriteBytes),
        );
        let weight_stream = Modelled::from_us(work.weight_bytes as f64 / rate);
        let feature_stream = Modelled::from_us(work.feature_bytes as f64 / rate);
        let mac = Modelled::from_us(work.mac_cycles() / mac_rate / mhz);
        let write_back = Modelled::from_us(write_cycles / mhz);
        // Loader, array and output stage work on different pixels at the same time: the slowest sets the pace.
        let compute = mac.max(write_back).max(feature_stream);
        let overlapped = work.overlaps();
        let total = if overlapped {
            weight_stream.max(compute) + weight_stream.min(compute) * (1.0 / work.kernel_groups() as f64)
        } else {
            weight_stream + compute
        };
        let exposed = weight_stream > compute;
        let next = if exposed { Constant::NextProgramExposed } else { Constant::NextProgram };
        TaskCost {
            weight_stream,
            feature_stream,
            mac,
            write_back,
            next_program: Modelled::from_us(constant(next)),
            total,
            overlapped,
        }
    }
}

/// Adds up the tasks of one core as they run.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChainClock {
    elapsed: Modelled,
    tasks: u64,
}

impl ChainClock {
    /// One more task; gives its cost by block.
    pub fn run(&mut self, model: &Model, work: &TaskWork) -> TaskCost {
        let cost = model.task(work);
        if self.tasks > 0 {
            self.elapsed = self.elapsed + cost.next_program;
        }
        self.elapsed = self.elapsed + cost.total;
        self.tasks += 1;
        cost
    }

    /// Time of the tasks so far, without the submit.
    #[must_use]
    pub const fn elapsed(&self) -> Modelled {
        self.elapsed
    }
}

#[cfg(test)]
mod tests {
    use ork_isa::Precision;

    use super::*;
    use crate::Arithmetic;

    fn int8(m: u32, k: u32, n: u32, order: FeatureOrder, banks: u64) -> TaskWork {
        TaskWork::matmul((m, k, n), (Precision::Int8, Precision::Int32), order, banks * 32_768)
    }

    /// The constants of isa.md §12.8. Its table leaves out the cost of the next program, speaks of no write-back,
    /// and gives the fold 1.1 us per million multiply-adds: 48 / 36 of the peak where 36 rows count as 48.
    fn published() -> Model {
        let constants = Constants::TABLE
            .with(Constant::StreamOneCore, 11_200.0)
            .with(Constant::MacRateRowMajor, 1e3 / 1024.0 / 1.8)
            .with(Constant::MacRateCube, 1e3 / 1024.0 / 1.1 * 48.0 / 36.0)
            .with(Constant::WriteElements, 1e3)
            .with(Constant::WriteBytes, 1e3)
            .with(Constant::NextProgram, 0.0)
            .with(Constant::NextProgramExposed, 0.0)
            .with(Constant::SubmitBlocking, 134.0)
            .with(Constant::SubmitShort, 56.0);
        Model { constants, ..Model::default() }
    }

    #[test]
    fn reproduces_the_published_table() {
        use FeatureOrder::{Cube, RowMajor};
        use SubmitPath::{Blocking, Short};
        for (tiles, k, n, order, banks, path, printed) in [
            (&[4][..], 2048, 2048, RowMajor, 8, Blocking, 509.0),
            (&[31], 2048, 2048, RowMajor, 8, Blocking, 512.0),
            (&[4], 2048, 512, RowMajor, 8, Blocking, 228.0),
            (&[4], 2048, 4096, RowMajor, 8, Blocking, 883.0),
            (&[1], 2048, 128, RowMajor, 8, Short, 80.0),
            (&[8], 2048, 128, RowMajor, 8, Short, 80.0),
            (&[16], 2048, 128, RowMajor, 8, Short, 81.0),
            (&[32], 2048, 128, RowMajor, 8, Short, 83.0),
            (&[36], 2048, 128, RowMajor, 8, Short, 84.0),
            (&[8], 3584, 128, RowMajor, 5, Short, 104.0),
            (&[16], 3584, 128, RowMajor, 5, Short, 110.0),
            (&[36], 3584, 1216, RowMajor, 5, Short, 728.0),
            (&[64, 8], 3584, 1216, RowMajor, 5, Short, 1399.0),
            (&[64, 36], 3584, 1216, RowMajor, 5, Short, 1619.0),
            (&[64, 64], 3584, 1216, RowMajor, 5, Short, 1838.0),
            (&[36], 3584, 1216, Cube, 8, Short, 450.0),
            (&[36, 36], 3584, 1216, Cube, 8, Short, 843.0),
            (&[36, 36, 28], 3584, 1216, Cube, 8, Short, 1236.0),
            (&[36, 36, 36, 20], 3584, 1216, Cube, 8, Short, 1629.0),
            (&[128, 128, 128, 128], 2048, 2048, RowMajor, 4, Blocking, 4023.0),
        ] {
            let model = published();
            let tasks: Vec<_> = tiles.iter().map(|&m| int8(m, k, n, order, banks)).collect();
            let found = (model.submit(path) + model.chain(&tasks)).us;
            assert!((found - printed).abs() < 1.0, "{tiles:?} x {k} x {n}: {found:.1}, printed {printed}");
        }
    }

    #[test]
    fn a_published_table_with_another_rate_is_noticed() {
        let mut model = published();
        model.constants = model.constants.with(Constant::MacRateRowMajor, 0.5);
        assert!(
            (model.chain(&[int8(36, 3584, 1216, FeatureOrder::RowMajor, 5)]).us + 56.0 - 728.0).abs() > 10.0
        );
    }

    #[test]
    fn a_core_that_streams_all_the_time_shares_and_one_that_takes_turns_does_not() {
        let model = Model::default();
        let alone = model.constants.get(Constant::StreamOneCore);
        let fold = model.cores(&vec![vec![int8(36, 3584, 1216, FeatureOrder::Cube, 8)]; 3]);
        let all = model.constants.get(Constant::StreamAllCores);
        assert!(fold.stream_bytes_per_us < 0.85 * alone && fold.stream_bytes_per_us >= all / 3.0);
        // Loading and computing take turns: two thirds of the time nobody loads.
        let normal = model.cores(&vec![vec![int8(64, 3584, 1216, FeatureOrder::RowMajor, 5)]; 3]);
        assert_eq!(normal.stream_bytes_per_us, alone);
    }

    #[test]
    fn sharing_a_task_is_sharing_chains_of_it() {
        let work = int8(1, 2048, 704, FeatureOrder::RowMajor, 11);
        for cores in 1..=3_u8 {
            let model = Model::default();
            let chains = vec![[work]; cores.into()];
            let shared = model.task_on_cores(&work, cores).total.us;
            assert!((model.cores(&chains).total.us / shared - 1.0).abs() < 1e-5);
        }
        assert_eq!(Model::default().cores::<[TaskWork; 1]>(&[]).total, Modelled::default());
    }

    #[test]
    fn clocks_and_load_act_on_their_blocks() {
        let work = int8(64, 2048, 2048, FeatureOrder::RowMajor, 8);
        let usual = Model::default().task(&work);
        let at = |conditions| Model::under(conditions).task(&work);
        let slow_npu = at(Conditions { npu_mhz: 500.0, ..Conditions::REFERENCE });
        assert_eq!((slow_npu.mac, slow_npu.write_back), (usual.mac * 2.0, usual.write_back * 2.0));
        assert_eq!(slow_npu.weight_stream, usual.weight_stream);
        let slow_dram = at(Conditions { dram_mhz: 528.0, ..Conditions::REFERENCE });
        assert_eq!((slow_dram.weight_stream, slow_dram.mac), (usual.weight_stream * 4.0, usual.mac));
        let busy = Conditions { cpu: CpuLoad::Busy, ..Conditions::REFERENCE };
        assert!((at(busy).weight_stream.us / usual.weight_stream.us - 1.22).abs() < 1e-9);
        let submit = |conditions| Model::under(conditions).submit(SubmitPath::Blocking).us;
        assert!((submit(busy) / submit(Conditions::REFERENCE) - 2.23).abs() < 1e-9);
        assert_eq!(Model::default().submit(SubmitPath::Bare), Modelled::default());
    }

    #[test]
    fn a_task_without_arithmetic_moves_bytes() {
        let work = TaskWork {
            arithmetic: Arithmetic::None,
            precision: Precision::Fp16,
            order: FeatureOrder::Cube,
            weight_bytes: 0,
            feature_bytes: 1 << 20,
            output_elements: 1 << 19,
            output_element_bytes: 2,
            weight_buffer_bytes: 0,
        };
        let cost = Model::default().task(&work);
        assert_eq!(cost.mac, Modelled::default());
        assert_eq!(cost.total, cost.feature_stream.max(cost.write_back));
    }

    #[test]
    fn the_clock_adds_what_the_chain_adds() {
        let model = Model::default();
        let tasks =
            [int8(64, 3584, 1216, FeatureOrder::RowMajor, 5), int8(1, 2048, 704, FeatureOrder::RowMajor, 11)];
        let mut clock = ChainClock::default();
        let costs: Vec<_> = tasks.iter().map(|task| clock.run(&model, task)).collect();
        assert_eq!(clock.elapsed(), model.chain(&tasks));
        assert_eq!(clock.elapsed(), costs[0].total + costs[1].next_program + costs[1].total);
        assert!(costs[1].next_program > costs[0].next_program);
    }
}
